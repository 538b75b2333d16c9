//! Closes descriptors that came from processes that are not trusted.
//!
//! The last `close` of a descriptor can take as long as its sender likes. A file of a file system
//! that the sender serves itself is flushed by a request to the sender. A TCP socket may linger. A
//! Unix socket may hold such descriptors in messages that were never received. So:
//!
//! 1. A thread that serves others closes nothing that was sent. Threads of the closer do it; they
//!    start when there is something to close and end after [`IDLE`] without work. A descriptor in a
//!    [`SentDescriptor`] goes to them wherever it is dropped.
//! 2. The copy of a request's descriptor is closed *before* the request is answered, by the thread
//!    that sends the answer ([`Closer::close_and_answer`]). So the kernel sees what the application
//!    then does with its socket: if the application closes it, its peer sees the end.
//! 3. Nothing is changed on a socket (SO_LINGER, say), because its application may continue using
//!    it.
//! 4. A user has [`limits::CLOSERS_PER_USER`] threads of [`limits::CLOSERS`], and one while half of
//!    them are busy: many users together leave one to the next. Further descriptors of the user
//!    wait, and count as its own. A user that finds all threads busy is not served
//!    ([`Closer::has_thread_for`]).
//! 5. A user of which too much waits is not served either ([`limits::most_unclosed`]). The requests
//!    that it sends all the same cannot stay in the kernel's queue, where others wait behind them.
//!    They are *parked* inside sockets of this process that are never read ([`Closer::park`]): some
//!    250 connections take two descriptors there. A thread of that user closes them with that
//!    socket. Parked sockets slow down everything that the service sends, so their number is
//!    limited ([`limits::PARKED`]); beyond the limit each takes a descriptor. Nothing is leaked.
//! 6. A connection over which a request came may hold descriptors too. It is closed here after the
//!    answer ([`Closer::answer`]).

pub mod limits;
mod peer;
mod queue;
mod sent;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

pub use peer::PeerSocket;
pub use queue::Outgoing;
use queue::{Done, Job, ParkingPair, Queue};
pub use sent::SentDescriptor;

/// How long a thread waits for more to close.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// A handle to the threads that close descriptors.
#[derive(Debug, Clone, Default)]
pub struct Closer(Arc<Shared>);

impl Closer {
    /// Closes a descriptor, without waiting for it.
    pub fn close(&self, uid: u32, descriptor: OwnedFd) {
        self.close_all(uid, vec![descriptor]);
    }

    /// Closes several descriptors, without waiting for them.
    pub fn close_all(&self, uid: u32, close: Vec<OwnedFd>) {
        if !close.is_empty() {
            self.enter(uid, Job::of(close));
        }
    }

    /// Closes descriptors that cannot keep a name in use: those of an answer.
    pub fn close_answered(&self, uid: u32, close: Vec<OwnedFd>) {
        if !close.is_empty() {
            self.enter(uid, Job { nameless: true, ..Job::of(close) });
        }
    }

    /// Closes a descriptor, and then drops its mark, which shows that it is open.
    pub fn close_marked(&self, uid: u32, descriptor: OwnedFd, mark: Option<Arc<()>>) {
        let marks = mark.into_iter().collect();
        self.enter(uid, Job { marks, ..Job::of(vec![descriptor]) });
    }

    /// Closes descriptors, drops their marks, then answers.
    pub fn close_and_answer(&self, uid: u32, (close, marks): (Vec<OwnedFd>, Vec<Arc<()>>), answer: Outgoing) {
        self.enter(uid, Job { marks, then: Some(answer), ..Job::of(close) });
    }

    /// Answers at once, and closes what the answer had.
    pub fn answer(&self, uid: u32, answer: Outgoing) {
        self.close_answered(uid, answer.send());
    }

    /// Parks a socket of a user that may have no more descriptors here. Only the last close of the
    /// socket may take long; a message that holds a Unix socket never does.
    pub fn park(&self, uid: u32, socket: OwnedFd) {
        let mut queue = self.queue();
        for _ in 0..if queue.may_park(uid) { 2 } else { 0 } {
            let user = queue.users.entry(uid).or_default();
            let (mut parking, more) = match user.parking.take() {
                Some(parking) => (parking, 0),
                None => match ParkingPair::new() {
                    Ok(parking) => (parking, 2),
                    Err(_) => break,
                },
            };
            let put = parking.put(&socket);
            user.descriptors += more;
            user.parked += usize::from(put.is_ok());
            match put {
                Err(Errno::AGAIN) => user.waiting.push_back(parking.job()),
                _ => user.parking = Some(parking),
            }
            queue.descriptors += more;
            queue.parked += usize::from(put.is_ok());
            queue.schedule(uid);
            match put {
                Ok(()) => {
                    self.ensure_thread(queue, uid);
                    // The parked copy keeps it open: this is not its last close.
                    return drop(socket);
                }
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        drop(queue);
        self.close(uid, socket);
    }

    /// Returns the number of descriptors that wait to be closed, or whose close hangs.
    pub fn waiting(&self) -> usize {
        self.queue().descriptors
    }

    /// Returns the same number of one user.
    pub fn waiting_of(&self, uid: u32) -> usize {
        self.queue().users.get(&uid).map_or(0, |user| user.descriptors)
    }

    /// Returns whether a thread is there to close what this user sends.
    pub fn has_thread_for(&self, uid: u32) -> bool {
        let queue = self.queue();
        queue.busy + queue.scheduled.len() < limits::CLOSERS
            || queue.users.get(&uid).is_some_and(|user| user.busy > 0)
    }

    /// Returns whether a descriptor of this user that may keep a name in use is being closed.
    pub fn is_closing_named(&self, uid: u32) -> bool {
        self.queue().users.get(&uid).is_some_and(|user| user.named > 0)
    }

    fn enter(&self, uid: u32, mut job: Job) {
        let mut queue = self.queue();
        // If others have all threads, the answer does not wait for them.
        let has_none = queue.users.get(&uid).is_none_or(|user| user.busy == 0);
        let early = job.then.take_if(|_| has_none && queue.busy >= limits::CLOSERS);
        queue.push(uid, job);
        self.ensure_thread(queue, uid);
        if let Some(answer) = early {
            self.answer(uid, answer);
        }
    }

    /// Makes sure that a thread runs for the job that was just queued.
    fn ensure_thread(&self, mut queue: MutexGuard<'_, Queue>, uid: u32) {
        if queue.idle >= queue.scheduled.len() || queue.threads >= limits::CLOSERS {
            drop(queue);
            self.0.work.notify_one();
            return;
        }
        queue.threads += 1;
        let own = self.clone();
        if std::thread::Builder::new().name("sietch-closer".to_owned()).spawn(move || own.work()).is_err() {
            // A running thread, or the next one, finds the job. If all running threads may hang,
            // the answer does not wait for them.
            queue.threads -= 1;
            let none_idle = queue.idle == 0;
            let job = queue.users.get_mut(&uid).and_then(|user| user.waiting.back_mut());
            let answer = job.and_then(|job| job.then.take_if(|_| none_idle));
            let size = answer.as_ref().map_or(0, |answer| 1 + answer.descriptors.len());
            queue.count_less(uid, size);
            drop(queue);
            self.0.work.notify_one();
            if let Some(answer) = answer {
                self.answer(uid, answer);
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some((uid, job)) = queue.take() {
                drop(queue);
                let done = Done { descriptors: job.size(), nameless: job.nameless, parked: job.parked };
                job.run();
                queue = self.queue();
                for _ in 0..queue.done(uid, &done) {
                    self.ensure_thread(queue, uid);
                    queue = self.queue();
                }
                continue;
            }
            queue.idle += 1;
            let (woken, waited) =
                self.0.work.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.scheduled.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A socket whose last close waits for an hour, and its peer, whose close ends that.
    pub(super) fn lingering() -> (TcpStream, TcpStream) {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut one = TcpStream::connect(listening.local_addr().expect("bound")).expect("a listener");
        let (other, _) = listening.accept().expect("it has connected");
        one.set_nonblocking(true).expect("a socket");
        while one.write(&[0; 65536]).is_ok() {}
        one.set_nonblocking(false).expect("a socket");
        rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).expect("a socket");
        (one, other)
    }

    #[test]
    fn parked_sockets_are_bounded() {
        let closer = Closer::default();
        let hanging: Vec<_> = (0..limits::CLOSERS_PER_USER).map(|_| lingering()).collect();
        let (ours, peers): (Vec<_>, Vec<_>) = hanging.into_iter().unzip();
        ours.into_iter().for_each(|one| closer.close(7, one.into()));
        while closer.queue().busy < limits::CLOSERS_PER_USER {
            std::thread::yield_now();
        }
        for _ in 0..limits::PARKED_PER_USER + 10 {
            let (one, _other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
            closer.park(7, one.into());
        }
        let parked = |uid: u32| closer.queue().users.get(&uid).map_or(0, |user| user.parked);
        assert_eq!(parked(7), limits::PARKED_PER_USER);
        assert!(closer.waiting_of(7) >= limits::CLOSERS_PER_USER + 10, "the others take a descriptor each");
        assert!(closer.waiting_of(7) < limits::PARKED_PER_USER / 2);
        drop(peers);
        while closer.waiting() > 0 {
            std::thread::yield_now();
        }
        assert_eq!((parked(7), closer.queue().parked), (0, 0));
    }
}
