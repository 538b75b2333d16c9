//! What the service has said to a client, until an operation takes it.
//!
//! 1. A thread of the client delivers each notice. Progress replaces older progress; messages queue
//!    up in order.
//! 2. An operation looks at two counters first, which costs no lock.
//! 3. The thread that looks after an idle client waits for the next arrival ([`Attention`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_fs::client::Message;
use sietch_fs::inode::InodeNumber;
use sietch_fs::lease::{Grant, Revocation};

use super::messages::{Notice, Progress, mode};

/// The module's header describes it.
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    /// Progress that was delivered so far.
    progresses: AtomicU64,
    has_messages: AtomicBool,
    has_ended: AtomicBool,
}

struct State {
    progress: Progress,
    messages: VecDeque<Message>,
    /// Messages that were delivered so far.
    delivered: u64,
    numbers: Option<Range<u64>>,
    ended: Option<String>,
    /// Notices that were delivered so far.
    arrivals: u64,
}

impl Inbox {
    pub(super) fn new(progress: Progress) -> Self {
        let messages = VecDeque::new();
        let state = State { progress, messages, delivered: 0, numbers: None, ended: None, arrivals: 0 };
        Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            progresses: AtomicU64::new(1),
            has_messages: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a notice of the service.
    pub(super) fn deliver(&self, notice: Notice) {
        let mut state = self.state();
        state.arrivals += 1;
        let message = match notice {
            Notice::Progress(progress) => {
                state.progress = progress;
                self.progresses.fetch_add(1, Ordering::Release);
                None
            }
            Notice::Numbers { start, end } => {
                state.numbers = Some(start..end);
                None
            }
            Notice::Refused { inode, errno } => {
                // What is no error number is an error all the same.
                let errno = match errno {
                    1..=4095 => Errno::from_raw_os_error(errno),
                    _ => Errno::IO,
                };
                Some(Message::Refused { inode: InodeNumber(inode), errno })
            }
            Notice::Ended(cause) => {
                self.end_with(&mut state, cause);
                None
            }
            Notice::Granted { inode, exclusive, serial, sole } => Some(Message::Granted(Grant {
                inode: InodeNumber(inode),
                mode: mode(exclusive),
                serial,
                is_sole: sole,
            })),
            Notice::Revoked { inode, serial, may_share, is_urgent } => {
                Some(Message::Revoked(Revocation { inode: InodeNumber(inode), serial, may_share, is_urgent }))
            }
            Notice::Room(is_there) => Some(Message::Room(is_there)),
            Notice::Runs => None,
            Notice::RecallRoom => Some(Message::RecallRoom),
            Notice::Advance => Some(Message::Advance),
        };
        if let Some(message) = message {
            state.messages.push_back(message);
            state.delivered += 1;
            self.has_messages.store(true, Ordering::Release);
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// Nothing more comes, for this reason, unless there was one before.
    pub(super) fn end(&self, cause: String) {
        let mut state = self.state();
        state.arrivals += 1;
        self.end_with(&mut state, cause);
        drop(state);
        self.arrived.notify_all();
    }

    fn end_with(&self, state: &mut State, cause: String) {
        state.ended.get_or_insert(cause);
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether the service takes nothing more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Why the service takes nothing more.
    pub(super) fn cause(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// The newest progress, if it is not number `seen`, and its number.
    pub(super) fn progress(&self, seen: u64) -> Option<(u64, Progress)> {
        if self.progresses.load(Ordering::Acquire) == seen {
            return None;
        }
        let state = self.state();
        Some((self.progresses.load(Ordering::Acquire), state.progress.clone()))
    }

    /// The next message.
    pub(super) fn message(&self) -> Option<Message> {
        if !self.has_messages.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state();
        let message = state.messages.pop_front();
        self.has_messages.store(!state.messages.is_empty(), Ordering::Release);
        message
    }

    /// Notices that were delivered so far.
    pub(super) fn arrivals(&self) -> u64 {
        self.state().arrivals
    }

    /// Waits for inode numbers until `end`.
    pub(super) fn wait_numbers(&self, end: Instant) -> Result<Option<Range<u64>>, Errno> {
        self.wait(end, |state| state.numbers.take())
    }

    /// Waits for a message until `end`. It stays here.
    pub(super) fn wait_message(&self, end: Instant) -> Result<Option<()>, Errno> {
        self.wait(end, |state| (!state.messages.is_empty()).then_some(()))
    }

    /// Messages that were delivered so far.
    pub(super) fn delivered(&self) -> u64 {
        self.state().delivered
    }

    /// Waits for a message after number `seen` until `end`. It stays here.
    pub(super) fn wait_next_message(&self, seen: u64, end: Instant) -> Result<Option<()>, Errno> {
        self.wait(end, |state| (state.delivered != seen).then_some(()))
    }

    /// Waits for progress after number `seen` until `end`.
    pub(super) fn wait_progress(&self, seen: u64, end: Instant) -> Result<Option<()>, Errno> {
        self.wait(end, |_| (self.progresses.load(Ordering::Acquire) != seen).then_some(()))
    }

    /// As [`Inbox::wait_progress`], or until a revocation is urgent. That stays here.
    pub(super) fn wait_digest(&self, seen: u64, end: Instant) -> Result<Option<()>, Errno> {
        let is_urgent =
            |message: &Message| matches!(message, Message::Revoked(revocation) if revocation.is_urgent);
        self.wait(end, |state| {
            let has_progress = self.progresses.load(Ordering::Acquire) != seen;
            (has_progress || state.messages.iter().any(is_urgent)).then_some(())
        })
    }

    /// The log is digested up to this position, a MiB in so many nanoseconds.
    pub(super) fn pace(&self) -> (u64, u64) {
        let state = self.state();
        (state.progress.digested, state.progress.speed)
    }

    /// Waits for `time`, or until the log is digested beyond `digested`, or the service says
    /// something that the client has to answer.
    pub(super) fn pause(&self, digested: u64, time: Duration) {
        let mut state = self.state();
        let end = Instant::now() + time;
        while state.progress.digested == digested && state.messages.is_empty() && state.ended.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = match self.arrived.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn wait<T>(
        &self,
        end: Instant,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Errno> {
        let mut state = self.state();
        loop {
            if let Some(taken) = take(&mut state) {
                return Ok(Some(taken));
            }
            if state.ended.is_some() {
                return Err(Errno::IO);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = match self.arrived.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// Waits for what the service says to a client. Where no operation runs, the client's `advance` is
/// to be called after each wait: other clients wait for it.
pub struct Attention {
    pub(super) inbox: Arc<Inbox>,
    pub(super) seen: u64,
}

impl Attention {
    /// Waits until something was said since the last call; `false`: nothing more comes.
    pub fn wait(&mut self) -> bool {
        let mut state = self.inbox.state();
        loop {
            if state.ended.is_some() {
                return false;
            }
            if state.arrivals != self.seen {
                self.seen = state.arrivals;
                return true;
            }
            state = self.inbox.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Why nothing more comes.
    pub fn cause(&self) -> Option<String> {
        self.inbox.cause()
    }
}

#[cfg(test)]
mod tests;
