//! A file system in memory: simulated persistent memory for the log and the pool. Blocks of the
//! pool can be made to fail.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sietch_disk::nvm::NvmQueue;
use sietch_disk::{BLOCK, Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_fs::check::{Options, check};
use sietch_fs::inode::Timestamp;
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::name::NameKey;
use sietch_fs::pool::{Class, FormatOptions, Member, Pool, format};
use sietch_fs::{Client, Digest, Inline};
use sietch_sim::{Memory, Random};

/// What of the pool fails.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Reads of these blocks.
    pub(crate) blocks: Rc<RefCell<BTreeSet<u64>>>,
    /// All reads of more than a block.
    pub(crate) large_reads: Rc<Cell<bool>>,
    /// All writes.
    pub(crate) writes: Rc<Cell<bool>>,
    /// All flushes.
    pub(crate) flushes: Rc<Cell<bool>>,
    /// Writes of more than a block: one bit of each gets lost.
    pub(crate) rot: Rc<Cell<bool>>,
}

impl Faults {
    fn hits(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Read { offset, length, .. } => {
                let first = offset / BLOCK as u64;
                let end = (offset + *length as u64).div_ceil(BLOCK as u64);
                self.blocks.borrow().range(first..end).next().is_some()
                    || (self.large_reads.get() && *length > BLOCK)
            }
            Operation::Write { .. } | Operation::WriteVectored { .. } => self.writes.get(),
            Operation::Flush => self.flushes.get(),
            _ => false,
        }
    }
}

/// The queue over simulated memory.
pub(crate) struct Disk {
    queue: NvmQueue<Memory>,
    faults: Faults,
    failing: BTreeSet<u64>,
}

impl Disk {
    /// A queue over `memory`.
    pub(crate) fn over(memory: &Memory, faults: &Faults) -> Self {
        let queue = NvmQueue::over(memory.clone(), None);
        Self { queue, faults: faults.clone(), failing: BTreeSet::new() }
    }
}

impl DiskQueue for Disk {
    fn capacity(&self) -> u64 {
        self.queue.capacity()
    }

    fn block_size(&self) -> usize {
        self.queue.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.queue.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.queue.depth()
    }

    fn submit_with(&mut self, token: u64, mut operation: Operation, by: Priority) -> Result<(), SubmitError> {
        if self.faults.hits(&operation) {
            self.failing.insert(token);
        }
        if let Operation::Write { buffer, length, .. } = &mut operation
            && self.faults.rot.get()
            && *length > BLOCK
        {
            buffer[*length / 2] ^= 1;
        }
        self.queue.submit_with(token, operation, by)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.queue.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let count = self.queue.complete(out);
        for completion in &mut out[before..] {
            if self.failing.remove(&completion.token) {
                completion.result = Err(Errno::IO.into());
            }
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.queue.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

/// A client that digests in its own thread.
pub(crate) type FileSystem = Client<Inline<Disk, Memory>, Memory>;

/// The log of the tests.
pub(crate) const LOG: LogIdentity = LogIdentity { log: 1, epoch: 0, seed: 0x1234_5678 };

/// When the root directory is made.
pub(crate) const BIRTH: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 500_000_000 };

/// What survives: the memory of the pool and of the log.
#[derive(Clone)]
pub(crate) struct Media {
    pub(crate) pool: Memory,
    pub(crate) log: Memory,
    pub(crate) faults: Faults,
    /// Slower media of the pool.
    pub(crate) others: Vec<(Class, Memory, Faults)>,
}

impl Media {
    /// Empty memory for both, in bytes. They lose their power together.
    pub(crate) fn new(pool: usize, log: usize) -> Self {
        let pool = Memory::new(pool);
        let log = Memory::new(log).joined(&pool);
        Self { pool, log, faults: Faults::default(), others: Vec::new() }
    }

    /// With further media in the pool.
    pub(crate) fn with(mut self, others: &[(Class, usize)]) -> Self {
        for (class, bytes) in others {
            self.others.push((*class, Memory::new(*bytes).joined(&self.pool), Faults::default()));
        }
        self
    }

    /// Power is lost, and comes back: what was not fenced is old or new at random.
    pub(crate) fn crash(&self, dice: &mut Random) {
        self.log.crash(dice);
        self.pool.crash(dice);
        for (_, memory, _) in &self.others {
            memory.crash(dice);
        }
    }

    pub(crate) fn members(&self) -> Vec<Member<Disk>> {
        let home = (Class::Nvm, self.pool.clone(), self.faults.clone());
        let member = |(class, memory, faults): &(Class, Memory, Faults)| Member {
            name: format!("{class:?}").to_lowercase(),
            class: *class,
            disk: Disk::over(memory, faults),
        };
        [home].iter().chain(&self.others).map(member).collect()
    }

    /// Makes an empty pool.
    pub(crate) fn format(&self, name_key: NameKey) {
        format(&mut self.members(), &FormatOptions { identity: 7, name_key }).expect("a pool");
    }

    /// The digest alone, for a log that no client writes.
    pub(crate) fn digest(&self) -> Digest<Disk> {
        let mut pool = Pool::open(self.members()).expect("a pool");
        pool.readers_at(u64::MAX);
        Digest::new(pool, BIRTH).expect("a root directory")
    }

    /// Opens the file system: digests what the log has, frees orphans, and returns a client whose
    /// log goes on behind it.
    pub(crate) fn open(&self) -> Result<FileSystem, String> {
        self.open_as(LOG.log)
    }

    /// As [`Media::open`], with a log of this number.
    pub(crate) fn open_as(&self, log: u32) -> Result<FileSystem, String> {
        let (digest, writer, identity) = self.recover(log)?;
        let service = Inline::new(digest, self.log.clone(), identity).map_err(|error| error.to_string())?;
        Ok(Client::new(service, writer, log))
    }

    /// What a service and a client of it need, once the log is digested.
    pub(crate) fn recover(&self, log: u32) -> Result<(Digest<Disk>, LogWriter<Memory>, LogIdentity), String> {
        let identity = LogIdentity { log, ..LOG };
        let mut pool = Pool::open(self.members()).map_err(|error| error.to_string())?;
        pool.readers_at(u64::MAX);
        let mut digest = Digest::new(pool, BIRTH).map_err(|error| error.to_string())?;
        loop {
            let batch = digest.digest(&self.log, log, LOG.seed).map_err(|error| error.to_string())?;
            if let Some(invalid) = batch.invalid {
                return Err(format!("the log is invalid at {}: {}", invalid.position, invalid.cause));
            }
            if batch.records == 0 {
                break;
            }
        }
        digest.free_orphans().map_err(|error| error.to_string())?;
        while digest.reap().map_err(|error| error.to_string())? {}
        let state = digest.begin_epoch(log, identity.seed).map_err(|error| error.to_string())?;
        let identity = LogIdentity { epoch: state.epoch, ..identity };
        let mut writer = LogWriter::new(self.log.clone(), identity, Durability::Operation)
            .map_err(|error| error.to_string())?;
        writer.continue_at(state.position, state.sequence + 1);
        Ok((digest, writer, identity))
    }
}

/// The service of one client that digests at once, on new media, and the log of the client.
pub(crate) fn inline(pool: usize, log: usize) -> (Inline<Disk, Memory>, LogWriter<Memory>) {
    let media = Media::new(pool, log);
    media.format(NameKey([7; 16]));
    let (digest, writer, identity) = media.recover(LOG.log).expect("a file system");
    (Inline::new(digest, media.log.clone(), identity).expect("media that work"), writer)
}

/// What a test's service leaves to its field `inline`.
macro_rules! leave_to_inline {
    () => {
        type Base =
            <sietch_fs::Inline<crate::setup::Disk, Memory> as sietch_fs::client::Service<Memory>>::Base;

        fn base(&mut self) -> &mut Self::Base {
            self.inline.base()
        }

        fn poll(&mut self) -> Option<u64> {
            self.inline.poll()
        }

        fn inode_numbers(&mut self) -> Result<std::ops::Range<u64>, Errno> {
            self.inline.inode_numbers()
        }

        fn sync(
            &mut self,
            log: &mut sietch_fs::log::LogWriter<Memory>,
            position: u64,
        ) -> Result<Option<Box<dyn sietch_fs::file_system::PendingSync>>, Errno> {
            self.inline.sync(log, position)
        }

        fn report(&mut self, fault: &sietch_fs::Fault) {
            self.inline.report(fault);
        }
    };
}
pub(crate) use leave_to_inline;

/// What a test's service has that grants all leases at once, in its fields `messages` and `serial`.
macro_rules! grant_at_once {
    () => {
        const IS_SHARED: bool = true;

        fn request_lease(&mut self, inode: InodeNumber, mode: sietch_fs::lease::Mode) -> Result<(), Errno> {
            self.serial += 1;
            let grant = sietch_fs::lease::Grant { inode, mode, serial: self.serial, is_sole: true };
            self.messages.push_back(Message::Granted(grant));
            Ok(())
        }

        fn budget(&mut self) -> Option<u64> {
            Some(self.budget)
        }

        fn message(&mut self) -> Option<Message> {
            self.messages.pop_front()
        }
    };
}
pub(crate) use grant_at_once;

/// Digests everything, ends the client, and checks what is in the pool, all data included.
pub(crate) fn check_whole(mut client: FileSystem) -> Result<(), String> {
    loop {
        let batch = client.service().digest().map_err(|error| format!("the last digest: {error}"))?;
        if batch.records == 0 {
            break;
        }
    }
    let found = findings(client);
    if found.is_empty() { Ok(()) } else { Err(format!("the check: {found:#?}")) }
}

/// Ends the client, and checks what is in the pool, all data included.
pub(crate) fn findings(client: FileSystem) -> Vec<String> {
    let (mut digest, _) = client.into_parts().0.into_parts();
    let report = check(digest.pool(), Options { data: true }).expect("a pool without changes");
    report.findings
}
