//! Operations on sockets and descriptors, other than those that move data or wait for readiness.
//!
//! 1. [`perform`] carries out one operation and returns its result as text; none if another module
//!    is responsible.
//! 2. A descriptor that a call returns goes into a slot ([`put_new`]). The text names what both
//!    sides must agree on, never a value that depends on the moment or on the machine.
//! 3. A socket's own port is noted after each call that may assign one, so that other addresses of
//!    the program can name it.
//!
//! An invalid descriptor or length is passed on as it is: the kernel's error is part of the result.

use super::address::{self, CANARY, ROOM};
use super::errno::Returned;
use super::slots::{descriptor, encoded, note_port, put, put_new};
use super::syscalls::{self, Naming, int};
use crate::content;
use crate::operation::Operation;
use crate::operation::options::{Compared, SocketOption};
use crate::operation::words::{Faulty, Slot};

/// States of `TCP_INFO` that do not depend on when the peer's acknowledgement comes.
const STATES: [(u8, &str); 4] = [(1, "established"), (7, "closed"), (10, "listening"), (2, "opening")];

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(index: usize, operation: &Operation) -> Option<String> {
    sockets(operation).or_else(|| descriptors(index, operation)).or_else(|| options(operation))
}

fn sockets(operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Socket { to, family, kind, flags, protocol } => {
            put_new(to, syscalls::socket(family.value(), kind.value() | flags.0, int(protocol)))
        }
        Operation::Bind { fd, address } => {
            let (bytes, length) = encoded(address);
            let returned = syscalls::bind(descriptor(fd), &bytes[..length]);
            if returned.is_ok() {
                note_port(fd);
            }
            returned.to_string()
        }
        Operation::Listen { fd, backlog } => {
            let returned = syscalls::listen(descriptor(fd), int(backlog));
            if returned.is_ok() {
                note_port(fd);
            }
            returned.to_string()
        }
        Operation::Connect { fd, address } => {
            let (bytes, length) = encoded(address);
            let returned = syscalls::connect(descriptor(fd), &bytes[..length]);
            if matches!(returned.0, Ok(_) | Err(libc::EINPROGRESS)) {
                note_port(fd);
            }
            returned.to_string()
        }
        Operation::Accept { fd, to, room } => match usize::try_from(room) {
            Ok(room) => {
                let mut bytes = [CANARY; ROOM];
                let (returned, length) = syscalls::name(Naming::Accept, descriptor(fd), &mut bytes, room);
                let name = address::describe(&bytes, room, length);
                if returned.is_ok() {
                    format!("{} {name}", put_new(to, returned))
                } else {
                    put_new(to, returned)
                }
            }
            Err(_) => put_new(to, syscalls::accept(descriptor(fd), 0)),
        },
        Operation::Accept4 { fd, to, flags } => put_new(to, syscalls::accept(descriptor(fd), flags.0)),
        Operation::Getsockname { fd, room } => named(Naming::Own, fd, room),
        Operation::Getpeername { fd, room } => named(Naming::Peer, fd, room),
        Operation::Shutdown { fd, how } => syscalls::shutdown(descriptor(fd), int(how)).to_string(),
        Operation::Fault { call, fd } => fault(call, descriptor(fd)).to_string(),
        _ => return None,
    })
}

fn named(call: Naming, fd: Slot, room: i64) -> String {
    let room = usize::try_from(room).unwrap_or(0);
    let mut bytes = [CANARY; ROOM];
    let (returned, length) = syscalls::name(call, descriptor(fd), &mut bytes, room);
    if returned.is_ok() {
        format!("{returned} {}", address::describe(&bytes, room, length))
    } else {
        returned.to_string()
    }
}

fn descriptors(index: usize, operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Close { fd } => syscalls::close(descriptor(fd)).to_string(),
        Operation::CloseRange { from, to } => {
            let number = |slot| u32::try_from(descriptor(slot)).ok();
            match (number(from), number(to)) {
                (Some(from), Some(to)) => syscalls::close_range(from, to).to_string(),
                _ => "no descriptor".to_owned(),
            }
        }
        Operation::Dup { fd, to } => put_new(to, syscalls::dup(descriptor(fd))),
        Operation::Dup2 { fd, onto } => onto_slot(onto, syscalls::dup2(descriptor(fd), descriptor(onto))),
        Operation::Dup3 { fd, onto, flags } => {
            onto_slot(onto, syscalls::dup3(descriptor(fd), descriptor(onto), flags.0))
        }
        Operation::DupFrom { fd, lowest, cloexec, to } => {
            let command = if cloexec == 0 { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
            put_new(to, syscalls::fcntl(descriptor(fd), command, int(lowest)))
        }
        Operation::GetStatus { fd } => match syscalls::fcntl(descriptor(fd), libc::F_GETFL, 0).0 {
            Ok(flags) => format!("{flags:#o}"),
            error => Returned(error).to_string(),
        },
        Operation::SetStatus { fd, flags } => {
            syscalls::fcntl(descriptor(fd), libc::F_SETFL, flags.0).to_string()
        }
        Operation::GetDescriptor { fd } => syscalls::fcntl(descriptor(fd), libc::F_GETFD, 0).to_string(),
        Operation::SetDescriptor { fd, cloexec } => {
            syscalls::fcntl(descriptor(fd), libc::F_SETFD, int(cloexec)).to_string()
        }
        Operation::Fionbio { fd, on } => {
            syscalls::ioctl(descriptor(fd), libc::FIONBIO, &mut int(on)).to_string()
        }
        Operation::Fionread { fd } => {
            let mut value = -7;
            let returned = syscalls::ioctl(descriptor(fd), libc::FIONREAD, &mut value);
            if returned.is_ok() { format!("0 value={value}") } else { returned.to_string() }
        }
        Operation::Outq { fd } => outq(descriptor(fd)),
        Operation::Pipe { reader, writer, flags } => two(reader, writer, syscalls::pipe(flags.0)),
        Operation::Socketpair { first, second, flags } => two(first, second, syscalls::socketpair(flags.0)),
        Operation::Eventfd { to, value, flags } => {
            put_new(to, syscalls::eventfd(u32::try_from(value).unwrap_or(0), flags.0))
        }
        Operation::Memfd { to, length } => {
            let returned = syscalls::memfd();
            if let Ok(fd) = returned.0 {
                let bytes = content::of_step(index, usize::try_from(length).unwrap_or(0));
                syscalls::write(int(fd), &bytes);
                syscalls::rewind(int(fd));
                syscalls::seal(int(fd));
            }
            put_new(to, returned)
        }
        _ => return None,
    })
}

fn onto_slot(onto: Slot, returned: Returned) -> String {
    if descriptor(onto) < 0 { returned.to_string() } else { put_new(onto, returned) }
}

fn two(first: Slot, second: Slot, made: (Returned, [i32; 2])) -> String {
    let (returned, ends) = made;
    if !returned.is_ok() {
        return returned.to_string();
    }
    put(first, ends[0]);
    put(second, ends[1]);
    format!("fd={} fd={}", ends[0], ends[1])
}

/// Whether the peer has acknowledged every byte, after waiting for it.
fn outq(fd: i32) -> String {
    let mut value = -7;
    for _ in 0..300 {
        let returned = syscalls::ioctl(fd, libc::TIOCOUTQ, &mut value);
        if !returned.is_ok() {
            return returned.to_string();
        }
        if value == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    format!("0 value={}", if value == 0 { "0" } else { "more" })
}

fn options(operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Setsockopt { fd, option, value, length } => {
            let mut bytes = [0; 64];
            bytes[..8].copy_from_slice(&value.to_le_bytes());
            syscalls::setsockopt(descriptor(fd), option.level(), option.number(), &bytes, length).to_string()
        }
        Operation::Getsockopt { fd, option, room } => getsockopt(descriptor(fd), option, room),
        Operation::Linger { fd, on, seconds } => {
            let mut bytes = [0; 64];
            bytes[..4].copy_from_slice(&int(on).to_ne_bytes());
            bytes[4..8].copy_from_slice(&int(seconds).to_ne_bytes());
            syscalls::setsockopt(descriptor(fd), libc::SOL_SOCKET, libc::SO_LINGER, &bytes, 8).to_string()
        }
        Operation::ReceiveTimeout { fd, milliseconds } => timeout(fd, libc::SO_RCVTIMEO, milliseconds),
        Operation::SendTimeout { fd, milliseconds } => timeout(fd, libc::SO_SNDTIMEO, milliseconds),
        _ => return None,
    })
}

fn timeout(fd: Slot, option: i32, milliseconds: i64) -> String {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&(milliseconds / 1000).to_ne_bytes());
    bytes[8..16].copy_from_slice(&(milliseconds % 1000 * 1000).to_ne_bytes());
    syscalls::setsockopt(descriptor(fd), libc::SOL_SOCKET, option, &bytes, 16).to_string()
}

fn getsockopt(fd: i32, option: SocketOption, room: i64) -> String {
    let mut bytes = [CANARY; 256];
    let (returned, length) = syscalls::getsockopt(fd, option.level(), option.number(), &mut bytes, room);
    if !returned.is_ok() {
        return returned.to_string();
    }
    let room = usize::try_from(room).unwrap_or(0).min(bytes.len());
    let written = usize::try_from(length).unwrap_or(0).min(room);
    let overrun = if bytes[room..].iter().any(|byte| *byte != CANARY) { " overrun" } else { "" };
    let value = match option.compared() {
        Compared::Value => bytes[..written].iter().map(|byte| format!("{byte:02x}")).collect(),
        Compared::Length => "any".to_owned(),
        Compared::State if written == 0 => String::new(),
        Compared::State => {
            let name = STATES.iter().find(|(state, _)| *state == bytes[0]);
            return format!("0 state={}{overrun}", name.map_or("closing", |(_, name)| name));
        }
    };
    format!("0 len={length} value={value}{overrun}")
}

/// A call whose pointer is null.
fn fault(call: Faulty, fd: i32) -> Returned {
    let null = std::ptr::null_mut::<libc::c_void>();
    let mut storage = [0_u8; ROOM];
    // SAFETY: nothing is mapped at a null pointer, so the kernel (or the shim in its place) must
    // return EFAULT or refuse the call for another reason. Every other argument outlives the call.
    unsafe {
        match call.name() {
            "sendmsg" => Returned::of_length(libc::sendmsg(fd, null.cast(), libc::MSG_DONTWAIT)),
            "recvmsg" => Returned::of_length(libc::recvmsg(fd, null.cast(), libc::MSG_DONTWAIT)),
            "bind" => Returned::of(libc::bind(fd, null.cast(), 16)),
            "connect" => Returned::of(libc::connect(fd, null.cast(), 16)),
            // An address without its length is an address that has none.
            "accept" => Returned::of(libc::accept(fd, storage.as_mut_ptr().cast(), null.cast())),
            "getsockname" => Returned::of(libc::getsockname(fd, storage.as_mut_ptr().cast(), null.cast())),
            "getpeername" => Returned::of(libc::getpeername(fd, storage.as_mut_ptr().cast(), null.cast())),
            "getsockopt" => Returned::of(libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                storage.as_mut_ptr().cast(),
                null.cast(),
            )),
            "setsockopt" => Returned::of(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, null, 4)),
            "epoll_ctl" => Returned::of(libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, 0, null.cast())),
            "epoll_wait" => Returned::of(libc::epoll_wait(fd, null.cast(), 4, 0)),
            "poll" => Returned::of(libc::poll(null.cast(), 2, 0)),
            "fionread" => Returned::of(libc::ioctl(fd, libc::FIONREAD, null)),
            "socketpair" => Returned::of(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, null.cast())),
            name => faulty_data(name, fd),
        }
    }
}

/// Ten bytes of data at a null pointer; of two buffers the second.
fn faulty_data(name: &str, fd: i32) -> Returned {
    let null = std::ptr::null_mut::<libc::c_void>();
    let mut storage = [7_u8; 4];
    let vectors = [
        libc::iovec { iov_base: storage.as_mut_ptr().cast(), iov_len: storage.len() },
        libc::iovec { iov_base: null, iov_len: 10 },
    ];
    // SAFETY: as in `fault`.
    unsafe {
        match name {
            "read" => Returned::of_length(libc::read(fd, null, 10)),
            "write" => Returned::of_length(libc::write(fd, null, 10)),
            "recv" => Returned::of_length(libc::recv(fd, null, 10, libc::MSG_DONTWAIT)),
            "pread" => Returned::of_length(libc::pread(fd, null, 10, 0)),
            "pwrite" => Returned::of_length(libc::pwrite(fd, null, 10, 0)),
            "fstat" => Returned::of(libc::fstat(fd, null.cast())),
            "readv" => Returned::of_length(libc::readv(fd, vectors.as_ptr(), 2)),
            "writev" => Returned::of_length(libc::writev(fd, vectors.as_ptr(), 2)),
            _ => Returned::of_length(libc::send(fd, null, 10, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)),
        }
    }
}
