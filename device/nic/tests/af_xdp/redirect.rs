//! The smallest XDP program that feeds an AF_XDP socket: every frame goes to the socket of its
//! queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_ATTACH_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u64 = 1 << 5;
const XDP_FLAGS_DRV_MODE: u32 = 4;

/// Detached when dropped.
#[derive(Debug)]
pub(crate) struct Redirect {
    _link: OwnedFd,
    _map: OwnedFd,
}

/// `union bpf_attr`, as far as these commands use it.
#[repr(C, align(8))]
struct Attributes([u8; 128]);

impl Attributes {
    fn new(fields: &[(usize, u64, usize)]) -> Self {
        let mut bytes = [0; 128];
        for &(offset, value, width) in fields {
            bytes[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Self(bytes)
    }

    fn call(&mut self, command: libc::c_long) -> io::Result<libc::c_long> {
        // SAFETY: the attributes are as long as said, and what they point to outlives the call (see
        // the callers).
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut self.0, 128) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    fn open(&mut self, command: libc::c_long) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the command has just made this descriptor, and no other code has its number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// Attaches the program to interface `ifindex`, and puts `socket` before queue 0.
pub(crate) fn attach(ifindex: u32, socket: BorrowedFd<'_>) -> io::Result<Redirect> {
    let map = Attributes::new(&[(0, u64::from(BPF_MAP_TYPE_XSKMAP), 4), (4, 4, 4), (8, 4, 4), (12, 1, 4)])
        .open(BPF_MAP_CREATE)?;
    let (key, value) = (0_u32, socket.as_raw_fd());
    Attributes::new(&[
        (0, map.as_raw_fd() as u64, 4),
        (8, (&raw const key).addr() as u64, 8),
        (16, (&raw const value).addr() as u64, 8),
    ])
    .call(BPF_MAP_UPDATE_ELEM)?;
    let program: [u64; 6] = [
        instruction(0x61, 2, 1, 16, 0),              // r2 = context->rx_queue_index
        instruction(0x18, 1, 1, 0, map.as_raw_fd()), // r1 = map (first half)
        0,                                           //           (second half)
        instruction(0xb7, 3, 0, 0, 2),               // r3 = XDP_PASS, if there is no socket
        instruction(0x85, 0, 0, 0, 51),              // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x95, 0, 0, 0, 0),               // return r0
    ];
    let license = c"Dual MIT/GPL";
    let load = |flags| {
        Attributes::new(&[
            (0, u64::from(BPF_PROG_TYPE_XDP), 4),
            (4, program.len() as u64, 4),
            (8, program.as_ptr().addr() as u64, 8),
            (16, license.as_ptr().addr() as u64, 8),
            (44, flags, 4),
            (68, u64::from(BPF_ATTACH_XDP), 4),
        ])
        .open(BPF_PROG_LOAD)
    };
    // Kernels before 5.18 know no frames in several buffers.
    let program = load(BPF_F_XDP_HAS_FRAGS).or_else(|_| load(0))?;
    let link = Attributes::new(&[
        (0, program.as_raw_fd() as u64, 4),
        (4, u64::from(ifindex), 4),
        (8, u64::from(BPF_ATTACH_XDP), 4),
        (12, u64::from(XDP_FLAGS_DRV_MODE), 4),
    ])
    .open(BPF_LINK_CREATE)?;
    Ok(Redirect { _link: link, _map: map })
}

const fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    (code as u64)
        | ((destination | source << 4) as u64) << 8
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}
