//! The host behind the interface, on a thread of its own: packetdrill calls from two threads, and a
//! call that waits must not keep the other from moving the clock.
//!
//! 1. Every call is a closure that is sent to the thread and runs there, one after the other.
//! 2. A call that would wait is tried again every [`PAUSE`] of real time; virtual time moves only
//!    by what packetdrill's other thread does.
//! 3. Past [`PATIENCE`] nothing will ever come, and the call fails with `EAGAIN`.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use sietch_conformance::host::{Errno, Host, Outcome, Settings};

/// Real time between two tries of a call that waits.
const PAUSE: Duration = Duration::from_micros(50);
/// Tries of a call that waits: five seconds of real time, for hours of virtual time pass in less.
const PATIENCE: u32 = 100_000;

/// Sockets are numbered from here on: packetdrill's own descriptors are below.
const FIRST_FD: i32 = 500;

type Task = Box<dyn FnOnce(&mut Host) + Send>;

/// A way to the host's thread.
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

    /// Makes a call that may wait, again and again until it does not.
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
