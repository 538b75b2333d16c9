//! The threads that drive VNICs.
//!
//! 1. A thread runs one iteration of each of its VNICs, spins for as long as that has paid lately
//!    ([`Spin`]), then sleeps on all doorbells. Without connections it sleeps without a limit;
//!    nothing spins when nothing moves.
//! 2. A VNIC is a value with everything that belongs to it. It goes to another thread between two
//!    iterations, through that thread's inbox. So nothing of it is lost, and its frames stay in
//!    order in its own queue.
//! 3. Every [`balancing::PERIOD`] a thread that is awake reports the loads of its VNICs, and the
//!    first thread that does decides for all ([`balancing::decide`]). A thread without VNICs ends,
//!    except the first, which sleeps.
//! 4. A VNIC whose device was removed, or that was revoked, ends: its applications get ENETDOWN.
//!    When the pool is dropped it resets all connections, for both sides, and waits for its
//!    threads.
//!
//! The caller chooses the number of threads: with two cores one, because the applications need the
//! other ([`max_threads`]).

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

use super::balancing::{self, Load, Move};
use super::report::{PoolReport, ThreadReport, VnicReport};
use super::vnic::{Device, Vnic};
use crate::snapshot::Snapshot;

/// How long a thread with a queue that has no doorbell sleeps.
const POLL_PERIOD: Duration = Duration::from_millis(1);
/// The thread of an older sample sleeps.
const STALE: u64 = 3 * balancing::PERIOD;

/// What a pool needs at its start.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most threads.
    pub most: usize,
    /// The longest spin, in nanoseconds; `None` for the default of the machine.
    pub spin: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { most: max_threads(std::thread::available_parallelism().map_or(1, usize::from)), spin: None }
    }
}

/// Returns half of the cores, rounded down, and at least one: the applications that are served need
/// theirs.
const fn max_threads(cores: usize) -> usize {
    if cores < 4 { 1 } else { cores / 2 }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A VNIC with its number in the pool.
#[derive(Debug)]
struct Assigned<Q> {
    id: u64,
    vnic: Vnic<Q>,
}

/// What other threads send to one thread.
#[derive(Debug)]
struct Inbox<Q> {
    doorbell: OwnedFd,
    /// One of the two is not empty.
    pending: AtomicBool,
    /// VNICs that come to the thread.
    vnics: Mutex<Vec<Assigned<Q>>>,
    /// VNICs that leave it.
    moves: Mutex<Vec<Move>>,
}

/// The input of balancing.
#[derive(Debug, Default)]
struct LoadSamples {
    /// By thread: the time of the sample, and the loads.
    threads: BTreeMap<usize, (u64, Vec<Load>)>,
    /// The number of moves in progress.
    moving: usize,
}

#[derive(Debug)]
struct Shared<Q> {
    inboxes: Vec<Inbox<Q>>,
    /// Which inboxes have a thread.
    running: Mutex<Vec<bool>>,
    /// The threads that were started.
    threads: Mutex<Vec<JoinHandle<()>>>,
    sampled: Mutex<LoadSamples>,
    report: Arc<Snapshot<PoolReport>>,
    stopping: AtomicBool,
    start: Instant,
    spin: Option<u64>,
    /// The names of VNICs that ended.
    ended: Mutex<Vec<String>>,
}

/// The threads of a TCP host.
#[derive(Debug)]
pub struct Pool<Q: Device + Send + 'static> {
    shared: Arc<Shared<Q>>,
    last: u64,
}

impl<Q> Shared<Q> {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn notify(&self, thread: usize) {
        self.inboxes[thread].pending.store(true, Ordering::Release);
        // A full counter is a notification already.
        let _ = rustix::io::write(&self.inboxes[thread].doorbell, &1_u64.to_ne_bytes());
    }
}

impl<Q: Device + Send + 'static> Pool<Q> {
    /// Makes a pool without VNICs: no thread runs yet.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn start(options: Options) -> io::Result<Self> {
        let inbox = || {
            Ok(Inbox {
                doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                pending: AtomicBool::new(false),
                vnics: Mutex::new(Vec::new()),
                moves: Mutex::new(Vec::new()),
            })
        };
        let inboxes = (0..options.most.max(1)).map(|_| inbox()).collect::<io::Result<Vec<_>>>()?;
        let running = Mutex::new(vec![false; inboxes.len()]);
        let shared = Shared {
            inboxes,
            running,
            threads: Mutex::new(Vec::new()),
            sampled: Mutex::new(LoadSamples::default()),
            report: Arc::default(),
            stopping: AtomicBool::new(false),
            start: Instant::now(),
            spin: options.spin,
            ended: Mutex::new(Vec::new()),
        };
        Ok(Self { shared: Arc::new(shared), last: 0 })
    }

    /// Returns the report of the pool.
    pub fn report(&self) -> Arc<Snapshot<PoolReport>> {
        Arc::clone(&self.shared.report)
    }

    /// Returns the names of VNICs that have ended since the last call.
    pub fn take_ended(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.ended))
    }

    /// Serves one more VNIC, on the first thread; balancing moves it if necessary.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn add(&mut self, vnic: Vnic<Q>) -> io::Result<()> {
        self.last += 1;
        assign(&self.shared, 0, Assigned { id: self.last, vnic })
    }
}

impl<Q: Device + Send + 'static> Drop for Pool<Q> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        (0..self.shared.inboxes.len()).for_each(|thread| self.shared.notify(thread));
        for thread in std::mem::take(&mut *lock(&self.shared.threads)) {
            // A thread that panicked has dropped its VNICs.
            let _ = thread.join();
        }
        // VNICs in an inbox that its thread did not empty any more.
        for inbox in &self.shared.inboxes {
            lock(&inbox.vnics).iter_mut().for_each(|assigned| assigned.vnic.end(Errno::CONNRESET));
        }
    }
}

/// Puts a VNIC into a thread's inbox, and starts the thread if there is none.
fn assign<Q: Device + Send + 'static>(
    shared: &Arc<Shared<Q>>,
    to: usize,
    assigned: Assigned<Q>,
) -> io::Result<()> {
    let mut running = lock(&shared.running);
    lock(&shared.inboxes[to].vnics).push(assigned);
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
    shared.notify(to);
    Ok(())
}

struct Thread<Q: Device + Send + 'static> {
    shared: Arc<Shared<Q>>,
    number: usize,
    vnics: Vec<Assigned<Q>>,
    spin: Spin,
    sampled_at: u64,
}

impl<Q: Device + Send + 'static> Thread<Q> {
    fn new(shared: Arc<Shared<Q>>, number: usize) -> Self {
        let spin = shared.spin.map_or_else(Spin::default, Spin::up_to);
        Self { shared, number, vnics: Vec::new(), spin, sampled_at: 0 }
    }

    fn inbox(&self) -> &Inbox<Q> {
        &self.shared.inboxes[self.number]
    }

    fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            if self.inbox().pending.swap(false, Ordering::AcqRel) {
                self.empty_inbox();
            }
            if self.vnics.is_empty() && self.leave() {
                return;
            }
            let now = self.shared.now();
            let busy = self.poll();
            if now.saturating_sub(self.sampled_at) >= balancing::PERIOD {
                self.sample(now);
            }
            if busy {
                self.spin.busy(now);
                continue;
            }
            let due = self.vnics.iter().filter_map(|assigned| assigned.vnic.next_deadline()).min();
            if due.is_some_and(|due| due <= now) {
                continue;
            }
            match self.spin.idle(now) {
                Idle::Poll => std::hint::spin_loop(),
                Idle::Yield => rustix::thread::sched_yield(),
                Idle::Sleep => self.sleep(due),
            }
        }
        for assigned in &mut self.vnics {
            assigned.vnic.end(Errno::CONNRESET);
        }
    }

    /// Returns whether this thread ends: it has no VNIC, and none is on its way. The first thread
    /// sleeps instead.
    fn leave(&mut self) -> bool {
        if self.number == 0 {
            self.sleep(None);
            return false;
        }
        let mut running = lock(&self.shared.running);
        if !lock(&self.inbox().vnics).is_empty() {
            self.inbox().pending.store(true, Ordering::Release);
            return false;
        }
        running[self.number] = false;
        lock(&self.shared.sampled).threads.remove(&self.number);
        self.shared.report.update(|report| drop(report.remove(&self.number)));
        true
    }

    /// Takes the VNICs that come to this thread, and sends away those that leave it.
    fn empty_inbox(&mut self) {
        let _ = rustix::io::read(&self.inbox().doorbell, &mut [0_u8; 8]);
        self.vnics.append(&mut lock(&self.shared.inboxes[self.number].vnics));
        let moves = std::mem::take(&mut *lock(&self.inbox().moves));
        let count = moves.len();
        for step in moves {
            let Some(at) = self.vnics.iter().position(|assigned| assigned.id == step.vnic) else { continue };
            let assigned = self.vnics.swap_remove(at);
            if assign(&self.shared, step.to, assigned).is_err() {
                // The thread could not be started: take the VNIC back from its inbox.
                self.vnics.append(&mut lock(&self.shared.inboxes[step.to].vnics));
            }
        }
        let mut sampled = lock(&self.shared.sampled);
        sampled.moving = sampled.moving.saturating_sub(count);
    }

    /// Runs one iteration of each VNIC.
    fn poll(&mut self) -> bool {
        let mut any = false;
        let shared = &self.shared;
        self.vnics.retain_mut(|assigned| {
            let began = shared.now();
            let polled = if assigned.vnic.is_revoked() {
                Err(Errno::NETDOWN.into())
            } else {
                assigned.vnic.poll(began)
            };
            match polled {
                Ok(busy) => {
                    if busy {
                        assigned.vnic.busy += shared.now().saturating_sub(began);
                    }
                    any |= busy;
                    true
                }
                Err(cause) => {
                    tracing::warn!("VNIC {}: {cause}; its connections end", assigned.vnic.name());
                    assigned.vnic.end(Errno::NETDOWN);
                    lock(&shared.ended).push(assigned.vnic.name().to_owned());
                    false
                }
            }
        });
        any
    }

    /// Reports the loads since the last sample, and decides which VNICs move.
    fn sample(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.sampled_at).max(1);
        self.sampled_at = now;
        let mut report = ThreadReport::default();
        let mut loads = Vec::with_capacity(self.vnics.len());
        for assigned in &mut self.vnics {
            let busy = std::mem::take(&mut assigned.vnic.busy);
            assigned.vnic.worked += busy;
            let share = (busy.saturating_mul(1000) / elapsed).min(1000) as u32;
            loads.push(Load { vnic: assigned.id, share });
            let (counters, usages) = assigned.vnic.report();
            report.busy = (report.busy + share).min(1000);
            report.vnics.push(VnicReport {
                name: assigned.vnic.name().to_owned(),
                busy: share,
                worked: assigned.vnic.worked,
                counters,
                usages,
            });
        }
        self.shared.report.update(|threads| drop(threads.insert(self.number, report)));
        let mut sampled = lock(&self.shared.sampled);
        sampled.threads.insert(self.number, (now, loads));
        if sampled.moving > 0 || self.shared.inboxes.len() == 1 {
            return;
        }
        let threads: Vec<Vec<Load>> = (0..self.shared.inboxes.len())
            .map(|thread| match sampled.threads.get(&thread) {
                Some((at, loads)) if now.saturating_sub(*at) > STALE => {
                    loads.iter().map(|load| Load { share: 0, ..*load }).collect()
                }
                Some((_, loads)) => loads.clone(),
                None => Vec::new(),
            })
            .collect();
        let moves = balancing::decide(&threads, self.shared.inboxes.len());
        sampled.moving += moves.len();
        drop(sampled);
        for step in moves {
            lock(&self.shared.inboxes[step.from].moves).push(step);
            self.shared.notify(step.from);
        }
    }

    /// Sleeps until a notification or until `due`, unless there is something to do.
    fn sleep(&mut self, due: Option<u64>) {
        let mut quiet = true;
        for assigned in &mut self.vnics {
            quiet &= assigned.vnic.prepare_sleep();
        }
        if quiet {
            let now = self.shared.now();
            if !self.vnics.is_empty() {
                self.sample(now);
            }
            self.wait(due.map(|due| Duration::from_nanos(due.saturating_sub(now))));
        }
        self.vnics.iter_mut().for_each(|assigned| assigned.vnic.wake());
    }

    fn wait(&self, limit: Option<Duration>) {
        let mut watched = vec![PollFd::new(&self.inbox().doorbell, PollFlags::IN)];
        let mut limit = limit;
        for assigned in &self.vnics {
            let doorbells = assigned.vnic.doorbells();
            if doorbells[1].is_none() {
                limit = Some(limit.unwrap_or(POLL_PERIOD).min(POLL_PERIOD));
            }
            let entry = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            watched.extend(doorbells.into_iter().flatten().map(entry));
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Interrupted or not: the caller checks.
        let _ = poll(&mut watched, limit.as_ref());
    }
}

#[cfg(test)]
mod tests;
