//! Which shard owns a key.
//!
//! 1. A key has a hash slot, as in Redis Cluster: CRC-16 of its hash tag, modulo [`SLOTS`]. The
//!    hash tag is what is between the first `{` and the next `}`; the whole key if there is no
//!    such part or it is empty. So keys with the same tag belong to one shard.
//! 2. The slots are divided evenly among the shards, in order. The shard of a key follows from the
//!    key and the number of shards, and nothing is stored.
//! 3. With one shard nothing is hashed.

/// Hash slots, as many as in Redis Cluster.
const SLOTS: usize = 16384;
/// The polynomial of CRC-16/XMODEM, x^16 + x^12 + x^5 + 1.
const POLYNOMIAL: u16 = 0x1021;
/// The remainder of every byte.
const REMAINDERS: [u16; 256] = remainders();

const fn remainders() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 0x8000 != 0;
            remainder = (remainder << 1) ^ if carry { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// The place of one shard among all shards of a store, and the owner of each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    own: usize,
    count: usize,
}

impl Placement {
    /// The only shard of a store: it owns all keys.
    pub(crate) const fn single() -> Self {
        Self { own: 0, count: 1 }
    }

    /// Shard `own` of `count`.
    ///
    /// # Panics
    /// There is no such shard, or there are more shards than hash slots.
    pub const fn new(own: usize, count: usize) -> Self {
        assert!(own < count && count <= SLOTS, "a shard is one of 1 to 16384");
        Self { own, count }
    }

    /// The number of this shard.
    pub(crate) const fn own(self) -> usize {
        self.own
    }

    /// How many shards the store has.
    pub(crate) const fn count(self) -> usize {
        self.count
    }

    /// The shard that owns a key.
    #[inline]
    pub fn shard_of(self, key: &[u8]) -> usize {
        if self.count == 1 { 0 } else { slot(key) * self.count / SLOTS }
    }

    /// Whether this shard owns a key.
    #[inline]
    pub(crate) fn is_own(self, key: &[u8]) -> bool {
        self.count == 1 || self.shard_of(key) == self.own
    }
}

/// The hash slot of a key.
fn slot(key: &[u8]) -> usize {
    usize::from(crc16(hash_tag(key))) % SLOTS
}

/// The part of a key that decides its slot.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let tag = &key[open + 1..];
    match tag.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(length) => &tag[..length],
    }
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ REMAINDERS[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests;
