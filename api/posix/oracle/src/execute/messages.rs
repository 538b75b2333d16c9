//! Calls that move data.
//!
//! What is sent is a pattern that depends on the step; of what is received a hash is said, so that
//! a byte that is lost, doubled or out of order shows.

use std::sync::atomic::Ordering;

use super::actor::{FILLED, descriptor};
use super::address::{self, CANARY, ROOM};
use super::calls::{encoded, made, settle};
use super::errno::{self, Returned};
use super::raw;
use crate::operation::Operation;
use crate::operation::words::{MessageFlags, Slot};

/// The most that one call moves.
const MOST: usize = 1 << 20;
/// What `fill` sends at once.
const CHUNK: usize = 16 << 10;
/// Milliseconds after which a socket that takes nothing more is full: longer than a delayed
/// acknowledgement.
const FULL_AFTER: i32 = 60;
/// Waits of that kind: a busy machine acknowledges late.
const REFUSALS: u32 = 2;
/// Milliseconds after which data that `drain` waits for is lost.
const LOST_AFTER: i32 = 1000;

/// Carries out an operation of this module; none if it is of another.
pub fn perform(index: usize, operation: &Operation) -> Option<String> {
    sending(index, operation).or_else(|| receiving(operation)).or_else(|| rights(operation))
}

/// What step `index` sends.
pub fn pattern(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((index * 31 + at * 7 + (at >> 8)) % 251).unwrap_or(0)).collect()
}

fn buffer(length: i64) -> Vec<u8> {
    vec![CANARY; usize::try_from(length).unwrap_or(0).min(MOST)]
}

fn content(index: usize, length: i64) -> Vec<u8> {
    pattern(index, usize::try_from(length).unwrap_or(0).min(MOST))
}

/// FNV-1a: two runs that received the same say the same.
fn hash(parts: &[&[u8]]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{:08x}", hash >> 32)
}

fn sent(fd: Slot, returned: Returned) -> String {
    if returned.is_ok() {
        settle(descriptor(fd));
    }
    returned.to_string()
}

fn received(returned: Returned, bytes: &[u8]) -> String {
    if !returned.is_ok() {
        return returned.to_string();
    }
    let length = returned.length().min(bytes.len());
    let beyond = if bytes[length..].iter().any(|byte| *byte != CANARY) { " beyond" } else { "" };
    format!("{returned} data={}{beyond}", hash(&[&bytes[..length]]))
}

/// What was received into two buffers, the first of which must be full before the second is used.
fn received_two(returned: Returned, first: &[u8], second: &[u8]) -> String {
    received(returned, &[first, second].concat())
}

fn sending(index: usize, operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Write { fd, length } => sent(fd, raw::write(descriptor(fd), &content(index, length))),
        Operation::Writev { fd, first, second } => {
            let (mut first, mut second) = (content(index, first), content(index + 1000, second));
            sent(fd, raw::writev(descriptor(fd), &mut first, &mut second))
        }
        Operation::Send { fd, length, flags } => {
            sent(fd, raw::send(descriptor(fd), &content(index, length), flags.0))
        }
        Operation::Sendto { fd, length, flags, address } => {
            let (name, room) = encoded(address);
            sent(fd, raw::sendto(descriptor(fd), &content(index, length), flags.0, &name[..room]))
        }
        Operation::Sendmsg { fd, first, second, flags } => {
            let (mut first, mut second) = (content(index, first), content(index + 1000, second));
            let mut vectors = raw::vectors(&mut first, &mut second);
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
            let mut bytes: Vec<_> = (0..count).map(|at| content(index + int_index(at), length)).collect();
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
            let (returned, after) = raw::sendfile(descriptor(out), descriptor(input), offset, count);
            let position = raw::position(descriptor(input));
            format!("{} offset={after} position={position}", sent(out, returned))
        }
        Operation::Splice { input, out, length } => {
            let length = usize::try_from(length).unwrap_or(0).min(MOST);
            sent(out, raw::splice(descriptor(input), descriptor(out), length))
        }
        Operation::Fill { fd } => fill(fd),
        _ => return None,
    })
}

fn receiving(operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Read { fd, length } => {
            let mut bytes = buffer(length);
            received(raw::read(descriptor(fd), &mut bytes), &bytes)
        }
        Operation::Readv { fd, first, second } => {
            let (mut first, mut second) = (buffer(first), buffer(second));
            let returned = raw::readv(descriptor(fd), &mut first, &mut second);
            received_two(returned, &first, &second)
        }
        Operation::Recv { fd, length, flags } => {
            let mut bytes = buffer(length);
            received(raw::recv(descriptor(fd), &mut bytes, flags.0), &bytes)
        }
        Operation::Recvfrom { fd, length, flags, room } => {
            let (mut bytes, mut name) = (buffer(length), [CANARY; ROOM]);
            let room = usize::try_from(room).unwrap_or(0);
            let (returned, length) = raw::recvfrom(descriptor(fd), &mut bytes, flags.0, &mut name, room);
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
            format!("{returned} lengths={} data={}", lengths.join(","), hash(&parts))
        }
        Operation::Drain { fd, sender } => drain(fd, sender),
        _ => return None,
    })
}

fn recvmsg(fd: Slot, first: i64, second: i64, flags: MessageFlags) -> String {
    let (mut first, mut second) = (buffer(first), buffer(second));
    let mut vectors = raw::vectors(&mut first, &mut second);
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

/// What `fill` sends at a place of the stream.
fn stream(at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| u8::try_from((at * 13 + (at >> 9)) % 253).unwrap_or(0)).collect()
}

fn fill(fd: Slot) -> String {
    let before = super::signals::counts();
    let mut total = 0;
    // What is in flight is acknowledged a little later, and the kernel may take more then: full is
    // who refuses again and again.
    let mut refused = 0;
    let error = loop {
        match raw::send(descriptor(fd), &stream(total, CHUNK), libc::MSG_DONTWAIT).0 {
            Ok(length) => {
                total += usize::try_from(length).unwrap_or(0);
                refused = 0;
            }
            Err(libc::EAGAIN) if refused < REFUSALS => {
                refused += 1;
                // The director's signal may end the first wait early.
                let _ = (0..2).any(|_| raw::wait_for(descriptor(fd), libc::POLLOUT, FULL_AFTER));
            }
            Err(errno) => break errno,
        }
    };
    super::signals::set_counts(super::signals::Counts {
        interrupts: before.interrupts,
        ..super::signals::counts()
    });
    FILLED[fd.index()].store(u64::try_from(total).unwrap_or(0), Ordering::SeqCst);
    format!("{} after {}", errno::name(error), if total == 0 { "nothing" } else { "some" })
}

fn drain(fd: Slot, sender: Slot) -> String {
    let before = super::signals::counts();
    let total = usize::try_from(FILLED[sender.index()].swap(0, Ordering::SeqCst)).unwrap_or(0);
    let (mut at, mut intact, mut patience) = (0, true, 4);
    let mut bytes = vec![0; 4 * CHUNK];
    while at < total && patience > 0 {
        let most = bytes.len().min(total - at);
        match raw::recv(descriptor(fd), &mut bytes[..most], libc::MSG_DONTWAIT).0 {
            Ok(0) => break,
            Ok(length) => {
                let length = usize::try_from(length).unwrap_or(0);
                intact &= bytes[..length] == stream(at, length);
                at += length;
            }
            Err(libc::EAGAIN) => {
                if !raw::wait_for(descriptor(fd), libc::POLLIN, LOST_AFTER) {
                    patience -= 1;
                }
            }
            Err(errno) => return errno::name(errno),
        }
    }
    super::signals::set_counts(before);
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
                Some(fd) => format!("{returned} {}", made(to, Returned(Ok(i64::from(fd))))),
                None => returned.to_string(),
            })
        }
        _ => None,
    }
}
