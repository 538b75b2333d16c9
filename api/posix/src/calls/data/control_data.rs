//! Control data of messages that are sent. A TCP socket has hardly any use for them, but Linux
//! checks them as for any socket (`____sys_sendmsg` of net/socket.c, `sock_cmsg_send` of
//! net/core/sock.c).

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{cmsghdr, msghdr};

use crate::descriptor::description::Held;
use crate::descriptor::room::with_kernel_socket;
use crate::signal::user_memory;
use crate::system::kernel;
use crate::system::sys::{self, Errno, address};

const HEADER: usize = size_of::<cmsghdr>();

/// Control data of more bytes may be too large for the kernel.
const ALWAYS_TAKEN: usize = 4096;

/// The messages that ask for a timestamp, under their second name of `asm-generic/socket.h`.
const SO_TIMESTAMPING_NEW: c_int = 65;

/// The number of a device's buffer (`asm-generic/socket.h`).
const SCM_DEVMEM_DMABUF: c_int = 79;

/// `SOF_TIMESTAMPING_TX_RECORD_MASK` of `linux/net_tstamp.h`: the timestamps of what is sent.
const TIMESTAMPS_OF_SENT: u32 = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

/// The highest priority that needs no privilege (`TC_PRIO_INTERACTIVE`).
const HIGHEST_PRIORITY: u32 = 6;

/// A control message of a program.
pub(crate) struct ControlMessage {
    pub level: c_int,
    pub kind: c_int,
    /// Where its data are, which may not be readable.
    pub data: *const c_void,
    pub length: usize,
}

/// The control messages of a program's message. They end behind an error.
pub(crate) struct ControlMessages {
    at: *const c_void,
    left: usize,
}

impl ControlMessages {
    /// # Safety
    /// The program has given the addresses of the message for this.
    pub(crate) unsafe fn new(message: &msghdr) -> Self {
        Self { at: message.msg_control, left: message.msg_controllen }
    }
}

impl Iterator for ControlMessages {
    type Item = Result<ControlMessage, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left < HEADER {
            return None;
        }
        // SAFETY: the promise of `new`.
        let header = unsafe { user_memory::read(self.at.cast::<cmsghdr>()) };
        let left = std::mem::take(&mut self.left);
        let header = match header {
            Ok(header) if (HEADER..=left).contains(&header.cmsg_len) => header,
            Ok(_) => return Some(Err(libc::EINVAL)),
            Err(errno) => return Some(Err(errno)),
        };
        let data = self.at.wrapping_byte_add(HEADER);
        let whole = header.cmsg_len.checked_next_multiple_of(align_of::<cmsghdr>()).unwrap_or(left);
        self.at = self.at.wrapping_byte_add(whole);
        self.left = left.saturating_sub(whole);
        let length = header.cmsg_len - HEADER;
        Some(Ok(ControlMessage { level: header.cmsg_level, kind: header.cmsg_type, data, length }))
    }
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Linux finds this before it checks the connection.
    BeforeState(Errno),
    /// Linux finds this once the connection is known to be set up.
    AfterState(Errno),
}

/// Checks the control data of a message that a stream or a listener sends.
///
/// # Safety
/// The program has given the addresses of the message for this.
///
/// # Errors
/// Those of Linux 6.18.
pub(super) unsafe fn check(held: &Held, message: &msghdr) -> Result<(), Refused> {
    check_copied(held, message).map_err(Refused::BeforeState)?;
    let mut of_device = false;
    // SAFETY: the caller upholds this function's contract.
    for control in unsafe { ControlMessages::new(message) } {
        let control = control.map_err(Refused::AfterState)?;
        if control.level == libc::SOL_SOCKET {
            // SAFETY: as above.
            let number = unsafe { number(&control) }.map_err(Refused::BeforeState)?;
            check_one(held, control.kind, number).map_err(Refused::AfterState)?;
            of_device = if control.kind == SCM_DEVMEM_DMABUF { number != Some(0) } else { of_device };
        }
    }
    // Only a socket with SO_ZEROCOPY sends from a device's memory.
    if of_device { Err(Refused::BeforeState(libc::EINVAL)) } else { Ok(()) }
}

/// Whether the kernel would copy the control data.
///
/// # Errors
/// `ENOBUFS`: they are too large. `EFAULT`.
fn check_copied(held: &Held, message: &msghdr) -> Result<(), Errno> {
    let length = message.msg_controllen;
    if c_int::try_from(length).is_err() {
        return Err(libc::ENOBUFS);
    }
    if length <= ALWAYS_TAKEN {
        let there = length == 0 || user_memory::is_readable(message.msg_control, length);
        return if there { Ok(()) } else { Err(libc::EFAULT) };
    }
    let alone = msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        ..*message
    };
    let flags = sys::signed(libc::MSG_NOSIGNAL);
    // SAFETY: the kernel reads the message, and checks the address of the control data.
    let send = |fd| unsafe {
        sys::syscall(libc::SYS_sendmsg, [sys::signed(fd), address(&raw const alone), flags, 0, 0, 0])
    };
    match with_kernel_socket(held, send) {
        Err(errno) if errno != libc::EPIPE => Err(errno),
        // Copied; but that socket is not connected.
        _ => Ok(()),
    }
}

/// The number that a control message consists of; none: its length is another one.
///
/// # Safety
/// The program has given the address for this.
unsafe fn number(control: &ControlMessage) -> Result<Option<u32>, Errno> {
    let is_number = control.length == size_of::<u32>();
    // SAFETY: the caller upholds this function's contract.
    is_number.then(|| unsafe { user_memory::read(control.data.cast::<u32>()) }).transpose()
}

/// Checks one message of `SOL_SOCKET` (`__sock_cmsg_send`).
fn check_one(held: &Held, kind: c_int, number: Option<u32>) -> Result<(), Errno> {
    match (kind, number) {
        // They mean something on a Unix socket only.
        (libc::SCM_RIGHTS | libc::SCM_CREDENTIALS, _) | (SCM_DEVMEM_DMABUF, Some(_)) => Ok(()),
        (libc::SO_MARK, number) => {
            check_privilege(held, kind, 0)?;
            number.map(|_| ()).ok_or(libc::EINVAL)
        }
        (libc::SO_PRIORITY, Some(0..=HIGHEST_PRIORITY)) => Ok(()),
        (libc::SO_PRIORITY, Some(number)) => check_privilege(held, kind, number),
        (libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW, Some(flags)) if flags & !TIMESTAMPS_OF_SENT == 0 => {
            Ok(())
        }
        // SCM_TXTIME is among them: a socket with that option is the kernel's.
        _ => Err(libc::EINVAL),
    }
}

/// Whether this process may set an option of a socket to a value. The kernel knows.
fn check_privilege(held: &Held, option: c_int, value: u32) -> Result<(), Errno> {
    let (at, length) = ((&raw const value).cast::<c_void>(), size_of::<u32>() as libc::socklen_t);
    // SAFETY: the kernel reads the value.
    with_kernel_socket(held, |fd| unsafe { kernel::setsockopt(fd, libc::SOL_SOCKET, option, at, length) })
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::Ordering::Relaxed;

    use proptest::prelude::*;

    use super::*;
    use crate::descriptor::description::{self, Kind};

    /// What the kernel says of control data on a connection.
    fn by_kernel(connection: &TcpStream, message: &msghdr) -> Result<(), Errno> {
        // SAFETY: a message of this process without data.
        let sent = unsafe { libc::sendmsg(connection.as_raw_fd(), message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(sys::errno()) } else { Ok(()) }
    }

    fn message(control: &[u8]) -> msghdr {
        msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: control.as_ptr().cast_mut().cast(),
            msg_controllen: control.len(),
            msg_flags: 0,
        }
    }

    /// A control message with so many bytes less or more than its length says. Messages that only
    /// recent kernels know are left out.
    fn control_message() -> impl Strategy<Value = Vec<u8>> {
        let level = prop_oneof![4 => Just(libc::SOL_SOCKET), 1 => Just(libc::IPPROTO_TCP), 1 => any::<i32>()];
        let known = [libc::SCM_RIGHTS, libc::SCM_CREDENTIALS, libc::SO_MARK, libc::SO_TIMESTAMPING];
        let kind = prop_oneof![3 => proptest::sample::select(known.to_vec()), 1 => 0..110_i32];
        let recent = |kind: &i32| ![libc::SO_PRIORITY, SCM_DEVMEM_DMABUF].contains(kind);
        let value = (0..32_u32).prop_filter("recent", |bit| *bit != 18).prop_map(|bit| 1 << bit);
        let data = prop_oneof![3 => value.prop_map(|value: u32| value.to_ne_bytes().to_vec()), 1 => prop::collection::vec(any::<u8>(), 0..12)];
        let surplus = prop_oneof![6 => Just(0_usize), 1 => 0..20_usize, 1 => any::<usize>()];
        (level, kind.prop_filter("recent", recent), data, surplus, any::<bool>()).prop_map(
            |(level, kind, data, surplus, is_less)| {
                let right = HEADER + data.len();
                let length =
                    if is_less { right.saturating_sub(surplus) } else { right.saturating_add(surplus) };
                let mut bytes = length.to_ne_bytes().to_vec();
                bytes.extend(level.to_ne_bytes());
                bytes.extend(kind.to_ne_bytes());
                bytes.extend(data);
                bytes.resize(bytes.len().next_multiple_of(align_of::<cmsghdr>()), 0);
                bytes
            },
        )
    }

    #[test]
    fn control_data_are_checked_as_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connection = TcpStream::connect(listener.local_addr().expect("its name")).expect("it listens");
        let held = description::describe(Kind::Listener, None).expect("there is room");
        held.socket.domain.store(libc::AF_INET.cast_unsigned(), Relaxed);
        // SAFETY: a message of this process.
        let checked = |message: &msghdr| unsafe { check(&held, message) };
        let same = |control: &[u8]| {
            let ours = checked(&message(control)).map_err(|refused| match refused {
                Refused::BeforeState(errno) | Refused::AfterState(errno) => errno,
            });
            (ours, by_kernel(&connection, &message(control)))
        };
        for length in [0, 1, 16, 4096, 4097, 1 << 20] {
            let (ours, kernels) = same(&vec![0; length]);
            assert_eq!(ours, kernels, "{length} zeros");
        }
        for length in [1, 5000, usize::MAX] {
            let nowhere = msghdr {
                msg_control: ptr::without_provenance_mut(8),
                msg_controllen: length,
                ..message(&[])
            };
            let ours = checked(&nowhere).map_err(|refused| (refused, by_kernel(&connection, &nowhere)));
            let errno = if length == usize::MAX { libc::ENOBUFS } else { libc::EFAULT };
            assert_eq!(ours, Err((Refused::BeforeState(errno), Err(errno))));
        }
        proptest!(|(messages in prop::collection::vec(control_message(), 0..4), cut in 0..40_usize)| {
            let all = messages.concat();
            let control = &all[..all.len() - if cut < 8 { cut.min(all.len()) } else { 0 }];
            let (ours, kernels) = same(control);
            prop_assert_eq!(ours, kernels, "{:?}", control);
        });
    }
}
