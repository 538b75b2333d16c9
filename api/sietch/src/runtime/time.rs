//! Sleeping, time limits and ticks, on the loop's clock.
//!
//! The resolution is one iteration of the loop: microseconds while it is busy, and some 50
//! microseconds (the kernel's timer slack) while it sleeps.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use super::deadlines::DeadlineKey;
use super::state::Net;

/// Waits until a time; see [`Net::sleep`].
pub struct Sleep {
    net: Net,
    deadline: u64,
    /// Its key among the deadlines, once it was polled.
    key: Option<DeadlineKey>,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.net.now() >= self.deadline {
            return Poll::Ready(());
        }
        let deadlines = &self.net.0.deadlines;
        let key = self.key.unwrap_or_else(|| deadlines.key(self.deadline));
        deadlines.set(key, context.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.net.0.deadlines.remove(key);
        }
    }
}

/// The time limit passed before the future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time limit has passed")]
pub struct Elapsed;

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Ticks at a steady rate; see [`Net::interval`].
#[derive(Debug)]
pub struct Interval {
    net: Net,
    next: u64,
    period: u64,
}

impl Interval {
    /// Waits for the next tick. Ticks that were missed are skipped. Dropping the future loses no
    /// tick.
    pub async fn tick(&mut self) {
        self.net.sleep_until(self.next).await;
        let missed = self.net.now().saturating_sub(self.next) / self.period;
        self.next = self.next.saturating_add((missed + 1).saturating_mul(self.period));
    }
}

impl Net {
    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(nanoseconds(duration)))
    }

    /// Waits until `deadline`, on the clock of [`Net::now`].
    pub fn sleep_until(&self, deadline: u64) -> Sleep {
        Sleep { net: self.clone(), deadline, key: None }
    }

    /// Awaits `future`, but not longer than `duration`; then it is dropped.
    ///
    /// # Errors
    /// [`Elapsed`].
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut limit = pin!(self.sleep(duration));
        std::future::poll_fn(|context| {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            limit.as_mut().poll(context).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Ticks every `period` (at least a nanosecond), for the first time after one period.
    pub fn interval(&self, period: Duration) -> Interval {
        let period = nanoseconds(period).max(1);
        Interval { net: self.clone(), next: self.now().saturating_add(period), period }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
