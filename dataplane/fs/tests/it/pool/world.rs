//! Media that lose power together, and may ignore a fence.
//!
//! 1. A world has a home in persistent memory or on a disk, and two more disks. [`Device`] is the
//!    queue of one of them. When one of them stops at a boundary, all of them do.
//! 2. Each flush and each durable write is a [`Fence`]: the phase, the medium and the kind. One of
//!    them may be ignored: a flush then only reads, and a durable write is volatile.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{BLOCK, Buffer, Completion, DiskQueue, NvmQueue, Operation, Priority, SubmitError};
use sietch_fs::pool::{Class, Member};
use sietch_sim::disk::Options;
use sietch_sim::{Crash, Media, Memory, Random, SimDisk};

/// What the pool is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Format,
    Open,
    Commit,
    /// The media are changed.
    Media,
}

/// A place at which something is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fence {
    pub(super) phase: Phase,
    pub(super) is_home: bool,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Flush,
    /// A durable write of zeros.
    Erase,
    /// Any other durable write.
    Write,
}

/// Blocks of the home, and of the other media.
pub(super) const HOME: usize = 512;
const OTHER: usize = 40;
/// Media of a world.
pub(super) const MEDIA: usize = 3;

#[derive(Clone)]
enum Place {
    Disk(Media),
    Memory(Memory),
}

impl Place {
    fn is_off(&self) -> bool {
        match self {
            Self::Disk(media) => media.is_off(),
            Self::Memory(memory) => memory.is_off(),
        }
    }
}

struct State {
    places: Vec<Place>,
    /// No power, or the process is dead.
    is_off: bool,
    steps: u64,
    dies_at: u64,
    phase: Phase,
    ignored: Option<Fence>,
    seen: BTreeSet<Fence>,
}

/// The module's header describes it. Clones are the same world.
#[derive(Clone)]
pub(super) struct World {
    state: Rc<RefCell<State>>,
}

impl World {
    /// Zeroed media. An even seed has its home in memory.
    pub(super) fn new(seed: u64, ignored: Option<Fence>) -> Self {
        Self::of([HOME, OTHER, OTHER], seed, ignored)
    }

    /// As [`World::new`], with media of so many blocks.
    pub(super) fn of(blocks: [usize; MEDIA], seed: u64, ignored: Option<Fence>) -> Self {
        let mut random = Random::new(seed);
        let place = |at: usize| {
            if at == 0 && seed.is_multiple_of(2) {
                return Place::Memory(Memory::new(blocks[at] * BLOCK));
            }
            let tear = *random.pick(&[512, 64]);
            let depth = *random.pick(&[2, 16]);
            let options = Options { tear, depth, physical: BLOCK, ..Options::new(blocks[at] * BLOCK) };
            Place::Disk(Media::new(options, random.fork()))
        };
        let places = (0..MEDIA).map(place).collect();
        let state = State {
            places,
            is_off: false,
            steps: 0,
            dies_at: u64::MAX,
            phase: Phase::Format,
            ignored,
            seen: BTreeSet::new(),
        };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// Boundaries that a medium has passed.
    pub(super) fn boundaries(&self, medium: usize) -> u64 {
        match &self.state.borrow().places[medium] {
            Place::Disk(media) => media.boundaries(),
            Place::Memory(memory) => memory.boundaries(),
        }
    }

    /// Cuts the power at a boundary of one medium.
    pub(super) fn power_off_at(&self, medium: usize, boundary: u64) {
        match &self.state.borrow().places[medium] {
            Place::Disk(media) => media.power_off_at(boundary),
            Place::Memory(memory) => memory.power_off_at(boundary),
        }
    }

    /// Requests and waits so far.
    pub(super) fn steps(&self) -> u64 {
        self.state.borrow().steps
    }

    /// The process dies before this request or wait.
    pub(super) fn die_at(&self, step: u64) {
        self.state.borrow_mut().dies_at = step;
    }

    pub(super) fn is_off(&self) -> bool {
        self.state.borrow().is_off
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.state.borrow_mut().phase = phase;
    }

    /// The fences that were met.
    pub(super) fn seen(&self) -> BTreeSet<Fence> {
        self.state.borrow().seen.clone()
    }

    /// Power is lost, and comes back.
    pub(super) fn crash(&self, random: &mut Random) {
        let mut state = self.state.borrow_mut();
        for place in &state.places {
            match place {
                Place::Disk(media) => {
                    let how = match random.below(4) {
                        0 => Crash::Nothing,
                        1 => Crash::Everything,
                        _ => Crash::Random(random.fork()),
                    };
                    media.crash(how);
                }
                Place::Memory(memory) => memory.crash(random),
            }
        }
        state.is_off = false;
    }

    /// The process dies; the machine continues.
    pub(super) fn kill(&self) {
        let mut state = self.state.borrow_mut();
        for place in &state.places {
            if let Place::Disk(media) = place {
                media.kill();
            }
        }
        (state.is_off, state.dies_at) = (false, u64::MAX);
    }

    /// Flips a bit of what is durable on a disk.
    pub(super) fn rot(&self, medium: usize, byte: usize) {
        if let Place::Disk(media) = &self.state.borrow().places[medium] {
            media.rot(byte, 3);
        }
    }

    /// The simulated disk of a medium, if it is one.
    pub(super) fn disk(&self, medium: usize) -> Option<Media> {
        match &self.state.borrow().places[medium] {
            Place::Disk(media) => Some(media.clone()),
            Place::Memory(_) => None,
        }
    }

    /// The media, for a new process.
    pub(super) fn members(&self) -> Vec<Member<Device>> {
        let classes = [Class::Nvm, Class::Ssd, Class::Hdd];
        let places = self.state.borrow().places.clone();
        let member = |(medium, place): (usize, Place)| {
            let queue = match &place {
                Place::Disk(media) => Queue::Disk(media.open()),
                Place::Memory(memory) => Queue::Memory(NvmQueue::over(memory.clone(), None)),
            };
            let disk = Device { queue, place, medium, world: self.clone(), blocks: u64::MAX };
            Member { name: format!("medium {medium}"), class: classes[medium], disk }
        };
        places.into_iter().enumerate().map(member).collect()
    }
}

enum Queue {
    Disk(SimDisk),
    Memory(NvmQueue<Memory>),
}

/// The queue of a process on one medium of a world.
pub(super) struct Device {
    queue: Queue,
    place: Place,
    medium: usize,
    world: World,
    /// No more than so many blocks are shown.
    blocks: u64,
}

impl Device {
    /// Shows no more than so many blocks.
    pub(super) fn limit(&mut self, blocks: usize) {
        self.blocks = blocks as u64;
    }

    fn queue(&self) -> &dyn DiskQueue {
        match &self.queue {
            Queue::Disk(queue) => queue,
            Queue::Memory(queue) => queue,
        }
    }

    fn queue_mut(&mut self) -> &mut dyn DiskQueue {
        match &mut self.queue {
            Queue::Disk(queue) => queue,
            Queue::Memory(queue) => queue,
        }
    }

    /// Notices that the power is off.
    fn has_power(&self) -> bool {
        let mut state = self.world.state.borrow_mut();
        if self.place.is_off() && !state.is_off {
            state.is_off = true;
            for place in &state.places {
                match place {
                    Place::Disk(media) => media.power_off(),
                    // The next store has no effect.
                    Place::Memory(memory) => memory.power_off_at(0),
                }
            }
        }
        !state.is_off
    }

    /// Counts a step of the process, which may be its last.
    fn dies(&self) -> bool {
        let mut state = self.world.state.borrow_mut();
        state.steps += 1;
        state.is_off |= state.steps >= state.dies_at;
        state.is_off
    }

    /// The operation, without its promise if its fence is ignored.
    fn through_gate(&self, mut operation: Operation) -> Operation {
        let kind = match &operation {
            Operation::Flush => Kind::Flush,
            Operation::Write { durable: true, buffer, .. } if buffer.iter().all(|byte| *byte == 0) => {
                Kind::Erase
            }
            Operation::Write { durable: true, .. } | Operation::WriteVectored { durable: true, .. } => {
                Kind::Write
            }
            _ => return operation,
        };
        let mut state = self.world.state.borrow_mut();
        let fence = Fence { phase: state.phase, is_home: self.medium == 0, kind };
        state.seen.insert(fence);
        if state.ignored == Some(fence) {
            match &mut operation {
                Operation::Write { durable, .. } | Operation::WriteVectored { durable, .. } => {
                    *durable = false;
                }
                _ => {
                    operation = Operation::Read { offset: 0, length: BLOCK, buffer: Buffer::new(BLOCK) };
                }
            }
        }
        operation
    }
}

impl DiskQueue for Device {
    fn capacity(&self) -> u64 {
        self.queue().capacity().min(self.blocks.saturating_mul(BLOCK as u64))
    }

    fn block_size(&self) -> usize {
        self.queue().block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.queue().physical_block_size()
    }

    fn depth(&self) -> usize {
        self.queue().depth()
    }

    fn submit_with(&mut self, token: u64, operation: Operation, by: Priority) -> Result<(), SubmitError> {
        if !self.has_power() {
            return Ok(());
        }
        if self.dies() {
            return Ok(());
        }
        let operation = self.through_gate(operation);
        let submitted = self.queue_mut().submit_with(token, operation, by);
        self.has_power();
        submitted
    }

    fn notify(&mut self) -> io::Result<()> {
        if self.has_power() {
            self.queue_mut().notify()?;
        }
        self.has_power();
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.has_power() {
            self.queue_mut().complete(out);
        }
        if !self.has_power() {
            out.truncate(before);
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if self.has_power() && !self.dies() {
            self.queue_mut().wait(timeout)?;
        }
        if self.has_power() { Ok(()) } else { Err(io::Error::other("there is no power")) }
    }

    fn in_flight(&self) -> usize {
        if self.world.is_off() { 0 } else { self.queue().in_flight() }
    }
}
