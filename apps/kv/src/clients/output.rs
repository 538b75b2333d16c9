//! Bytes on their way to a client, and what each waits for.
//!
//! The bytes are in one vector, in four parts: sent, releasable, sealed behind a barrier (a
//! sequence of the log and a position), and not sealed yet. Barriers are in order, so the first one
//! holds back everything behind it.

use std::collections::VecDeque;

/// Largest buffer that a client keeps once all output is sent: enough for ordinary replies, little
/// for ten thousand clients.
const KEPT_OUTPUT: usize = 16 << 10;

/// The output of a client that is not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) bytes: Vec<u8>,
    /// Bytes at the front that were sent.
    sent: usize,
    /// Bytes from the front that may leave.
    released: usize,
    /// Position in the whole stream of the first byte of `bytes`.
    base: u64,
    /// Barriers (sequence, position in the whole stream): bytes before the position may leave once
    /// that sequence is durable.
    barriers: VecDeque<(u64, u64)>,
}

impl Output {
    /// The bytes that may leave now.
    pub(crate) fn releasable(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// Bytes that have not been sent, whatever they wait for.
    pub(crate) fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Removes `count` of the releasable bytes, which were sent.
    pub(crate) fn consumed(&mut self, count: usize) {
        self.sent += count.min(self.released - self.sent);
        if self.sent == self.bytes.len() {
            self.base += self.sent as u64;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_OUTPUT);
            self.sent = 0;
            self.released = 0;
        } else if self.sent > KEPT_OUTPUT && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.base += self.sent as u64;
            self.released -= self.sent;
            self.sent = 0;
        }
    }

    /// Appends bytes that may leave as soon as everything before them may.
    pub(crate) fn append_durable(&mut self, bytes: &[u8]) {
        let all = self.released == self.bytes.len() && self.barriers.is_empty();
        self.bytes.extend_from_slice(bytes);
        if all {
            self.released = self.bytes.len();
        }
    }

    /// Takes all releasable bytes, as if they were sent.
    pub(crate) fn take_releasable(&mut self) -> Vec<u8> {
        if self.sent == 0 && self.released == self.bytes.len() && self.barriers.is_empty() {
            self.base += self.released as u64;
            self.released = 0;
            return std::mem::take(&mut self.bytes);
        }
        let taken = self.releasable().to_vec();
        self.consumed(taken.len());
        taken
    }

    /// The bytes that may not leave yet.
    pub(crate) fn held(&self) -> &[u8] {
        &self.bytes[self.released..]
    }

    /// Puts everything so far behind a barrier at `sequence`, or releases it if `sequence` is
    /// `durable` already and no barrier is before it.
    pub(crate) fn seal(&mut self, sequence: u64, durable: u64) {
        if !self.is_held() {
            return;
        }
        if sequence <= durable && self.barriers.is_empty() {
            self.released = self.bytes.len();
            return;
        }
        let end = self.base + self.bytes.len() as u64;
        match self.barriers.back_mut() {
            // A sequence that is not newer joins the barrier before it.
            Some(last) if last.0 >= sequence => last.1 = end,
            _ => self.barriers.push_back((sequence, end)),
        }
    }

    /// Releases what waited for `durable` or less.
    pub(crate) fn release(&mut self, durable: u64) {
        while let Some(&(sequence, end)) = self.barriers.front()
            && sequence <= durable
        {
            self.released = (end - self.base) as usize;
            self.barriers.pop_front();
        }
    }

    /// Whether bytes wait behind a barrier or for a seal.
    pub(crate) fn is_held(&self) -> bool {
        self.released < self.bytes.len()
    }

    /// Drops what may not leave.
    pub(crate) fn drop_held(&mut self) {
        self.bytes.truncate(self.released);
        self.barriers.clear();
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(output: &mut Output, text: &[u8]) {
        output.bytes.extend_from_slice(text);
    }

    #[test]
    fn nothing_leaves_before_its_barrier() {
        let mut output = Output::default();
        written(&mut output, b"one");
        assert!(output.releasable().is_empty());
        output.seal(1, 0);
        written(&mut output, b"two");
        output.seal(2, 0);
        written(&mut output, b"three");
        output.release(1);
        assert_eq!(output.releasable(), b"one");
        output.consumed(2);
        assert_eq!(output.releasable(), b"e");
        output.release(2);
        assert_eq!(output.releasable(), b"etwo");
        output.consumed(4);
        assert!(output.releasable().is_empty());
        output.seal(2, 2);
        assert_eq!(output.releasable(), b"three");
    }

    #[test]
    fn a_durable_seal_does_not_overtake_a_barrier() {
        let mut output = Output::default();
        written(&mut output, b"slow");
        output.seal(5, 4);
        written(&mut output, b"read");
        output.seal(3, 4);
        assert!(output.releasable().is_empty());
        output.release(5);
        assert_eq!(output.releasable(), b"slowread");
    }

    #[test]
    fn taken_bytes_are_those_that_may_leave() {
        let mut output = Output::default();
        output.append_durable(b"a");
        written(&mut output, b"b");
        output.append_durable(b"c");
        output.seal(4, 3);
        assert_eq!(output.held(), b"bc");
        assert_eq!(output.take_releasable(), b"a");
        output.release(4);
        assert_eq!(output.take_releasable(), b"bc");
        written(&mut output, b"d");
        output.seal(5, 4);
        assert_eq!(output.take_releasable(), b"");
        output.release(5);
        assert_eq!((output.take_releasable(), output.pending()), (b"d".to_vec(), 0));
    }

    #[test]
    fn positions_survive_compaction() {
        let mut output = Output::default();
        let big = vec![b'x'; 100_000];
        written(&mut output, &big);
        output.seal(1, 1);
        written(&mut output, b"tail");
        output.seal(2, 1);
        output.consumed(99_999);
        assert_eq!(output.releasable(), b"x");
        output.release(2);
        assert_eq!(output.releasable(), b"xtail");
        output.consumed(5);
        assert_eq!(output.pending(), 0);
    }
}
