//! Accepting connections, within the limits of each user.
//!
//! 1. What is decided about a connection before its user is known takes two system calls, so that
//!    those who connect and close in a loop delay others little. A user has a rate of connections
//!    ([`limits::CONNECTIONS`]): beyond it, a connection waits; and a user with too many that wait
//!    is refused.
//! 2. Descriptors may be queued in a connection that was never read, and closing them takes as long
//!    as their sender likes. So no connection is closed here: threads do it
//!    ([`sietch_protocol::closer`]). A user of whom too much waits to be closed is not served.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use sietch_protocol::administration;
use sietch_protocol::closer::Closer;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::connection::{Admitted, Shared, connection};
use super::limits::{self, MAX_ADMINISTRATORS, MAX_CONNECTIONS_PER_UID, OPEN_FILES, connection_limit};
use super::socket::{ADMINISTRATORS, ClientSocket, UNKNOWN, refuse_connection};
use crate::allowance::UserAllowances;

/// Where clients come from.
pub(super) struct Listeners {
    pub(super) open: UnixListener,
    pub(super) administrators: UnixListener,
}

impl Listeners {
    /// The next connection, and whether it is an administrator's.
    async fn accept(&self) -> io::Result<(UnixStream, bool)> {
        tokio::select! {
            accepted = self.administrators.accept() => accepted.map(|(stream, _)| (stream, true)),
            accepted = self.open.accept() => accepted.map(|(stream, _)| (stream, false)),
        }
    }

    /// Closes both, with the connections that wait there, of whatever users.
    fn close(self, closer: &Closer) {
        for listener in [self.open.into_std(), self.administrators.into_std()].into_iter().flatten() {
            closer.close(UNKNOWN, listener.into());
        }
    }
}

/// Connections by user.
type ConnectionCounts = Rc<RefCell<HashMap<ConnectionOwner, usize>>>;

/// The user that a connection counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ConnectionOwner {
    Administrator,
    User(u32),
}

/// Raises the limit of open files; how many there may be.
fn raise_open_files() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let more = Some(OPEN_FILES);
    let enough = maximum.is_none_or(|maximum| maximum >= OPEN_FILES);
    // Root may have more than it was started with. For others, and where a sandbox forbids it,
    // fewer clients are served.
    if enough || setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let now = getrlimit(Resource::Nofile).current;
    now.map_or(usize::MAX, |now| usize::try_from(now).unwrap_or(usize::MAX))
}

/// Whether one more connection fits.
fn has_room(counts: &HashMap<ConnectionOwner, usize>, owner: ConnectionOwner, limit: usize) -> bool {
    let own = counts.get(&owner).copied().unwrap_or(0);
    match owner {
        ConnectionOwner::Administrator => own < MAX_ADMINISTRATORS,
        ConnectionOwner::User(_) => {
            let others = |(of, count): (&ConnectionOwner, &usize)| {
                if *of == ConnectionOwner::Administrator { 0 } else { *count }
            };
            // When the limit is low, no user gets more than it leaves free: some are always free
            // for another user.
            let free = limit.saturating_sub(counts.iter().map(others).sum());
            own < MAX_CONNECTIONS_PER_UID.min(free)
        }
    }
}

/// What the connections of all users share.
struct Admission {
    counts: ConnectionCounts,
    limit: usize,
    paces: UserAllowances,
    shared: Shared,
}

impl Admission {
    fn new(mut shared: Shared) -> Self {
        let open_files = raise_open_files();
        let limit = connection_limit(open_files);
        shared.spare_files = limits::spare_files(open_files, limit);
        Self { counts: Rc::default(), limit, paces: UserAllowances::new(limits::CONNECTIONS), shared }
    }

    /// Counts a connection and returns what is served, or refuses it.
    fn admit(&mut self, stream: UnixStream, administers: bool) -> Option<(Admitted, ConnectionOwner)> {
        let closer = &self.shared.closer;
        let Ok(peer) = stream.peer_cred() else {
            drop(ClientSocket::new(stream, UNKNOWN, closer));
            return None;
        };
        let uid = peer.uid();
        let owner = if administers { ConnectionOwner::Administrator } else { ConnectionOwner::User(uid) };
        if !administers && !self.shared.closes(uid) {
            self.shared.counters.borrow_mut().connections_refused += 1;
            ClientSocket::new(stream, uid, closer).park();
            return None;
        }
        let account = if administers { ADMINISTRATORS } else { uid };
        let socket = ClientSocket::new(stream, account, closer);
        let refused = if administers && !administration::shares_namespaces(peer.pid().and_then(Pid::from_raw))
        {
            Some(("it comes from another user or PID namespace", "administer from the daemon's own"))
        } else if !has_room(&self.counts.borrow(), owner, self.limit) {
            Some(("too many connections", "close some"))
        } else {
            None
        };
        if let Some((cause, fix)) = refused {
            self.shared.counters.borrow_mut().connections_refused += 1;
            refuse_connection(&socket, cause, fix);
            return None;
        }
        self.shared.counters.borrow_mut().connections += 1;
        *self.counts.borrow_mut().entry(owner).or_default() += 1;
        let now = std::time::Instant::now();
        let pause = if administers { Duration::ZERO } else { self.paces.of(uid, now).spend(now) };
        Some((Admitted { socket, administers, pause }, owner))
    }
}

/// Accepts until `stop` is dropped, then waits for the connections that are left.
pub(super) async fn accept(listeners: Listeners, shared: Shared, mut stop: oneshot::Receiver<()>) {
    let mut admission = Admission::new(shared);
    let mut tasks = JoinSet::new();
    let mut next = 0_u64;
    loop {
        let (stream, administers) = tokio::select! {
            accepted = listeners.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The likely cause is a lack of descriptors. Connected clients continue, and
                    // new ones wait.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(_) = tasks.join_next() => continue,
            _ = &mut stop => break,
        };
        let Some((admitted, owner)) = admission.admit(stream, administers) else { continue };
        next += 1;
        let (counts, shared, number) = (Rc::clone(&admission.counts), admission.shared.clone(), next);
        tasks.spawn_local(async move {
            connection(number, admitted, shared).await;
            if let Some(count) = counts.borrow_mut().get_mut(&owner) {
                *count -= 1;
            }
            counts.borrow_mut().retain(|_, count| *count > 0);
        });
    }
    listeners.close(&admission.shared.closer);
    drop(admission);
    while tasks.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::super::limits::MAX_CONNECTIONS;
    use super::*;

    #[test]
    fn a_connection_remains_free_after_one_user_has_opened_all_it_may() {
        for limit in [connection_limit(1024), MAX_CONNECTIONS] {
            let mut counts = HashMap::new();
            for uid in 0..8 {
                assert!(has_room(&counts, ConnectionOwner::User(uid), limit), "{uid} of {limit}: {counts:?}");
                while has_room(&counts, ConnectionOwner::User(uid), limit) {
                    *counts.entry(ConnectionOwner::User(uid)).or_default() += 1;
                }
                let all: usize = counts.values().sum();
                assert!(all < limit && counts[&ConnectionOwner::User(uid)] <= MAX_CONNECTIONS_PER_UID);
                if all + 1 == limit {
                    break;
                }
            }
            assert!(has_room(&counts, ConnectionOwner::Administrator, limit));
        }
    }
}
