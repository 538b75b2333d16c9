//! Replies that other shards owe a client, and the replies behind them.
//!
//! 1. A forwarded command takes a *slot*, which waits for its reply. The reply of a command that
//!    runs here meanwhile takes a slot, too, so that replies leave in the order of the commands.
//! 2. The first slot always waits. Once its reply is there, it goes to the output, with all slots
//!    behind it that are complete.
//! 3. A forwarded command has a *ticket*, the number of its slot. A reply with another ticket than
//!    one that waits is dropped.

use std::collections::VecDeque;

use super::output::Output;

/// Bytes that a slot counts beside those of its command.
const SLOT: usize = 64;

#[derive(Debug)]
enum Slot {
    /// The reply is not there; so many bytes are counted for it.
    Waiting(usize),
    /// The reply is there. `durable`: it shows only what is durable.
    Done { bytes: Vec<u8>, durable: bool },
}

/// The slots of a client.
#[derive(Debug, Default)]
pub(crate) struct PendingReplies {
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    first: u32,
    bytes: usize,
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

    /// Adds a slot for a forwarded command of so many bytes; its ticket.
    pub(crate) fn expect(&mut self, bytes: usize) -> u32 {
        let ticket = self.first.wrapping_add(self.slots.len() as u32);
        self.bytes += bytes + SLOT;
        self.slots.push_back(Slot::Waiting(bytes + SLOT));
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
        let Some(&Slot::Waiting(counted)) = self.slots.get(at) else { return false };
        self.bytes -= counted;
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
    fn replies_leave_in_the_order_of_their_commands() {
        let (mut pending, mut output) = (PendingReplies::default(), Output::default());
        pending.first = u32::MAX;
        let (first, second) = (pending.expect(10), pending.expect(20));
        pending.put_behind(b"c");
        pending.put_behind(b"d");
        let third = pending.expect(30);
        assert!(pending.fulfil(second, b"b", &mut output));
        assert!(!pending.fulfil(second, b"again", &mut output), "it has its reply");
        assert!(!pending.fulfil(third.wrapping_add(1), b"x", &mut output), "no such ticket");
        assert!(output.bytes.is_empty());
        assert!(pending.fulfil(first, b"a", &mut output));
        assert_eq!((output.bytes.as_slice(), pending.is_empty()), (&b"abcd"[..], false));
        // The replies of this shard, and what is behind them, wait for the log.
        assert_eq!(output.releasable(), b"ab");
        assert!(pending.fulfil(third, b"e", &mut output));
        assert_eq!((output.bytes.as_slice(), pending.bytes(), pending.is_empty()), (&b"abcde"[..], 0, true));
        assert_eq!(output.releasable(), b"ab");
    }
}
