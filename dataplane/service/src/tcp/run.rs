//! The threads that drive VNICs.
//!
//! 1. A thread turns each of its VNICs, spins for as long as that has paid lately ([`Spin`]), then
//!    sleeps on everything that may ring. With nothing connected it sleeps without a limit; nothing
//!    spins when nothing moves.
//! 2. A VNIC is a value with everything that belongs to it. It goes to another thread between two
//!    of its turns, through that thread's inbox: nothing of it is lost, and its frames, being in
//!    its own queue, stay in order.
//! 3. Every [`placement::PERIOD`] a thread that is awake says what its VNICs took, and whoever
//!    comes to it first decides for all ([`placement::decide`]). A thread without VNICs ends, but
//!    for the first, which sleeps.
//! 4. A VNIC whose device is gone, or that was taken back, ends: its applications hear ENETDOWN. A
//!    pool that ends resets all connections, for both sides to hear, and returns when it has.
//!
//! How many threads there may be is the caller's: with two cores one, for the applications need the
//! other ([`most_threads`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use sietch_ring::spin::{Idle, Spin};

use super::host::Share;
use super::metrics::Counters;
use super::placement::{self, Load, Move};
use super::vnic::{Device, Vnic};

/// How long a thread sleeps that has a queue without a doorbell.
const BLIND: Duration = Duration::from_millis(1);
/// A sample that is older says that its thread sleeps.
const STALE: u64 = 3 * placement::PERIOD;

/// What is to be known at the start.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most threads.
    pub most: usize,
    /// The longest spin, in nanoseconds; `None` for what fits the machine.
    pub spin: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { most: most_threads(std::thread::available_parallelism().map_or(1, usize::from)), spin: None }
    }
}

/// Half of the cores, rounded down, and one at least: the applications that are served need theirs.
pub const fn most_threads(cores: usize) -> usize {
    if cores < 4 { 1 } else { cores / 2 }
}

/// A thread as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadShown {
    /// Thousandths of the time in which it had something to do.
    pub busy: u32,
    /// Its VNICs.
    pub vnics: Vec<VnicShown>,
}

/// A VNIC as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicShown {
    /// Its name.
    pub name: String,
    /// Thousandths of a core that it took.
    pub busy: u32,
    /// Nanoseconds for which it had something to do, in all.
    pub worked: u64,
    /// What was counted.
    pub counters: Counters,
    /// What each application has.
    pub shares: Vec<Share>,
}

/// What there is, for other threads to read: threads by number.
pub type Shown = BTreeMap<usize, ThreadShown>;

/// See [`Shown`].
#[derive(Debug, Default)]
pub struct Board(Mutex<Shown>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// What was noted last.
    pub fn read(&self) -> Shown {
        lock(&self.0).clone()
    }
}

/// A VNIC with its number in the pool.
#[derive(Debug)]
struct Placed<Q> {
    id: u64,
    vnic: Vnic<Q>,
}

/// One thread's letterbox.
#[derive(Debug)]
struct Slot<Q> {
    bell: OwnedFd,
    /// Something is in one of the two.
    news: AtomicBool,
    inbox: Mutex<Vec<Placed<Q>>>,
    orders: Mutex<Vec<Move>>,
}

/// What placement works on.
#[derive(Debug, Default)]
struct Sampled {
    /// By thread: when, and what.
    threads: BTreeMap<usize, (u64, Vec<Load>)>,
    /// Moves that are not done.
    under_way: usize,
}

#[derive(Debug)]
struct Shared<Q> {
    slots: Vec<Slot<Q>>,
    /// Which slots have a thread.
    running: Mutex<Vec<bool>>,
    /// Threads that were started.
    threads: Mutex<Vec<JoinHandle<()>>>,
    sampled: Mutex<Sampled>,
    board: Arc<Board>,
    stopping: AtomicBool,
    start: Instant,
    spin: Option<u64>,
    /// VNICs that ended, by name.
    ended: Mutex<Vec<String>>,
}

/// All threads.
#[derive(Debug)]
pub struct Pool<Q: Device + Send + 'static> {
    shared: Arc<Shared<Q>>,
    last: u64,
}

impl<Q> Shared<Q> {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn ring(&self, slot: usize) {
        self.slots[slot].news.store(true, Ordering::Release);
        // A full counter is a ring already.
        let _ = rustix::io::write(&self.slots[slot].bell, &1_u64.to_ne_bytes());
    }
}

impl<Q: Device + Send + 'static> Pool<Q> {
    /// A pool without VNICs: nothing runs yet.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn start(options: Options) -> io::Result<Self> {
        let slot = || {
            Ok(Slot {
                bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                news: AtomicBool::new(false),
                inbox: Mutex::new(Vec::new()),
                orders: Mutex::new(Vec::new()),
            })
        };
        let slots = (0..options.most.max(1)).map(|_| slot()).collect::<io::Result<Vec<_>>>()?;
        let running = Mutex::new(vec![false; slots.len()]);
        let shared = Shared {
            slots,
            running,
            threads: Mutex::new(Vec::new()),
            sampled: Mutex::new(Sampled::default()),
            board: Arc::new(Board::default()),
            stopping: AtomicBool::new(false),
            start: Instant::now(),
            spin: options.spin,
            ended: Mutex::new(Vec::new()),
        };
        Ok(Self { shared: Arc::new(shared), last: 0 })
    }

    /// What there is.
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.shared.board)
    }

    /// Names of VNICs that have ended since the last call.
    pub fn take_ended(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.ended))
    }

    /// Serves one more VNIC, on the first thread; placement moves it if need be.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn add(&mut self, vnic: Vnic<Q>) -> io::Result<()> {
        self.last += 1;
        hand_over(&self.shared, 0, Placed { id: self.last, vnic })
    }
}

impl<Q: Device + Send + 'static> Drop for Pool<Q> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        (0..self.shared.slots.len()).for_each(|slot| self.shared.ring(slot));
        for thread in std::mem::take(&mut *lock(&self.shared.threads)) {
            // One that panicked has nothing any more.
            let _ = thread.join();
        }
        // What lay in a letterbox that nobody emptied any more.
        for slot in &self.shared.slots {
            lock(&slot.inbox).iter_mut().for_each(|placed| placed.vnic.end(Errno::CONNRESET));
        }
    }
}

/// Puts a VNIC into a thread's inbox, and starts the thread if there is none.
fn hand_over<Q: Device + Send + 'static>(
    shared: &Arc<Shared<Q>>,
    to: usize,
    placed: Placed<Q>,
) -> io::Result<()> {
    let mut running = lock(&shared.running);
    lock(&shared.slots[to].inbox).push(placed);
    if !running[to] {
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name(format!("sietch-tcp-{to}"))
            .spawn(move || Thread::new(own, to).run())?;
        let mut threads = lock(&shared.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        running[to] = true;
    }
    drop(running);
    shared.ring(to);
    Ok(())
}

struct Thread<Q: Device + Send + 'static> {
    shared: Arc<Shared<Q>>,
    slot: usize,
    vnics: Vec<Placed<Q>>,
    spin: Spin,
    sampled_at: u64,
}

impl<Q: Device + Send + 'static> Thread<Q> {
    fn new(shared: Arc<Shared<Q>>, slot: usize) -> Self {
        let spin = shared.spin.map_or_else(Spin::default, Spin::up_to);
        Self { shared, slot, vnics: Vec::new(), spin, sampled_at: 0 }
    }

    fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            if self.shared.slots[self.slot].news.swap(false, Ordering::AcqRel) {
                self.take_news();
            }
            if self.vnics.is_empty() && self.leave() {
                return;
            }
            let now = self.shared.now();
            let busy = self.turn();
            if now.saturating_sub(self.sampled_at) >= placement::PERIOD {
                self.sample(now);
            }
            if busy {
                self.spin.busy(now);
                continue;
            }
            let due = self.vnics.iter().filter_map(|placed| placed.vnic.next_deadline()).min();
            if due.is_some_and(|due| due <= now) {
                continue;
            }
            match self.spin.idle(now) {
                Idle::Poll => std::hint::spin_loop(),
                Idle::Yield => rustix::thread::sched_yield(),
                Idle::Sleep => self.sleep(due),
            }
        }
        for placed in &mut self.vnics {
            placed.vnic.end(Errno::CONNRESET);
        }
    }

    /// Whether this thread ends: it has nothing, and nothing is on its way. The first one sleeps
    /// instead.
    fn leave(&mut self) -> bool {
        if self.slot == 0 {
            self.sleep(None);
            return false;
        }
        let mut running = lock(&self.shared.running);
        if !lock(&self.shared.slots[self.slot].inbox).is_empty() {
            self.shared.slots[self.slot].news.store(true, Ordering::Release);
            return false;
        }
        running[self.slot] = false;
        lock(&self.shared.sampled).threads.remove(&self.slot);
        lock(&self.shared.board.0).remove(&self.slot);
        true
    }

    fn take_news(&mut self) {
        let _ = rustix::io::read(&self.shared.slots[self.slot].bell, &mut [0_u8; 8]);
        self.vnics.append(&mut lock(&self.shared.slots[self.slot].inbox));
        let orders = std::mem::take(&mut *lock(&self.shared.slots[self.slot].orders));
        let count = orders.len();
        for order in orders {
            let Some(at) = self.vnics.iter().position(|placed| placed.id == order.vnic) else { continue };
            let placed = self.vnics.swap_remove(at);
            if hand_over(&self.shared, order.to, placed).is_err() {
                // It lies in the inbox of a thread that could not be started.
                self.vnics.append(&mut lock(&self.shared.slots[order.to].inbox));
            }
        }
        let mut sampled = lock(&self.shared.sampled);
        sampled.under_way = sampled.under_way.saturating_sub(count);
    }

    /// One turn of each VNIC.
    fn turn(&mut self) -> bool {
        let mut any = false;
        let shared = &self.shared;
        self.vnics.retain_mut(|placed| {
            let began = shared.now();
            let turned =
                if placed.vnic.is_revoked() { Err(Errno::NETDOWN.into()) } else { placed.vnic.turn(began) };
            match turned {
                Ok(busy) => {
                    if busy {
                        placed.vnic.busy += shared.now().saturating_sub(began);
                    }
                    any |= busy;
                    true
                }
                Err(cause) => {
                    tracing::warn!("VNIC {}: {cause}; its connections end", placed.vnic.name());
                    placed.vnic.end(Errno::NETDOWN);
                    lock(&shared.ended).push(placed.vnic.name().to_owned());
                    false
                }
            }
        });
        any
    }

    /// Says what was done since the last time, and decides who goes where.
    fn sample(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.sampled_at).max(1);
        self.sampled_at = now;
        let mut shown = ThreadShown::default();
        let mut loads = Vec::with_capacity(self.vnics.len());
        for placed in &mut self.vnics {
            let busy = std::mem::take(&mut placed.vnic.busy);
            placed.vnic.worked += busy;
            let share = (busy.saturating_mul(1000) / elapsed).min(1000) as u32;
            loads.push(Load { vnic: placed.id, share });
            let (counters, shares) = placed.vnic.shown();
            shown.busy = (shown.busy + share).min(1000);
            shown.vnics.push(VnicShown {
                name: placed.vnic.name().to_owned(),
                busy: share,
                worked: placed.vnic.worked,
                counters,
                shares,
            });
        }
        lock(&self.shared.board.0).insert(self.slot, shown);
        let mut sampled = lock(&self.shared.sampled);
        sampled.threads.insert(self.slot, (now, loads));
        if sampled.under_way > 0 || self.shared.slots.len() == 1 {
            return;
        }
        let threads: Vec<Vec<Load>> = (0..self.shared.slots.len())
            .map(|slot| match sampled.threads.get(&slot) {
                Some((at, loads)) if now.saturating_sub(*at) > STALE => {
                    loads.iter().map(|load| Load { share: 0, ..*load }).collect()
                }
                Some((_, loads)) => loads.clone(),
                None => Vec::new(),
            })
            .collect();
        let moves = placement::decide(&threads, self.shared.slots.len());
        sampled.under_way += moves.len();
        drop(sampled);
        for step in moves {
            lock(&self.shared.slots[step.from].orders).push(step);
            self.shared.ring(step.from);
        }
    }

    /// Sleeps until something rings or `due` has come, unless there is something to do.
    fn sleep(&mut self, due: Option<u64>) {
        let mut quiet = true;
        for placed in &mut self.vnics {
            quiet &= placed.vnic.rest();
        }
        if quiet {
            let now = self.shared.now();
            if !self.vnics.is_empty() {
                self.sample(now);
            }
            self.wait(due.map(|due| Duration::from_nanos(due.saturating_sub(now))));
        }
        self.vnics.iter_mut().for_each(|placed| placed.vnic.wake());
    }

    fn wait(&self, limit: Option<Duration>) {
        let shared = &self.shared;
        let mut watched = vec![PollFd::new(&shared.slots[self.slot].bell, PollFlags::IN)];
        let mut limit = limit;
        for placed in &self.vnics {
            let doorbells = placed.vnic.doorbells();
            if doorbells[1].is_none() {
                limit = Some(limit.unwrap_or(BLIND).min(BLIND));
            }
            let entry = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            watched.extend(doorbells.into_iter().flatten().map(entry));
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Interrupted or not: the caller looks.
        let _ = poll(&mut watched, limit.as_ref());
    }
}

#[cfg(test)]
mod tests;
