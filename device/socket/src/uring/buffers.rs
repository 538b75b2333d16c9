//! The receive buffers that all connections of an io_uring share.
//!
//! The kernel takes a buffer from the ring only when bytes have arrived, so ten thousand silent
//! connections hold none. A buffer goes back as soon as its bytes were passed on.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::limits::RECEIVE_BYTES;

/// Buffers in the ring: 4 MiB in all, so that 256 connections can deliver in one iteration. Running
/// out only costs a re-arm.
const BUFFERS: u16 = 256;

/// The buffer group's name towards the kernel.
pub(super) const GROUP: u16 = 0;

#[repr(C, align(4096))]
struct Page([u8; 4096]);

const ENTRY_PAGES: usize = (BUFFERS as usize * size_of::<BufRingEntry>()).div_ceil(4096);
const DATA_PAGES: usize = BUFFERS as usize * RECEIVE_BYTES / 4096;
const _: () = assert!(BUFFERS.is_power_of_two() && RECEIVE_BYTES.is_multiple_of(4096));

/// The ring of buffers and their memory.
pub(super) struct Buffers {
    entries: Box<[Page]>,
    data: Box<[Page]>,
    tail: u16,
}

impl Buffers {
    /// Registers the buffers with `ring`.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        let zeroed = |pages: usize| (0..pages).map(|_| Page([0; 4096])).collect::<Box<[Page]>>();
        let mut buffers = Self { entries: zeroed(ENTRY_PAGES), data: zeroed(DATA_PAGES), tail: 0 };
        let address = buffers.entries.as_mut_ptr() as u64;
        // SAFETY: the entries are page-aligned, zeroed, large enough for BUFFERS of them, and live
        // in a heap allocation that neither moves nor is freed before the ring is closed (see
        // `Uring`, field order and drop).
        unsafe { ring.submitter().register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)? };
        for buffer in 0..BUFFERS {
            buffers.put(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// The first `length` bytes of a buffer that the kernel has filled.
    pub(super) fn bytes(&self, buffer: u16, length: usize) -> &[u8] {
        assert!(
            buffer < BUFFERS && length <= RECEIVE_BYTES,
            "the kernel named a buffer that it was not given"
        );
        let first = self.data.as_ptr().cast::<u8>();
        // SAFETY: the range is inside `data` (just asserted). The kernel has given this buffer
        // over and does not write to it before `put` returns it, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(first.add(usize::from(buffer) * RECEIVE_BYTES), length) }
    }

    /// Returns a buffer; the kernel sees it after [`Buffers::publish`].
    pub(super) fn put(&mut self, buffer: u16) {
        let base = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        let address = self.data.as_mut_ptr().cast::<u8>() as u64 + u64::from(buffer) * RECEIVE_BYTES as u64;
        // SAFETY: the index is masked into the BUFFERS entries of the allocation, which are plain
        // integers and so always initialised; the kernel does not read an entry before the tail
        // passes it.
        let entry = unsafe { &mut *base.add(usize::from(self.tail & (BUFFERS - 1))) };
        entry.set_addr(address);
        entry.set_len(RECEIVE_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel every buffer returned so far.
    pub(super) fn publish(&mut self) {
        let base = self.entries.as_ptr().cast::<BufRingEntry>();
        // SAFETY: `base` is the first entry of the registered ring, where the kernel reads the tail
        // as an aligned 16-bit word; atomics allow it to read concurrently.
        let tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}
