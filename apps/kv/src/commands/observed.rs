//! Runs a command that is observed: measures it and records it.
//!
//! 1. The clock is read before and after the command, if the settings need it. The commands of a
//!    transaction are measured one by one, and EXEC as a whole; the slow log has only the former.
//! 2. A command that blocks is not recorded. When it is served, it runs again, and that run is.
//! 3. Records show no passwords ([`redacted`]).
//! 4. Monitors receive it after it has run, as from Redis: EXEC after its commands.
//! 5. The events of keys that the command has caused are sent after it. Its own client receives
//!    them before the reply, as from Redis.

use super::context::Context;
use crate::acl::subcommand_belongs;
use crate::clients::{Client, ReplyMode, write_message};
use crate::data::keyspace::Now;
use crate::foundation::command::{CommandSpec, flag, subcommand};
use crate::foundation::observation::Timed;
use crate::foundation::observation::latency::Cause;
use crate::foundation::observation::monitor::{self, unix_microseconds};
use crate::foundation::observation::redaction::redacted;
use crate::foundation::observation::slow_log::{SlowCommand, shorten, shorten_one};
use crate::foundation::protocol::Reply;

impl Context<'_> {
    /// As [`Context::run`], and records what the settings request.
    pub(crate) fn run_observed(&mut self, number: u16, arguments: &[&[u8]]) {
        self.run_observed_again(number, arguments);
        if self.clients.are_monitored() {
            self.feed_monitors(arguments);
        }
    }

    /// The same for a command that has been blocked.
    pub(crate) fn run_observed_again(&mut self, number: u16, arguments: &[&[u8]]) {
        let start = self.reply.bytes.len();
        self.run_timed(number, arguments);
        self.send_events(start);
    }

    fn run_timed(&mut self, number: u16, arguments: &[&[u8]]) {
        if Timed::by(self.data.settings()) == Timed::None {
            return self.run(number, arguments);
        }
        let clock = self.data.store_ref().observation.time.monotonic_ns;
        let begin = clock();
        self.run(number, arguments);
        let took = clock().saturating_sub(begin);
        if self.client.block_request.is_none() {
            self.record(number, arguments, took);
        }
    }

    /// Sends the events of keys. The messages to the client itself go before its reply, which
    /// begins at `start`.
    fn send_events(&mut self, start: usize) {
        let events = self.data.store().observation.events.take();
        let classes = self.data.store_ref().observation.events.enabled();
        let now_ns = self.data.now().monotonic_ns;
        let mut own = Reply::new(Vec::new(), self.reply.resp3);
        for event in &events {
            for (channel, message) in event.messages(classes) {
                let own_id = Some(self.client.id());
                let delivery = self.clients.publish_everywhere(&channel, message, now_ns, own_id);
                for pattern in &delivery.own {
                    write_message(&mut own, pattern.as_deref(), &channel, message);
                }
            }
        }
        if !matches!(self.client.reply_mode, ReplyMode::On) {
            self.pushed.extend_from_slice(&own.bytes);
        }
        self.reply.bytes.splice(start..start, own.bytes);
    }

    /// Sends the command to the monitors. Like Redis, it hides administrative commands.
    fn feed_monitors(&mut self, arguments: &[&[u8]]) {
        let now = self.data.now();
        let Some(line) = monitor_line(self.client, &self.command.spec, now, arguments) else { return };
        self.clients.send_to_all_monitors(&line, now.monotonic_ns);
        if self.client.monitor && matches!(self.client.reply_mode, ReplyMode::On) {
            self.reply.bytes.extend_from_slice(&line);
        } else if self.client.monitor {
            self.pushed.extend_from_slice(&line);
        }
    }

    /// Records a command that took so many nanoseconds.
    fn record(&mut self, number: u16, arguments: &[&[u8]], took: u64) {
        let spec = &self.command.spec;
        let unix_ms = self.data.now().unix_ms;
        let store = self.data.store();
        let settings = &store.settings;
        let count = &mut store.metrics.by_command[number as usize];
        count.timed += 1;
        count.nanoseconds += took;
        let microseconds = took / 1000;
        let is_slow =
            u64::try_from(settings.slowlog_log_slower_than).is_ok_and(|limit| microseconds >= limit);
        // EXEC would repeat its commands, which are recorded one by one.
        if is_slow && spec.name != "exec" {
            let entry = SlowCommand {
                id: 0,
                unix_seconds: unix_ms / 1000,
                microseconds,
                arguments: shorten(&redacted(spec.name, arguments)),
                address: self.client.peer.to_string(),
                name: shorten_one(&self.client.name),
            };
            store.observation.slow_log.push(entry, settings.slowlog_max_len);
        }
        let cause = if spec.flags.has(flag::FAST) { Cause::FastCommand } else { Cause::Command };
        store.observation.latency.record(cause, took, settings.latency_monitor_threshold, unix_ms);
        if settings.latency_tracking {
            let name = subcommand(spec, arguments).unwrap_or_default();
            store.observation.histograms.entry((number, name)).or_default().record(took);
        }
    }
}

/// The line of a client's command for monitors; none if the command is hidden from them.
pub(crate) fn monitor_line(
    client: &Client,
    spec: &CommandSpec,
    now: Now,
    arguments: &[&[u8]],
) -> Option<Vec<u8>> {
    let hidden = match subcommand(spec, arguments) {
        Some(name) => subcommand_belongs(spec, name, "admin"),
        None => spec.flags.has(flag::ADMIN),
    };
    let microseconds = unix_microseconds(now.unix_ms, now.monotonic_ns);
    let line = || monitor::line(microseconds, client.database, client.peer, &redacted(spec.name, arguments));
    (!hidden).then(line)
}
