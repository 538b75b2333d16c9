//! Replies that other shards owe a client, and the replies behind them.
//!
//! 1. A forwarded command takes a *slot*, which waits for its reply. The reply of a command that
//!    runs here meanwhile takes a slot, too, so that replies leave in the order of the commands.
//! 2. The first slot always waits. Once its reply is there, it goes to the output, with all slots
//!    behind it that are complete.
//! 3. A reply that is owed counts for the client's output before it is there: with the size of the
//!    largest recent one, and [`LEAST_REPLY`] at least. Without this, a pipeline of short commands
//!    for large values would all be forwarded, and its replies would take gigabytes.
//! 4. That is a guess. An owner that has sent a large reply *holds* the client's next commands, so
//!    at most one such reply of each shard is there. The owner of the first slot may go on once the
//!    client has room; the others would only add to what waits behind that slot.
//! 5. A forwarded command has a *ticket*, the number of its slot. A reply with another ticket than
//!    one that waits is dropped.

use std::collections::VecDeque;

use super::output::Output;
use crate::foundation::settings::MAX_SHARDS;

/// Bytes that a slot counts beside those of its command.
const SLOT: usize = 64;

/// What the reply of a new client's command is taken for: with the usual limit, 16 commands are
/// forwarded before the first reply.
const FIRST_REPLY: usize = 64 << 10;

/// What every reply is taken for at least: with the usual limit, 64 commands of a client are on
/// their way. That keeps the owner busy, and bounds what a client leaves behind that ends.
const LEAST_REPLY: usize = 16 << 10;

/// A smaller reply takes this part off the estimate: after two dozen, it is that of the small ones,
/// or [`LEAST_REPLY`].
const FORGETS: usize = 4;

#[derive(Debug)]
enum Slot {
    /// The reply is not there. So many bytes are counted for its command, and are expected of it.
    /// The shard `owner` sends it.
    Waiting { counted: usize, expected: usize, owner: usize },
    /// The reply is there. `durable`: it shows only what is durable.
    Done { bytes: Vec<u8>, durable: bool },
}

/// The slots of a client.
#[derive(Debug)]
pub(crate) struct PendingReplies {
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    first: u32,
    bytes: usize,
    /// Those of them that are for commands whose replies are not there.
    commands: usize,
    /// Bytes that are expected of all replies that are not there.
    expected: usize,
    /// Bytes of the next reply, as far as recent ones tell.
    estimate: usize,
    /// The shards that hold commands of the client, a bit each.
    held_by: u64,
}

const _: () = assert!(MAX_SHARDS <= u64::BITS as usize, "a bit for each shard");

impl Default for PendingReplies {
    fn default() -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            bytes: 0,
            commands: 0,
            expected: 0,
            estimate: FIRST_REPLY,
            held_by: 0,
        }
    }
}

impl PendingReplies {
    /// Whether no reply is owed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of the commands whose replies are owed, and of the replies behind them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the replies that wait behind one that is owed.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.bytes - self.commands
    }

    /// Whether a reply waits that shows what may not be durable.
    pub(crate) fn has_held(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Done { durable: false, .. }))
    }

    /// The bytes of commands and replies, with those that are expected of the replies.
    pub(crate) fn bytes_to_come(&self) -> usize {
        self.bytes + self.expected
    }

    /// Drops all slots. The shards that hold commands are still known.
    pub(crate) fn clear(&mut self) {
        *self = Self { held_by: self.held_by, ..Self::default() };
    }

    /// Notes that a shard holds the client's next commands.
    pub(crate) fn note_held(&mut self, owner: usize) {
        self.held_by |= 1 << owner;
    }

    /// A shard that holds commands and may go on, once: the owner of the first slot, or any if
    /// there are no slots.
    pub(crate) fn take_resumable(&mut self) -> Option<usize> {
        let owner = match self.slots.front() {
            Some(&Slot::Waiting { owner, .. }) => owner,
            Some(Slot::Done { .. }) => return None,
            None => self.held_by.trailing_zeros() as usize,
        };
        let bit = 1_u64.checked_shl(owner as u32)? & self.held_by;
        self.held_by &= !bit;
        (bit != 0).then_some(owner)
    }

    /// All shards that hold commands, once.
    pub(crate) fn take_held(&mut self) -> impl Iterator<Item = usize> + use<> {
        let held_by = std::mem::take(&mut self.held_by);
        (0..MAX_SHARDS).filter(move |owner| held_by & 1 << owner != 0)
    }

    /// Adds a slot for a forwarded command of so many bytes, whose reply shard `owner` sends; its
    /// ticket.
    pub(crate) fn expect(&mut self, bytes: usize, owner: usize) -> u32 {
        let ticket = self.first.wrapping_add(self.slots.len() as u32);
        let (counted, expected) = (bytes + SLOT, self.estimate);
        self.bytes += counted;
        self.commands += counted;
        self.expected += expected;
        self.slots.push_back(Slot::Waiting { counted, expected, owner });
        ticket
    }

    /// Puts a reply of this shard behind those that are owed.
    pub(crate) fn put_behind(&mut self, reply: &[u8]) {
        self.bytes += reply.len();
        if let Some(Slot::Done { bytes, durable: false }) = self.slots.back_mut() {
            return bytes.extend_from_slice(reply);
        }
        self.slots.push_back(Slot::Done { bytes: reply.to_vec(), durable: false });
    }

    /// Takes the reply of a ticket, and moves what is complete to `output`. Whether the reply was
    /// owed.
    pub(crate) fn fulfil(&mut self, ticket: u32, reply: &[u8], output: &mut Output) -> bool {
        let at = ticket.wrapping_sub(self.first) as usize;
        let Some(&Slot::Waiting { counted, expected, .. }) = self.slots.get(at) else { return false };
        self.bytes -= counted;
        self.commands -= counted;
        self.expected -= expected;
        let remembered = self.estimate - self.estimate.div_ceil(FORGETS);
        self.estimate = reply.len().max(remembered).max(LEAST_REPLY);
        if at > 0 {
            self.bytes += reply.len();
            self.slots[at] = Slot::Done { bytes: reply.to_vec(), durable: true };
            return true;
        }
        self.pop();
        output.append_durable(reply);
        while let Some(Slot::Done { bytes, durable }) = self.slots.front() {
            self.bytes -= bytes.len();
            if *durable {
                output.append_durable(bytes);
            } else {
                output.bytes.extend_from_slice(bytes);
            }
            self.pop();
        }
        true
    }

    fn pop(&mut self) {
        self.slots.pop_front();
        self.first = self.first.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_are_owed_count_as_the_largest_recent_one() {
        let (mut pending, mut output) = (PendingReplies::default(), Output::default());
        let first = pending.expect(10, 1);
        assert!(pending.bytes_to_come() >= FIRST_REPLY, "nothing is known of its size");
        assert!(pending.fulfil(first, &[b'x'; 1_000_000], &mut output));
        assert_eq!(pending.bytes_to_come(), 0);
        let next = pending.expect(10, 1);
        assert!(pending.bytes_to_come() >= 1_000_000);
        assert!(pending.fulfil(next, b"+OK\r\n", &mut output));
        for _ in 0..60 {
            let ticket = pending.expect(10, 1);
            assert!(pending.fulfil(ticket, b"+OK\r\n", &mut output));
        }
        pending.expect(10, 1);
        let left = pending.bytes_to_come();
        assert!(left < 2 * LEAST_REPLY, "large replies are forgotten: {left}");
    }

    #[test]
    fn replies_leave_in_the_order_of_their_commands() {
        let (mut pending, mut output) = (PendingReplies::default(), Output::default());
        pending.first = u32::MAX;
        let (first, second) = (pending.expect(10, 1), pending.expect(20, 1));
        pending.put_behind(b"c");
        pending.put_behind(b"d");
        let third = pending.expect(30, 1);
        assert!(pending.fulfil(second, b"b", &mut output));
        assert!(!pending.fulfil(second, b"again", &mut output), "it has its reply");
        assert!(!pending.fulfil(third.wrapping_add(1), b"x", &mut output), "no such ticket");
        assert!(output.bytes.is_empty());
        assert!(pending.has_held(), "the replies of this shard");
        assert_eq!(pending.reply_bytes(), 3);
        assert!(pending.fulfil(first, b"a", &mut output));
        assert_eq!((output.bytes.as_slice(), pending.is_empty()), (&b"abcd"[..], false));
        // The replies of this shard, and what is behind them, wait for the log.
        assert_eq!(output.releasable(), b"ab");
        assert!(!pending.has_held() && pending.reply_bytes() == 0);
        assert!(pending.fulfil(third, b"e", &mut output));
        assert_eq!((output.bytes.as_slice(), pending.bytes(), pending.is_empty()), (&b"abcde"[..], 0, true));
        assert_eq!(output.releasable(), b"ab");
    }
}
