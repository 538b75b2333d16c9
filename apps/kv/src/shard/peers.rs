//! What a shard sends to the others, and does for them.

use super::messages::{Announcements, Replies, Requests};
use super::{Now, Shard};

impl Shard {
    /// The commands that shard `to` is to run, since the last call.
    pub fn take_requests(&mut self, to: usize) -> Option<Requests> {
        let _ = to;
        None
    }

    /// Runs commands of another shard's clients. Their replies are sealed as those of clients are.
    pub fn serve_requests(&mut self, from: usize, requests: Requests, now: Now) {
        let _ = (from, requests, now);
    }

    /// The replies for shard `to` that may leave, since the last call.
    pub fn take_replies(&mut self, to: usize) -> Option<Replies> {
        let _ = to;
        None
    }

    /// Hands replies to the clients that wait for them.
    pub fn accept_replies(&mut self, from: usize, replies: Replies, now: Now) {
        let _ = (from, replies, now);
    }

    /// What shard `to` must know, since the last call.
    pub fn take_announcements(&mut self, to: usize) -> Option<Announcements> {
        let _ = to;
        None
    }

    /// Acts on what another shard has announced.
    pub fn accept_announcements(&mut self, from: usize, announcements: Announcements, now: Now) {
        let _ = (from, announcements, now);
    }

    /// Whether clients wait for an exclusive section ([`exclusive::run`](super::exclusive::run)).
    pub fn wants_exclusive(&self) -> bool {
        false
    }
}
