//! Operations that move data.
//!
//! A step sends bytes that depend on the step ([`content`]). The result of a receiving step has a
//! hash of the received bytes.

use super::address::{self, CANARY, ROOM};
use super::errno::{self, Returned};
use super::slots::{descriptor, encoded, put_new, set_filled, take_filled};
use super::{signals, syscalls};
use crate::content;
use crate::operation::Operation;
use crate::operation::words::{MessageFlags, Slot};

/// `SIOCOUTQNSD`: bytes that have not been sent yet.
const UNSENT: libc::c_ulong = 0x894b;
/// The most bytes that one call moves.
const MOST: usize = 1 << 20;
/// Bytes of each `send` of `fill`.
const CHUNK: usize = 16 << 10;
/// Milliseconds without room in the send buffer after which `fill` takes the socket for full:
/// longer than a delayed acknowledgement.
const FULL_AFTER: i32 = 60;
/// How often `fill` waits that long before it stops: a busy machine acknowledges late.
const REFUSALS: u32 = 2;
/// Milliseconds after which `drain` takes missing data for lost.
const LOST_AFTER: i32 = 1000;

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(index: usize, operation: &Operation) -> Option<String> {
    sending(index, operation).or_else(|| receiving(operation)).or_else(|| rights(operation))
}

fn buffer(length: i64) -> Vec<u8> {
    vec![CANARY; usize::try_from(length).unwrap_or(0).min(MOST)]
}

fn step_content(index: usize, length: i64) -> Vec<u8> {
    content::of_step(index, usize::try_from(length).unwrap_or(0).min(MOST))
}

/// Waits until every byte has left the send queue; on loopback it has then arrived. The wait is
/// bounded: Nagle's algorithm may hold bytes until the peer's delayed acknowledgement, and a closed
/// window for ever.
fn wait_until_sent(fd: i32) {
    let before = signals::counts();
    for _ in 0..1500 {
        let mut value = 0;
        if !syscalls::ioctl(fd, UNSENT, &mut value).is_ok() || value == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    signals::set_counts(before);
}

fn sent(fd: Slot, returned: Returned) -> String {
    if returned.is_ok() {
        wait_until_sent(descriptor(fd));
    }
    returned.to_string()
}

/// What a receiving call returned, with a hash of the bytes.
pub(super) fn received(returned: Returned, bytes: &[u8]) -> String {
    if !returned.is_ok() {
        return returned.to_string();
    }
    let length = returned.length().min(bytes.len());
    let beyond = if bytes[length..].iter().any(|byte| *byte != CANARY) { " beyond" } else { "" };
    format!("{returned} data={}{beyond}", content::hash(&[&bytes[..length]]))
}

/// What was received into two buffers, the first of which must be full before the second is used.
fn received_two(returned: Returned, first: &[u8], second: &[u8]) -> String {
    received(returned, &[first, second].concat())
}

fn sending(index: usize, operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Write { fd, length } => {
            sent(fd, syscalls::write(descriptor(fd), &step_content(index, length)))
        }
        Operation::Writev { fd, first, second } => {
            let (mut first, mut second) = (step_content(index, first), step_content(index + 1000, second));
            sent(fd, syscalls::writev(descriptor(fd), &mut first, &mut second))
        }
        Operation::Send { fd, length, flags } => {
            sent(fd, syscalls::send(descriptor(fd), &step_content(index, length), flags.0))
        }
        Operation::Sendto { fd, length, flags, address } => {
            let (name, room) = encoded(address);
            sent(fd, syscalls::sendto(descriptor(fd), &step_content(index, length), flags.0, &name[..room]))
        }
        Operation::Sendmsg { fd, first, second, flags } => {
            let (mut first, mut second) = (step_content(index, first), step_content(index + 1000, second));
            let mut vectors = syscalls::vectors(&mut first, &mut second);
            let mut message = empty_message();
            message.msg_iov = vectors.as_mut_ptr();
            message.msg_iovlen = 2;
            // SAFETY: the message names two buffers that outlive the call.
            sent(
                fd,
                Returned::of_length(unsafe { libc::sendmsg(descriptor(fd), &raw const message, flags.0) }),
            )
        }
        Operation::Sendmmsg { fd, count, length, flags } => {
            let mut bytes: Vec<_> =
                (0..count).map(|at| step_content(index + int_index(at), length)).collect();
            let mut parts: Vec<_> = bytes.iter_mut().map(|bytes| one_vector(bytes)).collect();
            let mut messages: Vec<_> = parts.iter_mut().map(one_message).collect();
            let number = u32::try_from(messages.len()).unwrap_or(0);
            // SAFETY: each message names a buffer that outlives the call.
            let returned = Returned::of(unsafe {
                libc::sendmmsg(descriptor(fd), messages.as_mut_ptr(), number, flags.0)
            });
            let lengths: Vec<_> =
                messages[..returned.length()].iter().map(|each| each.msg_len.to_string()).collect();
            format!("{} lengths={}", sent(fd, returned), lengths.join(","))
        }
        Operation::Sendfile { out, input, offset, count } => {
            let count = usize::try_from(count).unwrap_or(0).min(MOST);
            let (returned, after) = syscalls::sendfile(descriptor(out), descriptor(input), offset, count);
            let position = syscalls::position(descriptor(input));
            format!("{} offset={after} position={position}", sent(out, returned))
        }
        Operation::Splice { input, out, length } => {
            let length = usize::try_from(length).unwrap_or(0).min(MOST);
            sent(out, syscalls::splice(descriptor(input), descriptor(out), length))
        }
        Operation::Fill { fd } => fill(fd),
        _ => return None,
    })
}

fn receiving(operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Read { fd, length } => {
            let mut bytes = buffer(length);
            received(syscalls::read(descriptor(fd), &mut bytes), &bytes)
        }
        Operation::Readv { fd, first, second } => {
            let (mut first, mut second) = (buffer(first), buffer(second));
            let returned = syscalls::readv(descriptor(fd), &mut first, &mut second);
            received_two(returned, &first, &second)
        }
        Operation::Recv { fd, length, flags } => {
            let mut bytes = buffer(length);
            received(syscalls::recv(descriptor(fd), &mut bytes, flags.0), &bytes)
        }
        Operation::Recvfrom { fd, length, flags, room } => {
            let (mut bytes, mut name) = (buffer(length), [CANARY; ROOM]);
            let room = usize::try_from(room).unwrap_or(0);
            let (returned, length) = syscalls::recvfrom(descriptor(fd), &mut bytes, flags.0, &mut name, room);
            let text = received(returned, &bytes);
            if returned.is_ok() { format!("{text} {}", address::describe(&name, room, length)) } else { text }
        }
        Operation::Recvmsg { fd, first, second, flags } => recvmsg(fd, first, second, flags),
        Operation::Recvmmsg { fd, count, length, flags } => {
            let mut bytes: Vec<_> = (0..count).map(|_| buffer(length)).collect();
            let mut parts: Vec<_> = bytes.iter_mut().map(|bytes| one_vector(bytes)).collect();
            let mut messages: Vec<_> = parts.iter_mut().map(one_message).collect();
            let number = u32::try_from(messages.len()).unwrap_or(0);
            // SAFETY: each message names a buffer that outlives the call.
            let returned = Returned::of(unsafe {
                libc::recvmmsg(descriptor(fd), messages.as_mut_ptr(), number, flags.0, std::ptr::null_mut())
            });
            let lengths: Vec<_> =
                messages[..returned.length()].iter().map(|each| each.msg_len.to_string()).collect();
            let parts: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
            format!("{returned} lengths={} data={}", lengths.join(","), content::hash(&parts))
        }
        Operation::Drain { fd, sender } => drain(fd, sender),
        _ => return None,
    })
}

fn recvmsg(fd: Slot, first: i64, second: i64, flags: MessageFlags) -> String {
    let (mut first, mut second) = (buffer(first), buffer(second));
    let mut vectors = syscalls::vectors(&mut first, &mut second);
    let (mut name, mut control) = ([CANARY; ROOM], [0_u64; 16]);
    let mut message = empty_message();
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = 2;
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = 128;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control);
    // SAFETY: the message names buffers that outlive the call.
    let returned = Returned::of_length(unsafe { libc::recvmsg(descriptor(fd), &raw mut message, flags.0) });
    let text = received_two(returned, &first, &second);
    if !returned.is_ok() {
        return text;
    }
    let (length, flags) = (message.msg_namelen, MessageFlags(message.msg_flags));
    let name = address::describe(&name, ROOM, usize::try_from(length).unwrap_or(0));
    format!("{text} {name} control={} flags={flags}", message.msg_controllen)
}

fn empty_message() -> libc::msghdr {
    // SAFETY: plain data; zeros are a message without anything.
    unsafe { std::mem::zeroed() }
}

fn one_vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn one_message(vector: &mut libc::iovec) -> libc::mmsghdr {
    let mut header = empty_message();
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

fn int_index(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}

fn fill(fd: Slot) -> String {
    let before = signals::counts();
    let mut total = 0;
    // Bytes in flight are acknowledged a little later, and the kernel then accepts more. The socket
    // is full once it has refused several times in a row.
    let mut refused = 0;
    let error = loop {
        match syscalls::send(descriptor(fd), &content::of_stream(total, CHUNK), libc::MSG_DONTWAIT).0 {
            Ok(length) => {
                total += usize::try_from(length).unwrap_or(0);
                refused = 0;
            }
            Err(libc::EAGAIN) if refused < REFUSALS => {
                refused += 1;
                // The director's signal may end the first wait early.
                let _ = (0..2).any(|_| syscalls::wait_for(descriptor(fd), libc::POLLOUT, FULL_AFTER));
            }
            Err(errno) => break errno,
        }
    };
    signals::set_counts(signals::Counts { interrupts: before.interrupts, ..signals::counts() });
    set_filled(fd, u64::try_from(total).unwrap_or(0));
    format!("{} after {}", errno::name(error), if total == 0 { "nothing" } else { "some" })
}

fn drain(fd: Slot, sender: Slot) -> String {
    let before = signals::counts();
    let total = usize::try_from(take_filled(sender)).unwrap_or(0);
    let (mut at, mut intact, mut patience) = (0, true, 4);
    let mut bytes = vec![0; 4 * CHUNK];
    while at < total && patience > 0 {
        let most = bytes.len().min(total - at);
        match syscalls::recv(descriptor(fd), &mut bytes[..most], libc::MSG_DONTWAIT).0 {
            Ok(0) => break,
            Ok(length) => {
                let length = usize::try_from(length).unwrap_or(0);
                intact &= bytes[..length] == content::of_stream(at, length);
                at += length;
            }
            Err(libc::EAGAIN) => {
                if !syscalls::wait_for(descriptor(fd), libc::POLLIN, LOST_AFTER) {
                    patience -= 1;
                }
            }
            Err(errno) => return errno::name(errno),
        }
    }
    signals::set_counts(before);
    let all = if at == total { "all" } else { "not all" };
    format!("{all}{}", if intact { "" } else { " damaged" })
}

/// Room for one descriptor as a control message.
type Control = [u64; 4];

fn rights(operation: &Operation) -> Option<String> {
    let mut control: Control = [0; 4];
    let mut byte = [b'r'];
    let mut vector = one_vector(&mut byte);
    let mut message = empty_message();
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    match *operation {
        Operation::SendDescriptor { via, fd } => {
            // SAFETY: the control buffer has room and alignment for one header and one int; message
            // and buffers outlive the call.
            let returned = unsafe {
                message.msg_controllen = usize::try_from(libc::CMSG_SPACE(4)).unwrap_or(0);
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = usize::try_from(libc::CMSG_LEN(4)).unwrap_or(0);
                libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor(fd));
                libc::sendmsg(descriptor(via), &raw const message, 0)
            };
            Some(Returned::of_length(returned).to_string())
        }
        Operation::ReceiveDescriptor { via, to, flags } => {
            message.msg_controllen = std::mem::size_of::<Control>();
            // SAFETY: message and buffers outlive the call; the header is read only if the kernel
            // says that there is one.
            let (returned, fd) = unsafe {
                let returned = Returned::of_length(libc::recvmsg(descriptor(via), &raw mut message, flags.0));
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                let fd = (returned.is_ok() && !header.is_null())
                    .then(|| libc::CMSG_DATA(header).cast::<i32>().read_unaligned());
                (returned, fd)
            };
            Some(match fd {
                Some(fd) => format!("{returned} {}", put_new(to, Returned(Ok(i64::from(fd))))),
                None => returned.to_string(),
            })
        }
        _ => None,
    }
}
