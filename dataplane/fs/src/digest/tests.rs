use sietch_disk::MemoryQueue;

use super::Digest;
use crate::base::Base as _;
use crate::inode::{InodeNumber, Timestamp};
use crate::name::NameKey;
use crate::pool::{Class, FormatOptions, Member, Pool, format};

const NOW: Timestamp = Timestamp { seconds: 7, nanoseconds: 0 };

#[test]
fn the_first_directory_has_the_owner_that_was_given() {
    let disk = MemoryQueue::new(4 << 20);
    let mut members = vec![Member { name: "memory".to_owned(), class: Class::Nvm, disk }];
    format(&mut members, &FormatOptions { identity: 7, name_key: NameKey([7; 16]) }).expect("memory");
    let pool = Pool::open(members).expect("a pool");
    let mut digest = Digest::with_owner(pool, NOW, (1000, 100)).expect("memory");
    let root = digest.digested.inode(InodeNumber::ROOT).expect("memory").expect("a root");
    assert_eq!((root.uid, root.gid, root.mode), (1000, 100, 0o755));
}
