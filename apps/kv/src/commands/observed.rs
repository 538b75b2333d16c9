//! Runs a command that is observed: measures it and records it.
//!
//! 1. The clock is read before and after the command, if the settings need it. The commands of a
//!    transaction are measured one by one, and EXEC as a whole; the slow log has only the former.
//! 2. A command that blocks is not recorded. When it is served, it runs again, and that run is.
//! 3. Records show no passwords ([`redacted`]).

use super::context::Context;
use crate::foundation::command::{flag, subcommand};
use crate::foundation::observation::Timed;
use crate::foundation::observation::latency::Cause;
use crate::foundation::observation::redaction::redacted;
use crate::foundation::observation::slow_log::{SlowCommand, shorten};

impl Context<'_> {
    /// As [`Context::run`], and records what the settings request.
    pub(crate) fn run_observed(&mut self, number: u16, arguments: &[&[u8]]) {
        self.run_observed_again(number, arguments);
    }

    /// The same for a command that has been blocked.
    pub(crate) fn run_observed_again(&mut self, number: u16, arguments: &[&[u8]]) {
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
                name: self.client.name.clone(),
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
