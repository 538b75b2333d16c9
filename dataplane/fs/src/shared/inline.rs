//! A client of a [`SharedDigest`] in the same thread.
//!
//! It cannot wait: an operation that would have to returns `EAGAIN`. The thread then steps the
//! service and the other clients, and calls the operation again. It is for tests.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use rustix::io::Errno;
use sietch_disk::DiskQueue;
use sietch_disk::nvm::Medium;

use super::SharedDigest;
use crate::client::{Message, Service};
use crate::digest::DigestError;
use crate::digested::Digested;
use crate::error::Fault;
use crate::file_system::{Pending, PendingSync};
use crate::inode::InodeNumber;
use crate::lease::{ClientNumber, Mode, Release};
use crate::log::LogWriter;
use crate::pool::Reader;

/// Blocks of disks that the client keeps: few, so that they change often.
const KEPT_BLOCKS: usize = 64;

/// The module's header describes it.
pub struct InlineShared<D: DiskQueue, M> {
    shared: Rc<RefCell<SharedDigest<D, M>>>,
    client: ClientNumber,
    base: Digested<Reader<D>>,
    /// Inode numbers that it gets at a time.
    numbers: u64,
    budget: u64,
    faults: Vec<String>,
}

impl<D: DiskQueue, M: Medium> InlineShared<D, M> {
    /// The client `client` of `shared`, which reads through queues of its own: `reader` has the
    /// newest root. It gets so many inode `numbers` at a time.
    pub fn new(
        shared: Rc<RefCell<SharedDigest<D, M>>>,
        client: ClientNumber,
        reader: Reader<D>,
        numbers: u64,
    ) -> Self {
        let mut base = Digested::new(reader);
        base.keep_blocks(KEPT_BLOCKS);
        Self { shared, client, base, numbers, budget: 0, faults: Vec::new() }
    }

    /// What went wrong so far.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Changes to the newest root; the position up to which the log is in it.
    fn advance(&mut self) -> Option<u64> {
        let (root, position, budget) = self.shared.borrow_mut().advance(self.client)?;
        self.base.store_mut().advance(root);
        self.budget = budget;
        Some(position)
    }

    fn failed(&mut self, error: &DigestError) -> Errno {
        match error {
            DigestError::Held => return Errno::AGAIN,
            DigestError::Fault(Fault::Full { .. }) => return Errno::NOSPC,
            _ => {}
        }
        self.faults.push(error.to_string());
        Errno::IO
    }

    fn note(&mut self, done: Result<(), DigestError>) {
        if let Err(error) = done {
            self.failed(&error);
        }
    }
}

impl<D: DiskQueue, M: Medium> Service<M> for InlineShared<D, M> {
    type Base = Digested<Reader<D>>;

    const IS_SHARED: bool = true;

    fn base(&mut self) -> &mut Self::Base {
        &mut self.base
    }

    fn poll(&mut self) -> Option<u64> {
        let known = self.base.store_mut().root().generation;
        let newest = self.shared.borrow_mut().digest_mut().root().generation;
        if newest == known { None } else { self.advance() }
    }

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        if !self.shared.borrow().is_behind(self.client) {
            return Ok(None);
        }
        let done = self.shared.borrow_mut().digest(self.client);
        done.map_err(|error| self.failed(&error))?;
        self.advance().map(Some).ok_or(Errno::IO)
    }

    fn logged(&mut self, position: u64) {
        self.shared.borrow_mut().logged(self.client, position);
    }

    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno> {
        let numbers = self.shared.borrow_mut().inode_numbers(self.client, self.numbers);
        numbers.map_err(|error| self.failed(&error))
    }

    fn sync(&mut self, _: &mut LogWriter<M>, _: u64) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        Ok(None)
    }

    fn report(&mut self, fault: &Fault) {
        self.faults.push(fault.to_string());
    }

    fn request_lease(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        let done = self.shared.borrow_mut().request_lease(self.client, inode, mode);
        done.map_err(|error| self.failed(&error))
    }

    fn cancel_lease(&mut self, inode: InodeNumber) {
        let done = self.shared.borrow_mut().cancel_lease(self.client, inode);
        self.note(done);
    }

    fn release_lease(&mut self, release: Release) {
        let done = self.shared.borrow_mut().release_lease(self.client, release);
        self.note(done);
    }

    fn unreferenced(&mut self, inode: InodeNumber) {
        self.shared.borrow_mut().unreferenced(self.client, inode);
    }

    fn budget(&mut self) -> Option<u64> {
        Some(self.budget)
    }

    fn request_room(&mut self, blocks: u64) -> Result<(), Errno> {
        let done = self.shared.borrow_mut().request_room(self.client, blocks);
        done.map_err(|error| self.failed(&error))
    }

    fn return_room(&mut self, keeps: u64) {
        self.budget = self.budget.min(keeps);
        let done = self.shared.borrow_mut().return_room(self.client, keeps);
        self.note(done);
    }

    fn message(&mut self) -> Option<Message> {
        let message = self.shared.borrow_mut().message(self.client)?;
        if message == Message::Room(true) {
            self.budget = self.shared.borrow().budget(self.client);
        }
        Some(message)
    }

    fn begin_wait_message(&mut self) -> Result<Option<Box<dyn Pending>>, Errno> {
        Ok(Some(Box::new(Elsewhere)))
    }

    fn is_fenced(&self) -> bool {
        !self.shared.borrow().is_served(self.client)
    }
}

/// The wait of a client in whose thread all else happens: its caller has it happen.
struct Elsewhere;

impl Pending for Elsewhere {
    fn wait(&mut self) {}
}
