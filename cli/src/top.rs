//! `sietch top`: the programs under `sietch run` (connections, bytes a second, memory) and the
//! VNICs that are served to them. It also shows the threads of the service core, with the share of
//! a processor that each used.
//!
//! 1. Every second a sample is taken ([`report::Sample`]). The daemon has the pages of the
//!    counters. The socket service lists the applications: all of them for root and the service's
//!    user, else the caller's own. `/proc` has the processor times of the service core's threads,
//!    and the names of programs: those that were started by `sietch run` by a variable of their
//!    environment, others by their listeners. A program that rewrites its title, such as
//!    redis-server, writes over its environment.
//! 2. On a terminal each view replaces the previous one on the alternate screen ([`terminal`]);
//!    elsewhere they follow one another. With `--once` there is one, and with `--json` one object a
//!    sample.
//! 3. Without a daemon (`sietch service --sockets-only`) there are no VNICs and no cores to show;
//!    without either it is an error.

mod environments;
mod report;
mod terminal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sietch_protocol::socket_service::{APPLICATION_VARIABLE, Request, RequestKind};
use sietch_protocol::{Connection, SOCKETS_PAGE};
use sietch_service::sockets::Listing;

use crate::administration;
use crate::arguments::TopArguments;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::sockets;
use crate::style::Palette;
use environments::Environments;
use report::{Order, Report, Sample};
use terminal::Screen;

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Ticks of the clock a second, the unit of times in `/proc` (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The sources of samples.
struct Source {
    daemon: Option<Connection>,
    sockets: PathBuf,
    began: Instant,
    programs: BTreeMap<String, String>,
    environments: Environments,
}

/// Shows the view repeatedly, or once.
///
/// # Errors
/// [`Error::Control`]: neither daemon nor socket service, or the daemon went away.
pub(crate) fn run(socket: &Path, arguments: TopArguments) -> Result<(), Error> {
    let mut source = Source::open(socket)?;
    let palette = Palette::of_stdout();
    let screen =
        if arguments.once || arguments.json { None } else { Screen::open().map_err(Error::Output)? };
    let mut order = Order::default();
    let mut before = source.sample()?;
    let mut due = Instant::now() + INTERVAL;
    let mut shown: Option<Report> = None;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        match &screen {
            Some(screen) => {
                let view = shown.as_ref().map_or_else(
                    || "sietch top: one moment ...\n".to_owned(),
                    |report| report.headline(order, palette) + &report.render(palette),
                );
                screen.show(&view).map_err(Error::Output)?;
                match screen.key(left).map_err(Error::Output)? {
                    // Escape, and Ctrl-C.
                    Some(b'q' | b'Q' | 0x1b | 3) => return Ok(()),
                    Some(b's' | b'S') => {
                        order = order.next();
                        shown.iter_mut().for_each(|report| report.order(order));
                    }
                    Some(_) | None => {}
                }
            }
            None => std::thread::sleep(left),
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + INTERVAL;
        let now = source.sample()?;
        let mut report = Report::of(&now, &before);
        report.order(order);
        before = now;
        if screen.is_none() {
            let text = if arguments.json {
                serde_json::to_string(&report).map_err(|cause| Error::Output(cause.into()))?
            } else {
                report.render(palette)
            };
            output::print(&(text + "\n"))?;
        }
        shown = Some(report);
        if arguments.once {
            return Ok(());
        }
    }
}

impl Source {
    fn open(socket: &Path) -> Result<Self, Error> {
        let sockets = paths::sockets_beside(socket);
        let daemon = administration::connect(socket);
        let (programs, environments) = (BTreeMap::new(), Environments::default());
        let mut source = Self { daemon: None, sockets, began: Instant::now(), programs, environments };
        match daemon {
            Ok(daemon) => source.daemon = Some(daemon),
            Err(cause) if source.list().is_none() => return Err(cause),
            Err(_) => {}
        }
        Ok(source)
    }

    fn list(&self) -> Option<Listing> {
        sockets::query(&self.sockets, &Request::new(RequestKind::List, [0; 16])).ok()
    }

    fn sample(&mut self) -> Result<Sample, Error> {
        let pages = self.daemon.as_mut().map(Connection::stat).transpose()?.unwrap_or_default();
        let listing = self.list().unwrap_or_default();
        let serves = |source: &str| source == SOCKETS_PAGE || source.starts_with("tcp-");
        let service = pages.iter().find(|page| serves(&page.source)).and_then(|page| page.pid);
        let threads = service.map(|pid| threads_of(i64::from(pid))).unwrap_or_default();
        if listing.applications.iter().any(|found| !self.programs.contains_key(&found.id)) {
            self.programs = programs(&mut self.environments);
            name_by_listeners(&mut self.programs, &listing);
        }
        Ok(Sample {
            at: self.began.elapsed().as_secs_f64(),
            pages,
            listing,
            threads,
            programs: self.programs.clone(),
        })
    }
}

/// Threads of a process by name, and their processor time in seconds.
fn threads_of(pid: i64) -> BTreeMap<String, f64> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let times = tasks.flatten().filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (begin, fields) = stat.rsplit_once(") ")?;
        let (_, name) = begin.split_once('(')?;
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap_or(0.0));
        Some((name.to_owned(), ticks.sum::<f64>() / TICKS))
    });
    let mut threads = BTreeMap::new();
    // The other threads only do accounting.
    for (name, time) in times.filter(|(name, _)| name.starts_with("sietch-")) {
        *threads.entry(name).or_default() += time;
    }
    threads
}

/// Programs by application, so far as their environment may be read. Of an application's processes
/// the one that was started first gives the name.
fn programs(environments: &mut Environments) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    let mut pids: Vec<u32> =
        processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for (pid, environment) in environments.of(pids) {
        let id = environment.split(|&byte| byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(APPLICATION_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        });
        let Some(id) = id else { continue };
        if let Some(name) = name_of(pid.cast_signed()) {
            found.entry(id).or_insert(name);
        }
    }
    found
}

/// Adds the programs whose environment does not say what they are, if they have a listener.
fn name_by_listeners(programs: &mut BTreeMap<String, String>, listing: &Listing) {
    for listener in &listing.listeners {
        if !programs.contains_key(&listener.application)
            && let Some(name) = name_of(listener.pid)
        {
            programs.insert(listener.application.clone(), name);
        }
    }
}

/// The name of a process's program.
fn name_of(pid: i32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use sietch_service::sockets::ListedListener;

    use super::*;

    #[test]
    fn a_program_without_its_environment_is_named_by_its_listener() {
        let own = std::fs::read_to_string("/proc/self/comm").unwrap().trim().to_owned();
        let pid = std::process::id().cast_signed();
        let listener = |application: &str, pid| ListedListener {
            application: application.to_owned(),
            pid,
            name: "127.0.0.1:1".parse().unwrap(),
            namespace: 1,
            backlog: 1,
            leads_to: None,
            vnic: None,
        };
        let listeners = vec![listener("0a", pid), listener("0b", pid), listener("0c", 0), listener("0c", -1)];
        let listing = Listing { listeners, ..Listing::default() };
        let mut programs = BTreeMap::from([("0b".to_owned(), "known".to_owned())]);
        name_by_listeners(&mut programs, &listing);
        let expected = [("0a".to_owned(), own), ("0b".to_owned(), "known".to_owned())];
        assert_eq!(programs, BTreeMap::from(expected));
    }
}
