//! How long the names of a file's extended attributes are together: `listxattr(2)` returns 64 KiB
//! at most.
//!
//! The names are counted once, in steps, when an attribute is added that was not there. From then
//! on the client counts what it adds and removes, for as long as it has the lease on the file.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::inode::InodeNumber;
use crate::name::Cookie;

/// Names that a step looks at: others have the file system between steps.
pub(super) const STEP: u64 = 256;
/// Files whose names are counted, at most. Beyond that, all are counted anew.
const MOST: usize = 4096;

/// What was counted of a file.
#[derive(Clone, Copy, Debug)]
struct Counted {
    bytes: usize,
    /// Names from here on are not counted; `None`: all are.
    next: Option<Cookie>,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(super) struct XattrNames {
    files: HashMap<InodeNumber, Counted, RandomState>,
}

/// What a name takes in a list.
fn listed(name: &[u8]) -> usize {
    name.len() + 1
}

impl XattrNames {
    /// From where on names are to be counted; `None`: all are.
    pub(super) fn next(&mut self, inode: InodeNumber) -> Option<Cookie> {
        if self.files.len() >= MOST && !self.files.contains_key(&inode) {
            self.files.clear();
        }
        self.files.entry(inode).or_insert(Counted { bytes: 0, next: Some(Cookie(0)) }).next
    }

    /// Counts a name that is there.
    pub(super) fn count(&mut self, inode: InodeNumber, name: &[u8]) {
        if let Some(counted) = self.files.get_mut(&inode) {
            counted.bytes += listed(name);
        }
    }

    /// Names before `next` were counted.
    pub(super) fn counted_to(&mut self, inode: InodeNumber, next: Option<Cookie>) {
        if let Some(counted) = self.files.get_mut(&inode) {
            counted.next = next;
        }
    }

    /// Whether there is room for a further name in the list, which has `most` bytes at most.
    pub(super) fn has_room(&self, inode: InodeNumber, name: &[u8], most: usize) -> bool {
        self.files.get(&inode).is_some_and(|counted| counted.bytes + listed(name) <= most)
    }

    /// A name that has `first` as its first cookie was removed.
    pub(super) fn removed(&mut self, inode: InodeNumber, name: &[u8], first: Cookie) {
        if let Some(counted) = self.files.get_mut(&inode)
            && counted.next.is_none_or(|next| first < next)
        {
            counted.bytes = counted.bytes.saturating_sub(listed(name));
        }
    }

    /// Others may add names from now on.
    pub(super) fn forget(&mut self, inode: InodeNumber) {
        self.files.remove(&inode);
    }
}
