//! The application's side of a brokered area.
//!
//! 1. [`DiskQueue::submit`] takes a slot. [`DiskQueue::notify`] *stages* waiting requests, in
//!    order. It cuts a piece off the front request and gives it pages of the data region. It copies
//!    the bytes to be written there, and submits it. Then it notifies the broker if the broker
//!    sleeps. A piece that finds no page or no slot waits for a completion.
//! 2. [`DiskQueue::complete`] takes completions, copies what was read, gives pages back, stages
//!    more. A request is done when all of its pieces are; the first error ends it, and nothing more
//!    of it is submitted.
//! 3. A call that finds nothing asks to be notified, and polls once more before it says so. So a
//!    caller that sleeps on the doorbell after an empty call is woken.
//! 4. What the broker says is believed of data alone. A completion of nothing that is in flight is
//!    counted and ignored. An impossible word, or a hang-up, ends the queue: everything in flight
//!    fails with `ENOTCONN`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sietch_ring::{Consumer, MappedRing, Producer};

use super::grant::BrokerFds;
use super::layout::{BrokerLayout, Completed, DISCARD, DURABLE, FLUSH, MAX_PIECE, READ, Submission, WRITE};
use super::pages::Pages;
use super::region::{Region, Side};
use crate::queue::{Part, Priority};
use crate::uring::DRAIN;
use crate::{BLOCK, Completion, DiskQueue, OpenError, Operation, SubmitError};

/// A request that was taken.
struct Slot {
    token: u64,
    operation: Operation,
    priority: Priority,
    /// Bytes to move, and how many of them are in pieces that were submitted. A flush or discard is
    /// one piece that moves none.
    bytes: u64,
    issued: u64,
    submitted: bool,
    under_way: u32,
    error: i32,
}

impl Slot {
    fn is_issued(&self) -> bool {
        self.error != 0 || (self.submitted && self.issued == self.bytes)
    }
}

/// A part of a request that is with the broker.
#[derive(Clone, Copy, Default)]
struct Piece {
    slot: u32,
    /// Where in the request its bytes begin, and how many they are.
    position: u64,
    length: u32,
    /// Its pages of the data region.
    first: u32,
    pages: u32,
    live: bool,
    /// Distinguishes it from earlier pieces with its number.
    generation: u32,
}

/// See the module's account. One thread owns it.
pub struct BrokerQueue {
    region: Region,
    layout: BrokerLayout,
    capacity: u64,
    submissions: Producer<Submission, MappedRing<Submission>>,
    completions: Consumer<Completed, MappedRing<Completed>>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Slots that are not wholly issued, in order. Only the first is partly.
    waiting: VecDeque<u32>,
    pieces: Vec<Piece>,
    spare: Vec<u32>,
    pages: Pages,
    done: VecDeque<Completion>,
}

impl BrokerQueue {
    /// A queue over an area of `capacity` bytes, made of what the control plane granted.
    ///
    /// # Errors
    /// [`OpenError::Broker`] and others: the memory is not what it should be, or was opened before.
    pub fn open(fds: BrokerFds, layout: BrokerLayout, capacity: u64) -> Result<Self, OpenError> {
        if capacity == 0 || !capacity.is_multiple_of(BLOCK as u64) {
            return Err(OpenError::Capacity { capacity });
        }
        let (region, rings) = Region::open(fds, layout, Side::Application)?;
        let unsound = |cause: &str| OpenError::Broker { cause: cause.to_owned() };
        let mut submissions =
            Producer::attach(rings.submissions).map_err(|_| unsound("its rings contradict each other"))?;
        let completions =
            Consumer::attach(rings.completions).map_err(|_| unsound("its rings contradict each other"))?;
        if submissions.room(layout.slots) != layout.slots
            || sietch_ring::RingMemory::producer(submissions.memory())
                .load(std::sync::atomic::Ordering::Relaxed)
                != 0
        {
            return Err(unsound("it was opened before"));
        }
        Ok(Self {
            region,
            layout,
            capacity,
            submissions,
            completions,
            slots: std::iter::repeat_with(|| None).take(layout.slots as usize).collect(),
            free: (0..layout.slots).rev().collect(),
            waiting: VecDeque::with_capacity(layout.slots as usize),
            pieces: vec![Piece::default(); layout.slots as usize],
            spare: (0..layout.slots).rev().collect(),
            pages: Pages::new(layout.data / BLOCK as u32),
            done: VecDeque::with_capacity(layout.slots as usize),
        })
    }

    /// How requests reach the device, for people.
    pub fn description(&self) -> &'static str {
        "shared memory to a service core, which writes to the volume"
    }

    /// The area has so many bytes from now on: it was resized.
    pub fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Whether the service core has ended, or taken the area away. Everything fails from then on.
    pub fn is_over(&self) -> bool {
        self.region.is_hung_up() || self.submissions.violations() + self.completions.violations() > 0
    }

    /// Submits what waits, as far as there is room.
    fn stage(&mut self) {
        while let Some(&index) = self.waiting.front() {
            if !self.issue(index) {
                break;
            }
            self.waiting.pop_front();
        }
        if self.submissions.submit() > 0 {
            self.region.notify();
        }
    }

    /// Submits pieces of a request. Whether all of it is submitted.
    fn issue(&mut self, index: u32) -> bool {
        loop {
            let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else { return true };
            if slot.is_issued() {
                return true;
            }
            if self.spare.is_empty() || self.submissions.room(1) == 0 {
                return false;
            }
            let (operation, flags, offset, discarded) = match &slot.operation {
                Operation::Read { offset, .. } | Operation::ReadVectored { offset, .. } => {
                    (READ, 0, *offset, 0)
                }
                Operation::Write { offset, durable, .. }
                | Operation::WriteVectored { offset, durable, .. } => {
                    (WRITE, if *durable { DURABLE } else { 0 }, *offset, 0)
                }
                Operation::Flush => (FLUSH, 0, 0, 0),
                Operation::Discard { offset, length } => (DISCARD, 0, *offset, *length),
            };
            let left = slot.bytes - slot.issued;
            let wanted = left.min(MAX_PIECE as u64);
            let mut taken = (0, 0);
            if wanted > 0 {
                // At most MAX_PIECE: fits.
                let Some(pages) = self.pages.take((wanted as u32).div_ceil(BLOCK as u32)) else {
                    return false;
                };
                taken = pages;
            }
            let length = (wanted as u32).min(taken.1 * BLOCK as u32);
            let data = taken.0 * BLOCK as u32;
            if operation == WRITE {
                gather(&self.region, data, &slot.operation, slot.issued, length as usize);
            }
            let Some(number) = self.spare.pop() else { return false };
            let piece = &mut self.pieces[number as usize];
            let generation = piece.generation.wrapping_add(1);
            let (first, pages) = taken;
            *piece =
                Piece { slot: index, position: slot.issued, length, first, pages, live: true, generation };
            let submission = Submission {
                token: u64::from(generation) << 32 | u64::from(number),
                offset: offset + slot.issued,
                // Of a discard the length has both words: the low one here, the high one where data
                // would be.
                length: if operation == DISCARD { discarded as u32 } else { length },
                data: if operation == DISCARD { (discarded >> 32) as u32 } else { data },
                operation,
                flags,
                priority: slot.priority as u8,
                zero: [0; 5],
            };
            slot.issued += u64::from(length);
            slot.submitted = true;
            slot.under_way += 1;
            // There is room: checked above.
            let _ = self.submissions.push(submission);
        }
    }

    /// Takes completions, finishes requests, stages more.
    fn progress(&mut self) {
        let mut any = false;
        // No more than the ring has slots: what comes meanwhile is taken next time.
        for _ in 0..self.layout.slots {
            let Some(completed) = self.completions.pop() else { break };
            any = true;
            self.settle(completed);
        }
        if any {
            self.completions.release();
            self.stage();
        }
        if self.is_over() {
            self.abandon();
        }
    }

    fn settle(&mut self, completed: Completed) {
        let number = completed.token as u32;
        let piece = self
            .pieces
            .get_mut(number as usize)
            .filter(|piece| piece.live && u64::from(piece.generation) == completed.token >> 32);
        let Some(piece) = piece else {
            return;
        };
        piece.live = false;
        let piece = *piece;
        self.spare.push(number);
        if let Some(slot) = self.slots.get_mut(piece.slot as usize).and_then(Option::as_mut) {
            slot.under_way -= 1;
            if completed.status != 0 {
                // Anything but an error number is invalid, and an error all the same.
                let number = completed.status.checked_neg().filter(|number| (1..4096).contains(number));
                slot.error = number.unwrap_or(libc::EIO);
            } else if slot.error == 0 {
                let data = piece.first * BLOCK as u32;
                scatter(&self.region, data, &mut slot.operation, piece.position, piece.length as usize);
            }
        }
        if piece.pages > 0 {
            self.pages.release(piece.first, piece.pages);
        }
        self.finish(piece.slot);
    }

    /// Completes a request if nothing of it is left to do.
    fn finish(&mut self, index: u32) {
        let done = |slot: &mut Slot| slot.under_way == 0 && slot.is_issued();
        let Some(slot) = self.slots.get_mut(index as usize).and_then(|slot| slot.take_if(done)) else {
            return;
        };
        if self.waiting.front() == Some(&index) {
            self.waiting.pop_front();
        }
        self.free.push(index);
        let result = match slot.error {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        };
        self.done.push_back(Completion::of(slot.token, slot.operation, result));
    }

    /// The other side is dead: nothing that is in flight will be answered.
    fn abandon(&mut self) {
        self.waiting.clear();
        for index in 0..self.layout.slots {
            if let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_mut) {
                slot.error = libc::ENOTCONN;
                slot.under_way = 0;
                self.finish(index);
            }
        }
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            if std::mem::take(&mut piece.live) {
                // As many as there are slots.
                self.spare.push(number as u32);
                if piece.pages > 0 {
                    self.pages.release(piece.first, piece.pages);
                }
            }
        }
    }

    /// Whether to sleep: asks to be notified, and polls once more.
    fn arm(&mut self) {
        if self.region.is_armed() {
            // Woken, or asked again: is the other side dead?
            self.region.poll_hang_up();
        } else {
            self.region.arm();
        }
        if self.completions.ready(1) > 0 || self.is_over() {
            self.progress();
        }
    }
}

/// Copies `length` bytes of what is to be written, from `position` on, to `data`.
fn gather(region: &Region, mut data: u32, operation: &Operation, position: u64, length: usize) {
    let mut copy = |bytes: &[u8]| {
        // The pages are this request's, and inside the region.
        let _ = region.write(data, bytes);
        data += bytes.len() as u32;
    };
    // Positions are inside buffers.
    let position = position as usize;
    match operation {
        Operation::Write { buffer, .. } => copy(&buffer[position..position + length]),
        Operation::WriteVectored { parts, .. } => {
            for (index, range) in spans(parts, position, length) {
                copy(&parts[index].buffer[range]);
            }
        }
        _ => {}
    }
}

/// Copies `length` bytes that were read to where they belong, from `position` on.
fn scatter(region: &Region, mut data: u32, operation: &mut Operation, position: u64, length: usize) {
    let mut copy = |bytes: &mut [u8]| {
        let _ = region.read(data, bytes);
        data += bytes.len() as u32;
    };
    let position = position as usize;
    match operation {
        Operation::Read { buffer, .. } => copy(&mut buffer[position..position + length]),
        Operation::ReadVectored { parts, .. } => {
            for (index, range) in spans(parts, position, length) {
                copy(&mut parts[index].buffer[range]);
            }
        }
        _ => {}
    }
}

/// The parts, and the ranges of them, that make `length` bytes from `position` on.
fn spans(parts: &[Part], position: usize, length: usize) -> Vec<(usize, std::ops::Range<usize>)> {
    let (mut at, end) = (0, position + length);
    let mut found = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let (from, to) = (position.clamp(at, at + part.length), end.clamp(at, at + part.length));
        if from < to {
            found.push((index, from - at..to - at));
        }
        at += part.length;
    }
    found
}

impl DiskQueue for BrokerQueue {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        self.layout.block as usize
    }

    fn depth(&self) -> usize {
        self.layout.slots as usize
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity, self.block_size()) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.in_flight() >= self.depth() {
            return Err(SubmitError::Full(operation));
        }
        let Some(index) = self.free.pop() else { return Err(SubmitError::Full(operation)) };
        let bytes = match &operation {
            Operation::Flush | Operation::Discard { .. } => 0,
            other => other.bytes(),
        };
        self.slots[index as usize] = Some(Slot {
            token,
            operation,
            priority,
            bytes,
            issued: 0,
            submitted: false,
            under_way: 0,
            error: 0,
        });
        self.waiting.push_back(index);
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        self.stage();
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.progress();
        if self.done.is_empty() && self.in_flight() > 0 {
            self.arm();
        }
        let taken = self.done.len();
        out.extend(self.done.drain(..));
        taken
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.stage();
        let deadline = Instant::now() + timeout;
        loop {
            self.progress();
            if !self.done.is_empty() || self.in_flight() == 0 {
                return Ok(());
            }
            self.arm();
            if !self.done.is_empty() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.region.sleep(left)?;
            self.region.disarm();
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }
}

impl AsFd for BrokerQueue {
    /// The doorbell: readable (`POLLIN`) after an empty [`DiskQueue::complete`] as soon as there is
    /// a completion, `POLLHUP` when the service core has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.doorbell()
    }
}

impl Drop for BrokerQueue {
    /// Lets what was submitted land.
    fn drop(&mut self) {
        let deadline = Instant::now() + DRAIN;
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(left).is_err() {
                // The broker has copies: no request uses this process's memory.
                return;
            }
            self.complete(&mut completions);
            completions.clear();
        }
    }
}
