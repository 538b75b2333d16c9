//! Environments of processes, some of which may belong to other users.
//!
//! 1. `/proc/PID/environ` is read from the memory of the process. The read takes the lock of that
//!    memory, which the process can keep for as long as it likes, such as with a mapping of a file
//!    whose server does not answer.
//! 2. So a thread reads them. If a process takes longer than [`LIMIT`], it is left out from then on
//!    and another thread reads on. After [`MOST_STUCK`] such processes nothing is read any more:
//!    the programs of applications that are not known by then have no name.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long the read of an environment may take.
const LIMIT: Duration = Duration::from_millis(250);
/// Processes that may take longer, each of which keeps a thread.
const MOST_STUCK: usize = 8;

/// Processes that took too long.
#[derive(Debug, Default)]
pub(super) struct Environments {
    stuck: BTreeSet<u32>,
}

impl Environments {
    /// The environments of these processes, in their order, so far as they may be read.
    pub(super) fn of(&mut self, pids: Vec<u32>) -> Vec<(u32, Vec<u8>)> {
        self.read(pids, |pid| std::fs::read(format!("/proc/{pid}/environ")).ok())
    }

    fn read(&mut self, mut pids: Vec<u32>, read: fn(u32) -> Option<Vec<u8>>) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        pids.retain(|pid| !self.stuck.contains(pid));
        while !pids.is_empty() && self.stuck.len() < MOST_STUCK {
            let (sender, answers) = channel();
            let of_thread = pids.clone();
            let work = move || {
                let mut pids = of_thread.into_iter();
                // After a time-out nothing receives any more.
                while let Some(pid) = pids.next()
                    && sender.send(read(pid)).is_ok()
                {}
            };
            if std::thread::Builder::new().name("top-environments".to_owned()).spawn(work).is_err() {
                break;
            }
            let mut done = 0;
            let end = loop {
                match answers.recv_timeout(LIMIT) {
                    Ok(environment) => {
                        found.extend(environment.map(|environment| (pids[done], environment)));
                        done += 1;
                    }
                    Err(end) => break end,
                }
            };
            if end == RecvTimeoutError::Timeout
                && let Some(&pid) = pids.get(done)
            {
                self.stuck.insert(pid);
                done += 1;
            }
            pids.drain(..done.min(pids.len()));
            if end == RecvTimeoutError::Disconnected {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// How often a process was read that keeps its reader.
    static KEPT: AtomicU64 = AtomicU64::new(0);

    /// As of processes of which every third keeps its reader.
    fn read(pid: u32) -> Option<Vec<u8>> {
        if pid.is_multiple_of(3) {
            KEPT.fetch_add(1, Ordering::SeqCst);
        }
        while pid.is_multiple_of(3) {
            std::thread::park();
        }
        (pid != 4).then(|| pid.to_string().into_bytes())
    }

    #[test]
    fn processes_that_keep_their_reader_are_left_out() {
        let mut environments = Environments::default();
        let expected: Vec<_> = [1, 2, 5, 7].map(|pid| (pid, pid.to_string().into_bytes())).into();
        assert_eq!(environments.read((1..=7).collect(), read), expected);
        assert_eq!(environments.read((1..=7).collect(), read), expected);
        // Their threads may begin late.
        while KEPT.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(KEPT.load(Ordering::SeqCst), 2, "they are read again");
        environments.read((1..100).collect(), read);
        assert_eq!(environments.stuck.len(), MOST_STUCK);
        assert_eq!(environments.read(vec![1], read), [], "each keeps a thread");
    }
}
