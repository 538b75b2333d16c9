//! Where the kernel has each directory, on a mount beside which other clients work.
//!
//! 1. When another client has moved a directory, the kernel still has it under its former name, and
//!    learns the new one by a lookup. It then moves its own entry, which needs locks that a
//!    `rename(2)` holds while it looks its names up. That one fails with `ESTALE`, each time again.
//! 2. So the mount notes under which name the kernel got to know each directory. A lookup that
//!    finds one elsewhere has the former name discarded ([`crate::stale`]), and the kernel, which
//!    tries again after the first `ESTALE`, finds no former name.

use std::collections::HashMap;

use sietch_fs::inode::InodeNumber;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: InodeNumber,
    pub(crate) name: Box<[u8]>,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(crate) struct Places(HashMap<InodeNumber, Place>);

impl Places {
    /// The kernel has `directory` there from now on. Returns where it had it before, in another
    /// directory: within one, it needs no further lock.
    pub(crate) fn put(&mut self, directory: InodeNumber, parent: InodeNumber, name: &[u8]) -> Option<Place> {
        if let Some(place) = self.0.get(&directory)
            && place.parent == parent
            && *place.name == *name
        {
            return None;
        }
        let former = self.0.insert(directory, Place { parent, name: name.into() });
        former.filter(|former| former.parent != parent)
    }

    /// The kernel has forgotten it.
    pub(crate) fn remove(&mut self, directory: InodeNumber) {
        self.0.remove(&directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_place_is_returned_once_and_only_of_another_directory() {
        let (directory, p, q) = (InodeNumber(5), InodeNumber(2), InodeNumber(3));
        let mut places = Places::default();
        assert_eq!(places.put(directory, p, b"a"), None);
        assert_eq!(places.put(directory, p, b"a"), None);
        assert_eq!(places.put(directory, p, b"b"), None);
        let former = Place { parent: p, name: (*b"b").into() };
        assert_eq!(places.put(directory, q, b"b"), Some(former));
        assert_eq!(places.put(directory, q, b"b"), None);
        places.remove(directory);
        assert_eq!(places.put(directory, p, b"c"), None);
    }
}
