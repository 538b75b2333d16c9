//! The slots of a process: the descriptors that a program names `f0`, `f1`, ...
//!
//! Threads share the slots; a forked child has a copy. `exec` passes them on as arguments
//! ([`arguments`], [`restore`]).

use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU64, Ordering};

use super::address::{self, ROOM};
use super::errno::Returned;
use super::syscalls::{self, Naming};
use crate::operation::words::{Address, Port, Slot};

const SLOTS: usize = Slot::COUNT as usize;

/// The descriptor in each slot.
static DESCRIPTORS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
/// The last local port of each slot's socket.
static PORTS: [AtomicU16; SLOTS] = [const { AtomicU16::new(0) }; SLOTS];
/// The number of bytes that `fill` has sent from each slot.
static FILLED: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// The descriptor in a slot; -1 if there never was one.
pub(super) fn descriptor(slot: Slot) -> i32 {
    DESCRIPTORS[slot.index()].load(Ordering::SeqCst)
}

/// Puts a descriptor into a slot, with the port that it is bound to, if any.
pub(super) fn put(slot: Slot, fd: i32) {
    DESCRIPTORS[slot.index()].store(fd, Ordering::SeqCst);
    note_port(slot);
}

/// Puts a new descriptor into its slot and returns the result line: the descriptor's number.
pub(super) fn put_new(to: Slot, returned: Returned) -> String {
    match returned.0 {
        Ok(fd) => {
            put(to, i32::try_from(fd).unwrap_or(i32::MAX));
            format!("fd={fd}")
        }
        Err(_) => returned.to_string(),
    }
}

/// Records the local port of a slot's socket.
pub(super) fn note_port(slot: Slot) {
    let mut bytes = [0; ROOM];
    let (returned, length) = syscalls::name(Naming::Own, descriptor(slot), &mut bytes, ROOM);
    let port = if returned.is_ok() { address::port(&bytes, length) } else { None };
    PORTS[slot.index()].store(port.unwrap_or(0), Ordering::SeqCst);
}

/// The bytes of an address. A port that names a slot is the last local port of that slot's socket.
pub(super) fn encoded(address: Address) -> ([u8; ROOM], usize) {
    let port = match address.port {
        Port::Any => 0,
        Port::Of(slot) => PORTS[slot.index()].load(Ordering::SeqCst),
    };
    address::encode(address, port)
}

/// Records how many bytes `fill` has sent from a slot.
pub(super) fn set_filled(slot: Slot, bytes: u64) {
    FILLED[slot.index()].store(bytes, Ordering::SeqCst);
}

/// Takes the number of bytes that `fill` has sent from a slot, and resets it.
pub(super) fn take_filled(slot: Slot) -> u64 {
    FILLED[slot.index()].swap(0, Ordering::SeqCst)
}

/// Empties every slot; the descriptors are closed already.
pub(super) fn clear() {
    for slot in 0..SLOTS {
        DESCRIPTORS[slot].store(-1, Ordering::SeqCst);
        PORTS[slot].store(0, Ordering::SeqCst);
        FILLED[slot].store(0, Ordering::SeqCst);
    }
}

/// Descriptor and port of every slot, as arguments for a process after `exec`.
pub(super) fn arguments() -> Vec<String> {
    let mut arguments = Vec::new();
    for slot in 0..SLOTS {
        arguments.push(DESCRIPTORS[slot].load(Ordering::SeqCst).to_string());
        arguments.push(PORTS[slot].load(Ordering::SeqCst).to_string());
    }
    arguments
}

/// Sets every slot from the [`arguments`] of the process before `exec`.
pub(super) fn restore(arguments: &[String]) {
    let number = |index: usize| arguments.get(index).and_then(|word| word.parse::<i32>().ok()).unwrap_or(-1);
    for slot in 0..SLOTS {
        DESCRIPTORS[slot].store(number(2 * slot), Ordering::SeqCst);
        PORTS[slot].store(u16::try_from(number(1 + 2 * slot)).unwrap_or(0), Ordering::SeqCst);
    }
}
