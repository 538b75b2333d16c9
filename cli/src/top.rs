//! `sietch top`: VNICs that the service core serves to unmodified programs: their threads, how busy those are, connections, and bytes a second.
//!
//! 1. The service core puts what its threads and VNICs do on a page for each VNIC, `tcp-NAME`; the daemon hands the pages out ([`crate::stat`] shows all of them).
//! 2. Rates are growth between two looks, a second apart. With `--once` there is one table, and with `--json` one object a look.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use sietch_protocol::StatGroup;

use crate::administration;
use crate::arguments::TopArguments;
use crate::error::Error;
use crate::output;
use crate::style::{Cell, Palette, Table, Tone, bytes};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// A VNIC that is served.
#[derive(Debug, PartialEq, Serialize)]
struct Served {
    vnic: String,
    /// Which thread drives it.
    thread: u64,
    /// Thousandths of a core that it took.
    busy: u64,
    applications: u64,
    connections: u64,
    /// Connections that are looked at in every turn.
    active: u64,
    /// Bytes a second, to the network and from it.
    sent: u64,
    received: u64,
}

/// Everything at one moment.
#[derive(Debug, PartialEq, Serialize)]
struct Report {
    /// Thousandths of a core, by thread.
    threads: BTreeMap<u64, u64>,
    vnics: Vec<Served>,
}

/// Shows it again and again, or once.
///
/// # Errors
/// [`Error::Control`]: no daemon, or it went away.
pub fn run(socket: &Path, arguments: TopArguments) -> Result<(), Error> {
    let mut connection = administration::connect(socket)?;
    let palette = Palette::of_stdout();
    let mut before = connection.stat()?;
    let mut taken = Instant::now();
    loop {
        std::thread::sleep(INTERVAL);
        let now = connection.stat()?;
        let elapsed = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        let report = report(&now, &before, elapsed);
        let text = if arguments.json {
            serde_json::to_string(&report).map_err(|cause| Error::Output(cause.into()))? + "\n"
        } else {
            // On a terminal each view replaces the one before.
            let clear = !arguments.once && std::io::stdout().is_terminal();
            format!("{}{}", if clear { "\x1b[H\x1b[2J" } else { "" }, render(&report, palette))
        };
        output::print(&text)?;
        if arguments.once {
            return Ok(());
        }
        before = now;
    }
}

fn value(group: &StatGroup, name: &str) -> u64 {
    group.metrics.iter().find(|metric| metric.name == name).map_or(0, |metric| metric.value)
}

fn report(now: &[StatGroup], before: &[StatGroup], elapsed: f64) -> Report {
    let mut report = Report { threads: BTreeMap::new(), vnics: Vec::new() };
    for group in now {
        let Some(vnic) = group.source.strip_prefix("tcp-") else { continue };
        let earlier = before.iter().find(|other| other.source == group.source && other.pid == group.pid);
        let rate = |name| {
            let old = earlier.map_or(value(group, name), |earlier| value(earlier, name));
            // Whole bytes are enough; a counter that seems to shrink was made anew.
            (value(group, name).saturating_sub(old) as f64 / elapsed.max(0.001)) as u64
        };
        report.threads.insert(value(group, "thread"), value(group, "thread.busy"));
        report.vnics.push(Served {
            vnic: vnic.chars().filter(|c| !c.is_control()).collect(),
            thread: value(group, "thread"),
            busy: value(group, "busy"),
            applications: value(group, "applications"),
            connections: value(group, "connections"),
            active: value(group, "active"),
            sent: rate("sent.bytes"),
            received: rate("received.bytes"),
        });
    }
    report
}

/// Thousandths as a percentage.
fn percent(thousandths: u64) -> Cell {
    Cell::text(format!("{}.{}%", thousandths / 10, thousandths % 10)).right()
}

fn render(report: &Report, palette: Palette) -> String {
    if report.vnics.is_empty() {
        return "no VNIC is served to unmodified programs; `served = true` in sietch.toml and `sietch run --vnic NAME` make one\n".to_owned();
    }
    let mut text = String::new();
    for (thread, busy) in &report.threads {
        let name = format!("thread {thread}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}  {}.{}% busy", palette.paint(Tone::Strong, &name), busy / 10, busy % 10);
    }
    let mut table = Table::new(0);
    table.headings(&["VNIC", "thread", "busy", "programs", "connections", "active", "sent/s", "received/s"]);
    for vnic in &report.vnics {
        table.row(vec![
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
    text.push_str(&table.render(palette));
    text
}

#[cfg(test)]
mod tests {
    use sietch_protocol::metrics::{Kind, Metric};

    use super::*;

    fn group(source: &str, sent: u64) -> StatGroup {
        let metric = |name: &str, kind, value| Metric { name: name.to_owned(), kind, value };
        let metrics = vec![
            metric("thread", Kind::Gauge, 0),
            metric("thread.busy", Kind::Gauge, 305),
            metric("busy", Kind::Gauge, 255),
            metric("connections", Kind::Gauge, 50),
            metric("sent.bytes", Kind::Counter, sent),
        ];
        StatGroup { source: source.to_owned(), pid: Some(7), metrics }
    }

    #[test]
    fn served_vnics_are_shown_with_their_rates_and_nothing_else_is() {
        let now = [group("tcp-web", 5000), group("kv", 9)];
        let report = report(&now, &[group("tcp-web", 1000)], 2.0);
        assert_eq!(report.vnics.len(), 1);
        assert_eq!((report.vnics[0].sent, report.vnics[0].received), (2000, 0));
        let text = render(&report, Palette::plain());
        assert!(text.starts_with("thread 0  30.5% busy\n"), "{text}");
        assert!(text.contains("web") && text.contains("25.5%") && text.contains("50"), "{text}");
    }

    #[test]
    fn without_any_it_says_how_to_have_one() {
        assert!(render(&report(&[], &[], 1.0), Palette::plain()).contains("served = true"));
    }
}
