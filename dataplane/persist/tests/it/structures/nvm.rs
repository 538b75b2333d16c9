//! Queues and maps in persistent memory. The power fails at any store and any fence. Each word that
//! no fence followed may be any of the values that it had. Sometimes it fails again in the
//! recovery.

use std::io;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, NvmQueue, Operation as Request, Priority, SubmitError};
use sietch_persist::{Durability, OpenError};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Memory, Random as Dice};

use super::CAPACITY;
use super::subject::{Kind, Knowledge, Operation, Subject, format};
use crate::disk::Random;
use crate::history::Verdict;

/// Memory without power answers what it was asked before: this queue says so instead.
struct Powered {
    queue: NvmQueue<Memory>,
    memory: Memory,
}

impl Powered {
    fn new(memory: &Memory) -> Self {
        Self { queue: NvmQueue::over(memory.clone(), None), memory: memory.clone() }
    }
}

impl DiskQueue for Powered {
    fn capacity(&self) -> u64 {
        self.queue.capacity()
    }

    fn block_size(&self) -> usize {
        self.queue.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.queue.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.queue.depth()
    }

    fn submit_with(&mut self, token: u64, operation: Request, priority: Priority) -> Result<(), SubmitError> {
        self.queue.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.queue.notify()?;
        if self.memory.is_off() { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.queue.complete(out)
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        self.notify()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

/// Opens, works and perhaps closes. `None`: the power failed.
fn life(
    kind: Kind,
    memory: &Memory,
    durability: Durability,
    known: &mut Knowledge,
    steps: u64,
    random: &mut Random,
) -> Option<()> {
    let closed = std::mem::take(&mut known.closed);
    let mut subject = match Subject::open(kind, Powered::new(memory), durability) {
        Ok(opened) => opened,
        Err(OpenError::Failed(_)) => return None,
        Err(other) => panic!("there is power: {other}"),
    };
    known.closed = closed;
    subject.judge(known).unwrap_or_else(|wrong| panic!("{wrong}"));
    known.history.restart(&subject.state());
    known.closed = false;
    for _ in 0..steps {
        subject.step(Operation::draw(kind, random), known, random).ok()?;
    }
    if random.chance(40) {
        subject.close(known).ok()?;
    }
    Some(())
}

struct Run {
    kind: Kind,
    seed: u64,
    faithful: bool,
}

impl Run {
    /// Formats and lives twice until boundary `off`; whether it lived to the end.
    fn live(&self, off: u64) -> (Memory, Knowledge, bool) {
        let memory = Memory::new(CAPACITY);
        let mut random = Random::new(self.seed);
        let durability = if self.seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
        let mut known = Knowledge::default();
        format(self.kind, &mut NvmQueue::over(memory.clone(), None), u128::from(self.seed))
            .expect("large enough");
        known.history.formatted = true;
        if !self.faithful {
            memory.ignore_fences();
        }
        memory.power_off_at(memory.boundaries() + off);
        let done = (0..2)
            .try_for_each(|_| life(self.kind, &memory, durability, &mut known, 70, &mut random).ok_or(()))
            .is_ok();
        (memory, known, done)
    }

    /// Some boundaries, drawn; at each the dice decide what is kept.
    fn enumerate(&self, stride: u64) -> Verdict {
        let mut dice = Dice::new(self.seed ^ 0xd1ce);
        let mut off = 1 + dice.below(stride);
        loop {
            let (memory, known, done) = self.live(off);
            memory.crash(&mut dice);
            self.judge(&memory, known, &mut dice)
                .map_err(|e| format!("{:?} in memory, seed {}, boundary {off}: {e}", self.kind, self.seed))?;
            seeds::explored(1);
            if done {
                return Ok(());
            }
            off += 1 + dice.below(2 * stride - 1);
        }
    }

    fn judge(&self, memory: &Memory, mut known: Knowledge, dice: &mut Dice) -> Verdict {
        // The power fails in the recovery, and in that one's.
        while dice.chance(400) {
            memory.power_off_at(memory.boundaries() + dice.between(1, 12));
            let mut random = Random::new(dice.word());
            life(self.kind, memory, Durability::Always, &mut known, 4, &mut random);
            memory.crash(dice);
            seeds::explored(1);
        }
        let subject = Subject::open(self.kind, Powered::new(memory), Durability::Always)
            .map_err(|e| format!("does not open: {e}"))?;
        subject.judge(&known)
    }
}

#[test]
fn power_loss_in_persistent_memory() {
    let budget = Budget { seeds: 20, seconds: 3 };
    seeds::run("it structures::nvm::power_loss_in_persistent_memory", &[1, 2, 3], budget, |seed| {
        for kind in [Kind::Queue, Kind::Map] {
            Run { kind, seed, faithful: true }.enumerate(9).expect("the promise");
        }
    });
}

#[test]
fn memory_that_ignores_fences_is_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = |kind| {
        (1..20).any(|seed| {
            let run = Run { kind, seed, faithful: false };
            std::panic::catch_unwind(|| run.enumerate(9)).map_or(true, |verdict| verdict.is_err())
        })
    };
    let caught = [caught(Kind::Queue), caught(Kind::Map)];
    std::panic::set_hook(hook);
    assert_eq!(caught, [true, true]);
}
