//! Operations of several users of a client that ask whether there is room.

use std::collections::VecDeque;

use rustix::io::Errno;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::client::{Message, Service};
use sietch_fs::file_system::{AttributeChange, Handle, NewInode, OpenMode, Pending, Waited, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::{Client, FileSystem as _, Inline};
use sietch_sim::Memory;

use crate::setup::{BIRTH, Disk, LOG, grant_at_once, inline, leave_to_inline};

const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
const BLOCK: u64 = 4096;

/// The service of one client: it grants all leases at once, and room when the test says so.
struct Asked {
    inline: Inline<Disk, Memory>,
    messages: VecDeque<Message>,
    serial: u64,
    budget: u64,
    /// The room that was asked for, of each question.
    questions: Vec<u64>,
}

struct Nothing;

impl Pending for Nothing {
    fn wait(&mut self) {}
}

impl Service<Memory> for Asked {
    leave_to_inline!();
    grant_at_once!();

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        self.inline.wait()
    }

    fn logged(&mut self, position: u64) {
        self.inline.logged(position);
    }

    fn request_room(&mut self, blocks: u64) -> Result<(), Errno> {
        self.questions.push(blocks);
        Ok(())
    }

    fn begin_wait_message(&mut self) -> Result<Option<Box<dyn Pending>>, Errno> {
        Ok(Some(Box::new(Nothing)))
    }
}

struct Files {
    client: Client<Asked, Memory>,
    handle: Handle,
    user: Credentials,
}

impl Files {
    /// An empty file, and no room.
    fn new() -> Self {
        let (inline, writer) = inline(16 << 20, 1 << 20);
        let service =
            Asked { inline, messages: VecDeque::new(), serial: 0, budget: 1 << 20, questions: Vec::new() };
        let mut client = Client::new(service, writer, LOG.log);
        let user = Credentials::root();
        let caller = Caller { credentials: &user, now: BIRTH };
        let file = client.create(caller, InodeNumber::ROOT, b"file", &FILE).expect("room").inode;
        let mode = OpenMode { read: true, write: true, truncate: false };
        let handle = client.open(caller, file, mode).expect("root may");
        while client.service().inline.wait().expect("no fault").is_some() {}
        client.service().budget = 0;
        Self { client, handle, user }
    }

    /// One try of a write of so many blocks.
    fn write(&mut self, waited: &mut Option<Waited>, blocks: u64) -> Result<u64, Errno> {
        let bytes = vec![1; (blocks * BLOCK) as usize];
        self.client.begin_try(waited.take().unwrap_or_default());
        let caller = Caller { credentials: &self.user, now: BIRTH };
        let written = self.client.write(caller, self.handle, WriteAt::End, &bytes);
        *waited = self.client.end_try().map(|(waited, _)| waited);
        written
    }

    fn answer(&mut self, is_there: bool) {
        self.client.service().messages.push_back(Message::Room(is_there));
    }

    fn questions(&mut self) -> usize {
        self.client.service().questions.len()
    }

    /// Logs a change that needs no room, and digests it.
    fn digests(&mut self) {
        let caller = Caller { credentials: &self.user, now: BIRTH };
        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        self.client.set_attributes(caller, InodeNumber::ROOT, None, &change).expect("root may");
        while self.client.service().inline.wait().expect("no fault").is_some() {}
    }
}

const WAITS: Result<u64, Errno> = Err(Errno::AGAIN);

#[test]
fn that_there_is_no_room_says_nothing_to_an_operation_that_did_not_ask() {
    let mut files = Files::new();
    let (mut large, mut small) = (None, None);
    assert_eq!(files.write(&mut large, 100), WAITS);
    assert_eq!(files.write(&mut small, 1), WAITS);
    assert_eq!(files.questions(), 1, "one at a time");
    files.answer(false);
    assert_eq!(files.write(&mut small, 1), WAITS, "it asks itself");
    assert_eq!(files.questions(), 2);
    assert_eq!(files.write(&mut large, 100), Err(Errno::NOSPC));
    files.client.service().budget = 50;
    files.answer(true);
    assert_eq!(files.write(&mut small, 1), Ok(0), "it is at the start");
}

#[test]
fn an_operation_that_is_given_up_leaves_no_answer() {
    let mut files = Files::new();
    let mut given_up = None;
    assert_eq!(files.write(&mut given_up, 100), WAITS);
    drop(given_up);
    files.answer(false);
    let mut other = None;
    assert_eq!(files.write(&mut other, 1), WAITS, "it asks itself");
    assert_eq!(files.questions(), 2);
    files.answer(false);
    assert_eq!(files.write(&mut other, 1), Err(Errno::NOSPC));
}

#[test]
fn messages_are_not_commits() {
    let mut files = Files::new();
    let mut waited = None;
    assert_eq!(files.write(&mut waited, 1), WAITS);
    files.digests();
    for _ in 0..100 {
        assert_eq!(files.write(&mut waited, 1), WAITS);
    }
    assert_eq!(files.questions(), 1);
    files.answer(false);
    assert_eq!(files.write(&mut waited, 1), WAITS, "more was digested since it asked");
    assert_eq!(files.questions(), 2);
    files.answer(false);
    assert_eq!(files.write(&mut waited, 1), Err(Errno::NOSPC), "nothing was digested since");
}
