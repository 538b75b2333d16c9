//! Thresholds of representations: from which size on a collection is no longer packed.
//!
//! Names and defaults are Redis 7.0's, with the older `ziplist` names as aliases. `value/limits.rs`
//! has limits that hold whatever is set here.

use super::memory::parse_memory;

/// Bytes of a list's node for `list-max-listpack-size` from -1 to -5.
const NODE_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Bytes of a node whose entries are limited by number: Redis' safety limit.
const COUNTED_NODE_BYTES: usize = 8 << 10;
/// Most entries of a node, as in Redis.
const MOST_NODE_ENTRIES: i32 = 0x7fff;

/// Where collections change their representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncodingLimits {
    /// Most fields of a packed hash.
    pub hash_entries: usize,
    /// Longest name or value in a packed hash, in bytes.
    pub hash_value: usize,
    /// Most members of a packed sorted set.
    pub zset_entries: usize,
    /// Longest member of a packed sorted set, in bytes.
    pub zset_value: usize,
    /// Most members of a set of integers.
    pub set_integers: usize,
    /// The size of a list's node: -1 to -5 for 4 to 64 KiB, or the number of its entries.
    list_size: i32,
}

/// What a node of a list may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListNode {
    /// Bytes of all entries.
    pub bytes: usize,
    /// Entries.
    pub entries: usize,
}

impl Default for EncodingLimits {
    fn default() -> Self {
        Self {
            hash_entries: 512,
            hash_value: 64,
            zset_entries: 128,
            zset_value: 64,
            set_integers: 512,
            list_size: -2,
        }
    }
}

impl EncodingLimits {
    /// What a node of a list may hold.
    pub(crate) fn list_node(&self) -> ListNode {
        match self.list_size {
            size @ ..0 => {
                let bytes = NODE_BYTES[(size.unsigned_abs() as usize - 1).min(NODE_BYTES.len() - 1)];
                ListNode { bytes, entries: usize::MAX }
            }
            size => {
                ListNode { bytes: COUNTED_NODE_BYTES, entries: size.clamp(1, MOST_NODE_ENTRIES) as usize }
            }
        }
    }

    /// All names and values, as CONFIG GET shows them.
    pub(super) fn list(&self) -> [(&'static str, String); 11] {
        [
            ("hash-max-listpack-entries", self.hash_entries.to_string()),
            ("hash-max-listpack-value", self.hash_value.to_string()),
            ("hash-max-ziplist-entries", self.hash_entries.to_string()),
            ("hash-max-ziplist-value", self.hash_value.to_string()),
            ("list-max-listpack-size", self.list_size.to_string()),
            ("list-max-ziplist-size", self.list_size.to_string()),
            ("set-max-intset-entries", self.set_integers.to_string()),
            ("zset-max-listpack-entries", self.zset_entries.to_string()),
            ("zset-max-listpack-value", self.zset_value.to_string()),
            ("zset-max-ziplist-entries", self.zset_entries.to_string()),
            ("zset-max-ziplist-value", self.zset_value.to_string()),
        ]
    }

    /// Whether this is one of these settings.
    pub(super) fn knows(name: &str) -> bool {
        Self::default().list().iter().any(|(known, _)| *known == name)
    }

    /// Changes one of these settings. Existing collections change with their next insertion.
    ///
    /// # Errors
    /// Redis' wording for a value that is no number in range.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        let count = || {
            let number = value.parse::<i64>().map_err(|_| "argument couldn't be parsed into an integer")?;
            usize::try_from(number)
                .map_err(|_| "argument must be between 0 and 9223372036854775807 inclusive")
        };
        let bytes = || {
            let bytes = parse_memory(value).ok_or("argument must be a memory value")?;
            i64::try_from(bytes)
                .map(|bytes| bytes as usize)
                .map_err(|_| "argument must be between 0 and 9223372036854775807 inclusive")
        };
        match name {
            "hash-max-listpack-entries" | "hash-max-ziplist-entries" => self.hash_entries = count()?,
            "hash-max-listpack-value" | "hash-max-ziplist-value" => self.hash_value = bytes()?,
            "zset-max-listpack-entries" | "zset-max-ziplist-entries" => self.zset_entries = count()?,
            "zset-max-listpack-value" | "zset-max-ziplist-value" => self.zset_value = bytes()?,
            "set-max-intset-entries" => self.set_integers = count()?,
            _ => {
                let size = value.parse::<i64>().map_err(|_| "argument couldn't be parsed into an integer")?;
                self.list_size = i32::try_from(size)
                    .map_err(|_| "argument must be between -2147483648 and 2147483647 inclusive")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threshold_can_be_set_by_both_names() {
        let mut limits = EncodingLimits::default();
        for (name, _) in EncodingLimits::default().list() {
            assert!(EncodingLimits::knows(name));
            limits.set(name, "7").expect("a number");
            assert!(limits.list().iter().any(|(known, value)| *known == name && value == "7"));
            assert!(limits.set(name, "many").is_err());
        }
        assert!(limits.set("hash-max-listpack-entries", "-1").is_err());
        limits.set("zset-max-ziplist-value", "1kb").expect("a number of bytes");
        assert_eq!(limits.zset_value, 1024);
        assert!(!EncodingLimits::knows("hash-max"));
    }

    #[test]
    fn a_node_has_a_size_whatever_is_set() {
        let node = |size: &str| {
            let mut limits = EncodingLimits::default();
            limits.set("list-max-listpack-size", size).expect("a number");
            (limits.list_node().bytes, limits.list_node().entries)
        };
        assert_eq!(node("-1"), (4096, usize::MAX));
        assert_eq!(node("-2"), (8192, usize::MAX));
        assert_eq!(node("-5"), (65_536, usize::MAX));
        assert_eq!(node("-2147483648"), (65_536, usize::MAX));
        assert_eq!(node("0"), (8192, 1));
        assert_eq!(node("3"), (8192, 3));
        assert_eq!(node("2147483647"), (8192, 32_767));
    }
}
