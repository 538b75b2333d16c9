//! The core that writes the log: it takes what members send, and gathers all shards where one core
//! must have everything.
//!
//! 1. Effects and dumps of members go into the log writer's queue in the order of their arrival.
//! 2. When clients anywhere wait for an exclusive section, when a snapshot must cover the queue, or
//!    when the key view has a request, every member is asked for its shard. A shard arrives behind
//!    everything that its member has sent.
//! 3. Once all shards are here, the section runs ([`exclusive::run`]). Its effects are one record,
//!    behind everything that it could see. Each shard gets a number that stands for that record,
//!    because its replies may show any of it. Then the shards go back.
//! 4. While the log has no room for effects, no section runs, and the shards go back: their parts
//!    of a snapshot may be what makes room. They stay only for a snapshot that covers the queue.
//! 5. Changes in the state of the log go to every member, and at once to shards that are here or on
//!    their way here.

use sietch::disk::DiskQueue;

use super::links::Links;
use super::message::Message;
use crate::server::log_writer::{LogState, LogWriter, Queued};
use crate::shard::{Now, Shard, exclusive};

/// A shard that was asked for.
#[derive(Default)]
struct Asked {
    /// The shard and its last number, once it is here.
    arrived: Option<(Box<Shard>, u64)>,
    /// Changes of the log's state to send to it when it arrives.
    states: Vec<LogState>,
}

/// Where the members' shards are.
enum Shards {
    /// With their members.
    Away,
    /// On their way. By member, from the first on.
    Coming(Vec<Asked>),
    /// Here, with the last number of each member; the first number is unused.
    Here(Vec<u64>),
}

/// See the module documentation.
pub(in crate::server) struct Coordinator {
    /// How many cores there are.
    cores: usize,
    shards: Shards,
    /// The members' shards, in order, if all are here.
    here: Vec<Box<Shard>>,
    /// Clients of a member wait for a section.
    section_wanted: bool,
    /// The key view has a request.
    view_wanted: bool,
    /// The shards stay until the next iteration, for the key view.
    shown: bool,
    /// Members that have stopped.
    stopped: usize,
    ending: bool,
}

impl Coordinator {
    /// The coordinator of so many cores.
    pub(super) fn new(cores: usize) -> Self {
        Self {
            cores,
            shards: Shards::Away,
            here: Vec::new(),
            section_wanted: false,
            view_wanted: false,
            shown: false,
            stopped: 0,
            ending: false,
        }
    }

    /// The members' shards, if all are here; otherwise none.
    pub(super) fn others(&mut self) -> &mut [Box<Shard>] {
        &mut self.here
    }

    /// Whether all shards are here for the key view. If not, this asks for them: they stay here
    /// between some later iteration and the next.
    pub(super) fn show(&mut self) -> bool {
        self.view_wanted |= !self.shown;
        self.shown
    }

    /// The members' shards, if all are here; otherwise none.
    pub(super) fn shown(&self) -> &[Box<Shard>] {
        &self.here
    }

    /// Whether shards are on their way.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.shards, Shards::Coming(_))
    }

    /// Whether every member has stopped.
    pub(super) fn all_stopped(&self) -> bool {
        self.stopped + 1 == self.cores
    }

    /// Takes a message of `member`.
    pub(super) fn take<D: DiskQueue>(
        &mut self,
        member: usize,
        message: Message,
        shard: &mut Shard,
        log_writer: Option<&mut LogWriter<D>>,
    ) {
        let queued = match message {
            Message::Effects { number, record, changes } => {
                shard.persistence_mut().changes += changes;
                Queued::Record { member, number, record }
            }
            Message::Dumped { snapshot, pieces, complete } => {
                Queued::Dumped { member, snapshot, pieces, complete }
            }
            Message::WantSync(number) => Queued::Sync { member, number },
            Message::WantSection => {
                self.section_wanted = true;
                return;
            }
            Message::WantSnapshot => {
                if let Some(log_writer) = log_writer {
                    log_writer.request_compaction();
                }
                return;
            }
            Message::Shard { shard, number } => return self.note_arrival(member, shard, number),
            Message::Stopped => {
                self.stopped += 1;
                return;
            }
            // The coordinator gets no others.
            _ => return,
        };
        if let Some(log_writer) = log_writer {
            log_writer.push(queued);
        }
    }

    fn note_arrival(&mut self, member: usize, mut shard: Box<Shard>, number: u64) {
        let Shards::Coming(coming) = &mut self.shards else { return };
        let Some(asked) = coming.get_mut(member - 1) else { return };
        asked.states.drain(..).for_each(|state| state.apply(&mut shard));
        asked.arrived = Some((shard, number));
        if coming.iter().all(|asked| asked.arrived.is_some()) {
            let arrived = coming.drain(..).filter_map(|asked| asked.arrived);
            let (shards, mut numbers): (Vec<_>, Vec<_>) = arrived.unzip();
            numbers.insert(0, 0);
            self.here = shards;
            self.shards = Shards::Here(numbers);
            // What members asked for came before their shards, which know it.
            self.section_wanted = false;
        }
    }

    /// Runs the exclusive section, if all shards are here and commands may run.
    pub(super) fn run_section<D: DiskQueue>(
        &mut self,
        own: &mut Option<Box<Shard>>,
        mut log_writer: Option<&mut LogWriter<D>>,
        held: bool,
        now: Now,
    ) -> bool {
        let Shards::Here(numbers) = &mut self.shards else { return false };
        let wanted = own.iter().chain(&self.here).any(|shard| shard.wants_exclusive());
        if held || self.ending || !wanted {
            return false;
        }
        let Some(mut first) = own.take() else { return false };
        // It has changed keys that the section may see.
        match &mut log_writer {
            Some(log_writer) => log_writer.push_own(&mut first),
            None => first.journal().clear(),
        }
        let mut all = vec![first];
        all.append(&mut self.here);
        exclusive::run(&mut all, now);
        self.here = all.split_off(1);
        *own = all.pop();
        if let (Some(log_writer), Some(own)) = (log_writer, own) {
            log_writer.push_own(own);
            numbers.iter_mut().for_each(|number| *number += 1);
            log_writer.push(Queued::Section(numbers.clone()));
            log_writer.note_section(own, &self.here, now);
        }
        true
    }

    /// Passes on what has happened to the log, gives shards back that are needed no more, and asks
    /// for all if they are needed. `held`: no section may run.
    pub(super) fn conclude<D: DiskQueue>(
        &mut self,
        own: &Shard,
        mut log_writer: Option<&mut LogWriter<D>>,
        held: bool,
        links: &mut dyn Links,
    ) {
        let mut covers = false;
        if let Some(log_writer) = &mut log_writer {
            for state in log_writer.take_states() {
                self.tell(&state, links);
            }
            for member in 1..self.cores {
                if let Some(progress) = log_writer.take_progress(member) {
                    links.send(member, Message::Progress(progress));
                }
            }
            covers = log_writer.needs_all_shards();
        }
        let here = matches!(self.shards, Shards::Here(_));
        if here && !covers {
            if self.view_wanted && !self.shown {
                (self.view_wanted, self.shown) = (false, true);
            } else {
                self.give_back(links);
            }
        }
        let wanted = self.section_wanted || self.view_wanted || own.wants_exclusive();
        if matches!(self.shards, Shards::Away) && (covers || (wanted && !held && !self.ending)) {
            self.shards = Shards::Coming((1..self.cores).map(|_| Asked::default()).collect());
            (1..self.cores).for_each(|member| links.send(member, Message::Lend));
        }
    }

    fn tell(&mut self, state: &LogState, links: &mut dyn Links) {
        match &mut self.shards {
            Shards::Away => {}
            Shards::Coming(coming) => {
                for asked in coming {
                    match &mut asked.arrived {
                        Some((shard, _)) => state.apply(shard),
                        None => asked.states.push(state.clone()),
                    }
                }
            }
            Shards::Here(_) => self.here.iter_mut().for_each(|shard| state.apply(shard)),
        }
        (1..self.cores).for_each(|member| links.send(member, Message::LogState(state.clone())));
    }

    fn give_back(&mut self, links: &mut dyn Links) {
        let Shards::Here(numbers) = std::mem::replace(&mut self.shards, Shards::Away) else { return };
        self.shown = false;
        for ((member, number), shard) in
            std::iter::zip(numbers.into_iter().enumerate().skip(1), self.here.drain(..))
        {
            links.send(member, Message::Returned { shard, number });
        }
    }

    /// Has all members stop.
    pub(super) fn stop(&mut self, links: &mut dyn Links) {
        if !self.ending {
            self.ending = true;
            (1..self.cores).for_each(|member| links.send(member, Message::Stop));
        }
    }

    /// Has all members end.
    pub(super) fn end(&mut self, links: &mut dyn Links) {
        (1..self.cores).for_each(|member| links.send(member, Message::End));
    }
}
