//! Syncs of threads that share a client, and with it the disk of its log.
//!
//! 1. A thread whose records are not durable, while no group is being written, begins one and
//!    writes it: for all that the log has then. Others use the client meanwhile.
//! 2. A thread that comes while a group is being written waits for its end. If the group does not
//!    have its records, it asks the client again: one of those that wait begins the next group, for
//!    all of them. So threads share writes of the disk.
//! 3. A group that was written lies on the desk until a thread has the client, which then knows
//!    that the records are durable. Threads whose records the group has go on at once.
//!
//! What it must never do: let a thread go on before its records are durable; lose a group, and the
//! disk with it, because its thread ended.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use sietch_disk::AreaQueue;
use sietch_disk::nvm::Mapped;
use sietch_fs::file_system::PendingSync;
use sietch_fs::log::{Group, LogWriter, Mirror};

/// How long one wait for the disk of the log is, before its failure is looked for again.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the client knows of them.
pub(super) struct Syncs {
    mirror: Mirror<AreaQueue>,
    desk: Arc<Desk>,
}

/// Where groups are returned.
struct Desk {
    /// The memory of the log.
    log: Arc<Mapped>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    group: Option<Group<AreaQueue>>,
    /// Groups that were returned.
    count: u64,
    /// Everything before is durable: groups say so.
    persisted: u64,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Syncs {
    /// `log` is the memory of the log that `mirror` makes durable.
    pub(super) fn new(mirror: Mirror<AreaQueue>, log: Arc<Mapped>) -> Self {
        let desk = Desk { log, state: Mutex::default(), returned: Condvar::new() };
        Self { mirror, desk: Arc::new(desk) }
    }

    /// Makes the log durable before `position`. `None`: it is.
    pub(super) fn begin(
        &mut self,
        log: &mut LogWriter<Mapped>,
        position: u64,
    ) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        let mut state = self.desk.state();
        if let Some(group) = state.group.take() {
            self.mirror.finish(log, group);
        }
        let count = state.count;
        drop(state);
        if self.mirror.persisted().max(log.digested()) >= position {
            return Ok(None);
        }
        self.mirror.sync_to(position);
        let group = self.mirror.begin(log).map_err(|error| {
            tracing::error!("{error}");
            Errno::IO
        })?;
        let desk = Arc::clone(&self.desk);
        Ok(Some(match group {
            Some(group) => Box::new(Leader { desk, group: Some(group) }),
            None => Box::new(Follower { desk, count, position }),
        }))
    }
}

/// Writes a group.
struct Leader {
    desk: Arc<Desk>,
    group: Option<Group<AreaQueue>>,
}

impl PendingSync for Leader {
    fn wait(&mut self) -> bool {
        let Some(group) = &mut self.group else { return false };
        while !group.poll(&*self.desk.log) {
            group.wait(PATIENCE);
        }
        let is_durable = group.is_durable();
        self.give_back();
        is_durable
    }
}

impl Leader {
    fn give_back(&mut self) {
        let Some(group) = self.group.take() else { return };
        let mut state = self.desk.state();
        if group.is_durable() {
            state.persisted = state.persisted.max(group.end());
        }
        state.group = Some(group);
        state.count += 1;
        drop(state);
        self.desk.returned.notify_all();
    }
}

/// A group that is not whole is continued by the next sync.
impl Drop for Leader {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Waits for the end of a group.
struct Follower {
    desk: Arc<Desk>,
    /// Groups that had been returned before.
    count: u64,
    position: u64,
}

impl PendingSync for Follower {
    fn wait(&mut self) -> bool {
        let mut state = self.desk.state();
        while state.count == self.count {
            state = self.desk.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.persisted >= self.position
    }
}
