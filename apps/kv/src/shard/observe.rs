//! Commands and other work that is observed.
//!
//! 1. [`Shard::observe`] decides which commands are observed, whenever a setting or a client has
//!    changed that decides it. Only commands that are always observed can change it.
//! 2. An observed command runs by [`Context::run_observed`], which measures and records it. All
//!    other commands pay one comparison of a byte.
//!    The limits of output take effect there, too.
//! 3. Expiry and eviction are measured while latencies are monitored.
//!
//! [`Context::run_observed`]: crate::commands::Context::run_observed

use super::Shard;
use super::peers::Halt;
use crate::clients::{Client, TimeoutReply};
use crate::commands::Command;
use crate::data::keyspace::Store;
use crate::foundation::command::{CommandSpec, flag, subcommand};
use crate::foundation::metrics::CommitTimes;
use crate::foundation::observation::Timed;
use crate::foundation::observation::latency::Cause;
use crate::foundation::protocol::Fault;

/// Most keys that one tick expires: well below a millisecond.
const TICK_KEYS: usize = 256;

/// Whether a command may change what is observed, or runs commands that are observed one by one.
fn is_always_observed(command: &CommandSpec) -> bool {
    matches!(command.name, "exec" | "monitor" | "reset")
}

impl Shard {
    /// Decides which commands are observed.
    pub(super) fn observe(&mut self) {
        let Store { observation, settings, .. } = &mut self.store;
        observation.changed = false;
        observation.events.enable(settings.notify_keyspace_events);
        let all =
            observation.events.is_enabled() || self.clients.are_monitored() || self.clients.pause.is_some();
        self.clients.announce_monitors();
        self.clients.set_output_limits(settings.output_limits, self.now.monotonic_ns);
        let timed = Timed::by(&self.store.settings);
        let rows = self.table.commands().iter().zip(&mut self.observed).enumerate();
        for (number, (command, observed)) in rows {
            *observed = all
                || is_always_observed(&command.spec)
                || self.table.is_container(number as u16)
                || match timed {
                    Timed::None => false,
                    Timed::Unbounded => !command.spec.is_bounded(),
                    Timed::All => true,
                };
        }
    }

    /// Runs a command that is observed.
    #[cold]
    #[inline(never)]
    pub(super) fn execute_observed(
        &mut self,
        client: &mut Client,
        number: u16,
        command: &'static Command,
        arguments: &[&[u8]],
    ) {
        client.last_subcommand = subcommand(&command.spec, arguments);
        if self.postpone(client, &command.spec) {
            return;
        }
        if client.monitor && self.touches_keys(client, &command.spec) {
            return self.reject(
                client,
                Some(number),
                &Fault::of("ERR Replica can't interact with the keyspace"),
            );
        }
        self.call(client, command, |context| context.run_observed(number, arguments));
        if self.store.observation.changed {
            self.observe();
        }
    }

    /// Blocks the client until the end of a pause, if the pause postpones this command.
    pub(super) fn postpone(&mut self, client: &mut Client, command: &CommandSpec) -> bool {
        let Some(pause) = self.clients.pause else { return false };
        if pause.until <= self.now.monotonic_ns {
            self.clients.pause = None;
            self.store.observation.changed = true;
            return false;
        }
        if !pause.all
            && !self.any_command(client, command, |command| {
                command.flags.has(flag::WRITE) || command.name == "publish"
            })
        {
            return false;
        }
        client.want_block(&[], client.database, Some(pause.until), TimeoutReply::RunAgain);
        true
    }

    /// Whether a command reads or changes data. As in Redis, a monitor may run no such command.
    pub(super) fn touches_keys(&self, client: &Client, command: &CommandSpec) -> bool {
        self.any_command(client, command, |command| {
            command.flags.has(flag::READONLY) || command.flags.has(flag::WRITE) || command.name == "publish"
        })
    }

    /// Whether this is true of a command, or of one in the transaction that it runs.
    fn any_command(&self, client: &Client, command: &CommandSpec, is: impl Fn(&CommandSpec) -> bool) -> bool {
        let queued = client.transaction.iter().flat_map(|transaction| &transaction.queue);
        let mut queued = queued.filter_map(|words| self.table.find(&words[0]));
        is(command) || command.name == "exec" && queued.any(|(_, row)| is(&row.spec))
    }

    /// Runs `work`, and records it as a latency event if it took long.
    fn measure<T>(&mut self, cause: Cause, work: impl FnOnce(&mut Self) -> T) -> T {
        let threshold = self.store.settings.latency_monitor_threshold;
        if threshold == 0 {
            return work(self);
        }
        let clock = self.store.observation.time.monotonic_ns;
        let begin = clock();
        let result = work(self);
        let took = clock().saturating_sub(begin);
        self.store.observation.latency.record(cause, took, threshold, self.now.unix_ms);
        result
    }

    /// Sends the events of keys that no command has caused.
    pub(super) fn send_events(&mut self) {
        let classes = self.store.observation.events.enabled();
        let now_ns = self.now.monotonic_ns;
        for event in self.store.observation.events.take() {
            for (channel, message) in event.messages(classes) {
                self.clients.publish_everywhere(&channel, message, now_ns, None);
            }
        }
    }

    /// Evicts keys until there is room; whether there is.
    pub(super) fn make_room(&mut self) -> bool {
        self.measure(Cause::EvictionCycle, |shard| shard.store.make_room(shard.now))
    }

    /// Evicts a bounded number of keys, if a setting that has changed requires it: no command may
    /// come that would.
    pub(super) fn evict_further(&mut self) {
        if !self.store.evicting || self.peers.halt != Halt::No {
            return;
        }
        if self.store.must_evict_elsewhere() {
            self.store.evicting = self.now.monotonic_ns >= self.peers.full_until;
            if self.store.evicting {
                self.peers.halt = Halt::Memory;
            }
            return;
        }
        self.store.evicting = self.make_room() && self.store.is_over_limit();
    }

    /// Deletes a bounded number of the keys whose time is over.
    pub(super) fn expire_due(&mut self) {
        self.behind = self.measure(Cause::ExpireCycle, |shard| shard.store.expire_due(shard.now, TICK_KEYS));
    }

    /// Notes the times of a record of the log from its append until it was durable.
    pub(crate) fn note_commit(&mut self, times: CommitTimes) {
        let threshold = self.store.settings.latency_monitor_threshold;
        let observation = &mut self.store.observation;
        observation.latency.record(Cause::LogCommit, times.total(), threshold, self.now.unix_ms);
        observation.note_commit(times);
    }
}
