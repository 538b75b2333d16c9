//! Keys of the tree.

/// The key of an item. Items are in the order of `object`, then `kind`, then `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What the item belongs to: an inode. 0: the file system as a whole.
    pub object: u64,
    /// What the item says of it. Kinds below [`OWN_KINDS`] of object 0 belong to the pool.
    pub kind: u8,
    /// Which one of this kind.
    pub offset: u64,
}

/// Kinds of object 0 that only the pool writes.
pub const OWN_KINDS: u8 = 16;

impl Key {
    /// The first key.
    pub const MIN: Self = Self::new(0, 0, 0);
    /// The last key.
    pub const MAX: Self = Self::new(u64::MAX, u8::MAX, u64::MAX);

    /// A key.
    pub const fn new(object: u64, kind: u8, offset: u64) -> Self {
        Self { object, kind, offset }
    }

    /// Whether only the pool may change the item.
    pub(crate) fn is_own(self) -> bool {
        self.object == 0 && self.kind < OWN_KINDS
    }

    /// The key before this one.
    pub(crate) fn before(self) -> Option<Self> {
        let Self { object, kind, offset } = self;
        if offset > 0 {
            return Some(Self::new(object, kind, offset - 1));
        }
        if kind > 0 {
            return Some(Self::new(object, kind - 1, u64::MAX));
        }
        object.checked_sub(1).map(|object| Self::new(object, u8::MAX, u64::MAX))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.object, self.kind, self.offset)
    }
}
