//! A part of a running `sietch up`: one process that is kept running, whatever becomes of the
//! others.
//!
//! 1. A part is down until it is due, starts, serves once its process reports that it is ready, and
//!    is down again when that ends.
//! 2. A process that had served is due after [`RESTART_PAUSE`], however often it ends. A start that
//!    fails is repeated after a pause that triples, up to [`MOST_PAUSE`]: what is wrong may be
//!    corrected meanwhile, and leftovers of an earlier, killed `up` may still be ending.
//! 3. A part that [`Part::stays_ended`] is not due after a clean end, which was on purpose.
//!    It is due again when it is resumed.
//! 4. A failure never goes further than the part. It is kept for `sietch status`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::child::{Child, End, Reports};
use super::instance::Failing;
use crate::error::Error;

/// Between restarts of a process that had served: bounds the cost of one that ends at once.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// The pause after the first failed start; each next one is three times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(150);

/// The longest pause: what was corrected serves soon, and an attempt costs little.
const MOST_PAUSE: Duration = Duration::from_secs(10);

/// Failed starts after which a part counts as failing. With the pauses between them about two
/// seconds.
pub(super) const STARTS: u32 = 4;

/// What became of a part.
pub(super) enum Event {
    /// It is to be started.
    Due,
    /// It serves; its report.
    Ready(String),
    /// A start has failed.
    Failed,
    /// It had served, and has ended in this way.
    Ended(String),
}

/// One process that is kept running.
pub(super) struct Part {
    what: &'static str,
    /// Its name in messages and in the record.
    pub(super) name: String,
    log: PathBuf,
    reports: Reports,
    child: Option<Child>,
    serves: bool,
    failures: u32,
    why: Option<Error>,
    due: Instant,
    /// A clean end is on purpose.
    stays_ended: bool,
    /// It has ended so.
    rests: bool,
}

impl Part {
    /// A part that is due at once.
    pub(super) fn new(what: &'static str, name: String, log: PathBuf, reports: Reports) -> Self {
        let due = Instant::now();
        let (child, why) = (None, None);
        let (serves, stays_ended, rests) = (false, false, false);
        Self { what, name, log, reports, child, serves, failures: 0, why, due, stays_ended, rests }
    }

    /// After a clean end it rests.
    pub(super) fn stays_ended(self) -> Self {
        Self { stays_ended: true, ..self }
    }

    /// Whether it has ended on purpose, and waits until it is resumed.
    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// If it rests, it is due.
    pub(super) fn resume(&mut self) {
        if std::mem::take(&mut self.rests) {
            self.due = Instant::now();
        }
    }

    /// Starts its process.
    pub(super) fn start(&mut self, arguments: Vec<OsString>) {
        match Child::start(self.what, arguments, &self.log, self.reports) {
            Ok(child) => self.child = Some(child),
            Err(cause) => self.fail(cause),
        }
    }

    /// Notes that a start has failed.
    pub(super) fn fail(&mut self, cause: Error) {
        let pause = FIRST_PAUSE.saturating_mul(3_u32.saturating_pow(self.failures)).min(MOST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.why = Some(cause);
        self.down(pause);
    }

    fn down(&mut self, pause: Duration) {
        self.child = None;
        self.serves = false;
        self.due = Instant::now() + pause;
    }

    /// The next change of this part. May be cancelled and called again.
    pub(super) async fn event(&mut self) -> Event {
        let Some(child) = &mut self.child else {
            if self.rests {
                std::future::pending::<()>().await;
            }
            sleep_until(self.due).await;
            return Event::Due;
        };
        if self.serves {
            let End { how, is_clean } = child.ended().await;
            self.down(RESTART_PAUSE);
            self.rests = is_clean && self.stays_ended;
            return Event::Ended(how);
        }
        match child.ready().await {
            Ok(report) => {
                self.serves = true;
                self.failures = 0;
                self.why = None;
                Event::Ready(report)
            }
            Err(cause) => {
                self.fail(cause);
                Event::Failed
            }
        }
    }

    /// If it is down, it is due at once: what it needs has come back.
    pub(super) fn hurry(&mut self) {
        if self.child.is_none() {
            self.due = Instant::now();
        }
    }

    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    /// Whether it serves or rests, or has failed so often that the others do not wait for it.
    pub(super) fn is_settled(&self) -> bool {
        self.serves || self.rests || self.failures >= STARTS
    }

    /// Whether it has just come to count as failing.
    pub(super) fn has_given_up_hope(&self) -> bool {
        self.failures == STARTS
    }

    /// Its process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::pid)
    }

    /// Why it does not run, if it counts as failing.
    pub(super) fn failing(&self) -> Option<Failing> {
        let why = self.why.as_ref().filter(|_| self.failures >= STARTS)?;
        Some(Failing { part: self.name.clone(), attempts: self.failures, why: why.to_string() })
    }

    /// The last failure.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.why.take()
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        if let Some(child) = &self.child {
            child.terminate();
        }
    }

    /// Waits for its end, and kills it after `grace`. Returns whether it ended by itself.
    pub(super) async fn stop(&mut self, grace: Duration) -> bool {
        let ended = match &mut self.child {
            Some(child) => child.wait_or_kill(grace).await,
            None => true,
        };
        self.down(Duration::ZERO);
        ended
    }
}
