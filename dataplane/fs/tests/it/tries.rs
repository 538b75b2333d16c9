//! Operations of front ends whose users share the file system do not wait for the digest.

use rustix::io::Errno;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::client::{DigestWait, Service};
use sietch_fs::file_system::{
    Allocation, AttributeChange, Handle, NewInode, OpenMode, Pending, Waited, WriteAt, XattrMode,
};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::quota::{attribute, limit_value, read_line};
use sietch_fs::{Client, FileSystem as _, Inline};
use sietch_sim::Memory;

use crate::setup::{BIRTH, Disk, LOG, inline, leave_to_inline};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
const OWNER: u32 = 1000;

/// A service that digests only when it is asked to.
struct Stalled {
    inline: Inline<Disk, Memory>,
    /// Waits within an operation.
    waits: u32,
    digests: bool,
    /// So many commits come, where it does not digest.
    commits: u32,
}

struct Nothing;

impl Pending for Nothing {
    fn wait(&mut self) {}
}

impl Service<Memory> for Stalled {
    leave_to_inline!();

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        self.waits += 1;
        self.inline.wait()
    }

    fn begin_wait(&mut self) -> Result<DigestWait, Errno> {
        if !self.digests && self.commits == 0 {
            return Ok(DigestWait::Pending(Box::new(Nothing)));
        }
        self.commits = self.commits.saturating_sub(1);
        Ok(self.inline.wait()?.map_or(DigestWait::Complete, DigestWait::Digested))
    }

    fn logged(&mut self, position: u64) {
        self.inline.logged(position);
    }
}

struct Files {
    client: Client<Stalled, Memory>,
    owner: Credentials,
}

impl Files {
    /// With a log of so many bytes; the owner has a limit of so many blocks, if that is not 0.
    fn new(log: usize, limit: u64) -> Self {
        let (inline, writer) = inline(16 << 20, log);
        let service = Stalled { inline, waits: 0, digests: false, commits: 0 };
        let mut client = Client::new(service, writer, LOG.log);
        let root = Credentials::root();
        let caller = Caller { credentials: &root, now: BIRTH };
        let open = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        client.set_attributes(caller, ROOT, None, &open).expect("room");
        if limit > 0 {
            let (name, value) = (attribute(OWNER), limit_value(limit * BLOCK, 0));
            let (name, value) = (name.as_bytes(), value.as_bytes());
            client.set_xattr(caller, ROOT, name, value, XattrMode::Set).expect("root may");
        }
        client.service().waits = 0;
        Self { client, owner: Credentials::user(OWNER, OWNER) }
    }

    fn caller(owner: &Credentials) -> Caller<'_> {
        Caller { credentials: owner, now: BIRTH }
    }

    fn file(&mut self, name: &[u8]) -> (InodeNumber, Handle) {
        let caller = Self::caller(&self.owner);
        let made = self.client.create(caller, ROOT, name, &FILE).expect("room").inode;
        let mode = OpenMode { read: true, write: true, truncate: false };
        (made, self.client.open(caller, made, mode).expect("the owner may"))
    }

    /// One try of an operation, and whether there is another one.
    fn attempt<T>(
        &mut self,
        waited: &mut Waited,
        work: impl FnOnce(&mut Client<Stalled, Memory>, Caller<'_>) -> Result<T, Errno>,
    ) -> (Result<T, Errno>, bool) {
        self.client.begin_try(std::mem::take(waited));
        let result = work(&mut self.client, Self::caller(&self.owner));
        let pending = self.client.end_try();
        let is_pending = pending.is_some();
        if let Some((so_far, _)) = pending {
            *waited = so_far;
        }
        (result, is_pending)
    }

    fn append(&mut self, waited: &mut Waited, handle: Handle, bytes: &[u8]) -> (Result<u64, Errno>, bool) {
        self.attempt(waited, |client, caller| client.write(caller, handle, WriteAt::End, bytes))
    }

    fn digests(&mut self, digests: bool) {
        self.client.service().digests = digests;
    }

    fn whole(self) {
        let (service, _) = self.client.into_parts();
        assert_eq!(service.waits, 0, "no operation waited within");
        assert_eq!(service.inline.faults(), <&[String]>::default());
    }
}

#[test]
fn what_no_pool_of_this_size_has_room_for_is_refused_without_a_wait() {
    let mut files = Files::new(4 << 20, 0);
    let (_, handle) = files.file(b"file");
    files.append(&mut Waited::default(), handle, &[1; 64 << 10]).0.expect("room");
    let owner = files.owner.clone();
    let refused =
        files.client.allocate(Files::caller(&owner), handle, 0..1 << 40, Allocation::ReserveKeepSize);
    assert_eq!(refused, Err(Errno::NOSPC));
    files.whole();
}

#[test]
fn a_write_that_finds_the_log_full_is_tried_again_and_done_once() {
    let mut files = Files::new(64 << 10, 0);
    let (inode, handle) = files.file(b"file");
    let (mut waited, mut appends) = (Waited::default(), 0);
    let mut attempt = |files: &mut Files| files.append(&mut waited, handle, &[1; 1000]);
    while let (Ok(_), false) = attempt(&mut files) {
        appends += 1;
    }
    for _ in 0..100 {
        assert_eq!(attempt(&mut files), (Err(Errno::AGAIN), true));
        // Others are served meanwhile.
        let owner = files.owner.clone();
        let caller = Files::caller(&owner);
        assert_eq!(files.client.lookup(caller, ROOT, b"file").map(|found| found.inode), Ok(inode));
    }
    files.digests(true);
    assert_eq!(attempt(&mut files), (Ok(appends * 1000), false));
    let shown = files.client.attributes(inode).expect("it is there");
    assert_eq!(shown.size, (appends + 1) * 1000);
    files.whole();
}

/// The record that frees the inode follows the one that removes its last name.
#[test]
fn a_removal_that_is_done_does_not_wait_for_what_follows() {
    let mut files = Files::new(64 << 10, 0);
    let names: Vec<_> = (0..4000).map(|number: u32| number.to_string()).collect();
    let mut made = 0;
    let create = |files: &mut Files, name: &String| {
        files.attempt(&mut Waited::default(), |client, caller| {
            client.create(caller, ROOT, name.as_bytes(), &FILE)
        })
    };
    while create(&mut files, &names[made]).0.is_ok() {
        made += 1;
    }
    files.digests(true);
    create(&mut files, &names[made]).0.expect("room");
    files.digests(false);
    let mut removed = 0;
    for name in &names[..made] {
        let unlink = |client: &mut Client<Stalled, Memory>, caller: Caller<'_>| {
            client.unlink(caller, ROOT, name.as_bytes())
        };
        match files.attempt(&mut Waited::default(), unlink) {
            (Ok(()), false) => removed += 1,
            other => {
                assert_eq!(other, (Err(Errno::AGAIN), true));
                files.digests(true);
                assert_eq!(files.attempt(&mut Waited::default(), unlink), (Ok(()), false));
                files.digests(false);
                removed += 1;
            }
        }
    }
    assert_eq!(removed, made);
    files.whole();
}

#[test]
fn a_user_at_its_limit_waits_for_what_it_removed_and_others_do_not() {
    const LIMIT: u64 = 16;
    let mut files = Files::new(4 << 20, LIMIT);
    let (inode, handle) = files.file(b"file");
    let bytes = vec![1; (LIMIT * BLOCK) as usize];
    let mut waited = Waited::default();
    assert_eq!(files.append(&mut waited, handle, &bytes).0, Ok(0));
    let owner = files.owner.clone();
    let caller = Files::caller(&owner);
    let empty = AttributeChange { size: Some(0), ..AttributeChange::default() };
    files.client.set_attributes(caller, inode, Some(handle), &empty).expect("the owner may");
    for _ in 0..10 {
        assert_eq!(files.append(&mut waited, handle, &bytes), (Err(Errno::AGAIN), true));
        files.client.attributes(inode).expect("it is there");
    }
    files.digests(true);
    assert_eq!(files.append(&mut waited, handle, &bytes), (Ok(0), false));
    assert_eq!(files.append(&mut Waited::default(), handle, &bytes), (Err(Errno::DQUOT), false));
    files.whole();
}

/// Others go on to log meanwhile.
#[test]
fn reading_usage_waits_without_the_client_and_for_few_commits() {
    let mut files = Files::new(4 << 20, 100);
    let (_, handle) = files.file(b"file");
    files.append(&mut Waited::default(), handle, &[1; BLOCK as usize]).0.expect("room");
    let (root, name, mut waited) = (Credentials::root(), attribute(OWNER), Waited::default());
    let read = |client: &mut Client<Stalled, Memory>, _: Caller<'_>| {
        client.xattr(Files::caller(&root), ROOT, name.as_bytes())
    };
    for _ in 0..10 {
        assert_eq!(files.attempt(&mut waited, read), (Err(Errno::AGAIN), true));
    }
    let mut commits = 0;
    let line = loop {
        files.append(&mut Waited::default(), handle, &[1; BLOCK as usize]).0.expect("room");
        files.client.service().commits = 1;
        commits += 1;
        match files.attempt(&mut waited, read) {
            (Ok(line), false) => break String::from_utf8(line).expect("text"),
            other => assert_eq!(other, (Err(Errno::AGAIN), true)),
        }
        assert!(commits < 8, "it waits until others stop");
    };
    let used = read_line(line.trim_end()).expect("a line").1.used;
    assert!(used.blocks >= 1 && used.inodes == 1, "{used:?}");
    files.whole();
}

/// The kernel keeps all others from the root directory until the answer.
#[test]
fn setting_a_limit_in_a_try_does_not_wait_for_its_digest() {
    let mut files = Files::new(4 << 20, 100);
    let (root, name, value) = (Credentials::root(), attribute(OWNER), limit_value(7 * BLOCK, 0));
    let set = |client: &mut Client<Stalled, Memory>, _: Caller<'_>| {
        client.set_xattr(Files::caller(&root), ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Set)
    };
    assert_eq!(files.attempt(&mut Waited::default(), set), (Ok(()), false));
    files.digests(true);
    let read = |client: &mut Client<Stalled, Memory>, _: Caller<'_>| {
        client.xattr(Files::caller(&root), ROOT, name.as_bytes())
    };
    let line = files.attempt(&mut Waited::default(), read).0.expect("root may");
    let line = String::from_utf8(line).expect("text");
    assert_eq!(read_line(line.trim_end()).expect("a line").1.limit.blocks, 7);
    files.whole();
}
