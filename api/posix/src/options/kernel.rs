//! Options of a kernel's socket, read from it: those of a socket that becomes ours, and of one that
//! another program made.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use libc::socklen_t;

use super::{KNOWN, Known, SET, Shape, encode_time, kernel_get, word_of};
use crate::sys;
use crate::table::Held;

/// Remembers what the program set on a kernel's socket that becomes ours.
pub fn remember(kernel: c_int, held: &Held) {
    let set = held.facts.set.load(Relaxed);
    for (place, known) in KNOWN.iter().enumerate().filter(|(place, _)| set >> place & 1 != 0) {
        if let Some(encoded) = of_kernel(kernel, known) {
            held.facts.options[place].store(SET | encoded & !SET, Relaxed);
        }
    }
}

/// Notes what the program that made a socket has set on it: what is different on a fresh one.
pub fn inherit(fd: c_int, held: &Held) {
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    let Ok(fresh) = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) else { return };
    for (place, known) in KNOWN.iter().enumerate() {
        if of_kernel(fd, known) != of_kernel(fresh as c_int, known) {
            held.facts.set.fetch_or(1 << place, Relaxed);
        }
    }
    let _ = sys::close(fresh as c_int);
}

/// An option of a kernel's socket, encoded.
fn of_kernel(kernel: c_int, known: &Known) -> Option<u64> {
    match known.shape {
        Shape::Time | Shape::Linger => wide(kernel, known),
        Shape::Word => kernel_word(kernel, known),
        _ => {
            let value = sys::socket_option(kernel, known.level, known.name).ok();
            value.map(|value| u64::from(value.cast_unsigned()))
        }
    }
}

fn kernel_word(kernel: c_int, known: &Known) -> Option<u64> {
    let mut name = [0_u8; 16];
    let mut length: socklen_t = 16;
    // SAFETY: sixteen bytes may be written.
    unsafe { kernel_get(kernel, known.level, known.name, name.as_mut_ptr().cast(), &raw mut length) }.ok()?;
    // SAFETY: as many bytes are there.
    let (fits, encoded, _) = unsafe { word_of(name.as_ptr().cast(), 15) }?;
    fits.then_some(encoded)
}

fn wide(kernel: c_int, known: &Known) -> Option<u64> {
    let mut words = [0_i64; 2];
    let mut length: socklen_t = 16;
    // SAFETY: sixteen bytes may be written.
    unsafe { kernel_get(kernel, known.level, known.name, words.as_mut_ptr().cast(), &raw mut length) }
        .ok()?;
    if known.shape == Shape::Time {
        return encode_time(libc::timeval { tv_sec: words[0], tv_usec: words[1] }).ok();
    }
    let [on_off, linger] = [words[0] as u32, (words[0].cast_unsigned() >> 32) as u32];
    Some(u64::from(on_off != 0) << 32 | u64::from(linger))
}
