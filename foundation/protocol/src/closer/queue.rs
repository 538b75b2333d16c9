//! What waits to be closed, by user, and which user a thread serves next.
//!
//! A user with work is *scheduled* once for each thread that it may still get. A thread takes the
//! next scheduled user, runs one job of it, and schedules the user again if there is more.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use zerocopy::IntoBytes as _;

use super::limits;
use crate::socket_service::{Reply, send_message};

/// An answer, sent once the descriptors of its request are closed.
#[derive(Debug)]
pub struct Outgoing {
    /// Where it goes.
    pub socket: OwnedFd,
    /// The answer itself.
    pub reply: Reply,
    /// The descriptors that go with it.
    pub descriptors: Vec<OwnedFd>,
    /// No process can have sent anything over them. They are closed once the answer is sent,
    /// because others watch for their end.
    pub are_empty: bool,
}

impl Outgoing {
    /// Sends the answer, and returns what is to be closed: its socket, and the descriptors that
    /// went along, unless they are closed already. One of them may be the end of a pair whose other
    /// end has a process already.
    pub fn send(self) -> Vec<OwnedFd> {
        let sent: Vec<_> = self.descriptors.iter().map(|sent| sent.as_fd()).collect();
        // An answer that is not read is lost.
        let _ = send_message(self.socket.as_fd(), self.reply.as_bytes(), &sent, SendFlags::DONTWAIT);
        let mut spent = if self.are_empty { Vec::new() } else { self.descriptors };
        spent.push(self.socket);
        spent
    }
}

/// Descriptors to close, and an answer to send afterwards.
#[derive(Debug)]
pub(super) struct Job {
    pub close: Vec<OwnedFd>,
    /// Dropped once those are closed.
    pub marks: Vec<Arc<()>>,
    pub then: Option<Outgoing>,
    /// No descriptor of it can keep a name (an address and port) in use.
    pub nameless: bool,
    /// The number of sockets that are parked in it.
    pub parked: usize,
}

impl Job {
    pub(super) fn of(close: Vec<OwnedFd>) -> Self {
        Self { close, marks: Vec::new(), then: None, nameless: false, parked: 0 }
    }

    /// Returns the number of descriptors that it holds.
    pub(super) fn size(&self) -> usize {
        self.close.len() + self.then.as_ref().map_or(0, |answer| 1 + answer.descriptors.len())
    }

    pub(super) fn run(self) {
        drop(self.close);
        drop(self.marks);
        if let Some(answer) = self.then {
            drop(answer.send());
        }
    }
}

/// A pair of sockets in whose queue other sockets are parked: closing the pair closes them.
#[derive(Debug)]
pub(super) struct ParkingPair {
    pair: [OwnedFd; 2],
    sockets: usize,
}

impl ParkingPair {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (into, from) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { pair: [into, from], sockets: 0 })
    }

    pub(super) fn put(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        send_message(self.pair[0].as_fd(), &[0], &[socket.as_fd()], SendFlags::DONTWAIT)?;
        self.sockets += 1;
        Ok(())
    }

    pub(super) fn job(self) -> Job {
        Job { nameless: true, parked: self.sockets, ..Job::of(self.pair.into()) }
    }
}

/// What a user has to be closed.
#[derive(Debug, Default)]
pub(super) struct User {
    pub waiting: VecDeque<Job>,
    /// The pair in which sockets are parked now: closed after all waiting jobs.
    pub parking: Option<ParkingPair>,
    /// The number of threads that close something of this user.
    pub busy: usize,
    /// The number of its entries in [`Queue::scheduled`].
    pub scheduled: usize,
    /// The number of descriptors in waiting jobs, in the pair and in running jobs.
    pub descriptors: usize,
    /// The number of jobs that are not [`Job::nameless`].
    pub named: usize,
    /// The number of parked sockets.
    pub parked: usize,
}

impl User {
    fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.parking.is_some()
    }

    fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front().or_else(|| self.parking.take().map(ParkingPair::job))
    }
}

/// The jobs of all users, and the threads that run them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub users: HashMap<u32, User>,
    /// The users that threads serve next.
    pub scheduled: VecDeque<u32>,
    pub threads: usize,
    pub idle: usize,
    /// The number of threads that close something.
    pub busy: usize,
    /// The sum of [`User::descriptors`].
    pub descriptors: usize,
    /// The sum of [`User::parked`].
    pub parked: usize,
}

/// The counts of a job that has run.
pub(super) struct Done {
    pub descriptors: usize,
    pub nameless: bool,
    pub parked: usize,
}

impl Queue {
    /// Returns the number of threads that one user may have now.
    fn allowed(&self) -> usize {
        if self.busy < limits::CLOSERS / 2 { limits::CLOSERS_PER_USER } else { 1 }
    }

    pub(super) fn push(&mut self, uid: u32, job: Job) {
        let user = self.users.entry(uid).or_default();
        user.descriptors += job.size();
        user.named += usize::from(!job.nameless);
        self.descriptors += job.size();
        user.waiting.push_back(job);
        self.schedule(uid);
    }

    /// Schedules a user for one more thread, if it has work and may have one.
    pub(super) fn schedule(&mut self, uid: u32) {
        let allowed = self.allowed();
        let Some(user) = self.users.get_mut(&uid) else { return };
        if user.has_work() && user.busy + user.scheduled < allowed {
            user.scheduled += 1;
            self.scheduled.push_back(uid);
        }
    }

    /// Takes the next job of a user that may have one more thread.
    pub(super) fn take(&mut self) -> Option<(u32, Job)> {
        while let Some(uid) = self.scheduled.pop_front() {
            let allowed = self.allowed();
            let Some(user) = self.users.get_mut(&uid) else { continue };
            user.scheduled -= 1;
            // A user that has all its threads is scheduled again when one of them is done.
            if user.busy < allowed
                && let Some(job) = user.next()
            {
                user.busy += 1;
                self.busy += 1;
                return Some((uid, job));
            }
            self.forget(uid);
        }
        None
    }

    /// Records that a job of this user is done. Returns how many other users were scheduled for it.
    pub(super) fn done(&mut self, uid: u32, done: &Done) -> usize {
        let before = self.allowed();
        self.busy -= 1;
        self.parked -= done.parked;
        self.count_less(uid, done.descriptors);
        if let Some(user) = self.users.get_mut(&uid) {
            user.busy -= 1;
            user.named -= usize::from(!done.nameless);
            user.parked -= done.parked;
        }
        self.schedule(uid);
        self.forget(uid);
        if self.allowed() == before {
            return 0;
        }
        // Users had fewer threads until now than they may have from now on.
        let scheduled = self.scheduled.len();
        let waiting: Vec<u32> =
            self.users.iter().filter(|(_, user)| user.has_work()).map(|(uid, _)| *uid).collect();
        for uid in waiting {
            (0..limits::CLOSERS_PER_USER).for_each(|_| self.schedule(uid));
        }
        self.scheduled.len() - scheduled
    }

    /// Returns whether one more socket of a user may be parked.
    pub(super) fn may_park(&self, uid: u32) -> bool {
        self.parked < limits::PARKED
            && self.users.get(&uid).is_none_or(|user| user.parked < limits::PARKED_PER_USER)
    }

    pub(super) fn count_less(&mut self, uid: u32, size: usize) {
        self.descriptors -= size;
        if let Some(user) = self.users.get_mut(&uid) {
            user.descriptors -= size;
        }
    }

    /// Forgets a user that has no work and no thread.
    fn forget(&mut self, uid: u32) {
        if self.users.get(&uid).is_some_and(|user| user.busy + user.scheduled == 0 && !user.has_work()) {
            self.users.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_waited_for_few_threads_are_scheduled_when_more_are_allowed() {
        let mut queue = Queue::default();
        let job = || Job { nameless: true, ..Job::of(Vec::new()) };
        for uid in 0..limits::CLOSERS as u32 / 2 {
            queue.push(uid, job());
            assert!(queue.take().is_some());
        }
        (0..3).for_each(|_| queue.push(1000, job()));
        assert!(queue.take().is_some() && queue.take().is_none(), "the user gets one thread");
        let done = Done { descriptors: 0, nameless: true, parked: 0 };
        assert_eq!(queue.done(0, &done), 0, "half of the threads are still busy");
        assert_eq!(queue.done(1, &done), 3, "one entry for each thread that is now allowed");
        assert!(queue.take().is_some());
    }
}
