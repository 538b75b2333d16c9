//! Indices into the tables of the engine: one type a table, so that none is taken for another.

/// An index into a table.
pub(crate) trait TableIndex: Copy + Eq {
    /// The index of the entry in this slot.
    fn from_slot(slot: u32) -> Self;
    /// The slot of the entry.
    fn slot(self) -> u32;
}

/// Declares an index type.
macro_rules! table_index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) u32);

        impl $crate::tables::index::TableIndex for $name {
            #[inline]
            fn from_slot(slot: u32) -> Self {
                Self(slot)
            }

            #[inline]
            fn slot(self) -> u32 {
                self.0
            }
        }
    };
}

pub(crate) use table_index;

#[cfg(test)]
impl TableIndex for u32 {
    fn from_slot(slot: u32) -> Self {
        slot
    }

    fn slot(self) -> u32 {
        self
    }
}
