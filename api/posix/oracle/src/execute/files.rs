//! Operations on files of the executor's folder, its working directory.
//!
//! 1. A name of a program is a file of that name there.
//! 2. A step writes bytes that depend on the step ([`content`]); what is read is shown by its hash.
//! 3. Of a file's attributes the kind, the size and the links are shown: the others depend on the
//!    moment or on the file system.
//! 4. A call within a signal handler is made by a handler that the thread raises itself.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering};

use super::address::CANARY;
use super::errno::Returned;
use super::slots::{descriptor, put_new};
use super::syscalls::{self, int};
use super::transfer::received;
use crate::content;
use crate::operation::Operation;
use crate::operation::words::{InHandler, Name, Slot, VectorFlags};

/// The most bytes that one call moves: more than one record of the file system takes.
const MOST: usize = 3 << 20;
/// The most bytes that a call within a handler moves.
const MOST_IN_HANDLER: usize = 256;
/// The signal whose handler makes a call.
const IN_HANDLER: i32 = libc::SIGALRM;

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(index: usize, operation: &Operation) -> Option<String> {
    names(operation).or_else(|| reading(operation)).or_else(|| writing(index, operation)).or_else(|| {
        Some(match *operation {
            Operation::InHandler { call, fd, length } => in_handler(call, fd, length),
            _ => return size(operation),
        })
    })
}

fn path(name: Name) -> CString {
    CString::new(name.name()).unwrap_or_default()
}

fn names(operation: &Operation) -> Option<String> {
    // SAFETY: each path ends with a zero; the rest are numbers.
    Some(unsafe {
        match *operation {
            Operation::Open { to, name, access, flags } => {
                let flags = access.value() | flags.0;
                put_new(to, Returned::of(libc::open(path(name).as_ptr(), flags, 0o644)))
            }
            Operation::Mkstemp { to } => {
                let mut template = *b"tXXXXXX\0";
                put_new(to, Returned::of(libc::mkstemp(template.as_mut_ptr().cast())))
            }
            Operation::Truncate { name, length } => {
                Returned::of(libc::truncate(path(name).as_ptr(), length)).to_string()
            }
            Operation::Unlink { name } => Returned::of(libc::unlink(path(name).as_ptr())).to_string(),
            Operation::Rename { from, to } => {
                Returned::of(libc::rename(path(from).as_ptr(), path(to).as_ptr())).to_string()
            }
            Operation::Link { from, to } => {
                Returned::of(libc::link(path(from).as_ptr(), path(to).as_ptr())).to_string()
            }
            Operation::Stat { name } => status(|to| libc::stat(path(name).as_ptr(), to)),
            Operation::Fstat { fd } => status(|to| libc::fstat(descriptor(fd), to)),
            _ => return None,
        }
    })
}

/// Kind, size and links, of a call that fills in a `stat`.
fn status(call: impl FnOnce(*mut libc::stat) -> i32) -> String {
    // SAFETY: plain data; zeros are a value of it.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let returned = Returned::of(call(&raw mut found));
    if !returned.is_ok() {
        return returned.to_string();
    }
    format!("0 mode={:o} size={} links={}", found.st_mode, found.st_size, found.st_nlink)
}

fn length_of(length: i64) -> usize {
    usize::try_from(length).unwrap_or(0).min(MOST)
}

fn buffer(length: i64) -> Vec<u8> {
    vec![CANARY; length_of(length)]
}

fn reading(operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Pread { fd, length, offset } => {
            let mut bytes = buffer(length);
            // SAFETY: the buffer outlives the call.
            let returned = Returned::of_length(unsafe {
                libc::pread(descriptor(fd), bytes.as_mut_ptr().cast(), bytes.len(), offset)
            });
            received(returned, &bytes)
        }
        Operation::Preadv { fd, first, second, offset } => {
            read_two(first, second, |parts| {
                // SAFETY: `read_two` passes two buffers that outlive the call.
                unsafe { libc::preadv(descriptor(fd), parts.as_ptr(), 2, offset) }
            })
        }
        Operation::Preadv2 { fd, first, second, offset, flags } => {
            read_two(first, second, |parts| {
                // SAFETY: as above.
                unsafe { libc::preadv2(descriptor(fd), parts.as_ptr(), 2, offset, flags.0) }
            })
        }
        _ => return None,
    })
}

fn read_two(first: i64, second: i64, call: impl FnOnce(&[libc::iovec; 2]) -> isize) -> String {
    let (mut first, mut second) = (buffer(first), buffer(second));
    let returned = Returned::of_length(call(&syscalls::vectors(&mut first, &mut second)));
    received(returned, &[first, second].concat())
}

fn writing(index: usize, operation: &Operation) -> Option<String> {
    let returned = match *operation {
        Operation::Pwrite { fd, length, offset } => {
            let bytes = content::of_step(index, length_of(length));
            // SAFETY: the buffer outlives the call.
            unsafe { libc::pwrite(descriptor(fd), bytes.as_ptr().cast(), bytes.len(), offset) }
        }
        Operation::Pwritev { fd, first, second, offset } => {
            write_two(index, (first, second), |parts| {
                // SAFETY: `write_two` passes two buffers that outlive the call.
                unsafe { libc::pwritev(descriptor(fd), parts.as_ptr(), 2, offset) }
            })
        }
        Operation::Pwritev2 { fd, first, second, offset, flags: VectorFlags(flags) } => {
            write_two(index, (first, second), |parts| {
                // SAFETY: as above.
                unsafe { libc::pwritev2(descriptor(fd), parts.as_ptr(), 2, offset, flags) }
            })
        }
        Operation::CopyRange { input, from, out, to, length } => {
            let (mut from, mut to) = (from, to);
            let pointer =
                |offset: &mut i64| if *offset < 0 { std::ptr::null_mut() } else { &raw mut *offset };
            let (read, written) = (pointer(&mut from), pointer(&mut to));
            // SAFETY: both offsets outlive the call.
            unsafe {
                libc::copy_file_range(descriptor(input), read, descriptor(out), written, length_of(length), 0)
            }
        }
        _ => return None,
    };
    Some(Returned::of_length(returned).to_string())
}

fn write_two(
    index: usize,
    (first, second): (i64, i64),
    call: impl FnOnce(&[libc::iovec; 2]) -> isize,
) -> isize {
    let mut first = content::of_step(index, length_of(first));
    let mut second = content::of_step(index + 1000, length_of(second));
    call(&syscalls::vectors(&mut first, &mut second))
}

fn size(operation: &Operation) -> Option<String> {
    // SAFETY: numbers, and a limit that outlives the call.
    let returned = unsafe {
        match *operation {
            Operation::Lseek { fd, offset, whence } => {
                Returned::of(libc::lseek(descriptor(fd), offset, whence.value()))
            }
            Operation::Ftruncate { fd, length } => Returned::of(libc::ftruncate(descriptor(fd), length)),
            Operation::Fallocate { fd, how, offset, length } => {
                Returned::of(libc::fallocate(descriptor(fd), how.value(), offset, length))
            }
            Operation::Fsync { fd } => Returned::of(libc::fsync(descriptor(fd))),
            Operation::Fdatasync { fd } => Returned::of(libc::fdatasync(descriptor(fd))),
            Operation::Limit { bytes } => limit(bytes),
            _ => return None,
        }
    };
    Some(returned.to_string())
}

/// Sets the soft limit of the size of files; none if negative.
fn limit(bytes: i64) -> Returned {
    let soft = libc::rlim_t::try_from(bytes).unwrap_or(libc::RLIM_INFINITY);
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit outlives the call.
    Returned::of(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) })
}

/// Takes back what a program may have changed of the process.
pub(super) fn reset() {
    limit(-1);
}

/// The call that the handler makes, and what it is of.
static CALL: AtomicI32 = AtomicI32::new(0);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// What it returned, and the error's number.
static VALUE: AtomicI64 = AtomicI64::new(0);
static ERROR: AtomicI32 = AtomicI32::new(0);

extern "C" fn call_in_handler(_signal: libc::c_int) {
    let mut bytes = [b'h'; MOST_IN_HANDLER];
    let (fd, length) = (DESCRIPTOR.load(Ordering::SeqCst), LENGTH.load(Ordering::SeqCst));
    let length = length.min(bytes.len());
    // SAFETY: the buffer is long enough and outlives each call; a handler may make all of them.
    let value = unsafe {
        let to = bytes.as_mut_ptr().cast();
        let mut found: libc::stat = std::mem::zeroed();
        let name = usize::try_from(CALL.load(Ordering::SeqCst)).unwrap_or(0);
        match InHandler::NAMES.get(name).copied().unwrap_or_default() {
            "read" => libc::read(fd, to, length) as i64,
            "write" => libc::write(fd, to, length) as i64,
            "pread" => libc::pread(fd, to, length, 3) as i64,
            "pwrite" => libc::pwrite(fd, to, length, 3) as i64,
            "fsync" => libc::fsync(fd).into(),
            "fstat" => libc::fstat(fd, &raw mut found).into(),
            "ftruncate" => libc::ftruncate(fd, length as i64).into(),
            "dup" => libc::dup(fd).into(),
            _ => libc::close(fd).into(),
        }
    };
    let error = Returned::of(value).0.err().unwrap_or(0);
    ERROR.store(error, Ordering::SeqCst);
    VALUE.store(value, Ordering::SeqCst);
}

fn in_handler(call: InHandler, fd: Slot, length: i64) -> String {
    let number = InHandler::NAMES.iter().position(|name| *name == call.name()).unwrap_or(0);
    CALL.store(int(number as i64), Ordering::SeqCst);
    DESCRIPTOR.store(descriptor(fd), Ordering::SeqCst);
    LENGTH.store(length_of(length), Ordering::SeqCst);
    // SAFETY: `sigaction` is plain data whose zeros are an empty mask; the handler makes only calls
    // that a handler may make.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = call_in_handler as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(IN_HANDLER, &raw const action, std::ptr::null_mut());
        libc::raise(IN_HANDLER);
    }
    let value = VALUE.load(Ordering::SeqCst);
    let error = ERROR.load(Ordering::SeqCst);
    Returned(if value < 0 { Err(error) } else { Ok(value) }).to_string()
}
