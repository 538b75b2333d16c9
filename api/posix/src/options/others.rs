//! Options that the kernel accepts and that change nothing between two ends in shared memory, such
//! as SO_MARK: stored and returned.
//!
//! 1. An option has a word of its own: [`SET`], level and name above, the `int` that a kernel
//!    socket returned for it below. Words are taken in order and never given back, so a search ends
//!    at the first empty word.
//! 2. Those of a connection are in its private page, which all holders share. Those of a pending
//!    socket or a listener are in the description.
//! 3. Two holders that store the same option at the same time use the same word: an empty word is
//!    taken by compare-and-exchange, and the loser looks at it again.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use sietch_ring::stream::option;

use crate::connection::option_words::SET;
use crate::descriptor::description::Held;
use crate::system::kernel;
use crate::system::sys::Errno;

/// Levels, by the two bits that a word has for them.
const LEVELS: [c_int; 4] = [SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6];

/// Names that the kernel may know, of each level: the highest today is 83 (SO_PASSRIGHTS).
const NAMES: std::ops::Range<c_int> = 1..128;

/// Options that a read changes, or makes a descriptor of: SO_ERROR, `SO_PEERPIDFD` and
/// `TCP_SAVED_SYN` of the kernel's headers.
const CHANGED_BY_READING: [(c_int, c_int); 3] =
    [(SOL_SOCKET, libc::SO_ERROR), (SOL_SOCKET, 77), (IPPROTO_TCP, libc::TCP_SAVED_SYN)];

/// What a word is found by: all but the value.
const KEY: u64 = !(u32::MAX as u64);

/// The word of an option without its value; none for a level or name that no option has.
fn key(level: c_int, name: c_int) -> Option<u64> {
    let level = LEVELS.iter().position(|known| *known == level)? as u64;
    NAMES.contains(&name).then(|| SET | level << 40 | u64::from(name.cast_unsigned()) << 32)
}

/// The words of a socket.
fn words(held: &Held) -> &[AtomicU64; option::OTHERS] {
    held.end().map_or(&held.socket.other_options, |end| &end.private().other_options)
}

/// The value that was stored for an option.
pub(crate) fn get(held: &Held, level: c_int, name: c_int) -> Option<c_int> {
    let key = key(level, name)?;
    let words = words(held).iter().map(|word| word.load(Acquire)).take_while(|word| *word != 0);
    words.into_iter().find(|word| word & KEY == key).map(|word| (word as u32).cast_signed())
}

/// Stores an option.
///
/// # Errors
/// `ENOMEM`: as many are stored as there is room for.
pub(crate) fn set(held: &Held, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let Some(key) = key(level, name) else { return Ok(()) };
    put(words(held), key | u64::from(value.cast_unsigned()))
}

fn put(words: &[AtomicU64], value: u64) -> Result<(), Errno> {
    for word in words {
        let taken = word.compare_exchange(0, value, AcqRel, Acquire);
        match taken {
            Ok(_) => return Ok(()),
            Err(now) if now & KEY == value & KEY => {
                word.store(value, Release);
                return Ok(());
            }
            Err(_) => {}
        }
    }
    Err(libc::ENOMEM)
}

/// Passes a socket's options on to its connection, whose words are `to`.
pub(crate) fn pass_on(from: &Held, to: &[AtomicU64; option::OTHERS]) {
    each(from, |level, name, value| {
        if let Some(key) = key(level, name) {
            let _ = put(to, key | u64::from(value.cast_unsigned()));
        }
    });
}

/// Calls `each` with level, name and value of every option that is stored.
pub(crate) fn each(held: &Held, mut each: impl FnMut(c_int, c_int, c_int)) {
    for word in words(held) {
        let word = word.load(Acquire);
        if word == 0 {
            return;
        }
        let level = LEVELS[(word >> 40 & 3) as usize];
        each(level, (word >> 32 & 0xff) as c_int, (word as u32).cast_signed());
    }
}

/// Stores what a kernel socket returns for an option, if that is an `int`.
///
/// # Errors
/// As [`set`].
pub(crate) fn store_from(kernel: c_int, held: &Held, level: c_int, name: c_int) -> Result<(), Errno> {
    int_of(kernel, level, name).map_or(Ok(()), |value| set(held, level, name, value))
}

/// Stores every option in which a kernel socket differs from a fresh one and that `is_known` is
/// false for.
pub(crate) fn store_changed(
    kernel: c_int,
    fresh: c_int,
    held: &Held,
    is_known: impl Fn(c_int, c_int) -> bool,
) {
    for level in LEVELS {
        let skipped = |name| is_known(level, name) || CHANGED_BY_READING.contains(&(level, name));
        for name in NAMES.filter(|name| !skipped(*name)) {
            if let Some(value) = int_of(kernel, level, name)
                .filter(|value| int_of(fresh, level, name).is_some_and(|of_fresh| of_fresh != *value))
            {
                let _ = set(held, level, name, value);
            }
        }
    }
}

/// The value of an option of a kernel socket, if it is an `int`.
fn int_of(kernel: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = [0_u8; 16];
    let mut length = value.len() as socklen_t;
    // SAFETY: sixteen bytes may be written.
    unsafe { kernel::getsockopt(kernel, level, name, value.as_mut_ptr().cast(), &raw mut length) }.ok()?;
    (length == 4).then(|| c_int::from_ne_bytes([value[0], value[1], value[2], value[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::description::{Kind, describe};

    #[test]
    fn what_was_stored_last_is_returned_and_passed_on() {
        let held = describe(Kind::Pending, None).expect("a description");
        let mark = (SOL_SOCKET, libc::SO_MARK);
        assert_eq!(get(&held, mark.0, mark.1), None);
        set(&held, mark.0, mark.1, 7).expect("room");
        set(&held, IPPROTO_IPV6, libc::SO_MARK, -1).expect("room");
        set(&held, mark.0, mark.1, 8).expect("room");
        assert_eq!(get(&held, mark.0, mark.1), Some(8));
        assert_eq!(get(&held, IPPROTO_IPV6, libc::SO_MARK), Some(-1));
        assert_eq!(get(&held, IPPROTO_TCP, libc::SO_MARK), None);
        let to = [const { AtomicU64::new(0) }; option::OTHERS];
        pass_on(&held, &to);
        let passed_on = to.iter().filter(|word| word.load(Acquire) != 0).count();
        assert_eq!(passed_on, 2);
    }

    #[test]
    fn names_beyond_those_of_the_kernel_are_not_stored_and_a_full_table_refuses() {
        let held = describe(Kind::Pending, None).expect("a description");
        assert_eq!(set(&held, SOL_SOCKET, 9999, 1), Ok(()));
        assert_eq!(set(&held, 4711, 1, 1), Ok(()));
        each(&held, |level, name, _| panic!("{level} {name}"));
        for name in 1..=option::OTHERS as c_int {
            assert_eq!(set(&held, IPPROTO_TCP, name, name), Ok(()));
        }
        assert_eq!(set(&held, IPPROTO_IP, 1, 1), Err(libc::ENOMEM));
        assert_eq!(set(&held, IPPROTO_TCP, 5, 6), Ok(()));
        assert_eq!(get(&held, IPPROTO_TCP, 5), Some(6));
    }
}
