//! A file of many extents is removed in steps: what a user may have meanwhile.

use std::ops::Range;

use sietch_fs::client::Service;
use sietch_fs::file_system::PendingSync;
use sietch_fs::log::{LogIdentity, LogWriter};
use sietch_fs::pool::Pool;
use sietch_fs::{Client, Digest, Digested, Fault};
use sietch_sim::Memory;

use super::*;
use crate::setup::{Disk, LOG};

/// Extents that a commit removes.
const STEP: u64 = 4096;

/// A service that makes many commits between two steps of a removal, as for removals of others.
struct Busy {
    digest: Digest<Disk>,
    log: Memory,
    identity: LogIdentity,
    logged: u64,
    digested: u64,
    read: u64,
    /// Commits before the next step.
    others: u32,
}

impl Service<Memory> for Busy {
    type Base = Digested<Pool<Disk>>;

    fn base(&mut self) -> &mut Self::Base {
        self.digest.base()
    }

    fn poll(&mut self) -> Option<u64> {
        None
    }

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        if self.read < self.logged {
            let batch = self.digest.digest(&self.log, self.identity.log, self.identity.seed).expect("room");
            (self.digested, self.read) = (batch.state.position, batch.read);
        } else if self.others > 0 {
            self.others -= 1;
        } else if !self.digest.reap().expect("memory") {
            return Ok(None);
        }
        Ok(Some(self.digested))
    }

    fn logged(&mut self, position: u64) {
        self.logged = position;
    }

    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno> {
        Ok(self.digest.inode_numbers(1024).expect("memory"))
    }

    fn sync(&mut self, _: &mut LogWriter<Memory>, _: u64) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        Ok(None)
    }

    fn report(&mut self, fault: &Fault) {
        panic!("{fault}");
    }
}

/// User 1000 has all that the limit allows in one file of so many extents, and removes it.
fn removed(extents: u64) -> Client<Busy, Memory> {
    let mut files = Files::sized(64 << 20, 8 << 20);
    files.limit(1000, extents, 0);
    let file = files.create(1000, "a").expect("room");
    for extent in 0..extents {
        files.allocate(1000, file, 2 * extent..2 * extent + 1).expect("room");
    }
    let Files { media, client } = files;
    drop(client);
    let (mut digest, writer, identity) = media.recover(LOG.log).expect("a file system");
    let at = digest.log_state(LOG.log).expect("a pool").position;
    let log = media.log.clone();
    let service = Busy { digest, log, identity, logged: at, digested: at, read: at, others: 100 };
    let mut client = Client::new(service, writer, LOG.log);
    let who = user(1000);
    client.create(caller(&who), ROOT, b"b", &FILE).expect("no limit of inodes");
    client.unlink(caller(&who), ROOT, b"a").expect("the owner may");
    client
}

fn allocate(client: &mut Client<Busy, Memory>, blocks: u64) -> Result<(), Errno> {
    let who = user(1000);
    let file = client.lookup(caller(&who), ROOT, b"b").expect("a file").inode;
    let handle = client.open(caller(&who), file, BOTH).expect("a file");
    let done = client.allocate(caller(&who), handle, 0..blocks * BLOCK, Allocation::Reserve);
    client.close(handle);
    done
}

#[test]
fn what_was_removed_in_many_steps_is_free_before_anything_is_refused() {
    let mut client = removed(STEP + 1000);
    assert_eq!(allocate(&mut client, STEP + 1000), Ok(()));
    assert_eq!(client.service().others, 0);
}

#[test]
fn a_user_waits_for_the_steps_that_free_enough() {
    let mut client = removed(STEP + 1000);
    assert_eq!(allocate(&mut client, STEP), Ok(()));
    assert_eq!(client.service().others, 100);
    assert_eq!(allocate(&mut client, STEP + 1001), Err(Errno::DQUOT));
    assert_eq!(client.service().others, 0);
}
