//! Calls on a socket that an application holds too, made by a thread that can be done without.
//!
//! The kernel's calls about a TCP socket (`getsockname`, `getpeername`, `accept`, some options)
//! take its lock, and a holder can keep that for as long as it likes: in `sendmsg`, for one, it
//! sits in a page fault of a file that it serves itself. Such a call cannot be ended, not even by
//! SIGKILL. So:
//!
//! 1. Every such call is made by a helper thread on a descriptor of its own, and the loop waits for
//!    it for [`limits::HELD_UP`].
//! 2. A helper that has not answered by then is left to itself, and the next call has another one.
//!    What it finds later is dropped.
//! 3. Each helper that hangs counts for the user whose socket it was. With
//!    [`limits::HELPERS_PER_USER`] of them the sockets of that user are not asked about any more,
//!    until one comes back.
//! 4. The time of every call counts as well, whether it was waited for to its end or not: who lets
//!    go in time and holds again would hold up the others for ever. A user has
//!    [`limits::HELD_UP_IN_ALL`], which comes back at one part in [`limits::HELD_UP_SHARE`] of the
//!    time that passes. While nothing is left the sockets of that user are not asked about.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::limits;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The socket's holder holds the call up.
    HeldUp,
    /// Too many of this user's hang, or have taken too long: it was not asked.
    Spent,
    /// No descriptor or thread is left.
    Short,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
enum State<T> {
    Asked,
    Answered(T),
    /// Nobody waits for it any more.
    Left,
}

/// What a user has held up.
#[derive(Debug)]
struct Account {
    /// Helpers that hang.
    hanging: usize,
    /// Time of calls that has not come back yet, at `at`.
    spent: Duration,
    at: Instant,
}

impl Account {
    /// What is still spent by now.
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.at) / limits::HELD_UP_SHARE)
    }
}

/// Accounts of users who have held something up lately.
#[derive(Debug, Default)]
struct Accounts(HashMap<u32, Account>);

impl Accounts {
    fn may_ask(&self, uid: u32, now: Instant) -> bool {
        self.0.get(&uid).is_none_or(|account| {
            account.hanging < limits::HELPERS_PER_USER && account.spent(now) < limits::HELD_UP_IN_ALL
        })
    }

    /// A call of this user took so long, and `hangs` more of its helpers hang, or fewer.
    fn charge(&mut self, uid: u32, time: Duration, hangs: isize, now: Instant) {
        let account = self.0.entry(uid).or_insert(Account { hanging: 0, spent: Duration::ZERO, at: now });
        account.spent = account.spent(now) + time;
        account.at = now;
        account.hanging = account.hanging.saturating_add_signed(hangs);
        self.0.retain(|_, account| account.hanging > 0 || !account.spent(now).is_zero());
    }
}

type Shared = Arc<Mutex<Accounts>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Expendable {
    helper: RefCell<Option<Sender<Job>>>,
    accounts: Shared,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Expendable {
    /// What `what` says of a socket that a user sent.
    ///
    /// # Errors
    /// See [`NoAnswer`].
    pub fn ask<T: Send + 'static>(
        &self,
        uid: u32,
        socket: &OwnedFd,
        what: impl FnOnce(BorrowedFd<'_>) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        if !lock(&self.accounts).may_ask(uid, Instant::now()) {
            return Err(NoAnswer::Spent);
        }
        let own = socket.try_clone().map_err(|_| NoAnswer::Short)?;
        let shared = Arc::new((Mutex::new(State::Asked), Condvar::new()));
        let (theirs, accounts) = (Arc::clone(&shared), Arc::clone(&self.accounts));
        let job = move || {
            let began = Instant::now();
            let answer = what(own.as_fd());
            let took = began.elapsed();
            // Before it is answered: what the service closes then is closed.
            drop(own);
            let mut state = lock(&theirs.0);
            if matches!(*state, State::Left) {
                drop(state);
                // What was waited for is charged already.
                lock(&accounts).charge(uid, Duration::ZERO, -1, Instant::now());
                return;
            }
            // Most take microseconds, and are not worth an entry.
            if took > limits::HELD_UP_UNNOTICED {
                lock(&accounts).charge(uid, took, 0, Instant::now());
            }
            *state = State::Answered(answer);
            theirs.1.notify_one();
        };
        self.hand(Box::new(job))?;
        self.wait(uid, &shared)
    }

    fn wait<T>(&self, uid: u32, shared: &(Mutex<State<T>>, Condvar)) -> Result<T, NoAnswer> {
        let until = Instant::now() + limits::HELD_UP;
        let mut state = lock(&shared.0);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match std::mem::replace(&mut *state, State::Asked) {
                State::Answered(answer) => return Ok(answer),
                State::Asked | State::Left if left.is_zero() => break,
                State::Asked | State::Left => {}
            }
            state = shared.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *state = State::Left;
        // While its state is locked: it does not come back before it is counted.
        lock(&self.accounts).charge(uid, limits::HELD_UP, 1, Instant::now());
        drop(state);
        self.helper.replace(None);
        tracing::warn!("uid {uid} holds up a call on a socket that it sent; the call is left to its thread");
        Err(NoAnswer::HeldUp)
    }

    /// Gives a job to the helper, or to a new one.
    fn hand(&self, job: Job) -> Result<(), NoAnswer> {
        let mut helper = self.helper.borrow_mut();
        let job = match helper.as_ref() {
            Some(jobs) => match jobs.send(job) {
                Ok(()) => return Ok(()),
                Err(lost) => lost.0,
            },
            None => job,
        };
        let (jobs, work) = channel::<Job>();
        // It ends when nobody can give it anything any more.
        let run = move || work.iter().for_each(|job| job());
        std::thread::Builder::new()
            .name("sietch-asker".to_owned())
            .spawn(run)
            .map_err(|_| NoAnswer::Short)?;
        let given = jobs.send(job).map_err(|_| NoAnswer::Short);
        *helper = Some(jobs);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").into()
    }

    #[test]
    fn a_user_that_lets_go_in_time_is_not_asked_for_either_when_its_time_is_over() {
        let mut accounts = Accounts::default();
        let begin = Instant::now();
        let just_in_time = limits::HELD_UP - Duration::from_millis(1);
        let (mut now, mut held_up) = (begin, Duration::ZERO);
        // For ten minutes it holds whenever it is asked.
        while now < begin + Duration::from_secs(600) {
            if accounts.may_ask(1, now) {
                now += just_in_time;
                held_up += just_in_time;
                accounts.charge(1, just_in_time, 0, now);
            } else {
                now += Duration::from_millis(1);
            }
            assert!(accounts.may_ask(2, now));
        }
        let most =
            limits::HELD_UP_IN_ALL + limits::HELD_UP + Duration::from_secs(600) / limits::HELD_UP_SHARE;
        assert!(held_up <= most, "{held_up:?}");
        accounts.charge(2, Duration::ZERO, 0, now + Duration::from_secs(600));
        assert_eq!(accounts.0.len(), 0, "an account that is even is forgotten");
    }

    #[test]
    fn an_accept_for_which_another_was_faster_is_charged() {
        let (asked, listener) = (Expendable::default(), socket());
        // As long as such a call takes, and no longer.
        let lost = |_: BorrowedFd<'_>| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(100) {
                std::hint::spin_loop();
            }
        };
        assert_eq!(asked.ask(1, &listener, lost), Ok(()));
        assert_eq!(lock(&asked.accounts).0.len(), 1);
    }

    #[test]
    fn a_user_that_holds_calls_up_is_not_asked_for_and_another_is_until_they_come_back() {
        let (asked, socket) = (Expendable::default(), socket());
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..limits::HELPERS_PER_USER {
            let held = Arc::clone(&held);
            let answer = asked.ask(1, &socket, move |_| {
                let _ = lock(&held).recv();
            });
            assert_eq!(answer, Err(NoAnswer::HeldUp));
            assert_eq!(asked.ask(2, &socket, |_| 7), Ok(7), "another user's");
        }
        // It is refused at once now: this would be an answer.
        assert_eq!(asked.ask(1, &socket, |_| 7), Err(NoAnswer::Spent));
        drop(release);
        while asked.ask(1, &socket, |_| 7) != Ok(7) {
            std::thread::yield_now();
        }
    }
}
