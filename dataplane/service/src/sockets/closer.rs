//! Closing what an application sent.
//!
//! The last `close` of a descriptor can take as long as its owner likes: a file of a file system that the application serves itself is flushed by
//! asking that application, a TCP socket may linger, and a Unix socket may hold such descriptors in messages that nobody has received. So:
//!
//! 1. Nothing that was sent is closed by the loop. Threads do it, which come when there is
//!    something to close and go when there was nothing for [`IDLE`].
//! 2. The copy of a request is closed *before* the request is answered, by the thread that sends
//!    the answer ([`Closer::close_and_answer`]). So what the application then does with its socket
//!    is what the kernel sees: if it closes it, its peer sees the end.
//! 3. Nothing is changed on a socket (SO_LINGER, say), whose application may go on with it.
//! 4. A user has [`limits::CLOSERS_PER_USER`] threads of [`limits::CLOSERS`], so that others are
//!    served if these hang. What that user sends then waits, and counts among its descriptors. A
//!    user for whom [`limits::UNCLOSED`] jobs wait is not listened to any more; nothing is
//!    forgotten.
//! 5. What is answered elsewhere, by a VNIC, takes what was sent along as [`Sent`], which comes back
//!    here wherever it is dropped, and counts as a request until then.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::SendFlags;
use sietch_protocol::socket_service::{Descriptors, Reply, send_message};
use zerocopy::IntoBytes as _;

use super::limits;

/// How long a thread waits for more to close.
const IDLE: Duration = Duration::from_secs(1);

/// An answer that is sent when something is closed.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub socket: OwnedFd,
    pub reply: Reply,
    /// What goes with it.
    pub descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Job {
    close: Vec<OwnedFd>,
    then: Option<Outgoing>,
}

impl Outgoing {
    fn send(self) {
        let sent: Vec<_> = self.descriptors.iter().map(|sent| sent.as_fd()).collect();
        // An answer that nobody takes is lost.
        let _ = send_message(self.socket.as_fd(), self.reply.as_bytes(), &sent, SendFlags::DONTWAIT);
    }
}

impl Job {
    /// How many descriptors it holds.
    fn size(&self) -> usize {
        self.close.len() + self.then.as_ref().map_or(0, |answer| 1 + answer.descriptors.len())
    }

    fn run(self) {
        drop(self.close);
        if let Some(answer) = self.then {
            answer.send();
        }
    }
}

/// What a user has to be closed.
#[derive(Debug, Default)]
struct User {
    waiting: VecDeque<Job>,
    /// Threads that close something of this user.
    busy: usize,
    /// Descriptors of both.
    descriptors: usize,
}

#[derive(Debug, Default)]
struct Queue {
    users: HashMap<u32, User>,
    /// Whose turn it is: an entry for each job that waits, or more.
    turns: VecDeque<u32>,
    threads: usize,
    idle: usize,
    /// Of all users.
    descriptors: usize,
}

impl Queue {
    /// The next job of a user who may have one more thread.
    fn take(&mut self) -> Option<(u32, Job)> {
        while let Some(uid) = self.turns.pop_front() {
            let Some(user) = self.users.get_mut(&uid) else { continue };
            if user.busy < limits::CLOSERS_PER_USER
                && let Some(job) = user.waiting.pop_front()
            {
                user.busy += 1;
                return Some((uid, job));
            }
        }
        None
    }

    fn done(&mut self, uid: u32, size: usize) {
        self.descriptors -= size;
        let Some(user) = self.users.get_mut(&uid) else { return };
        user.busy -= 1;
        user.descriptors -= size;
        if !user.waiting.is_empty() {
            self.turns.push_back(uid);
        } else if user.busy == 0 {
            self.users.remove(&uid);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// What came with a request that is answered elsewhere. Dropped, it is closed by the threads of the closer that it came from.
#[derive(Debug, Default)]
pub struct Sent {
    descriptors: Descriptors,
    closer: Option<(u32, Closer)>,
    /// A request that is counted as long as this is there.
    _counted: Option<Arc<()>>,
}

impl Sent {
    /// What a user sent.
    pub(super) fn new(uid: u32, descriptors: Descriptors, closer: Closer, counted: Arc<()>) -> Self {
        Self { descriptors, closer: Some((uid, closer)), _counted: Some(counted) }
    }

    /// The first descriptor.
    pub fn first(&self) -> Option<&OwnedFd> {
        self.descriptors.iter().flatten().next()
    }

    /// Takes the first descriptor out.
    pub(super) fn take_first(&mut self) -> Option<OwnedFd> {
        self.descriptors.iter_mut().find_map(Option::take)
    }

    /// Closes what was sent, then answers.
    pub fn answer(mut self, socket: OwnedFd, reply: Reply, descriptors: Vec<OwnedFd>) {
        let answer = Outgoing { socket, reply, descriptors };
        let close: Vec<_> = self.descriptors.iter_mut().filter_map(Option::take).collect();
        match self.closer.take() {
            Some((uid, closer)) if !close.is_empty() => closer.close_and_answer(uid, close, answer),
            _ => {
                drop(close);
                answer.send();
            }
        }
    }
}

/// Of what this process made itself, and may close anywhere.
impl From<Descriptors> for Sent {
    fn from(descriptors: Descriptors) -> Self {
        Self { descriptors, closer: None, _counted: None }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some((uid, closer)) = self.closer.take() {
            let close = self.descriptors.iter_mut().filter_map(Option::take);
            close.for_each(|sent| closer.close(uid, sent));
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Closer(Arc<Shared>);

impl Closer {
    /// Closes without waiting for anybody.
    pub fn close(&self, uid: u32, descriptor: OwnedFd) {
        self.enter(uid, Job { close: vec![descriptor], then: None });
    }

    /// Closes these, then answers.
    pub fn close_and_answer(&self, uid: u32, close: Vec<OwnedFd>, answer: Outgoing) {
        self.enter(uid, Job { close, then: Some(answer) });
    }

    /// Descriptors that wait to be closed, or hang in it.
    pub fn waiting(&self) -> usize {
        self.queue().descriptors
    }

    /// The same of one user.
    pub fn waiting_of(&self, uid: u32) -> usize {
        self.queue().users.get(&uid).map_or(0, |user| user.descriptors)
    }

    /// Whether so much of a user waits that its requests are not read any more.
    pub fn is_stuck(&self, uid: u32) -> bool {
        self.queue().users.get(&uid).is_some_and(|user| user.waiting.len() >= limits::UNCLOSED)
    }

    /// Whether something of a user is being closed.
    pub fn is_at(&self, uid: u32) -> bool {
        self.queue().users.contains_key(&uid)
    }

    fn enter(&self, uid: u32, job: Job) {
        let mut queue = self.queue();
        queue.descriptors += job.size();
        let user = queue.users.entry(uid).or_default();
        user.descriptors += job.size();
        user.waiting.push_back(job);
        if user.waiting.len() == limits::UNCLOSED {
            tracing::warn!(
                "user {uid}: {} descriptors that it sent hang in their close; it is served no more until they are closed",
                limits::UNCLOSED
            );
        }
        queue.turns.push_back(uid);
        if queue.idle >= queue.turns.len() || queue.threads >= limits::CLOSERS {
            drop(queue);
            self.0.work.notify_one();
            return;
        }
        queue.threads += 1;
        let own = self.clone();
        if std::thread::Builder::new().name("sietch-closer".to_owned()).spawn(move || own.work()).is_err() {
            // One that is there, or the next one, finds it waiting. The answer does not wait for
            // that.
            queue.threads -= 1;
            let first = queue.threads == 0;
            let job = queue.users.get_mut(&uid).and_then(|user| user.waiting.back_mut());
            let answer = job.and_then(|job| job.then.take_if(|_| first));
            let size = answer.as_ref().map_or(0, |answer| 1 + answer.descriptors.len());
            queue.descriptors -= size;
            if let Some(user) = queue.users.get_mut(&uid) {
                user.descriptors -= size;
            }
            drop(queue);
            self.0.work.notify_one();
            if let Some(answer) = answer {
                answer.send();
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some((uid, job)) = queue.take() {
                drop(queue);
                let size = job.size();
                job.run();
                queue = self.queue();
                queue.done(uid, size);
                continue;
            }
            queue.idle += 1;
            let (woken, waited) =
                self.0.work.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.turns.is_empty() {
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

    /// A socket whose last close waits for an hour, and the peer that ends that by its own.
    fn lingering() -> (TcpStream, TcpStream) {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut one = TcpStream::connect(listening.local_addr().expect("bound")).expect("somebody listens");
        let (other, _) = listening.accept().expect("it has connected");
        one.set_nonblocking(true).expect("a socket");
        while one.write(&[0; 65536]).is_ok() {}
        one.set_nonblocking(false).expect("a socket");
        rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).expect("a socket");
        (one, other)
    }

    #[test]
    fn whoever_drops_what_was_sent_or_answers_it_does_not_wait_for_its_close() {
        let (closer, counted) = (Closer::default(), Arc::new(()));
        for answers in [false, true] {
            let (one, other) = lingering();
            let mut descriptors = Descriptors::default();
            descriptors[0] = Some(one.into());
            let sent = Sent::new(7, descriptors, closer.clone(), Arc::clone(&counted));
            assert_eq!(Arc::strong_count(&counted), 2);
            if answers {
                sent.answer(
                    other.try_clone().expect("a descriptor").into(),
                    Reply::refused(rustix::io::Errno::NODEV),
                    Vec::new(),
                );
            } else {
                drop(sent);
            }
            assert_eq!(Arc::strong_count(&counted), 1);
            assert!(closer.is_at(7));
            rustix::net::shutdown(&other, rustix::net::Shutdown::Both).expect("a socket");
            drop(other);
            while closer.is_at(7) {
                std::thread::yield_now();
            }
        }
    }
}
