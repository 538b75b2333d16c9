//! A core without a log of its own. The coordinator writes the effects of its shard.
//!
//! 1. At the end of an iteration the member sends the effects as one record with the next number,
//!    and seals the replies behind it. They leave once the coordinator says that it is durable.
//! 2. While more than [`MOST_UNWRITTEN`] bytes are not in the log yet, or the log makes room, no
//!    command runs: the member is *held*, and its clients' windows fill.
//! 3. While a snapshot runs, each iteration dumps a slice of the shard, behind the effects. It
//!    stops while more than [`MOST_DUMPED`] bytes are on their way.
//! 4. If the coordinator wants the shard, the member sends it, behind everything else. Until it is
//!    back, the member takes no input and handles messages alone.
//! 5. At the end the member takes no input, reports once everything is durable and passed on, and
//!    ends when the coordinator says so.

use std::collections::VecDeque;

use super::links::Links;
use super::message::Message;
use crate::foundation::settings::Durability;
use crate::server::log_writer::{LogState, Progress, SLICE_BYTES};
use crate::shard::Shard;

/// The core that writes the log.
const COORDINATOR: usize = 0;

/// Bytes of effects that may be on their way to the log: several iterations of a busy shard, and
/// with many members still little beside the log's own queue.
const MOST_UNWRITTEN: usize = 1 << 20;

/// Bytes of dumps that may be on their way: a few slices, so that the disk never waits for the
/// walk.
const MOST_DUMPED: u64 = 4 * SLICE_BYTES as u64;

/// How far the end of the member has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    Serving,
    /// No input is taken; the last effects become durable.
    Stopping,
    /// That was reported.
    Stopped,
    /// The coordinator knows.
    Ended,
}

/// The member's side of the log; see the module documentation.
#[derive(Debug)]
pub(in crate::server) struct Member {
    durability: Durability,
    /// The number of the last record.
    number: u64,
    progress: Progress,
    /// Number and bytes of each record that is not in the log yet.
    unwritten: VecDeque<(u64, usize)>,
    unwritten_bytes: usize,
    /// Effects that the coordinator has counted.
    counted: u64,
    /// No command runs until the log has room.
    held: bool,
    failed: bool,
    /// The coordinator waits for the shard.
    lend: bool,
    /// A section was asked for.
    asked: bool,
    /// The snapshot whose part this member dumps.
    snapshot: Option<u64>,
    /// Bytes of all dumps that were sent.
    dumped: u64,
    phase: Phase,
}

impl Member {
    /// A member of a store with this durability.
    pub(super) fn new(durability: Durability) -> Self {
        Self {
            durability,
            number: 0,
            progress: Progress::default(),
            unwritten: VecDeque::new(),
            unwritten_bytes: 0,
            counted: 0,
            held: false,
            failed: false,
            lend: false,
            asked: false,
            snapshot: None,
            dumped: 0,
            phase: Phase::Serving,
        }
    }

    /// Whether no command may run.
    pub(super) fn is_held(&self) -> bool {
        !self.failed && (self.held || self.unwritten_bytes > MOST_UNWRITTEN)
    }

    /// Whether replies or commands wait for the log.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_held() || !self.is_settled()
    }

    /// Whether the coordinator has said to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.phase >= Phase::Stopping
    }

    /// Whether the log has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the coordinator has said to end.
    pub(super) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether another iteration dumps more of a snapshot.
    pub(super) fn has_more_to_dump(&self) -> bool {
        self.snapshot.is_some() && self.may_dump()
    }

    fn may_dump(&self) -> bool {
        self.dumped - self.progress.dumped < MOST_DUMPED
    }

    /// The number behind which replies are sealed, and the last that is durable.
    pub(super) fn position(&self) -> (u64, u64) {
        match self.durability {
            Durability::Always if !self.failed => (self.number, self.progress.durable),
            _ => (0, u64::MAX),
        }
    }

    /// Whether no reply waits for the log.
    fn is_settled(&self) -> bool {
        let done = match self.durability {
            Durability::Always => self.progress.durable,
            Durability::Interval | Durability::Never => self.progress.appended,
            Durability::None => self.number,
        };
        self.failed || done >= self.number
    }

    /// Takes a message of the coordinator. `shard` is not there while the
    /// coordinator has it.
    pub(super) fn take(&mut self, message: Message, shard: &mut Option<Box<Shard>>) {
        match message {
            Message::Progress(progress) => {
                self.note_progress(progress);
                if let Some(shard) = shard {
                    shard.durable(progress.durable);
                }
            }
            Message::LogState(state) => {
                self.note_state(&state);
                // The coordinator tells a shard that it has, or that is on its way to it. A
                // snapshot must not begin twice; a failure must not wait.
                let waits = self.lend && !matches!(state, LogState::Failed { .. });
                if let Some(shard) = shard.as_mut().filter(|_| !waits) {
                    state.apply(shard);
                }
            }
            Message::Lend => self.lend = true,
            Message::Returned { shard: mut returned, number } => {
                self.asked = false;
                self.number = number;
                returned.durable(self.progress.durable);
                *shard = Some(returned);
            }
            Message::Stop => self.phase = Phase::Stopping,
            Message::End => self.phase = Phase::Ended,
            // A member gets no others.
            _ => {}
        }
    }

    fn note_progress(&mut self, progress: Progress) {
        self.progress = progress;
        while let Some(&(number, bytes)) = self.unwritten.front()
            && number <= progress.appended
        {
            self.unwritten.pop_front();
            self.unwritten_bytes -= bytes;
        }
    }

    fn note_state(&mut self, state: &LogState) {
        match state {
            LogState::Failed { .. } => self.failed = true,
            LogState::Held(held) => self.held = *held,
            LogState::SnapshotBegun { snapshot } => self.snapshot = Some(*snapshot),
            LogState::SnapshotAborted | LogState::SnapshotFinished { .. } => self.snapshot = None,
            LogState::Full(_) => {}
        }
    }

    /// Does the log's part of an iteration: sends effects and dumps, and seals replies. Returns
    /// whether there was anything.
    pub(super) fn iterate(&mut self, shard: &mut Shard, links: &mut dyn Links) -> bool {
        let mut busy = self.send_effects(shard, links);
        if self.durability == Durability::Always || self.failed {
            shard.seal(self.number);
        } else {
            shard.seal(0);
            if shard.begin_syncs(self.number) {
                links.send(COORDINATOR, Message::WantSync(self.number));
            }
        }
        busy |= self.dump(shard, links);
        if shard.compaction_requested() {
            links.send(COORDINATOR, Message::WantSnapshot);
        }
        busy
    }

    fn send_effects(&mut self, shard: &mut Shard, links: &mut dyn Links) -> bool {
        if self.failed || self.durability == Durability::None {
            shard.journal().clear();
            return false;
        }
        let Some(record) = shard.journal().take() else { return false };
        self.number += 1;
        self.unwritten.push_back((self.number, record.len()));
        self.unwritten_bytes += record.len();
        // CONFIG RESETSTAT begins again at 0.
        let effects = shard.metrics().effects;
        let changes = effects.checked_sub(self.counted).unwrap_or(effects);
        self.counted = effects;
        links.send(COORDINATOR, Message::Effects { number: self.number, record, changes });
        true
    }

    /// Dumps a slice of the shard. All effects so far were sent.
    fn dump(&mut self, shard: &mut Shard, links: &mut dyn Links) -> bool {
        let Some(snapshot) = self.snapshot.filter(|_| self.may_dump() && !self.failed && !self.lend) else {
            return false;
        };
        let mut pieces = Vec::new();
        let complete = shard.snapshot_pieces(SLICE_BYTES, &mut |piece| pieces.push(piece.to_vec()));
        if complete {
            self.snapshot = None;
        }
        if shard.snapshot_aborted() {
            // The coordinator knows: it has run the command.
            return true;
        }
        self.dumped += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        links.send(COORDINATOR, Message::Dumped { snapshot, pieces, complete });
        true
    }

    /// Asks for an exclusive section, if clients wait for one.
    pub(super) fn ask(&mut self, shard: &Shard, links: &mut dyn Links) {
        if shard.wants_exclusive() && !self.asked && self.phase == Phase::Serving {
            self.asked = true;
            links.send(COORDINATOR, Message::WantSection);
        }
    }

    /// Lends the shard, if the coordinator waits for it. Nothing of it may be left to be sent.
    pub(super) fn lend(&mut self, shard: &mut Option<Box<Shard>>, links: &mut dyn Links) {
        if self.lend
            && let Some(shard) = shard.take()
        {
            self.lend = false;
            links.send(COORDINATOR, Message::Shard { shard, number: self.number });
        }
    }

    /// Reports that the member has stopped, once no reply waits and `passed_on` says that every
    /// message was passed on.
    pub(super) fn report_stopped(&mut self, passed_on: bool, links: &mut dyn Links) {
        if self.phase == Phase::Stopping && passed_on && self.is_settled() {
            self.phase = Phase::Stopped;
            links.send(COORDINATOR, Message::Stopped);
        }
    }
}
