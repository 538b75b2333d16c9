//! A file or block device through io_uring.
//!
//! 1. Each request takes a slot, which owns its buffer while the kernel may touch it; the slot's
//!    number is the request's `user_data`. There are as many submission entries as slots, and twice
//!    as many completion entries, so neither ring can overflow.
//! 2. A durable write carries `RWF_DSYNC`. A flush is `IORING_OP_FSYNC` with `DATASYNC`. A discard
//!    is `IORING_OP_FALLOCATE`, which punches a hole or has the device write zeros (see `file`). A
//!    priority is the `ioprio` of a read or write.
//! 3. How the ring is set up is a [`Mode`]. Where completions wait for the thread to enter the
//!    kernel, they leave a flag (`TASKRUN_FLAG`) on which [`DiskQueue::complete`] enters it once. A
//!    thread that sleeps in `poll(2)` on the ring's descriptor is woken in every mode but
//!    [`Mode::Deferred`]. What else the machine offers is found out when the queue is opened, and
//!    kept ([`UringQueue::features`]).
//! 4. On drop the queue waits for what the kernel still holds. If that takes longer than [`DRAIN`]
//!    it leaks the buffers rather than free memory that a device may write to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use crate::blocking::short;
use crate::file::{self, FileAccess};
use crate::{
    Buffer, Completion, DEFAULT_DEPTH, DiskQueue, Feature, MAX_DEPTH, OpenError, Operation, Part, Priority,
    SubmitError,
};

mod mode;
mod setup;

/// How long a dropped queue waits for requests in flight before it leaks their buffers: longer than
/// a slow disk's write, shorter than a person's patience.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);

pub use mode::Mode;

/// How often `notify` asks again when the kernel is short of memory, before it calls the queue
/// broken.
const SUBMIT_RETRIES: usize = 1000;

/// How a queue is set up.
#[derive(Clone, Copy, Debug)]
pub struct UringOptions {
    /// Requests in flight together: 1 to [`MAX_DEPTH`].
    pub depth: usize,
    /// How requests and completions pass between thread and kernel. One that the kernel lacks is
    /// replaced by the next simpler.
    pub mode: Mode,
}

impl Default for UringOptions {
    fn default() -> Self {
        Self { depth: DEFAULT_DEPTH, mode: Mode::Cooperative }
    }
}

/// See the module's account.
pub struct UringQueue {
    ring: IoUring,
    /// Keeps the file open; the ring reaches it as registered file 0.
    fd: OwnedFd,
    capacity: u64,
    access: FileAccess,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Entries in the submission ring that the kernel has not taken.
    queued: usize,
    mode: Mode,
    /// Why the mode is not the one that was requested.
    refused: Option<String>,
    /// The ring is to be enabled by the thread that notifies first.
    disabled: bool,
    /// Priorities are passed on.
    ranks: bool,
}

#[derive(Default)]
struct Slot {
    token: u64,
    /// Bytes that the kernel must report; 0 for a flush and a discard.
    length: u64,
    buffer: Option<Buffer>,
    parts: Vec<Part>,
    /// Where the parts are, for the kernel. Its memory is used again.
    vectors: Vectors,
}

/// Where the parts of a request are.
#[derive(Default)]
struct Vectors(Vec<libc::iovec>);

// SAFETY: the pointers are never followed here, and what they name are the buffers of the same
// slot, which move with it.
unsafe impl Send for Vectors {}

impl Slot {
    /// Keeps the parts for as long as the kernel may touch them; where they are, for the kernel,
    /// and how many.
    fn keep(&mut self, parts: Vec<Part>) -> (*const libc::iovec, u32) {
        self.parts = parts;
        let Vectors(vectors) = &mut self.vectors;
        vectors.clear();
        vectors.extend(self.parts.iter_mut().map(|part| libc::iovec {
            iov_base: part.buffer.as_mut_ptr().cast::<libc::c_void>(),
            iov_len: part.length,
        }));
        // At most MAX_PARTS, so it fits.
        (vectors.as_ptr(), vectors.len() as u32)
    }
}

fn dsync(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// The kernel's name for a priority (`ioprio_set(2)`), which I/O schedulers go by: best effort,
/// level 0 or 4, or idle.
fn ioprio(priority: Priority) -> u16 {
    const CLASS: u16 = 13;
    const BEST_EFFORT: u16 = 2;
    const IDLE: u16 = 3;
    match priority {
        Priority::Latency => BEST_EFFORT << CLASS,
        Priority::Throughput => BEST_EFFORT << CLASS | 4,
        Priority::Bulk => IDLE << CLASS,
    }
}

impl UringQueue {
    /// A queue over the first `capacity` bytes of `fd`, which must be open for reading and writing.
    /// O_DIRECT is set on it where the file system allows.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] when the machine refuses io_uring or lacks an operation; others
    /// as they say.
    pub fn open(fd: OwnedFd, capacity: u64, options: UringOptions) -> Result<Self, OpenError> {
        let depth = options.depth.clamp(1, MAX_DEPTH);
        let (ring, mode, refused) = setup::make(depth, options.mode)?;
        let access = file::prepare(fd.as_fd(), capacity)?;
        ring.submitter().register_files(&[fd.as_raw_fd()]).map_err(|e| setup::unavailable(&e))?;
        Ok(Self {
            ring,
            fd,
            capacity,
            access,
            slots: std::iter::repeat_with(Slot::default).take(depth).collect(),
            // Bounded by MAX_DEPTH, so it fits.
            free: (0..depth as u32).rev().collect(),
            queued: 0,
            mode,
            refused,
            disabled: mode == Mode::Deferred,
            ranks: !setup::has_own_priority(),
        })
    }

    /// How requests reach the device, for people.
    pub fn description(&self) -> String {
        let direct = if self.access.direct { "O_DIRECT" } else { "buffered (O_DIRECT refused)" };
        format!("io_uring, {direct}, RWF_DSYNC, {}", self.mode.flags())
    }

    /// The mode that the queue is in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What was found out about kernel, file and device when the queue was opened, and is made use
    /// of or not.
    pub fn features(&self) -> Vec<Feature> {
        let mut features = self.access.features(self.fd.as_fd());
        features.extend(setup::features(self.fd.as_fd(), self.mode, self.refused.as_deref(), self.ranks));
        features
    }

    /// Puts the request into slot `index`, and makes its entry.
    fn entry(&mut self, index: u32, token: u64, operation: Operation, priority: Priority) -> squeue::Entry {
        const FILE: types::Fixed = types::Fixed(0);
        let slot = &mut self.slots[index as usize];
        slot.token = token;
        slot.length = match operation {
            // What the kernel reports of it is 0.
            Operation::Discard { .. } => 0,
            _ => operation.bytes(),
        };
        let ioprio = if self.ranks { ioprio(priority) } else { 0 };
        let entry = match operation {
            Operation::Read { offset, length, mut buffer } => {
                let to = buffer.as_mut_ptr();
                slot.buffer = Some(buffer);
                opcode::Read::new(FILE, to, length as u32).offset(offset).ioprio(ioprio).build()
            }
            Operation::Write { offset, length, buffer, durable } => {
                let from = buffer.as_ptr();
                slot.buffer = Some(buffer);
                let write = opcode::Write::new(FILE, from, length as u32).offset(offset).ioprio(ioprio);
                write.rw_flags(dsync(durable)).build()
            }
            Operation::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            Operation::ReadVectored { offset, parts } => {
                let (vectors, count) = slot.keep(parts);
                opcode::Readv::new(FILE, vectors, count).offset(offset).ioprio(ioprio).build()
            }
            Operation::WriteVectored { offset, parts, durable } => {
                let (vectors, count) = slot.keep(parts);
                let write = opcode::Writev::new(FILE, vectors, count).offset(offset).ioprio(ioprio);
                write.rw_flags(dsync(durable)).build()
            }
            Operation::Discard { offset, length } => {
                // The flags are those of fallocate(2), all below 2^31.
                let mode = self.access.discard.flags().bits().cast_signed();
                opcode::Fallocate::new(FILE, length).offset(offset).mode(mode).build()
            }
        };
        entry.user_data(u64::from(index))
    }

    /// Lets the kernel post completions that it holds back until this thread enters it.
    fn run_deferred(&mut self) {
        if self.ring.submission().taskrun() {
            // SAFETY: no argument structure is passed and nothing is submitted or waited for.
            let entered =
                unsafe { self.ring.submitter().enter::<()>(0, 0, EnterFlags::GETEVENTS.bits(), None) };
            // An error here (EINTR) means only that the completions show up at the next call.
            drop(entered);
        }
    }
}

impl DiskQueue for UringQueue {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        self.access.block_size
    }

    fn physical_block_size(&self) -> usize {
        self.access.physical
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity, self.access.block_size) {
            return Err(SubmitError::OutOfRange(operation));
        }
        let Some(index) = self.free.pop() else {
            return Err(SubmitError::Full(operation));
        };
        let entry = self.entry(index, token, operation, priority);
        // SAFETY: the heap memory of buffers and vectors lives in the slot until the completion is
        // taken, or is leaked on drop; moving a `Buffer` into the slot does not move that memory.
        // The registered file lives as long as the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // A ring has at least as many entries as there are slots, and each entry holds a slot.
        assert!(pushed.is_ok(), "submission ring smaller than the slot table");
        self.queued += 1;
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        if self.disabled {
            self.ring.submitter().register_enable_rings()?;
            self.disabled = false;
        }
        let mut retries = 0;
        while self.queued > 0 {
            match self.ring.submit() {
                // The kernel's thread takes them, and knows.
                Ok(_) if self.mode == Mode::KernelThread => self.queued = 0,
                Ok(taken) => self.queued -= taken.min(self.queued),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
                        && retries < SUBMIT_RETRIES =>
                {
                    retries += 1;
                    std::thread::yield_now();
                }
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                    let rule = "a queue in deferred mode belongs to the thread that rang it first";
                    return Err(io::Error::other(rule));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.run_deferred();
        let before = out.len();
        for entry in self.ring.completion() {
            let Ok(index) = u32::try_from(entry.user_data()) else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(index as usize) else {
                continue;
            };
            let result = match u64::try_from(entry.result()) {
                Ok(moved) if moved == slot.length => Ok(()),
                Ok(moved) => Err(short(moved, slot.length)),
                Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
            };
            let parts = std::mem::take(&mut slot.parts);
            out.push(Completion { token: slot.token, result, buffer: slot.buffer.take(), parts });
            self.free.push(index);
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.notify()?;
        if self.in_flight() == 0 || !self.ring.completion().is_empty() {
            return Ok(());
        }
        let timespec = types::Timespec::from(timeout);
        let arguments = types::SubmitArgs::new().timespec(&timespec);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            // ETIME: the time has passed. EINTR: the caller polls and comes back.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl AsFd for UringQueue {
    /// The ring's descriptor: readable (`POLLIN`) when a completion can be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let deadline = Instant::now() + DRAIN;
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(left).is_err() {
                // The kernel may still write to these buffers: they stay allocated for good.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
            self.complete(&mut completions);
            completions.clear();
        }
    }
}
