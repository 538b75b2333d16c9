//! Users take turns at a file system that all threads share.
//!
//! 1. Where no thread has it, the first one that comes gets it, for one step of a request.
//! 2. Threads that wait are grouped by user. A thread that is done passes the turn to the next user
//!    that waits. So each user waits for one step of each other user, however many requests of that
//!    user wait.
//! 3. Where only threads of the same user wait, one of them is woken, and the fastest thread gets
//!    the turn. To pass it from thread to thread would cost a switch for each request.
//!
//! What it must never do: let a user have two turns while another one waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// Whose request it is; `None`: work of the mount, and what the kernel does for no user.
pub(crate) type User = Option<u32>;

/// What a waiting thread is notified of.
const NOTHING: u8 = 0;
/// It has the turn.
const HAS_TURN: u8 = 1;
/// The turn may be free.
const TRY_AGAIN: u8 = 2;

struct Waiter {
    thread: Thread,
    notice: AtomicU8,
}

impl Waiter {
    fn tell(&self, what: u8) {
        self.notice.store(what, Ordering::Release);
        self.thread.unpark();
    }

    fn wait(&self) -> u8 {
        loop {
            match self.notice.load(Ordering::Acquire) {
                NOTHING => std::thread::park(),
                notice => return notice,
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    is_taken: bool,
    /// Users with threads that wait, each once, in the order of their turns.
    users: VecDeque<(User, VecDeque<Arc<Waiter>>)>,
}

impl Queue {
    fn push(&mut self, user: User, waiter: Arc<Waiter>) {
        match self.users.iter_mut().find(|(other, _)| *other == user) {
            Some((_, waiters)) => waiters.push_back(waiter),
            None => self.users.push_back((user, VecDeque::from([waiter]))),
        }
    }

    /// The first thread of the next user that waits. `last` had a turn, and comes last.
    fn pop(&mut self, last: User) -> Option<(User, Arc<Waiter>)> {
        if self.users.front()?.0 == last {
            self.users.rotate_left(1);
        }
        let (user, mut waiters) = self.users.pop_front()?;
        let waiter = waiters.pop_front()?;
        if !waiters.is_empty() {
            self.users.push_back((user, waiters));
        }
        Some((user, waiter))
    }
}

/// The module's header describes it.
#[derive(Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
}

/// A turn, until it is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    user: User,
}

impl Turns {
    /// Waits for a turn of `user`.
    pub(crate) fn take(&self, user: User) -> Turn<'_> {
        let mut queue = self.lock();
        while queue.is_taken {
            let waiter = Arc::new(Waiter { thread: std::thread::current(), notice: AtomicU8::new(NOTHING) });
            queue.push(user, Arc::clone(&waiter));
            drop(queue);
            if waiter.wait() == HAS_TURN {
                return Turn { turns: self, user };
            }
            queue = self.lock();
        }
        queue.is_taken = true;
        Turn { turns: self, user }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.lock().users.iter().map(|(_, waiters)| waiters.len()).sum()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        let next = queue.pop(self.user);
        let passes = next.as_ref().is_some_and(|(user, _)| *user != self.user);
        queue.is_taken = passes;
        drop(queue);
        if let Some((_, waiter)) = next {
            waiter.tell(if passes { HAS_TURN } else { TRY_AGAIN });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a request of each user in a thread of its own, in this order, behind one of `first`;
    /// the order in which they had their turns.
    fn order(first: User, users: &[User]) -> Vec<User> {
        let (turns, done) = (Turns::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let turn = turns.take(first);
            for (before, user) in users.iter().enumerate() {
                let (turns, done) = (&turns, &done);
                scope.spawn(move || {
                    let _turn = turns.take(*user);
                    done.lock().expect("no panic").push(*user);
                });
                while turns.waiting() == before {
                    std::thread::yield_now();
                }
            }
            drop(turn);
        });
        done.into_inner().expect("no panic")
    }

    #[test]
    fn a_user_with_many_requests_waits_after_each_for_every_other_user() {
        let (a, b, own) = (Some(1), Some(2), None);
        assert_eq!(order(a, &[a, a, a, b, own]), [b, own, a, a, a]);
        assert_eq!(order(b, &[a, a, a, b, own, own]), [a, b, own, a, own, a]);
        assert_eq!(order(a, &[b, b, b, own]), [b, own, b, b]);
    }

    #[test]
    fn threads_of_one_user_all_get_a_turn() {
        assert_eq!(order(None, &[None; 20]), [None; 20]);
        let turns = Turns::default();
        let mut sum = 0;
        let shared = Mutex::new(&mut sum);
        std::thread::scope(|scope| {
            for user in 0..4 {
                let (turns, shared) = (&turns, &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let _turn = turns.take(Some(user / 2));
                        **shared.try_lock().expect("no other thread has a turn") += 1;
                    }
                });
            }
        });
        let is_taken = turns.lock().is_taken;
        assert_eq!((sum, is_taken, turns.waiting()), (2000, false, 0));
    }
}
