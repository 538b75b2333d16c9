//! Clients with more output than `client-output-buffer-limit` allows.
//!
//! 1. A client is checked whenever it receives output, and when the limits change. At its hard
//!    limit it is closed.
//! 2. At its soft limit it is listed, with the time since when it has been there. Output that
//!    leaves ends that time.
//! 3. The list has a deadline, so a client is closed in time although nothing arrives.

use super::client::{Client, Closing};
use super::table::Clients;
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::{OutputLimit, OutputLimits};

/// Nanoseconds that a client has beyond the seconds of its soft limit: output that has just arrived
/// can leave, and the list is checked ten times a second at most.
const GRACE_NS: u64 = 100_000_000;

impl Client {
    /// Bytes of replies and messages that it has not received.
    pub(crate) fn owed(&self) -> usize {
        self.output.pending() + self.pending.reply_bytes()
    }

    /// The limit of its class.
    fn output_limit(&self, limits: &OutputLimits) -> OutputLimit {
        if self.is_subscriber() || self.monitor { limits.pubsub } else { limits.normal }
    }

    /// Notes that output has left.
    #[inline]
    pub(super) fn note_sent(&mut self, limits: &OutputLimits) {
        if self.over_soft_since.is_some() && !self.output_limit(limits).is_soft_reached(self.owed()) {
            self.over_soft_since = None;
        }
    }
}

impl Clients {
    /// Changes the limits, and checks all clients if they are others than before.
    pub(crate) fn set_output_limits(&mut self, limits: OutputLimits, now_ns: u64) {
        if self.output_limits == limits {
            return;
        }
        self.output_limits = limits;
        let all: Vec<ClientId> = self.iter().map(Client::id).collect();
        for id in all {
            if let Some(mut client) = self.take(id) {
                self.check_output(&mut client, now_ns);
                self.put(client);
            }
        }
    }

    /// Whether the client that is being served is to be closed, because its reply so far has
    /// reached its hard limit with so many bytes.
    pub(crate) fn overflows_with(&mut self, client: &mut Client, bytes: usize) -> bool {
        if client.output_limit(&self.output_limits).is_reached(bytes) {
            self.overflow(client);
        }
        client.closing == Closing::Now
    }

    /// Closes a client that has reached its hard limit, and lists it at its soft limit.
    #[inline]
    pub(crate) fn check_output(&mut self, client: &mut Client, now_ns: u64) {
        // By default only subscribers and monitors have a limit.
        if client.over_soft_since.is_some() || client.output_limit(&self.output_limits).is_set() {
            self.check_limited(client, now_ns);
        }
    }

    #[inline(never)]
    fn check_limited(&mut self, client: &mut Client, now_ns: u64) {
        let (limit, owed) = (client.output_limit(&self.output_limits), client.owed());
        if limit.is_reached(owed) {
            return self.overflow(client);
        }
        if !limit.is_soft_reached(owed) {
            client.over_soft_since = None;
            return;
        }
        client.over_soft_since.get_or_insert(now_ns);
        let due = now_ns.saturating_add(limit.nanoseconds()).saturating_add(GRACE_NS);
        if !client.is_listed {
            client.is_listed = true;
            self.over_soft.push(client.id);
            self.next_output_check = self.next_output_check.min(due);
        }
    }

    /// When clients with as much output as their soft limit are checked next.
    pub(crate) fn next_output_check(&self) -> Option<u64> {
        (!self.over_soft.is_empty()).then_some(self.next_output_check)
    }

    /// Closes the clients that have had as much output as their soft limit for too long.
    pub(crate) fn close_over_soft(&mut self, now_ns: u64) {
        if now_ns < self.next_output_check {
            return;
        }
        let mut next = u64::MAX;
        for id in std::mem::take(&mut self.over_soft) {
            let Some(mut client) = self.take(id) else { continue };
            let limit = client.output_limit(&self.output_limits);
            client.note_sent(&self.output_limits);
            let due = client.over_soft_since.map(|since| {
                let due = since.saturating_add(limit.nanoseconds());
                due.saturating_add(GRACE_NS)
            });
            match due {
                Some(due) if due > now_ns && client.closing != Closing::Now => {
                    next = next.min(due);
                    self.over_soft.push(id);
                }
                due => {
                    client.is_listed = false;
                    if due.is_some() {
                        self.overflow(&mut client);
                    }
                }
            }
            self.put(client);
        }
        self.next_output_check = next.max(now_ns.saturating_add(GRACE_NS));
        if self.over_soft.is_empty() {
            self.next_output_check = u64::MAX;
        }
    }

    /// Closes a client that has too much output.
    fn overflow(&mut self, client: &mut Client) {
        if client.closing != Closing::Now {
            client.closing = Closing::Now;
            client.output.clear();
            self.overflowed += 1;
            self.note_ready(client);
        }
    }
}
