//! Clients that compete for the room of a small pool: none is ever ended, whatever it does, and
//! what each wrote is there.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::check::{Options, check};
use sietch_fs::file_system::{
    Allocation, AttributeChange, Handle, NewInode, OpenMode, RenameMode, WriteAt, XattrMode,
};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::lease::ClientNumber;
use sietch_fs_oracle::program::generate::Mix;
use sietch_sim::Memory;
use sietch_sim::seeds::{self, Budget};

use super::world::{Plan, World};
use crate::setup::BIRTH;

const ROOT: InodeNumber = InodeNumber::ROOT;
const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };
/// Files of a client, and bytes of one at most.
const FILES: usize = 4;
const FILE_BYTES: u64 = 1_000_000;
const NAMES: u64 = 12;

/// A file, and what it must have.
struct File {
    name: Vec<u8>,
    inode: InodeNumber,
    handle: Handle,
    content: Vec<u8>,
}

struct Competitor<'a> {
    world: &'a World,
    index: usize,
    who: Credentials,
    files: Vec<File>,
    /// Calls that found no room.
    refused: Cell<u64>,
}

impl Competitor<'_> {
    fn below(&self, bound: u64) -> u64 {
        self.world.random.borrow_mut().below(bound)
    }

    /// A call that may find no room.
    fn call<T>(
        &self,
        mut call: impl FnMut(&mut super::world::Peer, Caller<'_>) -> Result<T, Errno>,
    ) -> Option<T> {
        let caller = Caller { credentials: &self.who, now: BIRTH };
        match self.world.call(self.index, |client| call(client, caller)) {
            Ok(value) => Some(value),
            Err(Errno::NOSPC) => {
                self.refused.set(self.refused.get() + 1);
                None
            }
            Err(Errno::EXIST | Errno::NOENT | Errno::NODATA | Errno::PERM) => None,
            Err(errno) => {
                let ended = self.world.core.borrow().ended(World::number(self.index)).map(str::to_owned);
                self.world.fail(format!("client {}: {errno}, {ended:?}", self.index));
                None
            }
        }
    }

    fn name(&self) -> Vec<u8> {
        let mut name = format!("{}-{}", self.index, self.below(NAMES)).into_bytes();
        name.resize(name.len() + 100, b'n');
        name
    }

    fn create(&mut self) {
        let name = format!("{}:{}", self.index, self.below(1 << 40)).into_bytes();
        let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
        let made = self.call(|client, caller| client.create(caller, ROOT, &name, &new));
        let Some(inode) = made.map(|made| made.inode) else { return };
        if let Some(handle) = self.call(|client, caller| client.open(caller, inode, READ_WRITE)) {
            self.files.push(File { name, inode, handle, content: Vec::new() });
        }
    }

    /// Changes the data of a file.
    fn change(&mut self) {
        let at = self.below(FILES as u64) as usize;
        if at >= self.files.len() {
            return self.create();
        }
        let (handle, inode) = (self.files[at].handle, self.files[at].inode);
        let offset = self.below(FILE_BYTES / 2);
        let most = [200, 5000, FILE_BYTES / 2][self.below(3) as usize];
        let end = offset + 1 + self.below(most);
        let (first, last) = (offset as usize, end as usize);
        let fill = self.below(255) as u8 + 1;
        let mut content = std::mem::take(&mut self.files[at].content);
        let size = content.len();
        let grow = |content: &mut Vec<u8>, end: usize| content.resize(content.len().max(end), 0);
        let allocate = |allocation| {
            self.call(|client, caller| client.allocate(caller, handle, offset..end, allocation)).is_some()
        };
        match self.below(10) {
            0..=4 => {
                let bytes = vec![fill; last - first];
                let write = |at| self.call(|client, caller| client.write(caller, handle, at, &bytes));
                if write(WriteAt::Offset(offset)).is_some() {
                    grow(&mut content, last);
                    content[first..last].fill(fill);
                }
            }
            5 => {
                let change = AttributeChange { size: Some(end), ..AttributeChange::default() };
                let set = self.call(|client, caller| client.set_attributes(caller, inode, None, &change));
                if set.is_some() {
                    content.resize(last, 0);
                }
            }
            6 if allocate(Allocation::Punch) => {
                let (first, last) = (first.min(size), last.min(size));
                content[first..last].fill(0);
            }
            7 if allocate(Allocation::Reserve) => grow(&mut content, last),
            8 => drop(allocate(Allocation::ReserveKeepSize)),
            9 if allocate(Allocation::Zero) => {
                grow(&mut content, last);
                content[first..last].fill(0);
            }
            _ => {}
        }
        self.files[at].content = content;
    }

    /// Changes names and attributes of other inodes.
    fn change_names(&mut self) {
        let (one, two) = (self.name(), self.name());
        let target = vec![b't'; 1 + self.below(4095) as usize];
        let value = vec![b'v'; self.below(65_537) as usize];
        let attribute = [&b"user.a"[..], b"user.b"][self.below(2) as usize];
        let kind = [Kind::Symlink, Kind::File, Kind::Fifo][self.below(3) as usize];
        let target = if kind == Kind::Symlink { &target[..] } else { &[] };
        let new = NewInode { kind, mode: 0o600, device: 0, target };
        let file = self.files.first().map_or(ROOT, |file| file.inode);
        match self.below(8) {
            0..=2 => drop(self.call(|client, caller| client.create(caller, ROOT, &one, &new))),
            3 => drop(self.call(|client, caller| client.unlink(caller, ROOT, &one))),
            4 => drop(self.call(|client, caller| {
                client.rename(caller, (ROOT, &one), (ROOT, &two), RenameMode::Replace)
            })),
            5 => drop(self.call(|client, caller| client.link(caller, file, ROOT, &one))),
            6 => drop(
                self.call(|client, caller| client.set_xattr(caller, file, attribute, &value, XattrMode::Set)),
            ),
            _ => drop(self.call(|client, caller| client.remove_xattr(caller, file, attribute))),
        }
    }

    /// Removes a file, which keeps its content while it is open.
    fn remove(&mut self) {
        if self.files.len() < FILES {
            return self.create();
        }
        let at = self.below(self.files.len() as u64) as usize;
        let File { name, handle, .. } = self.files.swap_remove(at);
        let removed = self.call(|client, caller| client.unlink(caller, ROOT, &name));
        if removed.is_none() {
            self.world.fail(format!("client {}: removing needs no room", self.index));
        }
        self.close(handle);
    }

    fn close(&self, handle: Handle) {
        if let Some(client) = &mut *self.world.slots[self.index].client.borrow_mut() {
            client.close(handle);
        }
    }

    fn verify(&self) {
        for file in &self.files {
            let mut bytes = vec![0; file.content.len() + 1];
            let read = self.call(|client, _| client.read(file.handle, 0, &mut bytes));
            bytes.truncate(read.unwrap_or(0));
            if bytes != file.content && !self.world.has_stopped() {
                self.world.fail(format!("client {}: {} has other content", self.index, file.inode));
            }
        }
    }
}

/// A client that only reads, and seldom advances: blocks are free and may not be used yet.
struct Reader<'a>(&'a World);

impl<'a> Reader<'a> {
    const NUMBER: ClientNumber = ClientNumber(50);

    fn new(world: &'a World) -> Self {
        let memory = Memory::new(64 << 10).joined(&world.media.pool);
        world.core.borrow_mut().join(Self::NUMBER, memory, 1).expect("a new epoch");
        Self(world)
    }

    /// Advances now and then. If it was ended for not doing so, it comes again.
    fn act(&self) {
        if self.0.core.borrow().ended(Self::NUMBER).is_some() {
            self.0.service(|core| core.died(Self::NUMBER));
            Self::new(self.0);
        }
        if self.0.chance(150) {
            let mut core = self.0.core.borrow_mut();
            let newest = core.digest_mut().root().generation;
            core.reads(Self::NUMBER, newest);
        }
    }
}

/// Returns the calls that found no room.
fn run(seed: u64) -> Result<u64, String> {
    let clients = 2 + (seed % 3) as usize;
    let mut plan = Plan::new(clients, seed, Mix::ALL);
    plan.times.answer = 50_000_000;
    let pool = [3 << 20, 5 << 20, 8 << 20][(seed / 3 % 3) as usize];
    let world = World::new(Plan { pool, log: 2 << 20, log_sizes: 3, ..plan });
    world.is_quiet.set(true);
    let reader = (seed % 2 == 1).then(|| Reader::new(&world));
    let mut all: Vec<_> = (0..clients)
        .map(|index| Competitor {
            world: &world,
            index,
            who: Credentials::root(),
            files: Vec::new(),
            refused: Cell::new(0),
        })
        .collect();
    for _ in 0..250 {
        reader.iter().for_each(Reader::act);
        let index = world.random.borrow_mut().index(clients);
        let competitor = &mut all[index];
        let what = world.random.borrow_mut().below(12);
        match what {
            0..=6 => competitor.change(),
            7..=9 => competitor.change_names(),
            10 => competitor.remove(),
            // The end of one waits for readers.
            _ if reader.is_none() && world.chance(100) => {
                world.die(index);
                competitor.files.clear();
            }
            _ => competitor.verify(),
        }
        let (given, free) = {
            let mut core = world.core.borrow_mut();
            let given: u64 = (0..clients).map(|index| core.budget(World::number(index))).sum();
            (given, core.digest_mut().root().free)
        };
        if given > free {
            world.fail(format!("{given} blocks are given to clients, of {free}"));
        }
        world.service(|core| core.step().map(drop));
        world.result()?;
    }
    all.iter().for_each(Competitor::verify);
    if reader.is_some() {
        world.core.borrow_mut().reads(Reader::NUMBER, u64::MAX);
    }
    world.settle();
    all.iter().for_each(Competitor::verify);
    world.result()?;
    for (index, slot) in world.slots.iter().enumerate() {
        *slot.client.borrow_mut() = None;
        world.core.borrow_mut().died(World::number(index)).map_err(|error| error.to_string())?;
    }
    let mut core = world.core.borrow_mut();
    let report =
        check(core.digest_mut().pool(), Options { data: true }).map_err(|fault| fault.to_string())?;
    if !report.findings.is_empty() {
        return Err(format!("the check: {:#?}", report.findings));
    }
    Ok(all.iter().map(|competitor| competitor.refused.get()).sum())
}

#[test]
fn clients_that_compete_for_room_are_never_ended() {
    let name = "it shared::room::clients_that_compete_for_room_are_never_ended";
    let (seeds, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    seeds::run(name, &[], Budget { seeds: 60, seconds: 5 }, |seed| match run(seed) {
        Ok(calls) => {
            seeds::explored(1);
            seeds.fetch_add(1, Ordering::Relaxed);
            refused.fetch_add(calls, Ordering::Relaxed);
        }
        Err(cause) => panic!("{cause}"),
    });
    let (seeds, refused) = (seeds.into_inner(), refused.into_inner());
    assert!(refused >= seeds, "the pools of {seeds} seeds get full: {refused} calls found no room");
}

/// A small record is promised more than it takes. A client that lacks room gets what the records of
/// another one do not need: that one's log is digested for it.
#[test]
fn a_client_gets_room_that_records_of_another_did_not_need() {
    for seed in 0..20 {
        let plan = Plan::new(2, seed, Mix::ALL);
        let world = World::new(Plan { pool: 3 << 20, log: 2 << 20, ..plan });
        world.is_quiet.set(true);
        let root = Credentials::root();
        let caller = Caller { credentials: &root, now: BIRTH };
        let new = |kind| NewInode { kind, mode: 0o700, device: 0, target: &[] };
        // Each client has leases on what it uses, so nothing is digested for a lease.
        let directory = world.call(1, |client| client.create(caller, ROOT, b"d", &new(Kind::Directory)));
        let file = world.call(0, |client| client.create(caller, ROOT, b"f", &new(Kind::File)));
        let (directory, file) = (directory.expect("a directory").inode, file.expect("a file").inode);
        let handle = world.call(0, |client| client.open(caller, file, READ_WRITE)).expect("it exists");
        // 700 of the 750 blocks that there are.
        for _ in 0..350 {
            let written = world.call(0, |client| client.write(caller, handle, WriteAt::End, b"small"));
            assert!(written.is_ok(), "seed {seed}: {written:?}");
        }
        for number in 0..100_u8 {
            let name = [b'a' + number / 26, b'a' + number % 26];
            let made = world.call(1, |client| client.create(caller, directory, &name, &new(Kind::File)));
            assert!(made.is_ok(), "seed {seed}, file {number}: {made:?}");
        }
        world.result().expect("nothing failed");
    }
}
