//! The threads that send the mount's requests to the daemon, each over a connection of its own.
//!
//! 1. The thread that takes the kernel's requests never waits: a request that needs the daemon, or
//!    a disk, becomes a job.
//! 2. A job belongs to a *lane*: the areas' names, the bytes of one area, or the view of one area.
//!    A lane runs one job at a time, in order, on any free thread. An owner that does not answer
//!    therefore blocks one thread and no other lane.
//! 3. At most [`MOST_WAITING`] jobs wait in a lane; the caller of a further one gets EAGAIN at
//!    once.
//! 4. A broken connection is re-established at the next attempt. A daemon that is being restarted
//!    is waited for, for [`RECONNECT`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sietch_protocol::{CallError, Connection};

use super::error::RequestError;

/// Threads, and so connections to the daemon, which allows an ordinary user 32. As many owners can
/// be silent before others wait.
const WORKERS: usize = 8;
/// Jobs that wait in one lane: more than the kernel reads ahead for all files of one program.
const MOST_WAITING: usize = 256;
/// For the daemon to answer: longer than it gives an owner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a daemon that is not there is waited for: a restart takes tens of milliseconds.
const RECONNECT: Duration = Duration::from_secs(1);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// A sequence of jobs that run in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Names and sizes.
    Names,
    /// The bytes of the area at this path.
    Area(String),
    /// The view of the area at this path.
    View(String),
}

/// A job. It gets `None` where too many wait already.
pub(super) type Job = Box<dyn FnOnce(Option<&mut ReconnectingClient>) + Send>;

/// A connection to the daemon that reconnects.
pub(super) struct ReconnectingClient {
    socket: PathBuf,
    connection: Option<Connection>,
}

impl ReconnectingClient {
    /// One that connects when it is first used.
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), connection: None }
    }

    /// Sends a request, and repeats it on a new connection if the first was broken.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub(super) fn request<T>(
        &mut self,
        mut call: impl FnMut(&mut Connection) -> Result<T, CallError>,
    ) -> Result<T, RequestError> {
        let fresh = self.connection.is_none();
        match self.try_request(&mut call) {
            // The daemon was restarted since the last request.
            Err(RequestError::Unavailable(CallError::Closed | CallError::Frame(_))) if !fresh => {
                self.try_request(&mut call)
            }
            other => other,
        }
    }

    fn try_request<T>(
        &mut self,
        call: &mut impl FnMut(&mut Connection) -> Result<T, CallError>,
    ) -> Result<T, RequestError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().map_err(RequestError::Unavailable)?,
        };
        match call(&mut connection) {
            Ok(answer) => {
                self.connection = Some(connection);
                Ok(answer)
            }
            Err(CallError::Refused(error)) => {
                self.connection = Some(connection);
                Err(RequestError::Refused(error))
            }
            Err(error) => Err(RequestError::Unavailable(error)),
        }
    }

    fn connect(&self) -> Result<Connection, CallError> {
        let deadline = Instant::now() + RECONNECT;
        loop {
            match Connection::connect_as_administrator(&self.socket, "mount", ANSWER_TIMEOUT) {
                Err(CallError::Connect { .. } | CallError::Closed) if Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }
}

#[derive(Default)]
struct State {
    waiting: HashMap<Lane, VecDeque<Job>>,
    /// Lanes that have jobs and no thread.
    ready: VecDeque<Lane>,
    running: HashSet<Lane>,
    ending: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work_ready: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock: nothing under it panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<(Lane, Job)> {
        let mut state = self.state();
        loop {
            if state.ending {
                return None;
            }
            if let Some(lane) = state.ready.pop_front() {
                let job = state.waiting.get_mut(&lane).and_then(VecDeque::pop_front);
                if let Some(job) = job {
                    state.running.insert(lane.clone());
                    return Some((lane, job));
                }
                continue;
            }
            state = self.work_ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finished(&self, lane: Lane) {
        let mut state = self.state();
        state.running.remove(&lane);
        match state.waiting.get(&lane) {
            Some(jobs) if !jobs.is_empty() => {
                state.ready.push_back(lane);
                self.work_ready.notify_one();
            }
            _ => {
                state.waiting.remove(&lane);
            }
        }
    }

    fn work(&self, mut client: ReconnectingClient) {
        while let Some((lane, job)) = self.next() {
            job(Some(&mut client));
            self.finished(lane);
        }
    }
}

/// The threads. They end when this is dropped.
pub(super) struct Workers {
    shared: Arc<Shared>,
}

impl Workers {
    /// Starts them; they connect at the first request.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(socket: &Path) -> io::Result<Self> {
        let workers = Self { shared: Arc::default() };
        for number in 0..WORKERS {
            let (shared, client) = (Arc::clone(&workers.shared), ReconnectingClient::new(socket));
            let thread = std::thread::Builder::new().name(format!("mount-{number}"));
            thread.spawn(move || shared.work(client))?;
        }
        Ok(workers)
    }

    /// Runs `job` after all others of its lane.
    pub(super) fn submit(&self, lane: Lane, job: Job) {
        let mut state = self.shared.state();
        let jobs = state.waiting.entry(lane.clone()).or_default();
        if jobs.len() >= MOST_WAITING {
            drop(state);
            return job(None);
        }
        jobs.push_back(job);
        if jobs.len() == 1 && !state.running.contains(&lane) {
            state.ready.push_back(lane);
            self.shared.work_ready.notify_one();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A thread in the middle of a request ends after it; its answer is not needed any more.
        self.shared.state().ending = true;
        self.shared.work_ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_blocked_lane_keeps_its_order_and_blocks_no_other_lane() {
        let workers = Workers::start(Path::new("/nowhere")).expect("threads");
        let (open, gate) = channel::<()>();
        let (said, replies) = channel();
        let stuck = Lane::Area("/main/a".to_owned());
        workers.submit(stuck.clone(), Box::new(move |_| gate.recv().expect("opened")));
        for number in 0..3 {
            let said = said.clone();
            workers.submit(stuck.clone(), Box::new(move |_| said.send(number).expect("received")));
        }
        let other = said.clone();
        workers.submit(Lane::Names, Box::new(move |_| other.send(9).expect("received")));
        assert_eq!(replies.recv(), Ok(9), "another lane waited");
        open.send(()).expect("waits");
        assert_eq!([replies.recv(), replies.recv(), replies.recv()], [Ok(0), Ok(1), Ok(2)]);
    }

    #[test]
    fn a_lane_that_is_full_says_so_at_once() {
        let workers = Workers::start(Path::new("/nowhere")).expect("threads");
        let (open, gate) = channel::<()>();
        let (began, begun) = channel();
        let run = move |_: Option<&mut ReconnectingClient>| {
            began.send(()).expect("waits");
            gate.recv().expect("opened");
        };
        workers.submit(Lane::Names, Box::new(run));
        begun.recv().expect("it runs");
        for _ in 0..MOST_WAITING {
            workers.submit(Lane::Names, Box::new(|client| assert!(client.is_some())));
        }
        let (said, replies) = channel();
        workers.submit(Lane::Names, Box::new(move |client| said.send(client.is_none()).expect("received")));
        assert_eq!(replies.recv(), Ok(true));
        open.send(()).expect("waits");
    }
}
