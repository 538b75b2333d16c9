//! A thread that waits in place of those that read the kernel's requests.
//!
//! 1. What is left to do for a request, its answer included, is a [`Job`] in the queue of its user.
//! 2. The thread does one job after the other, of each user in turn. So the jobs of a user with
//!    many of them wait for each other, and those of another user for one of them.
//! 3. A job that has to wait again goes into a queue again.
//! 4. A job that panics is dropped, and its request gets EIO. The thread does the next job, because
//!    later requests would otherwise wait without end.
//!
//! What it must never do: keep a thread that reads requests.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::turns::User;

/// What is left to do for a request. It may wait.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    /// Users with jobs, each once, in the order of their turns.
    users: VecDeque<(User, VecDeque<Job>)>,
    has_ended: bool,
}

impl Queue {
    fn pop(&mut self) -> Option<Job> {
        let (user, mut jobs) = self.users.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.users.push_back((user, jobs));
        }
        job
    }
}

/// The queue of such a thread.
#[derive(Default)]
pub(crate) struct Waiting {
    queue: Mutex<Queue>,
    added: Condvar,
}

impl Waiting {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing under this lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread do a job of `user`. After the end of the thread it is dropped, and its
    /// request gets EIO.
    pub(crate) fn push(&self, user: User, job: Job) {
        let mut queue = self.queue();
        if queue.has_ended {
            return;
        }
        match queue.users.iter_mut().find(|(other, _)| *other == user) {
            Some((_, jobs)) => jobs.push_back(job),
            None => queue.users.push_back((user, VecDeque::from([job]))),
        }
        self.added.notify_one();
    }

    /// Ends the thread after the job that it does.
    pub(crate) fn end(&self) {
        let mut queue = self.queue();
        queue.has_ended = true;
        let left = std::mem::take(&mut queue.users);
        drop(queue);
        self.added.notify_one();
        drop(left);
    }

    fn next(&self) -> Option<Job> {
        let queue = self.queue();
        let waits = |queue: &mut Queue| queue.users.is_empty() && !queue.has_ended;
        let queue = self.added.wait_while(queue, waits);
        queue.unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// What the thread does. Calls `note_panic` after a job that panicked.
    pub(crate) fn run(&self, note_panic: impl Fn()) {
        while let Some(job) = self.next() {
            // The job is consumed, and what it shares is protected by `note_panic`.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                note_panic();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_user_has_a_job_done_in_turn() {
        let waiting = Waiting::default();
        let (done, order) = mpsc::channel();
        let (a, b, own) = (Some(1), Some(2), None);
        for user in [a, a, a, b, own, b] {
            let done = done.clone();
            waiting.push(user, Box::new(move || done.send(user).expect("it is read")));
        }
        drop(done);
        while let Some(job) = { waiting.queue().pop() } {
            job();
        }
        assert_eq!(order.iter().collect::<Vec<_>>(), [a, b, own, a, b, a]);
    }

    #[test]
    fn nothing_is_done_after_the_end() {
        let waiting = Waiting::default();
        let (done, left) = mpsc::channel::<()>();
        let job = |done: mpsc::Sender<()>| Box::new(move || done.send(()).expect("it is read"));
        waiting.push(None, job(done.clone()));
        waiting.end();
        waiting.push(None, job(done));
        waiting.run(|| ());
        assert!(left.recv().is_err());
    }

    #[test]
    fn a_job_that_panics_is_noted_and_the_next_one_is_done() {
        let waiting = Waiting::default();
        let (done, order) = mpsc::channel();
        let (fails, follows) = (done.clone(), done.clone());
        waiting.push(
            None,
            Box::new(move || {
                let _dropped = fails;
                std::panic::resume_unwind(Box::new("a job's panic"));
            }),
        );
        waiting.push(None, Box::new(move || follows.send("done").expect("it is read")));
        std::thread::scope(|scope| {
            scope.spawn(|| waiting.run(|| done.send("panicked").expect("it is read")));
            let limit = std::time::Duration::from_secs(10);
            let seen = [order.recv_timeout(limit), order.recv_timeout(limit)];
            waiting.end();
            assert_eq!(seen, [Ok("panicked"), Ok("done")]);
        });
    }
}
