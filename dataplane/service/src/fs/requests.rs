//! What the thread that moves data asks of the thread that digests, which owns the pool: the
//! digester of a file system that one process has, or the hub of one that is served.
//!
//! 1. The mover puts one request on the desk, wakes the digester, and waits for the answer.
//! 2. The digester answers between two batches, and while it waits for blocks. An answer takes it
//!    some milliseconds at most: lookups in memory, or the flip of one run.
//! 3. The digester says when it has work that a client may wait for: then the mover pauses. It also
//!    says when it lacks blocks that the mover has: then the mover gives them back.
//!
//! What it must never do: leave one side waiting for another that has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sietch_disk::AreaQueue;
use sietch_fs::digest::{Flipped, Moved};
use sietch_fs::mover::{Moves, Owner, View};
use sietch_fs::pool::Run;
use sietch_fs::{Digest, Fault};

/// A question to the owner of the pool.
#[derive(Debug)]
enum Request {
    Begin,
    End,
    SetAside(u8, u32, usize),
    EndAside(Run, bool),
    Flip(Vec<Moved>),
}

/// Its answer.
#[derive(Debug)]
enum Answer {
    View(Result<View, Fault>),
    Run(Result<Option<Run>, Fault>),
    Flipped(Result<Option<Flipped>, Fault>),
    Done,
}

#[derive(Debug, Default)]
struct Desk {
    request: Option<Request>,
    answer: Option<Answer>,
    /// The mover runs.
    has_mover: bool,
    /// The mover is to end.
    is_ending: bool,
    /// The digester answers nothing any more.
    is_closed: bool,
    moves: Moves,
}

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct Requests {
    desk: Mutex<Desk>,
    changed: Condvar,
    /// There is a request.
    has_request: AtomicBool,
    /// The digester has urgent work.
    is_busy: AtomicBool,
    /// The digester lacks blocks.
    lacks_blocks: AtomicBool,
    /// A medium is above its hard watermark.
    is_pressed: AtomicBool,
}

/// The thread that digests, as the mover sees it.
pub(super) trait Digesting: Send + Sync {
    /// The desk.
    fn requests(&self) -> &Requests;

    /// The generation that was published last.
    fn generation(&self) -> u64;

    /// Wakes the thread for a request.
    fn wake(&self);
}

/// What the mover may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Go on.
    Work,
    /// Nothing: the foreground has work.
    Pause,
    /// Give back what it has.
    GiveBack,
    /// End.
    End,
}

/// For the digester.
impl Requests {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a request to answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.has_request.load(Ordering::SeqCst)
    }

    /// Says whether the digester has urgent work.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::SeqCst);
    }

    /// Says whether a medium is above its hard watermark: then the mover works beside the
    /// foreground, which would otherwise find no room for its tree in the end.
    pub(super) fn set_pressed(&self, is_pressed: bool) {
        self.is_pressed.store(is_pressed, Ordering::SeqCst);
    }

    /// Whether it is.
    pub(super) fn is_pressed(&self) -> bool {
        self.is_pressed.load(Ordering::SeqCst)
    }

    /// The digester lacks blocks: the mover gives back what it has, once.
    pub(super) fn want_blocks(&self) {
        self.is_busy.store(true, Ordering::SeqCst);
        self.lacks_blocks.store(true, Ordering::SeqCst);
    }

    /// Answers the request, if there is one. Returns whether the pool may have been changed.
    pub(super) fn serve(&self, digest: &mut Digest<AreaQueue>) -> bool {
        if !self.is_waiting() {
            return false;
        }
        let request = self.desk().request.take();
        self.has_request.store(false, Ordering::SeqCst);
        let Some(request) = request else { return false };
        let is_flip = matches!(request, Request::Flip(_));
        let answer = match request {
            Request::Begin => Answer::View(Owner::begin(digest)),
            Request::End => {
                Owner::end(digest);
                Answer::Done
            }
            Request::SetAside(medium, blocks, extents) => {
                Answer::Run(Owner::set_aside(digest, medium, blocks, extents))
            }
            Request::EndAside(run, is_good) => {
                Owner::end_aside(digest, run, is_good);
                Answer::Done
            }
            Request::Flip(moves) => Answer::Flipped(Owner::flip(digest, moves)),
        };
        self.desk().answer = Some(answer);
        self.changed.notify_all();
        is_flip
    }

    /// Answers nothing any more.
    pub(super) fn close(&self) {
        self.desk().is_closed = true;
        self.changed.notify_all();
    }

    /// Ends the mover, and waits until it has ended. The digester must still answer.
    pub(super) fn end_mover(&self) {
        let mut desk = self.desk();
        desk.is_ending = true;
        self.changed.notify_all();
        while desk.has_mover && !desk.is_closed {
            desk = self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The sums of what was moved.
    pub(super) fn moves(&self) -> Moves {
        self.desk().moves.clone()
    }
}

/// For the mover.
impl Requests {
    /// The mover begins.
    pub(super) fn begin_mover(&self) {
        self.desk().has_mover = true;
    }

    /// The mover has ended.
    pub(super) fn mover_ended(&self) {
        self.desk().has_mover = false;
        self.changed.notify_all();
    }

    /// Says what was moved.
    pub(super) fn set_moves(&self, moves: &Moves) {
        self.desk().moves.clone_from(moves);
    }

    /// What the mover may do now.
    pub(super) fn turn(&self) -> Turn {
        let desk = self.desk();
        if desk.is_ending || desk.is_closed {
            return Turn::End;
        }
        drop(desk);
        if self.lacks_blocks.swap(false, Ordering::SeqCst) {
            Turn::GiveBack
        } else if self.is_busy.load(Ordering::SeqCst) && !self.is_pressed() {
            Turn::Pause
        } else {
            Turn::Work
        }
    }

    /// Waits for some time, or until the mover is to end.
    pub(super) fn rest(&self, time: Duration) {
        let desk = self.desk();
        if !desk.is_ending && !desk.is_closed {
            drop(self.changed.wait_timeout(desk, time));
        }
    }

    fn ask(&self, request: Request, wake: &dyn Fn()) -> Option<Answer> {
        let mut desk = self.desk();
        if desk.is_closed {
            return None;
        }
        desk.answer = None;
        desk.request = Some(request);
        drop(desk);
        self.has_request.store(true, Ordering::SeqCst);
        wake();
        let mut desk = self.desk();
        loop {
            if let Some(answer) = desk.answer.take() {
                return Some(answer);
            }
            if desk.is_closed {
                return None;
            }
            desk = self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The owner of the pool, on another thread.
pub(super) struct RemoteOwner<'a> {
    pub requests: &'a Requests,
    /// Wakes the digester.
    pub wake: &'a dyn Fn(),
}

fn closed() -> Fault {
    Fault::Stopped { medium: "the pool".to_owned(), cause: "nothing is digested any more".to_owned() }
}

impl Owner for RemoteOwner<'_> {
    fn begin(&mut self) -> Result<View, Fault> {
        match self.requests.ask(Request::Begin, self.wake) {
            Some(Answer::View(view)) => view,
            _ => Err(closed()),
        }
    }

    fn end(&mut self) {
        self.requests.ask(Request::End, self.wake);
    }

    fn set_aside(&mut self, medium: u8, blocks: u32, extents: usize) -> Result<Option<Run>, Fault> {
        match self.requests.ask(Request::SetAside(medium, blocks, extents), self.wake) {
            Some(Answer::Run(run)) => run,
            _ => Err(closed()),
        }
    }

    fn end_aside(&mut self, run: Run, is_good: bool) {
        self.requests.ask(Request::EndAside(run, is_good), self.wake);
    }

    fn flip(&mut self, moves: Vec<Moved>) -> Result<Option<Flipped>, Fault> {
        match self.requests.ask(Request::Flip(moves), self.wake) {
            Some(Answer::Flipped(flipped)) => flipped,
            _ => Err(closed()),
        }
    }
}
