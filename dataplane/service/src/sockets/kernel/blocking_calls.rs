//! Calls on a socket that an application holds too, made by a thread that may hang.
//!
//! The kernel's calls about a TCP socket (`getsockname`, `getpeername`, `accept`, some options)
//! take its lock. Another holder can keep that lock for as long as it likes, for example in a
//! `sendmsg` that faults on a file which it serves itself. Such a call cannot be interrupted, not
//! even by SIGKILL. So:
//!
//! 1. A helper thread makes every such call on a duplicate descriptor, and the loop waits for it
//!    for [`limits::CALL_TIMEOUT`].
//! 2. A helper that has not answered by then is abandoned, and the next call gets another one. A
//!    late answer is dropped.
//! 3. Each hanging helper counts for the user whose socket it was. With
//!    [`limits::HELPERS_PER_USER`] of them, calls on that user's sockets are refused until one
//!    returns.
//! 4. The time of every call counts as well, also if it returns in time. A user that releases the
//!    lock just in time, again and again, would delay the others for ever. A user has
//!    [`limits::CALL_BUDGET`], which refills at one part in [`limits::CALL_BUDGET_REFILL`] of the
//!    time that passes. While it is empty, calls on that user's sockets are refused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sockets::limits;

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sockets) enum CallError {
    /// It did not return in time: another holder of the socket blocks it.
    TimedOut,
    /// It was not made: too many calls of this user hang, or have taken too long.
    OverBudget,
    /// No descriptor or thread is left.
    NoResources,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
enum State<T> {
    Waiting,
    Returned(T),
    /// The loop waits for it no longer.
    Abandoned,
}

/// What the calls of a user have cost.
#[derive(Debug)]
struct Account {
    /// The number of helpers that hang.
    hanging: usize,
    /// The spent part of the budget at the time `at`.
    spent: Duration,
    at: Instant,
}

impl Account {
    /// Returns the part that is still spent.
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.at) / limits::CALL_BUDGET_REFILL)
    }
}

/// The accounts of users whose calls took long lately.
#[derive(Debug, Default)]
struct Accounts(HashMap<u32, Account>);

impl Accounts {
    fn may_call(&self, uid: u32, now: Instant) -> bool {
        self.0.get(&uid).is_none_or(|account| {
            account.hanging < limits::HELPERS_PER_USER && account.spent(now) < limits::CALL_BUDGET
        })
    }

    /// Charges the time of a call, and changes the number of hanging helpers by `hangs`.
    fn charge(&mut self, uid: u32, time: Duration, hangs: isize, now: Instant) {
        let account = self.0.entry(uid).or_insert(Account { hanging: 0, spent: Duration::ZERO, at: now });
        account.spent = account.spent(now) + time;
        account.at = now;
        account.hanging = account.hanging.saturating_add_signed(hangs);
        self.0.retain(|_, account| account.hanging > 0 || !account.spent(now).is_zero());
    }
}

type Shared = Arc<Mutex<Accounts>>;

/// The helper thread, and the accounts of users.
#[derive(Debug, Default)]
pub(in crate::sockets) struct BlockingCalls {
    helper: RefCell<Option<Sender<Job>>>,
    accounts: Shared,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockingCalls {
    /// Returns the result of `what` on a socket that a user sent.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) fn call<T: Send + 'static>(
        &self,
        uid: u32,
        socket: &OwnedFd,
        what: impl FnOnce(BorrowedFd<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        if !lock(&self.accounts).may_call(uid, Instant::now()) {
            return Err(CallError::OverBudget);
        }
        let own = socket.try_clone().map_err(|_| CallError::NoResources)?;
        let shared = Arc::new((Mutex::new(State::Waiting), Condvar::new()));
        let (theirs, accounts) = (Arc::clone(&shared), Arc::clone(&self.accounts));
        let job = move || {
            let began = Instant::now();
            let answer = what(own.as_fd());
            let took = began.elapsed();
            // Closed before the result is visible, so that a close by the service is the last one.
            drop(own);
            let mut state = lock(&theirs.0);
            if matches!(*state, State::Abandoned) {
                drop(state);
                // The time that the loop waited is charged already.
                lock(&accounts).charge(uid, Duration::ZERO, -1, Instant::now());
                return;
            }
            // Most calls take microseconds, and are not worth an entry.
            if took > limits::CALL_UNCHARGED {
                lock(&accounts).charge(uid, took, 0, Instant::now());
            }
            *state = State::Returned(answer);
            theirs.1.notify_one();
        };
        self.run(Box::new(job))?;
        self.wait(uid, &shared)
    }

    fn wait<T>(&self, uid: u32, shared: &(Mutex<State<T>>, Condvar)) -> Result<T, CallError> {
        let until = Instant::now() + limits::CALL_TIMEOUT;
        let mut state = lock(&shared.0);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match std::mem::replace(&mut *state, State::Waiting) {
                State::Returned(answer) => return Ok(answer),
                State::Waiting | State::Abandoned if left.is_zero() => break,
                State::Waiting | State::Abandoned => {}
            }
            state = shared.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *state = State::Abandoned;
        // While the state is locked: the helper cannot return before it is counted.
        lock(&self.accounts).charge(uid, limits::CALL_TIMEOUT, 1, Instant::now());
        drop(state);
        self.helper.replace(None);
        tracing::warn!("uid {uid}: a call on a socket that it sent hangs; its thread is abandoned");
        Err(CallError::TimedOut)
    }

    /// Gives a job to the helper, or to a new one.
    fn run(&self, job: Job) -> Result<(), CallError> {
        let mut helper = self.helper.borrow_mut();
        let job = match helper.as_ref() {
            Some(jobs) => match jobs.send(job) {
                Ok(()) => return Ok(()),
                Err(lost) => lost.0,
            },
            None => job,
        };
        let (jobs, work) = channel::<Job>();
        // The thread ends when its sender is dropped.
        let run = move || work.iter().for_each(|job| job());
        std::thread::Builder::new()
            .name("sietch-calls".to_owned())
            .spawn(run)
            .map_err(|_| CallError::NoResources)?;
        let given = jobs.send(job).map_err(|_| CallError::NoResources);
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
    fn a_user_whose_calls_return_just_in_time_exhausts_its_budget() {
        let mut accounts = Accounts::default();
        let begin = Instant::now();
        let just_in_time = limits::CALL_TIMEOUT - Duration::from_millis(1);
        let (mut now, mut blocked) = (begin, Duration::ZERO);
        // For ten minutes every call takes nearly the whole timeout.
        while now < begin + Duration::from_secs(600) {
            if accounts.may_call(1, now) {
                now += just_in_time;
                blocked += just_in_time;
                accounts.charge(1, just_in_time, 0, now);
            } else {
                now += Duration::from_millis(1);
            }
            assert!(accounts.may_call(2, now));
        }
        let most = limits::CALL_BUDGET
            + limits::CALL_TIMEOUT
            + Duration::from_secs(600) / limits::CALL_BUDGET_REFILL;
        assert!(blocked <= most, "{blocked:?}");
        accounts.charge(2, Duration::ZERO, 0, now + Duration::from_secs(600));
        assert_eq!(accounts.0.len(), 0, "an account without a balance is forgotten");
    }

    #[test]
    fn an_accept_that_lost_its_race_is_charged() {
        let (calls, listener) = (BlockingCalls::default(), socket());
        // As long as such a call takes.
        let lost = |_: BorrowedFd<'_>| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(100) {
                std::hint::spin_loop();
            }
        };
        assert_eq!(calls.call(1, &listener, lost), Ok(()));
        assert_eq!(lock(&calls.accounts).0.len(), 1);
    }

    #[test]
    fn calls_of_a_user_with_hanging_helpers_are_refused_until_one_returns() {
        let (calls, socket) = (BlockingCalls::default(), socket());
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..limits::HELPERS_PER_USER {
            let held = Arc::clone(&held);
            let answer = calls.call(1, &socket, move |_| {
                let _ = lock(&held).recv();
            });
            assert_eq!(answer, Err(CallError::TimedOut));
            assert_eq!(calls.call(2, &socket, |_| 7), Ok(7), "a call of another user");
        }
        // Refused at once: otherwise this call would succeed.
        assert_eq!(calls.call(1, &socket, |_| 7), Err(CallError::OverBudget));
        drop(release);
        while calls.call(1, &socket, |_| 7) != Ok(7) {
            std::thread::yield_now();
        }
    }
}
