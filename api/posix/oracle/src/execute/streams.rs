//! The C library's streams on files. Each has a buffer of the same size, whatever the file system
//! recommends.

use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::address::CANARY;
use super::errno::Returned;
use super::slots::descriptor;
use super::transfer::received;
use crate::content;
use crate::operation::Operation;
use crate::operation::words::StreamMode;

/// How many streams a program has.
const STREAMS: usize = 3;
/// Bytes of a stream's buffer.
const BUFFER: usize = 1024;
/// The most bytes that one call moves.
const MOST: usize = 1 << 20;

static OPEN: [AtomicPtr<libc::FILE>; STREAMS] = [const { AtomicPtr::new(ptr::null_mut()) }; STREAMS];

fn slot(stream: i64) -> &'static AtomicPtr<libc::FILE> {
    &OPEN[usize::try_from(stream).unwrap_or(0) % STREAMS]
}

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(index: usize, operation: &Operation) -> Option<String> {
    let stream = match *operation {
        Operation::StreamOpen { stream, name, mode } => {
            let name = CString::new(name.name()).unwrap_or_default();
            // SAFETY: both texts end with a zero.
            return Some(put(stream, |mode| unsafe { libc::fopen(name.as_ptr(), mode) }, mode));
        }
        Operation::StreamOf { stream, fd, mode } => {
            // SAFETY: the text ends with a zero.
            return Some(put(stream, |mode| unsafe { libc::fdopen(descriptor(fd), mode) }, mode));
        }
        Operation::StreamRead { stream, .. }
        | Operation::StreamWrite { stream, .. }
        | Operation::StreamFlush { stream }
        | Operation::StreamSeek { stream, .. }
        | Operation::StreamClose { stream } => stream,
        _ => return None,
    };
    let open = slot(stream).load(Ordering::SeqCst);
    if open.is_null() {
        return Some("no stream".to_owned());
    }
    // SAFETY: an open stream; a buffer that outlives the call. A closed one is forgotten.
    Some(unsafe {
        match *operation {
            Operation::StreamRead { length, .. } => {
                let mut bytes = vec![CANARY; usize::try_from(length).unwrap_or(0).min(MOST)];
                let count = libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), open);
                let text = received(Returned(Ok(count as i64)), &bytes);
                format!("{text} {}", state(open))
            }
            Operation::StreamWrite { length, .. } => {
                let bytes = content::of_step(index, usize::try_from(length).unwrap_or(0).min(MOST));
                let count = libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), open);
                format!("{count} {}", state(open))
            }
            Operation::StreamFlush { .. } => Returned::of(libc::fflush(open)).to_string(),
            Operation::StreamSeek { offset, whence, .. } => {
                let returned = Returned::of(libc::fseek(open, offset, whence.value()));
                format!("{returned} at {}", libc::ftell(open))
            }
            _ => {
                slot(stream).store(ptr::null_mut(), Ordering::SeqCst);
                Returned::of(libc::fclose(open)).to_string()
            }
        }
    })
}

/// End and error of an open stream; they are cleared.
fn state(open: *mut libc::FILE) -> String {
    // SAFETY: the stream is open.
    unsafe {
        let text = format!("eof={} error={}", libc::feof(open) != 0, libc::ferror(open) != 0);
        libc::clearerr(open);
        text
    }
}

fn put(stream: i64, open: impl FnOnce(*const libc::c_char) -> *mut libc::FILE, mode: StreamMode) -> String {
    let mode = CString::new(mode.name()).unwrap_or_default();
    if !slot(stream).load(Ordering::SeqCst).is_null() {
        return "in use".to_owned();
    }
    let opened = open(mode.as_ptr());
    if opened.is_null() {
        return Returned::of(-1).to_string();
    }
    // SAFETY: the stream is open and was not used yet; its buffer is its own.
    unsafe {
        libc::setvbuf(opened, ptr::null_mut(), libc::_IOFBF, BUFFER);
        slot(stream).store(opened, Ordering::SeqCst);
        format!("open fd={}", libc::fileno(opened))
    }
}

/// Closes what a program left.
pub(super) fn reset() {
    for stream in &OPEN {
        let open = stream.swap(ptr::null_mut(), Ordering::SeqCst);
        if !open.is_null() {
            // SAFETY: it was open, and nothing else has it now.
            unsafe { libc::fclose(open) };
        }
    }
}
