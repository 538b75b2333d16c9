//! Closing what an application sent.
//!
//! The last `close` of a descriptor can take as long as its owner likes: a file of a file system
//! that the application serves itself is flushed by asking that application, a TCP socket may
//! linger, and a Unix socket may hold such descriptors in messages that nobody has received. So:
//!
//! 1. Nothing that was sent is closed by the loop. Threads do it, which come when there is
//!    something to close and go when there was nothing for [`IDLE`].
//! 2. The copy of a request is closed *before* the request is answered, by the thread that sends
//!    the answer ([`Closer::close_and_answer`]). So what the application then does with its socket
//!    is what the kernel sees: if it closes it, its peer sees the end.
//! 3. Nothing is changed on a socket (SO_LINGER, say), whose application may go on with it.
//! 4. A user has [`limits::CLOSERS_PER_USER`] threads of [`limits::CLOSERS`], and one while half of
//!    them close something: many users together leave one to the next. What a user sends then
//!    waits, and counts among its descriptors. Who finds all of them in use is not served
//!    ([`Closer::has_place`]).
//! 5. A user of whom too much waits is not listened to any more ([`limits::most_unclosed`]). What
//!    it sends all the same cannot be left in the kernel's queue, where others wait behind it. It
//!    is put into sockets of this process that are never read ([`Closer::put_away`]): some 250
//!    connections take two descriptors there. They are closed with that socket, by a thread of that
//!    user. What is put away slows down whatever the service sends, so there is a limit
//!    ([`limits::PUT_AWAY`]), beyond which each takes a descriptor. Nothing is forgotten.
//! 6. What is answered elsewhere, by a VNIC, takes what was sent along as [`Sent`], which comes
//!    back here wherever it is dropped, and counts as a request until then. So does the pair of a
//!    listener ([`ListenerPair`]).
//! 7. A connection over which a request came may hold descriptors too. After the answer it is
//!    closed here ([`Closer::answer`]).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
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
    /// Nothing in it can hold a name.
    nameless: bool,
    /// Sockets that were put away in it.
    put_away: usize,
}

impl Outgoing {
    /// Sends it, and returns what it was sent over, to be closed. What goes along is closed at
    /// once: it was made here, and its end is noticed by others.
    fn send(self) -> OwnedFd {
        let sent: Vec<_> = self.descriptors.iter().map(|sent| sent.as_fd()).collect();
        // An answer that nobody takes is lost.
        let _ = send_message(self.socket.as_fd(), self.reply.as_bytes(), &sent, SendFlags::DONTWAIT);
        self.socket
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
            drop(answer.send());
        }
    }
}

/// A pair of sockets: what lies in it is closed with it.
#[derive(Debug)]
struct Lot {
    pair: [OwnedFd; 2],
    sockets: usize,
}

impl Lot {
    fn new() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (into, from) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { pair: [into, from], sockets: 0 })
    }

    fn put(&mut self, what: &OwnedFd) -> Result<(), Errno> {
        send_message(self.pair[0].as_fd(), &[0], &[what.as_fd()], SendFlags::DONTWAIT)?;
        self.sockets += 1;
        Ok(())
    }

    fn job(self) -> Job {
        Job { close: self.pair.into(), then: None, nameless: true, put_away: self.sockets }
    }
}

/// What a user has to be closed.
#[derive(Debug, Default)]
struct User {
    waiting: VecDeque<Job>,
    /// What was put away last: closed behind all others.
    lot: Option<Lot>,
    /// Threads that close something of this user.
    busy: usize,
    /// Its entries among [`Queue::turns`].
    turns: usize,
    /// Descriptors of all three.
    descriptors: usize,
    /// Jobs that are not [`Job::nameless`].
    named: usize,
    /// Sockets that were put away.
    put_away: usize,
}

impl User {
    fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.lot.is_some()
    }

    fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front().or_else(|| self.lot.take().map(Lot::job))
    }
}

#[derive(Debug, Default)]
struct Queue {
    users: HashMap<u32, User>,
    /// Whose turn it is.
    turns: VecDeque<u32>,
    threads: usize,
    idle: usize,
    /// Threads that close something.
    busy: usize,
    /// Of all users.
    descriptors: usize,
    /// The same of [`User::put_away`].
    put_away: usize,
}

/// What a job was, once it is done.
struct Done {
    descriptors: usize,
    nameless: bool,
    put_away: usize,
}

impl Queue {
    /// Threads that one user may have now.
    fn allowed(&self) -> usize {
        if self.busy < limits::CLOSERS / 2 { limits::CLOSERS_PER_USER } else { 1 }
    }

    fn push(&mut self, uid: u32, job: Job) {
        let user = self.users.entry(uid).or_default();
        user.descriptors += job.size();
        user.named += usize::from(!job.nameless);
        self.descriptors += job.size();
        user.waiting.push_back(job);
        self.give_turn(uid);
    }

    /// Has a user's next job done by one more thread, if it may have one.
    fn give_turn(&mut self, uid: u32) {
        let allowed = self.allowed();
        let Some(user) = self.users.get_mut(&uid) else { return };
        if user.has_work() && user.busy + user.turns < allowed {
            user.turns += 1;
            self.turns.push_back(uid);
        }
    }

    /// The next job of a user who may have one more thread.
    fn take(&mut self) -> Option<(u32, Job)> {
        while let Some(uid) = self.turns.pop_front() {
            let allowed = self.allowed();
            let Some(user) = self.users.get_mut(&uid) else { continue };
            user.turns -= 1;
            // One that has as many as it may gets its turn back when one of them has ended.
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

    /// A job of this user is done. The turns that others have for it.
    fn done(&mut self, uid: u32, done: &Done) -> usize {
        let before = self.allowed();
        self.busy -= 1;
        self.put_away -= done.put_away;
        self.count_less(uid, done.descriptors);
        if let Some(user) = self.users.get_mut(&uid) {
            user.busy -= 1;
            user.named -= usize::from(!done.nameless);
            user.put_away -= done.put_away;
        }
        self.give_turn(uid);
        self.forget(uid);
        if self.allowed() == before {
            return 0;
        }
        // They had fewer threads meanwhile than they may have from now on.
        let turns = self.turns.len();
        let waiting: Vec<u32> =
            self.users.iter().filter(|(_, user)| user.has_work()).map(|(uid, _)| *uid).collect();
        for uid in waiting {
            (0..limits::CLOSERS_PER_USER).for_each(|_| self.give_turn(uid));
        }
        self.turns.len() - turns
    }

    /// Whether one more socket of a user may be put away.
    fn may_put_away(&self, uid: u32) -> bool {
        self.put_away < limits::PUT_AWAY
            && self.users.get(&uid).is_none_or(|user| user.put_away < limits::PUT_AWAY_PER_USER)
    }

    fn count_less(&mut self, uid: u32, size: usize) {
        self.descriptors -= size;
        if let Some(user) = self.users.get_mut(&uid) {
            user.descriptors -= size;
        }
    }

    /// Forgets a user of whom nothing is left.
    fn forget(&mut self, uid: u32) {
        if self.users.get(&uid).is_some_and(|user| user.busy + user.turns == 0 && !user.has_work()) {
            self.users.remove(&uid);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// What came with a request that is answered elsewhere. Dropped, it is closed by the threads of the
/// closer that it came from.
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
            Some((uid, closer)) => closer.answer(uid, answer),
            None => {
                drop(close);
                drop(answer.send());
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
            closer.close_all(uid, self.descriptors.iter_mut().filter_map(Option::take).collect());
        }
    }
}

/// A listener's pair, the service's end and the placeholder, on its way to a VNIC. Dropped, it is
/// closed by the threads of the closer that it came from: connections that arrived at published
/// ports may lie in it.
#[derive(Debug)]
pub struct ListenerPair {
    ends: Option<[OwnedFd; 2]>,
    closer: Option<(u32, Closer)>,
}

impl ListenerPair {
    /// A user's.
    pub(super) fn new(uid: u32, ends: [OwnedFd; 2], closer: Closer) -> Self {
        Self { ends: Some(ends), closer: Some((uid, closer)) }
    }

    /// Both, until they are taken out.
    pub fn ends(&self) -> Option<&[OwnedFd; 2]> {
        self.ends.as_ref()
    }

    /// Takes both out.
    pub fn take(mut self) -> Option<[OwnedFd; 2]> {
        self.ends.take()
    }
}

/// Of what this process made itself, and has shown to nobody.
impl From<[OwnedFd; 2]> for ListenerPair {
    fn from(ends: [OwnedFd; 2]) -> Self {
        Self { ends: Some(ends), closer: None }
    }
}

impl Drop for ListenerPair {
    fn drop(&mut self) {
        if let (Some(ends), Some((uid, closer))) = (self.ends.take(), self.closer.take()) {
            closer.close_all(uid, ends.into());
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Closer(Arc<Shared>);

impl Closer {
    /// Closes without waiting for anybody.
    pub fn close(&self, uid: u32, descriptor: OwnedFd) {
        self.close_all(uid, vec![descriptor]);
    }

    /// The same of several.
    pub fn close_all(&self, uid: u32, close: Vec<OwnedFd>) {
        if !close.is_empty() {
            self.enter(uid, Job { close, then: None, nameless: false, put_away: 0 });
        }
    }

    /// The same of what no name hangs on: what an answer took.
    pub fn close_answered(&self, uid: u32, close: Vec<OwnedFd>) {
        if !close.is_empty() {
            self.enter(uid, Job { close, then: None, nameless: true, put_away: 0 });
        }
    }

    /// Closes these, then answers.
    pub fn close_and_answer(&self, uid: u32, close: Vec<OwnedFd>, answer: Outgoing) {
        self.enter(uid, Job { close, then: Some(answer), nameless: false, put_away: 0 });
    }

    /// Answers at once, and closes what that took.
    pub fn answer(&self, uid: u32, answer: Outgoing) {
        self.close_answered(uid, vec![answer.send()]);
    }

    /// Puts away a socket of a user that may have nothing more here. It must be one that nothing
    /// but the last close can take long of, as of no Unix socket.
    pub fn put_away(&self, uid: u32, socket: OwnedFd) {
        let mut queue = self.queue();
        for _ in 0..if queue.may_put_away(uid) { 2 } else { 0 } {
            let user = queue.users.entry(uid).or_default();
            let (mut lot, more) = match user.lot.take() {
                Some(lot) => (lot, 0),
                None => match Lot::new() {
                    Ok(lot) => (lot, 2),
                    Err(_) => break,
                },
            };
            let put = lot.put(&socket);
            user.descriptors += more;
            user.put_away += usize::from(put.is_ok());
            match put {
                Err(Errno::AGAIN) => user.waiting.push_back(lot.job()),
                _ => user.lot = Some(lot),
            }
            queue.descriptors += more;
            queue.put_away += usize::from(put.is_ok());
            queue.give_turn(uid);
            match put {
                Ok(()) => {
                    self.have_done(queue, uid);
                    // It lies there: this is not its last close.
                    return drop(socket);
                }
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        drop(queue);
        self.close(uid, socket);
    }

    /// Descriptors that wait to be closed, or hang in it.
    pub fn waiting(&self) -> usize {
        self.queue().descriptors
    }

    /// The same of one user.
    pub fn waiting_of(&self, uid: u32) -> usize {
        self.queue().users.get(&uid).map_or(0, |user| user.descriptors)
    }

    /// Whether a thread closes, or would close, what this user sends.
    pub fn has_place(&self, uid: u32) -> bool {
        let queue = self.queue();
        queue.busy + queue.turns.len() < limits::CLOSERS
            || queue.users.get(&uid).is_some_and(|user| user.busy > 0)
    }

    /// Whether something of a user is being closed that may have a name.
    pub fn is_at(&self, uid: u32) -> bool {
        self.queue().users.get(&uid).is_some_and(|user| user.named > 0)
    }

    fn enter(&self, uid: u32, mut job: Job) {
        let mut queue = self.queue();
        // Where others have all threads the answer does not wait for them.
        let has_none = queue.users.get(&uid).is_none_or(|user| user.busy == 0);
        let early = job.then.take_if(|_| has_none && queue.busy >= limits::CLOSERS);
        queue.push(uid, job);
        self.have_done(queue, uid);
        if let Some(answer) = early {
            self.answer(uid, answer);
        }
    }

    /// Sees that there is a thread for what was just entered.
    fn have_done(&self, mut queue: MutexGuard<'_, Queue>, uid: u32) {
        if queue.idle >= queue.turns.len() || queue.threads >= limits::CLOSERS {
            drop(queue);
            self.0.work.notify_one();
            return;
        }
        queue.threads += 1;
        let own = self.clone();
        if std::thread::Builder::new().name("sietch-closer".to_owned()).spawn(move || own.work()).is_err() {
            // One that is there, or the next one, finds it waiting. The answer does not wait for
            // that, if all of them may hang.
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
                let done = Done { descriptors: job.size(), nameless: job.nameless, put_away: job.put_away };
                job.run();
                queue = self.queue();
                for _ in 0..queue.done(uid, &done) {
                    self.have_done(queue, uid);
                    queue = self.queue();
                }
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

    #[test]
    fn no_more_is_put_away_than_the_kernel_looks_through_in_passing() {
        let closer = Closer::default();
        let hanging: Vec<_> = (0..limits::CLOSERS_PER_USER).map(|_| lingering()).collect();
        let (ours, peers): (Vec<_>, Vec<_>) = hanging.into_iter().unzip();
        ours.into_iter().for_each(|one| closer.close(7, one.into()));
        while closer.queue().busy < limits::CLOSERS_PER_USER {
            std::thread::yield_now();
        }
        for _ in 0..limits::PUT_AWAY_PER_USER + 10 {
            let (one, _other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
            closer.put_away(7, one.into());
        }
        let put_away = |uid: u32| closer.queue().users.get(&uid).map_or(0, |user| user.put_away);
        assert_eq!(put_away(7), limits::PUT_AWAY_PER_USER);
        assert!(closer.waiting_of(7) >= limits::CLOSERS_PER_USER + 10, "the others have a descriptor each");
        assert!(closer.waiting_of(7) < limits::PUT_AWAY_PER_USER / 2);
        drop(peers);
        while closer.waiting() > 0 {
            std::thread::yield_now();
        }
        assert_eq!((put_away(7), closer.queue().put_away), (0, 0));
    }

    #[test]
    fn what_has_waited_for_few_threads_is_done_when_there_are_more() {
        let mut queue = Queue::default();
        let job = || Job { close: Vec::new(), then: None, nameless: true, put_away: 0 };
        for uid in 0..limits::CLOSERS as u32 / 2 {
            queue.push(uid, job());
            assert!(queue.take().is_some());
        }
        (0..3).for_each(|_| queue.push(1000, job()));
        assert!(queue.take().is_some() && queue.take().is_none(), "there is one thread for it");
        let done = Done { descriptors: 0, nameless: true, put_away: 0 };
        assert_eq!(queue.done(0, &done), 0, "half of the threads are in use still");
        assert_eq!(queue.done(1, &done), 3, "a turn for each thread more that it may have");
        assert!(queue.take().is_some());
    }
}
