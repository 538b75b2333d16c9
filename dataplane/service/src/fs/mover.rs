//! The thread that moves data between the media ([`sietch_fs::mover`]).
//!
//! 1. It has queues of its own over the media: no client and no digest waits for what it reads,
//!    writes or flushes. What it needs of the pool it asks the digester for
//!    ([`requests`](super::requests)).
//! 2. Before each step it sees whether the foreground has work: then it pauses, and gives back what
//!    it has if that is wanted.
//! 3. When there is nothing to move, it sleeps until something was committed, or enough was read.
//!    It looks at both once a second.
//!
//! What it must never do: write to a block that the digester has not set aside for it; keep the
//! file system from ending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sietch_disk::AreaQueue;
use sietch_fs::Digested;
use sietch_fs::heat::Heat;
use sietch_fs::inode::Timestamp;
use sietch_fs::mover::{Mover, Now, Settings, Step};
use sietch_fs::pool::{Copier, Root};

use super::description::{Change, Description};
use super::error::StoreError;
use super::media::Medium;
use super::requests::{Digesting, RemoteOwner, Requests, Turn};

/// How long the mover pauses before it looks again whether the foreground has work.
const PAUSE: Duration = Duration::from_millis(2);
/// Pauses after which the mover gives back what it has, rather than keep old blocks from being used
/// again.
const PAUSES: u32 = 50;
/// How often an idle mover looks whether there is something to do.
const IDLE: Duration = Duration::from_secs(1);

/// Starts the thread, if there are classes of media to move data between, or a medium is leaving.
/// It ends when the digester does. `root` is that which the digester has.
pub(super) fn start(
    digester: &Arc<dyn Digesting>,
    media: &[Medium],
    root: Root,
    description: &Description,
    heat: Arc<Heat>,
) -> Result<(), StoreError> {
    let rate = description.migration.unwrap_or_default().rate;
    let settings = Settings { rate, ..Settings::default() };
    let has_classes = media.split_first().is_some_and(|(home, others)| others.iter().any(|o| !o.is_of(home)));
    let is_leaving = matches!(description.change, Some(Change::Drain { .. }));
    if settings.rate == 0 || !(has_classes || is_leaving) {
        return Ok(());
    }
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let base = Digested::new(Copier::new(members, root)?);
    let mover = Mover::new(settings, Arc::clone(&heat));
    digester.requests().begin_mover();
    let work = Work { digester: Arc::clone(digester), base, mover, heat, start: Instant::now() };
    let started = std::thread::Builder::new().name("sietch-mover".to_owned()).spawn(move || {
        let notice = Notice(Arc::clone(&work.digester));
        work.run();
        drop(notice);
    });
    match started {
        Ok(_) => Ok(()),
        Err(source) => {
            digester.requests().mover_ended();
            Err(StoreError::Io {
                path: "sietch-mover".into(),
                action: "start the thread that moves data",
                source,
            })
        }
    }
}

/// Says that the thread has ended, whatever ended it.
struct Notice(Arc<dyn Digesting>);

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.requests().mover_ended();
    }
}

struct Work {
    digester: Arc<dyn Digesting>,
    base: Digested<Copier<AreaQueue>>,
    mover: Mover,
    heat: Arc<Heat>,
    start: Instant,
}

impl Work {
    fn run(mut self) {
        let digester = Arc::clone(&self.digester);
        let requests = digester.requests();
        let wake = || digester.wake();
        let mut owner = RemoteOwner { requests, wake: &wake };
        let mut pauses = 0;
        loop {
            match requests.turn() {
                Turn::End => break,
                Turn::Pause if pauses != PAUSES => {
                    // Once it has given back what it has, it has nothing to give back.
                    pauses = (pauses + 1).min(PAUSES + 1);
                    requests.rest(PAUSE);
                    continue;
                }
                Turn::GiveBack | Turn::Pause => {
                    self.mover.abandon(&mut owner);
                    pauses = PAUSES + 1;
                    continue;
                }
                Turn::Work => pauses = 0,
            }
            let now = self.now();
            // What comes after this is not seen by a step that finds nothing to do.
            let seen = self.seen();
            let step = self.mover.step(&mut self.base, &mut owner, now);
            requests.set_moves(self.mover.moves());
            for fault in self.mover.take_faults() {
                tracing::error!("{fault}");
            }
            match step {
                Ok(Step::More) => {}
                Ok(Step::At(later)) => {
                    requests.rest(Duration::from_nanos(later.saturating_sub(now.nanoseconds)).min(IDLE));
                }
                Ok(Step::Idle) => self.sleep(requests, seen),
                Err(fault) => {
                    tracing::error!("no data are moved any more: {fault}");
                    break;
                }
            }
        }
        self.mover.abandon(&mut owner);
        requests.set_moves(self.mover.moves());
    }

    /// The generation of the pool, and how much was read.
    fn seen(&self) -> (u64, u64) {
        (self.digester.generation(), self.heat.reads())
    }

    /// Sleeps until something else is seen.
    fn sleep(&self, requests: &Requests, seen: (u64, u64)) {
        while self.seen() == seen && requests.turn() != Turn::End {
            requests.rest(IDLE);
        }
    }

    fn now(&self) -> Now {
        let time = clock_gettime(ClockId::Realtime);
        // The kernel's nanoseconds are below a second.
        let time = Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 };
        Now { nanoseconds: u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX), time }
    }
}
