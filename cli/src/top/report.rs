//! A sample, and how it is shown.
//!
//! 1. [`Sample`] is what is read at one moment: the counters' pages, the socket service's list, and
//!    the service core's threads as the kernel sees them. A [`Report`] has the rates between two
//!    samples.
//! 2. The bytes of a connection are counted while it is open. The real rate is therefore at least
//!    the one shown: connections that ended between two samples are missing from it.
//! 3. A program that runs TCP on a VNIC of its own, such as the store, has these bytes on a page of
//!    its own process ([`OWN_QUEUE`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use sietch_protocol::StatGroup;
use sietch_service::sockets::{ListedApplication, Listing};

use crate::style::{Cell, Palette, Table, Tone, bytes};

/// The label of the page on which a program counts the frames of its own VNIC.
const OWN_QUEUE: &str = "nic";

/// The data that are read at one moment.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Seconds since some moment.
    pub at: f64,
    /// The counters' pages.
    pub pages: Vec<StatGroup>,
    /// The list of the socket service.
    pub listing: Listing,
    /// Threads of the service core: name, and seconds of processor time.
    pub threads: BTreeMap<String, f64>,
    /// Programs by application.
    pub programs: BTreeMap<String, String>,
}

impl Sample {
    /// Bytes that an application's processes have sent and received through VNICs of their own.
    fn own_queues(&self, application: &str) -> [u64; 2] {
        let listeners = self.listing.listeners.iter().filter(|found| found.application == application);
        let pids: BTreeSet<u32> = listeners.filter_map(|found| u32::try_from(found.pid).ok()).collect();
        let is_own =
            |page: &&StatGroup| page.source == OWN_QUEUE && page.pid.is_some_and(|pid| pids.contains(&pid));
        self.pages.iter().filter(is_own).fold([0; 2], |[sent, received], page| {
            [sent + value(page, "tx_bytes"), received + value(page, "rx_bytes")]
        })
    }
}

/// A thread of the service core.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Core {
    /// Its name.
    pub thread: String,
    /// Thousandths of a core: spinning included.
    pub cpu: u64,
}

/// A VNIC that is served.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Served {
    /// Its name.
    pub vnic: String,
    /// The thread that drives it.
    pub thread: u64,
    /// Thousandths of a core that it took.
    pub busy: u64,
    /// Applications.
    pub applications: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that are polled in every iteration.
    pub active: u64,
    /// Bytes a second, to the network and from it.
    pub sent: u64,
    /// See above.
    pub received: u64,
}

/// An application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Program {
    /// Its id.
    pub application: String,
    /// The program, if it could be found out.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// Its VNIC; none: the host's addresses.
    pub vnic: Option<String>,
    /// Listeners.
    pub listeners: usize,
    /// Connections, made and accepted.
    pub connections: usize,
    /// Bytes a second.
    pub sent: u64,
    /// See above.
    pub received: u64,
    /// Bytes of memory in which its connections are.
    pub memory: u64,
}

/// Everything at one moment.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    /// Thousandths of a core for which the threads that drive VNICs moved something, by thread.
    pub threads: BTreeMap<u64, u64>,
    /// All threads of the service core.
    pub cores: Vec<Core>,
    /// VNICs.
    pub vnics: Vec<Served>,
    /// Applications.
    pub applications: Vec<Program>,
}

/// The order of applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Bytes a second.
    #[default]
    Bytes,
    /// Connections.
    Connections,
    /// Memory.
    Memory,
}

impl Order {
    /// The next one.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Connections,
            Self::Connections => Self::Memory,
            Self::Memory => Self::Bytes,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Connections => "connections",
            Self::Memory => "memory",
        }
    }

    fn of(self, program: &Program) -> u64 {
        match self {
            Self::Bytes => program.sent + program.received,
            Self::Connections => program.connections as u64,
            Self::Memory => program.memory,
        }
    }
}

fn value(group: &StatGroup, name: &str) -> u64 {
    group.metrics.iter().find(|metric| metric.name == name).map_or(0, |metric| metric.value)
}

impl Report {
    /// The rates from `before` to `now`.
    pub(super) fn of(now: &Sample, before: &Sample) -> Self {
        let elapsed = (now.at - before.at).max(0.001);
        // A counter that seems to shrink belongs to a new page.
        let rate = |new: u64, old: u64| (new.saturating_sub(old) as f64 / elapsed) as u64;
        let mut report = Self::default();
        for (thread, seconds) in &now.threads {
            let earlier = before.threads.get(thread).copied().unwrap_or(*seconds);
            let cpu = ((seconds - earlier).max(0.0) / elapsed * 1000.0).round() as u64;
            report.cores.push(Core { thread: thread.clone(), cpu: cpu.min(1000) });
        }
        for group in &now.pages {
            let Some(vnic) = group.source.strip_prefix("tcp-") else { continue };
            let same = |other: &&StatGroup| other.source == group.source && other.pid == group.pid;
            let earlier = before.pages.iter().find(same).unwrap_or(group);
            let rate = |name| rate(value(group, name), value(earlier, name));
            let busy = (rate("busy.ns") / 1_000_000).min(1000);
            let thread = report.threads.entry(value(group, "thread")).or_default();
            *thread = (*thread + busy).min(1000);
            report.vnics.push(Served {
                vnic: vnic.to_owned(),
                thread: value(group, "thread"),
                busy,
                applications: value(group, "applications"),
                connections: value(group, "connections"),
                active: value(group, "active"),
                sent: rate("sent.bytes"),
                received: rate("received.bytes"),
            });
        }
        for found in &now.listing.applications {
            let same = |other: &&ListedApplication| (&other.id, &other.vnic) == (&found.id, &found.vnic);
            let earlier = before.listing.applications.iter().find(same).unwrap_or(found);
            let queues = [now, before].map(|sample| sample.own_queues(&found.id));
            let own = |direction: usize| rate(queues[0][direction], queues[1][direction]);
            report.applications.push(Program {
                application: found.id.clone(),
                program: now.programs.get(&found.id).cloned().unwrap_or_default(),
                uid: found.uid,
                vnic: found.vnic.clone(),
                listeners: found.listeners,
                connections: found.connections + found.accepted,
                sent: rate(found.sent, earlier.sent) + own(0),
                received: rate(found.received, earlier.received) + own(1),
                memory: found.memory,
            });
        }
        report
    }

    /// Orders the applications.
    pub(super) fn order(&mut self, order: Order) {
        self.applications.sort_by(|one, other| {
            let most = order.of(other).cmp(&order.of(one));
            most.then_with(|| one.application.cmp(&other.application))
        });
    }

    /// As text.
    pub(super) fn render(&self, palette: Palette) -> String {
        let mut text = String::new();
        if !self.cores.is_empty() {
            let mut cores = Table::new(0);
            cores.headings(&["SERVICE CORE", "CPU", "MOVING"]);
            for core in &self.cores {
                let number = core.thread.strip_prefix("sietch-tcp-").and_then(|number| number.parse().ok());
                let busy = number.and_then(|number: u64| self.threads.get(&number)).copied();
                let busy = busy.map_or(Cell::text("-").right(), percent);
                cores.row(vec![Cell::text(&core.thread), percent(core.cpu), busy]);
            }
            text.push_str(&cores.render(palette));
        }
        if !self.vnics.is_empty() {
            let mut vnics = Table::new(0);
            let headings =
                ["VNIC", "CORE", "BUSY", "PROGRAMS", "CONNECTIONS", "ACTIVE", "SENT/S", "RECEIVED/S"];
            vnics.headings(&headings);
            for vnic in &self.vnics {
                vnics.row(vec![
                    Cell::text(&vnic.vnic),
                    Cell::number(vnic.thread),
                    percent(vnic.busy),
                    Cell::number(vnic.applications),
                    Cell::number(vnic.connections),
                    Cell::number(vnic.active),
                    Cell::text(bytes(vnic.sent)).right(),
                    Cell::text(bytes(vnic.received)).right(),
                ]);
            }
            let _ = write!(text, "\n{}", vnics.render(palette));
        }
        if self.applications.is_empty() {
            text.push_str("\nno program under `sietch run` has a listener or a connection\n");
            return text;
        }
        let mut programs = Table::new(0);
        programs.headings(&[
            "PROGRAM",
            "APPLICATION",
            "UID",
            "VNIC",
            "LISTENERS",
            "CONNECTIONS",
            "SENT/S",
            "RECEIVED/S",
            "MEMORY",
        ]);
        for program in &self.applications {
            let name = if program.program.is_empty() { "?" } else { &program.program };
            programs.row(vec![
                Cell::text(name).tone(Tone::Strong),
                // As many digits as distinguish them; `sietch sockets` shows all.
                Cell::text(program.application.get(..8).unwrap_or(&program.application)),
                Cell::text(program.uid).right(),
                Cell::text(program.vnic.as_deref().unwrap_or("-")),
                Cell::number(program.listeners as u64),
                Cell::number(program.connections as u64),
                Cell::text(bytes(program.sent)).right(),
                Cell::text(bytes(program.received)).right(),
                Cell::text(bytes(program.memory)).right(),
            ]);
        }
        let _ = write!(text, "\n{}", programs.render(palette));
        text
    }

    /// The line above everything on a terminal.
    pub(super) fn headline(&self, order: Order, palette: Palette) -> String {
        let connections: usize = self.applications.iter().map(|program| program.connections).sum();
        let cpu: u64 = self.cores.iter().map(|core| core.cpu).sum();
        format!(
            "{}  {} programs, {connections} connections, {}.{}% of a core in the service    {}\n\n",
            palette.paint(Tone::Strong, "sietch top"),
            self.applications.len(),
            cpu / 10,
            cpu % 10,
            palette.paint(Tone::Faint, &format!("q quits, s sorts (by {})", order.name())),
        )
    }
}

/// Thousandths as a percentage.
fn percent(thousandths: u64) -> Cell {
    Cell::text(format!("{}.{}%", thousandths / 10, thousandths % 10)).right()
}

#[cfg(test)]
mod tests {
    use sietch_protocol::metrics::{Kind, Metric};

    use sietch_service::sockets::ListedListener;

    use super::*;

    fn page(source: &str, sent: u64, busy: u64) -> StatGroup {
        let metric = |name: &str, kind, value| Metric { name: name.to_owned(), kind, value };
        let metrics = vec![
            metric("thread", Kind::Gauge, 0),
            metric("connections", Kind::Gauge, 50),
            metric("sent.bytes", Kind::Counter, sent),
            metric("busy.ns", Kind::Counter, busy),
        ];
        StatGroup { source: source.to_owned(), pid: Some(7), metrics }
    }

    fn application(id: &str, vnic: Option<&str>, connections: usize, sent: u64) -> ListedApplication {
        let (id, vnic) = (id.repeat(16), vnic.map(str::to_owned));
        ListedApplication { id, uid: 1000, vnic, connections, accepted: 1, sent, ..Default::default() }
    }

    fn sample(at: f64, sent: u64, busy: u64, cpu: f64) -> Sample {
        let listing = Listing {
            applications: vec![application("0a", Some("web"), 2, sent), application("0b", None, 9, 0)],
            ..Listing::default()
        };
        Sample {
            at,
            pages: vec![page("tcp-web", sent, busy), page("kv", 9, 9)],
            listing,
            threads: BTreeMap::from([("sietch-tcp-0".to_owned(), cpu), ("sietch-switch".to_owned(), 1.0)]),
            programs: BTreeMap::from([("0a".repeat(16), "redis-server".to_owned())]),
        }
    }

    #[test]
    fn programs_cores_and_vnics_are_shown_with_their_rates_and_nothing_else_is() {
        let mut report =
            Report::of(&sample(2.0, 5000, 700_000_000, 3.5), &sample(0.0, 1000, 200_000_000, 3.0));
        assert_eq!(report.vnics.len(), 1);
        assert_eq!((report.vnics[0].sent, report.vnics[0].busy), (2000, 250));
        assert_eq!(report.threads, BTreeMap::from([(0, 250)]));
        let core = |name: &str| report.cores.iter().find(|core| core.thread == name).map(|core| core.cpu);
        assert_eq!((core("sietch-tcp-0"), core("sietch-switch")), (Some(250), Some(0)));
        report.order(Order::Bytes);
        let found: Vec<_> = report.applications.iter().map(|it| (it.sent, it.connections)).collect();
        assert_eq!(found, [(2000, 3), (0, 10)]);
        report.order(Order::Connections);
        assert_eq!(report.applications[0].connections, 10);
        insta::assert_snapshot!(report.render(Palette::plain()), @r"
        SERVICE CORE   CPU    MOVING
        sietch-switch   0.0%       -
        sietch-tcp-0   25.0%   25.0%

        VNIC  CORE  BUSY   PROGRAMS  CONNECTIONS  ACTIVE  SENT/S   RECEIVED/S
        web      0  25.0%         0           50       0  1.9 KiB         0 B

        PROGRAM       APPLICATION  UID   VNIC  LISTENERS  CONNECTIONS  SENT/S   RECEIVED/S  MEMORY
        ?             0b0b0b0b     1000  -             0           10      0 B         0 B     0 B
        redis-server  0a0a0a0a     1000  web           0            3  1.9 KiB         0 B     0 B
        ");
        insta::assert_snapshot!(report.headline(Order::Bytes, Palette::plain()), @r"
        sietch top  2 programs, 13 connections, 25.0% of a core in the service    q quits, s sorts (by bytes)
        ");
    }

    #[test]
    fn a_program_s_own_vnic_counts() {
        let at = |at, bytes| {
            let listener = ListedListener {
                application: "0b".repeat(16),
                pid: 7,
                name: "127.0.0.1:1".parse().unwrap(),
                namespace: 1,
                backlog: 1,
                leads_to: None,
                vnic: None,
            };
            let mut sample = sample(at, 0, 0, 0.0);
            sample.listing.listeners = vec![listener];
            let metric = |name: &str, value| Metric { name: name.to_owned(), kind: Kind::Counter, value };
            let metrics = vec![metric("tx_bytes", bytes), metric("rx_bytes", 2 * bytes)];
            for pid in [7, 8] {
                let page =
                    StatGroup { source: OWN_QUEUE.to_owned(), pid: Some(pid), metrics: metrics.clone() };
                sample.pages.push(page);
            }
            sample
        };
        let report = Report::of(&at(2.0, 3000), &at(0.0, 1000));
        let rates: Vec<_> = report.applications.iter().map(|it| (it.sent, it.received)).collect();
        assert_eq!(rates, [(0, 0), (1000, 2000)]);
    }

    #[test]
    fn an_idle_service_shows_that_nothing_spins() {
        let at = |at| sample(at, 5000, 700_000_000, 3.5);
        let report = Report::of(&at(5.0), &at(4.0));
        assert_eq!(report.threads, BTreeMap::from([(0, 0)]));
        assert!(report.cores.iter().all(|core| core.cpu == 0), "{:?}", report.cores);
    }

    #[test]
    fn without_any_program_it_says_so() {
        let report = Report::of(&Sample::default(), &Sample::default());
        insta::assert_snapshot!(report.render(Palette::plain()), @"no program under `sietch run` has a listener or a connection");
    }
}
