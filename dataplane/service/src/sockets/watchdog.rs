//! Nobody keeps the service waiting in `accept`.
//!
//! 1. A kernel's listening socket is shared with its application, and so is its O_NONBLOCK: an application can clear it between the service's look and
//!    the service's `accept`, and take away the connection that was there. `accept` would then wait for as long as that application likes.
//! 2. So another thread watches. When one `accept` takes longer than a period it shuts the socket down: `accept` returns, and the application has lost its
//!    listener.
//! 3. The thread sleeps without a limit while nothing is accepted, so that an idle service stays idle.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

/// How long an `accept` may take: it never waits, but the machine may be busy.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Shared {
    /// Odd while one accepts; another number each time.
    turn: AtomicU64,
    /// The thread sleeps without a limit: nothing has changed over a period.
    asleep: AtomicBool,
    stopped: AtomicBool,
    /// The socket that is accepted from.
    socket: Mutex<Option<OwnedFd>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("sietch-watchdog".to_owned()).spawn(move || watch(&own))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// One is about to accept from `socket`.
    pub fn begin(&self, socket: &OwnedFd) {
        // Without one (no descriptor is left) nobody watches this time.
        *self.shared.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket.try_clone().ok();
        self.shared.turn.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// It has returned.
    pub fn end(&self) {
        self.shared.turn.fetch_add(1, Ordering::SeqCst);
        *self.shared.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared) {
    let (mut seen, mut since) = (0, Instant::now());
    while !shared.stopped.load(Ordering::SeqCst) {
        let turn = shared.turn.load(Ordering::SeqCst);
        let accepts = turn % 2 == 1;
        if turn != seen {
            (seen, since) = (turn, Instant::now());
        } else if accepts && since.elapsed() >= PERIOD {
            if let Some(socket) = &*shared.socket.lock().unwrap_or_else(PoisonError::into_inner) {
                tracing::warn!("an application kept `accept` waiting: its listener is shut down");
                let _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
            }
            since = Instant::now();
        } else if !accepts && since.elapsed() >= PERIOD {
            shared.asleep.store(true, Ordering::SeqCst);
            // One that began before it could see that this thread sleeps is seen now.
            if shared.turn.load(Ordering::SeqCst) == turn && !shared.stopped.load(Ordering::SeqCst) {
                std::thread::park();
            }
            shared.asleep.store(false, Ordering::SeqCst);
        }
        std::thread::park_timeout(PERIOD);
    }
}
