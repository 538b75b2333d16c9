//! The privileged side: makes a queue that can be given away, and binds it once its holder has
//! mapped it.
//!
//! 1. A memfd of the UMEM's size, sealed against every change of size: no holder can pull pages
//!    from under another.
//! 2. An AF_XDP socket over it, with its four rings. It is made in the namespace of the calling
//!    thread and can be bound to interfaces of that namespace alone. A process that passes the
//!    socket on unbound makes it in a namespace with one interface only ([`crate::namespace`]).
//! 3. Kernels before 6.4 refuse to map the rings of a bound socket (EBUSY). So the holder maps them
//!    first, and [`bind_queue`] comes after. It binds to one queue of one interface in copy mode
//!    (veth has no other) with wake-up on demand. If it has runs, it binds for frames in several
//!    buffers. It is not repeated: a holder that bound the socket itself costs the control plane no
//!    time.
//! 4. Whether the kernel knows frames in several buffers must be known before the socket is passed
//!    on. A trial names an interface that does not exist: the kernel judges the flags first, and
//!    the socket stays as it is.
//!
//! It allocates: it runs when something is granted, never on the data path.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::{Resource, getrlimit};
use sietch_ring::Mapping;

use super::error::{CreateError, Named};
use super::{Granted, XskLayout};

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h`, which libc lacks.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// `XDP_USE_SG` of `linux/if_xdp.h`: frames in several buffers, both ways. Kernels before 6.6
/// answer EINVAL.
const XDP_USE_SG: u16 = 1 << 4;

/// No interface has this index: the kernel numbers them from 1.
const NO_INTERFACE: u32 = i32::MAX as u32;

/// Makes the queue that `layout` describes, not yet bound.
///
/// # Errors
/// [`CreateError`]. Nothing is left behind.
pub fn create(layout: XskLayout) -> Result<Granted, CreateError> {
    layout.validate()?;
    let umem = sealed_memory(layout.umem_bytes())?;
    let socket = open_socket()?;
    register(socket.as_fd(), umem.as_fd(), &layout)?;
    size_rings(socket.as_fd(), &layout)?;
    if layout.runs > 0 {
        check_several_buffers(socket.as_fd())?;
    }
    Ok(Granted { socket, umem, layout })
}

/// Checks with the kernel whether it takes frames in several buffers, by a bind that cannot
/// succeed.
fn check_several_buffers(socket: BorrowedFd<'_>) -> Result<(), CreateError> {
    let flags = SocketAddrXdpFlags::XDP_COPY.union(SocketAddrXdpFlags::from_bits_retain(XDP_USE_SG));
    match bind(socket, &SocketAddrXdp::new(flags, NO_INTERFACE, 0)) {
        Err(Errno::INVAL) => Err(CreateError::SeveralBuffers(Errno::INVAL.into())),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Binds `socket`, which [`create`] made of `layout`.
///
/// The interface must be up. The holder receives nothing until an XDP program on the interface
/// redirects to the socket through an XSKMAP, which the control plane keeps.
///
/// # Errors
/// [`CreateError::Busy`] or [`CreateError::Bind`].
pub fn bind_queue(socket: BorrowedFd<'_>, layout: &XskLayout) -> Result<(), CreateError> {
    let (ifindex, queue) = (layout.ifindex, layout.queue);
    let several = if layout.runs > 0 { XDP_USE_SG } else { 0 };
    let flags = SocketAddrXdpFlags::XDP_COPY
        .union(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP)
        .union(SocketAddrXdpFlags::from_bits_retain(several));
    bind(socket, &SocketAddrXdp::new(flags, ifindex, queue)).map_err(|error| match error {
        Errno::BUSY => CreateError::Busy { ifindex, queue, source: error.into() },
        _ => CreateError::Bind { ifindex, queue, source: error.into() },
    })
}

/// Zeroed memory whose size cannot be changed.
fn sealed_memory(length: usize) -> Result<OwnedFd, CreateError> {
    let flags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
    let memory = memfd_create("sietch-umem", flags).creating("memfd_create for the UMEM")?;
    ftruncate(&memory, length as u64).creating("sizing the UMEM")?;
    let seals = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
    fcntl_add_seals(&memory, seals).creating("sealing the UMEM")?;
    Ok(memory)
}

fn open_socket() -> Result<OwnedFd, CreateError> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(
        |error| match error {
            Errno::PERM | Errno::ACCESS => CreateError::Privilege(error.into()),
            Errno::AFNOSUPPORT => CreateError::Unsupported(error.into()),
            _ => CreateError::Step { step: "socket(AF_XDP)", source: error.into() },
        },
    )
}

/// Registers the memory behind `umem`. The kernel pins the pages, so this process's mapping of them
/// is temporary.
fn register(socket: BorrowedFd<'_>, umem: BorrowedFd<'_>, layout: &XskLayout) -> Result<(), CreateError> {
    let mapping = Mapping::of_file(umem, 0, layout.umem_bytes()).creating("mapping the UMEM")?;
    let registration = XdpUmemReg {
        addr: mapping.as_ptr().addr() as u64,
        len: mapping.len() as u64,
        chunk_size: layout.chunk_size,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, registration).map_err(|error| match error {
        Errno::NOBUFS | Errno::NOMEM | Errno::PERM => CreateError::MemoryLock {
            needed: mapping.len(),
            limit: memory_lock_limit(),
            source: error.into(),
        },
        _ => CreateError::Step { step: "registering the UMEM", source: error.into() },
    })
}

fn memory_lock_limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{bytes} bytes"),
        None => "unlimited".to_owned(),
    }
}

fn size_rings(socket: BorrowedFd<'_>, layout: &XskLayout) -> Result<(), CreateError> {
    sockopt::set_xdp_umem_fill_ring_size(socket, layout.fill).creating("sizing the fill ring")?;
    sockopt::set_xdp_umem_completion_ring_size(socket, layout.completion)
        .creating("sizing the completion ring")?;
    sockopt::set_xdp_rx_ring_size(socket, layout.receive).creating("sizing the receive ring")?;
    sockopt::set_xdp_tx_ring_size(socket, layout.transmit).creating("sizing the transmit ring")?;
    // In copy mode each frame on its way is a kernel buffer charged to the socket; the default
    // charge allows a tenth of a ring. Without CAP_NET_ADMIN the default stays, and a burst takes
    // more flushes.
    match sockopt::set_socket_send_buffer_size_force(socket, layout.umem_bytes().min(i32::MAX as usize / 2)) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => {
            return Err(CreateError::Step { step: "sizing the send buffer", source: error.into() });
        }
    }
    raise_send_budget(socket, layout.transmit);
    Ok(())
}

/// Lets one system call send a whole ring instead of 32 frames. Kernels that do not know the option
/// refuse it; then `Queue::flush` makes more calls.
fn raise_send_budget(socket: BorrowedFd<'_>, frames: u32) {
    // SAFETY: the option takes a 32-bit integer, and `frames` is one that outlives the call.
    let _unsupported = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const frames).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
}
