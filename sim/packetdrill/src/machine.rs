//! The host behind the interface, on a thread of its own. Packetdrill calls from two threads. A
//! blocked call must not keep the other thread from moving the clock.
//!
//! 1. Every call is a closure that is sent to the thread; the thread runs the closures one after
//!    the other.
//! 2. A call that would block is retried every [`PAUSE`] of real time. Virtual time moves only by
//!    the calls of packetdrill's other thread.
//! 3. After [`PATIENCE`] retries the call fails with `EAGAIN`: by then no event can complete it.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use sietch_conformance::host::{Errno, Host, Outcome, Settings};

/// Real time between two tries of a blocked call.
const PAUSE: Duration = Duration::from_micros(50);
/// Tries of a blocked call: five seconds of real time, in which hours of virtual time pass.
const PATIENCE: u32 = 100_000;

/// The first socket number. It is above packetdrill's own descriptors.
const FIRST_FD: i32 = 500;

type Task = Box<dyn FnOnce(&mut Host) + Send>;

/// A handle to the host's thread.
#[derive(Debug)]
pub(crate) struct Machine {
    tasks: Mutex<Sender<Task>>,
}

impl Machine {
    /// Starts a host.
    pub(crate) fn start(settings: Settings) -> Self {
        let (sender, receiver) = channel::<Task>();
        std::thread::spawn(move || {
            let mut host = Host::new(&settings);
            host.number_from(FIRST_FD);
            for task in receiver {
                task(&mut host);
            }
        });
        Self { tasks: Mutex::new(sender) }
    }

    /// Runs `task` on the host. `None` if the host's thread has panicked.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Host) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, result) = channel();
        let task: Task = Box::new(move |host| {
            // The caller waits below.
            let _ = answer.send(task(host));
        });
        self.tasks.lock().ok()?.send(task).ok()?;
        result.recv().ok()
    }

    /// Runs a call that may block: retries it until it does not.
    pub(crate) fn wait(
        &self,
        fd: i32,
        call: impl Fn(&mut Host) -> Outcome + Clone + Send + 'static,
    ) -> Outcome {
        for _ in 0..PATIENCE {
            let again = call.clone();
            let (outcome, blocks) =
                self.run(move |host| (again(host), host.blocks(fd))).ok_or(Errno(libc::EIO))?;
            if outcome != Err(Errno(libc::EAGAIN)) || !blocks {
                return outcome;
            }
            std::thread::sleep(PAUSE);
        }
        eprintln!("sietch-packetdrill: a call on socket {fd} waits for something that does not come");
        Err(Errno(libc::EAGAIN))
    }
}
