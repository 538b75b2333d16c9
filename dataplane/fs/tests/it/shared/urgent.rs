//! An operation that waits within answers a revocation that is urgent: the service ends clients
//! that do not.

use std::collections::VecDeque;

use rustix::io::Errno;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::client::{Message, Service};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::lease::{Release, Revocation};
use sietch_fs::{Client, FileSystem as _, Inline};
use sietch_sim::Memory;

use crate::setup::{BIRTH, Disk, LOG, grant_at_once, inline, leave_to_inline};

const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
const BLOCK: u64 = 4096;

/// The service of one client: it grants all leases at once.
struct Revoking {
    inline: Inline<Disk, Memory>,
    messages: VecDeque<Message>,
    serial: u64,
    budget: u64,
    /// The lease that it revokes when an operation waits next.
    revokes: Option<InodeNumber>,
    /// The log has records up to here.
    logged: u64,
    /// The log's end when it revoked the lease, and when it was released.
    revoked_at: Option<u64>,
    released_at: Option<u64>,
    /// Waits for messages after the revocation, while it was not answered.
    unanswered: u32,
}

impl Revoking {
    /// An operation waits.
    fn waits(&mut self) {
        if let Some(inode) = self.revokes.take() {
            let revocation = Revocation { inode, serial: self.serial, may_share: false, is_urgent: true };
            self.messages.push_back(Message::Revoked(revocation));
            self.revoked_at = Some(self.logged);
        } else if self.revoked_at.is_some() && self.released_at.is_none() {
            self.unanswered += 1;
        }
    }
}

impl Service<Memory> for Revoking {
    leave_to_inline!();
    grant_at_once!();

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        self.waits();
        self.inline.wait()
    }

    fn logged(&mut self, position: u64) {
        self.logged = position;
        self.inline.logged(position);
    }

    fn release_lease(&mut self, release: Release) {
        self.released_at = Some(release.position);
    }

    fn request_room(&mut self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn wait_message(&mut self) -> Result<(), Errno> {
        let is_first = self.revokes.is_some();
        self.waits();
        if !is_first {
            self.budget = 1 << 20;
            self.messages.push_back(Message::Room(true));
        }
        Ok(())
    }
}

struct Files {
    client: Client<Revoking, Memory>,
    file: InodeNumber,
    handle: Handle,
}

impl Files {
    fn new() -> Self {
        let (inline, writer) = inline(16 << 20, 64 << 10);
        let service = Revoking {
            inline,
            messages: VecDeque::new(),
            serial: 0,
            budget: 1 << 20,
            revokes: None,
            logged: 0,
            revoked_at: None,
            released_at: None,
            unanswered: 0,
        };
        let mut client = Client::new(service, writer, LOG.log);
        let root = Credentials::root();
        let caller = Caller { credentials: &root, now: BIRTH };
        let file = client.create(caller, InodeNumber::ROOT, b"file", &FILE).expect("room").inode;
        let mode = OpenMode { read: true, write: true, truncate: false };
        let handle = client.open(caller, file, mode).expect("root may");
        Self { client, file, handle }
    }

    fn append(&mut self, bytes: &[u8]) {
        let root = Credentials::root();
        let caller = Caller { credentials: &root, now: BIRTH };
        self.client.write(caller, self.handle, WriteAt::End, bytes).expect("room");
    }

    fn whole(self, size: u64) {
        let Self { mut client, file, .. } = self;
        assert_eq!(client.attributes(file).expect("it is there").size, size);
        let (service, _) = client.into_parts();
        assert!(service.revoked_at.is_some(), "no operation waited");
        assert_eq!(service.released_at, service.revoked_at, "it is released before the write");
        assert_eq!(service.unanswered, 0);
        assert_eq!(service.inline.faults(), <&[String]>::default());
    }
}

#[test]
fn a_write_that_waits_for_the_log_releases_a_lease_that_is_urgent() {
    let mut files = Files::new();
    let (file, bytes) = (files.file, [1; BLOCK as usize]);
    files.client.service().revokes = Some(file);
    let mut size = 0;
    while files.client.service().revoked_at.is_none() {
        files.append(&bytes);
        size += BLOCK;
    }
    files.whole(size);
}

#[test]
fn a_write_that_waits_for_room_releases_a_lease_that_is_urgent() {
    let mut files = Files::new();
    let file = files.file;
    files.client.service().revokes = Some(file);
    files.client.service().budget = 0;
    files.append(&[1; BLOCK as usize]);
    files.whole(BLOCK);
}
