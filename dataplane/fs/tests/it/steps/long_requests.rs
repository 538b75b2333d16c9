//! What grows with something that a user made is done in steps: other users have the file system
//! in between, and change it.

use std::collections::BTreeSet;

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{NewInode, RenameMode, Ways, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::limits::MAX_XATTR_NAMES;
use sietch_fs::name::{Cookie, NameKey};

use crate::setup::{BIRTH, FileSystem, Media};

const ROOT: InodeNumber = InodeNumber::ROOT;

struct Files {
    media: Media,
    client: FileSystem,
    root: Credentials,
}

impl Files {
    fn new() -> Self {
        let media = Media::new(64 << 20, 4 << 20);
        media.format(NameKey([7; 16]));
        let client = media.open().expect("a file system");
        Self { media, client, root: Credentials::root() }
    }

    /// After a restart: nothing is known of what was there.
    fn reopened(mut self) -> Self {
        self.digest();
        let Self { media, client, root } = self;
        drop(client);
        let client = media.open().expect("a file system");
        Self { media, client, root }
    }

    fn digest(&mut self) {
        self.client.service().digest().expect("media that work");
        self.client.advance();
    }

    fn create(&mut self, directory: InodeNumber, name: &str, kind: Kind) -> InodeNumber {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        let new = NewInode { kind, mode: 0o700, device: 0, target: &[] };
        self.client.create(caller, directory, name.as_bytes(), &new).expect("room").inode
    }

    /// Sets an attribute; the steps that it takes. `between` is called after each but the last.
    fn set(
        &mut self,
        file: InodeNumber,
        name: &str,
        mut between: impl FnMut(&mut Self),
    ) -> Result<usize, Errno> {
        for steps in 1.. {
            let caller = Caller { credentials: &self.root, now: BIRTH };
            if self.client.set_xattr_step(caller, file, name.as_bytes(), b"", XattrMode::Create)? {
                return Ok(steps);
            }
            between(self);
        }
        unreachable!("it ends")
    }

    fn remove(&mut self, file: InodeNumber, name: &str) {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        self.client.remove_xattr(caller, file, name.as_bytes()).expect("it is there");
    }

    /// All names; the steps that it takes.
    fn names(&mut self, file: InodeNumber, mut between: impl FnMut(&mut Self)) -> (BTreeSet<String>, usize) {
        let (mut names, mut from, mut steps) = (BTreeSet::new(), Some(Cookie(0)), 0);
        while let Some(at) = from {
            let caller = Caller { credentials: &self.root, now: BIRTH };
            let mut take = |name: Box<[u8]>| {
                let name = String::from_utf8(name.into()).expect("text");
                assert!(names.insert(name), "a name twice");
            };
            from = self.client.xattr_names_step(caller, file, at, &mut take).expect("a list");
            steps += 1;
            between(self);
        }
        (names, steps)
    }

    fn rename(
        &mut self,
        from: (InodeNumber, &str),
        to: (InodeNumber, &str),
        mut between: impl FnMut(&mut Self, usize),
    ) -> Result<usize, Errno> {
        let mut ways = Ways::default();
        for steps in 1.. {
            let caller = Caller { credentials: &self.root, now: BIRTH };
            let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
            if self.client.rename_step(caller, from, to, RenameMode::Replace, &mut ways)? {
                return Ok(steps);
            }
            between(self, steps);
        }
        unreachable!("it ends")
    }

    /// A directory below so many others, below the root directory; all of them.
    fn chain(&mut self, length: usize) -> Vec<InodeNumber> {
        let mut chain = vec![self.create(ROOT, "chain", Kind::Directory)];
        while chain.len() < length {
            let next = self.create(chain[chain.len() - 1], "d", Kind::Directory);
            chain.push(next);
        }
        chain
    }
}

fn name(number: usize) -> String {
    format!("user.{number:06}")
}

/// Bytes of each of those names in a list.
const LISTED: usize = 12;

#[test]
fn names_of_attributes_are_counted_and_listed_in_steps() {
    let mut files = Files::new();
    let file = files.create(ROOT, "file", Kind::File);
    for number in 0..3000 {
        assert_eq!(files.set(file, &name(number), |_| {}), Ok(1), "it has counted what it made");
    }
    let mut files = files.reopened();
    // Some of them are in the log, and come to the pool between two steps.
    (0..500).for_each(|number| files.remove(file, &name(number)));
    let mut steps = 0;
    let taken = files.set(file, "user.first", |files| {
        steps += 1;
        files.remove(file, &name(500 + steps));
        if steps == 4 {
            files.digest();
        }
    });
    assert_eq!(taken, Ok(steps + 1));
    assert!((8..30).contains(&steps), "{steps} steps");
    assert_eq!(files.set(file, "user.next", |_| {}), Ok(1), "they are counted");
    let mut listed = 0;
    let (names, list_steps) = files.names(file, |files| {
        listed += 1;
        if listed == 3 {
            files.digest();
        }
    });
    let expected = (500..3000).filter(|number| !(501..=500 + steps).contains(number)).map(name);
    let expected: BTreeSet<_> = expected.chain(["user.first".to_owned(), "user.next".to_owned()]).collect();
    assert_eq!(names, expected);
    assert!((8..30).contains(&list_steps), "{list_steps} steps");
    // As many fit as the list has room for: none was counted twice, or not at all.
    let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    let room = (MAX_XATTR_NAMES - bytes) / LISTED;
    for number in 0..room {
        assert_eq!(files.set(file, &name(100_000 + number), |_| {}), Ok(1));
    }
    assert_eq!(files.set(file, &name(200_000), |_| {}), Err(Errno::NOSPC));
    files.remove(file, &name(100_000));
    assert_eq!(files.set(file, &name(200_000), |_| {}), Ok(1));
}

#[test]
fn a_rename_follows_a_deep_tree_in_steps() {
    let mut files = Files::new();
    let chain = files.chain(3000);
    let (middle, deepest) = (chain[1500], chain[2999]);
    let moved = files.create(ROOT, "moved", Kind::Directory);
    files.digest();
    let is_bounded = |steps: usize| (8..30).contains(&steps);
    assert!(files.rename((ROOT, "moved"), (deepest, "moved"), |_, _| {}).is_ok_and(is_bounded));
    assert!(files.rename((deepest, "moved"), (ROOT, "moved"), |_, _| {}).is_ok_and(|steps| steps == 1));
    assert_eq!(files.rename((ROOT, "chain"), (deepest, "x"), |_, _| {}), Err(Errno::INVAL));
    // What moves elsewhere meanwhile does not matter, and what moves on the way does: now the
    // directory would become one below itself.
    let other = files.create(ROOT, "other", Kind::Directory);
    let elsewhere = files.rename((ROOT, "moved"), (deepest, "moved"), |files, step| {
        let (from, to) = if step % 2 == 1 { (ROOT, other) } else { (other, ROOT) };
        files.create(from, &format!("s{step}"), Kind::Directory);
        let name = format!("s{step}");
        assert_eq!(files.rename((from, &name), (to, &name), |_, _| {}), Ok(1));
    });
    assert!(elsewhere.is_ok_and(is_bounded), "{elsewhere:?}");
    assert_eq!(files.rename((deepest, "moved"), (ROOT, "moved"), |_, _| {}), Ok(1));
    let below_itself = files.rename((ROOT, "moved"), (deepest, "moved"), |files, step| {
        if step == 8 {
            let done = files.rename((chain[1499], "d"), (moved, "d"), |_, _| {});
            assert_eq!(done, Ok(1), "{middle} is in what moves");
        }
    });
    assert_eq!(below_itself, Err(Errno::INVAL));
    // The digest judges the same.
    files.digest();
}
