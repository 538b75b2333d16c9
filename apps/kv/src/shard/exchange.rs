//! How the event loop moves what a shard has for the others, and what they have for it.

use super::messages::{Announcements, Replies, Requests};
use super::peers::Halt;
use super::{Now, Shard};
use crate::clients::{Announcement, WaitsFor};

impl Shard {
    /// Whether this shard executes an exclusive section.
    pub(super) fn in_section(&self) -> bool {
        !self.guests.is_empty()
    }

    /// The commands that shard `to` is to run, since the last call.
    pub fn take_requests(&mut self, to: usize) -> Option<Requests> {
        let requests = self.peers.requests.get_mut(to)?;
        (!requests.is_empty()).then(|| std::mem::take(requests))
    }

    /// Runs commands of another shard's clients, or keeps them while no command may run. Their
    /// replies are sealed as those of clients are.
    pub fn serve_requests(&mut self, from: usize, requests: Requests, now: Now) {
        self.now = now;
        if from >= self.peers.proxies.len() {
            return;
        }
        self.peers.inbox.push_back((from, requests));
        self.run_inbox();
    }

    /// The replies for shard `to` that may leave, since the last call.
    pub fn take_replies(&mut self, to: usize) -> Option<Replies> {
        let proxy = self.peers.proxies.get_mut(to)?;
        let bytes = proxy.client.output.take_releasable();
        (!bytes.is_empty()).then_some(Replies { bytes })
    }

    /// What the clients of shard `to` must receive, since the last call.
    pub fn take_announcements(&mut self, to: usize) -> Option<Announcements> {
        let list = self.clients.take_announcements(to);
        (!list.is_empty()).then_some(Announcements { list })
    }

    /// Sends clients what another shard has announced.
    pub fn accept_announcements(&mut self, from: usize, announcements: Announcements, now: Now) {
        self.now = now;
        let now_ns = now.monotonic_ns;
        for announcement in announcements.list {
            match announcement {
                Announcement::Published { channel, message } => {
                    self.clients.publish(&channel, &message, now_ns, None);
                }
                Announcement::MonitorLine(line) => self.clients.send_to_monitors(&line, now_ns),
                Announcement::NoMonitors { period } => {
                    // The sender may have had other monitors since then.
                    if self.clients.monitored_by.get(&from) == Some(&period) {
                        self.clients.monitored_by.remove(&from);
                        self.observe();
                    }
                }
            }
        }
    }

    /// Whether clients wait for an exclusive section ([`exclusive::run`](super::exclusive::run)).
    pub fn wants_exclusive(&self) -> bool {
        !self.peers.section.is_empty() || matches!(self.peers.halt, Halt::Ready | Halt::Memory)
    }

    /// Notes what the others have now: much may have changed while this core slept.
    pub(crate) fn note_totals(&mut self) {
        self.store.elsewhere = self.totals.others(self.placement.own());
    }

    /// Publishes what this shard has, and notes what the others have.
    #[cold]
    pub(super) fn exchange_totals(&mut self) {
        let own = self.placement.own();
        let memory = self.store.used_memory();
        let dumped = self.store.weight().dumped as u64;
        self.totals.publish(own, memory, dumped);
        self.note_totals();
    }

    /// Lets clients run again that could not while the shard was halted.
    pub(super) fn end_halt(&mut self) {
        self.peers.halt = Halt::No;
        for id in std::mem::take(&mut self.peers.halted) {
            if let Some(client) = self.clients.get_mut(id)
                && client.waits_for == WaitsFor::Drained
            {
                client.waits_for = WaitsFor::Nothing;
            }
            self.clients.resume_later(id);
        }
    }
}
