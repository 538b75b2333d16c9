//! What the daemon counts. Shown by `sietch stat` as group `daemon`.

use sietch_protocol::metrics::{Kind, Metric};

/// Counters since this daemon started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Connections taken in.
    pub connections: u64,
    /// Connections refused because of a limit.
    pub connections_refused: u64,
    /// Connections ended because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections ended because the client was too slow to send or to read.
    pub slow_clients: u64,
    /// Requests handled.
    pub requests: u64,
    /// Requests answered by an error.
    pub requests_refused: u64,
    /// Grants issued.
    pub grants: u64,
    /// Grants that were released, or that ended with their process.
    pub grants_ended: u64,
    /// Grants found at the start whose process lived.
    pub grants_adopted: u64,
    /// Grants revoked.
    pub grants_revoked: u64,
    /// Holders killed because their rings cost the host time.
    pub holders_killed: u64,
    /// Devices without an owner that were removed.
    pub orphans_removed: u64,
    /// Areas made, resized, trimmed or removed.
    pub areas_changed: u64,
    /// Questions about views that were passed on.
    pub view_questions: u64,
    /// Of these, answered with something that was no answer.
    pub view_answers_refused: u64,
    /// Of these, not answered in time.
    pub view_timeouts: u64,
    /// Areas that their holders have made longer, and that were cut back.
    pub areas_cut_back: u64,
}

impl Counters {
    pub(crate) fn list(&self) -> Vec<Metric> {
        let entries = [
            ("connections", self.connections),
            ("connections_refused", self.connections_refused),
            ("protocol_errors", self.protocol_errors),
            ("slow_clients", self.slow_clients),
            ("requests", self.requests),
            ("requests_refused", self.requests_refused),
            ("grants", self.grants),
            ("grants_ended", self.grants_ended),
            ("grants_adopted", self.grants_adopted),
            ("grants_revoked", self.grants_revoked),
            ("holders_killed", self.holders_killed),
            ("orphans_removed", self.orphans_removed),
            ("areas_changed", self.areas_changed),
            ("view_questions", self.view_questions),
            ("view_answers_refused", self.view_answers_refused),
            ("view_timeouts", self.view_timeouts),
            ("areas_cut_back", self.areas_cut_back),
        ];
        let metric =
            |(name, value): (&str, u64)| Metric { name: name.to_owned(), kind: Kind::Counter, value };
        entries.into_iter().map(metric).collect()
    }
}
