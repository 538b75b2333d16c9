//! Bytes that say where they belong: a lost, repeated or displaced one is found at once.

/// The stream of one direction of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern(pub u64);

impl Pattern {
    fn byte(self, at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b1).wrapping_add(self.0) >> 11) as u8
    }

    /// The bytes from `at` on.
    pub(crate) fn fill(self, at: u64, out: &mut [u8]) {
        for (offset, byte) in out.iter_mut().enumerate() {
            *byte = self.byte(at + offset as u64);
        }
    }

    /// Fails unless `bytes` are those from `at` on.
    pub(crate) fn check(self, at: u64, bytes: &[u8]) {
        let wrong = bytes.iter().enumerate().find(|(offset, got)| **got != self.byte(at + *offset as u64));
        assert!(
            wrong.is_none(),
            "byte {} of {self:?} is wrong",
            at + wrong.map_or(0, |entry| entry.0 as u64)
        );
    }
}
