//! The descendants of this process, and the processor time that they have used.
//!
//! 1. This process is the *subreaper* of its descendants: a process that loses its parent becomes
//!    its child. So no process leaves the tree, even if it creates process groups or sessions.
//! 2. The time includes living processes and every process that its parent in the tree has waited
//!    for. It only grows.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, set_child_subreaper, waitpid,
};

use crate::error::{Error, system};

/// The fields of a line of `/proc/PID/stat`, counted from the state, which follows the name
/// (`proc(5)`).
const PARENT: usize = 1;
const TICKS: std::ops::Range<usize> = 11..15;
const BORN: usize = 19;

/// How long a killed process may take to end.
const DYING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A process. Its number and its start time identify it for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    parent: u32,
    born: u64,
    /// Processor time of it and the children that it has waited for, in ticks of 10 ms.
    ticks: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: u32, text: &str) -> Option<Self> {
        // The name may contain any character, a bracket too.
        let (_, text) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(number(PARENT)?).ok()?,
            born: number(BORN)?,
            ticks: TICKS.map(|at| number(at).unwrap_or(0)).sum(),
        })
    }

    /// Kills the process if it is still the same one, and reaps it if it is a child of this
    /// process.
    pub(super) fn end(self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        if Self::read(self.pid).is_none_or(|now| now.born != self.born) {
            return;
        }
        // It may have ended just now.
        let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let _ = kill_process(pid, Signal::KILL);
        let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&DYING));
        // It may be another's child.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Makes this process the new parent of processes that lose theirs.
pub(super) fn adopt_orphans() -> Result<(), Error> {
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(system("becoming the reaper of what is started"))
}

/// All descendants of the process `root`, without it: parents before their children.
pub(super) fn below(root: u32) -> Vec<Process> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut all: Vec<Process> = folder
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let (children, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|process| process.parent == parent);
        parents.extend(children.iter().map(|process| process.pid));
        found.extend(children);
        all = rest;
    }
    found
}

/// Nanoseconds that this process and all its descendants have used.
pub(super) fn used() -> u64 {
    let own = std::process::id();
    let below: u64 = below(own).iter().map(|process| process.ticks).sum();
    (below + Process::read(own).map_or(0, |process| process.ticks)) * crate::machine::TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_whatever_the_name() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 555 1 2";
        let process = Process::parse(7, line).expect("a whole line");
        assert_eq!(process, Process { pid: 7, parent: 3, born: 555, ticks: 100 });
        assert_eq!(Process::parse(7, "7 (a) S 3"), None);
    }

    #[test]
    fn a_child_is_below_and_can_be_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("coreutils");
        let found = below(std::process::id()).into_iter().find(|process| process.pid == child.id());
        found.expect("it was just started").end();
        assert!(below(std::process::id()).iter().all(|process| process.pid != child.id()));
        // It was already waited for, so this is no success.
        let _ = child.wait();
    }
}
