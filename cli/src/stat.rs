//! `sietch stat`: counters of the daemon, the VNICs and the applications.
//!
//! 1. The daemon has groups of counters: its own, each VNIC's, and the page of every application.
//! 2. With `--watch` the groups are read repeatedly on the same connection, and each counter shows
//!    its growth a second. A group is identified by its source and its process, so that a restarted
//!    store begins again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use sietch_protocol::StatGroup;
use sietch_protocol::metrics::Kind;

use crate::administration;
use crate::arguments::StatArguments;
use crate::error::Error;
use crate::output;
use crate::style::{Cell, Palette, Table, Tone, escaped};

/// Counters of one source.
#[derive(Debug, Serialize)]
struct Group {
    source: String,
    pid: Option<u32>,
    /// In the order of their names.
    values: BTreeMap<String, u64>,
    /// Growth a second, of the counters that were there the time before.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rates: BTreeMap<String, f64>,
}

/// Everything at one moment.
#[derive(Debug, Serialize)]
struct Report {
    groups: Vec<Group>,
}

/// Prints the counters, once or repeatedly.
///
/// # Errors
/// [`Error::Control`]: no daemon, or it went away.
pub(crate) fn run(socket: &Path, arguments: StatArguments) -> Result<(), Error> {
    let mut connection = administration::connect(socket)?;
    let palette = Palette::of_stdout();
    let mut before: Vec<StatGroup> = Vec::new();
    let mut taken = Instant::now();
    loop {
        let now = connection.stat()?;
        let elapsed = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        let report = report(&now, &before, elapsed);
        output::print(&text(&report, arguments, palette)?)?;
        let Some(seconds) = arguments.watch else { return Ok(()) };
        before = now;
        std::thread::sleep(Duration::from_secs(seconds.into()));
    }
}

fn text(report: &Report, arguments: StatArguments, palette: Palette) -> Result<String, Error> {
    match (arguments.json, arguments.watch) {
        (true, None) => output::json(report),
        (true, Some(_)) => {
            let line = serde_json::to_string(report).map_err(|cause| Error::Output(cause.into()))?;
            Ok(line + "\n")
        }
        (false, watch) => {
            // On a terminal each view replaces the one before.
            let clear = watch.is_some() && std::io::stdout().is_terminal();
            Ok(format!("{}{}", if clear { "\x1b[H\x1b[2J" } else { "" }, render(report, palette)))
        }
    }
}

fn report(now: &[StatGroup], before: &[StatGroup], elapsed: f64) -> Report {
    let groups = now
        .iter()
        .map(|group| {
            let earlier = before.iter().find(|other| other.source == group.source && other.pid == group.pid);
            let mut values = BTreeMap::new();
            let mut rates = BTreeMap::new();
            for metric in &group.metrics {
                values.insert(metric.name.clone(), metric.value);
                let old =
                    earlier.and_then(|group| group.metrics.iter().find(|other| other.name == metric.name));
                if let Some(old) = old.filter(|_| metric.kind == Kind::Counter && elapsed > 0.0) {
                    // A counter never shrinks; one that seems to belongs to a new page.
                    let grown = metric.value.saturating_sub(old.value);
                    rates.insert(metric.name.clone(), grown as f64 / elapsed);
                }
            }
            Group { source: group.source.clone(), pid: group.pid, values, rates }
        })
        .collect();
    Report { groups }
}

fn render(report: &Report, palette: Palette) -> String {
    let mut text = String::new();
    for group in &report.groups {
        let pid = group.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let name = escaped(&group.source);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}{pid}", palette.paint(Tone::Strong, &name));
        let mut table = Table::new(2);
        for (name, value) in &group.values {
            let mut cells = vec![Cell::text(name), Cell::number(*value)];
            if let Some(rate) = group.rates.get(name) {
                cells.push(Cell::text(format!("{rate:.0}/s")).right());
            }
            table.row(cells);
        }
        text.push_str(&table.render(palette));
    }
    if report.groups.is_empty() {
        text.push_str("no counters yet\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use sietch_protocol::metrics::Metric;

    use super::*;

    fn group(pid: u32, counter: u64, gauge: u64) -> StatGroup {
        let metric = |name: &str, kind, value| Metric { name: name.to_owned(), kind, value };
        let metrics =
            vec![metric("kv.commands", Kind::Counter, counter), metric("kv.clients", Kind::Gauge, gauge)];
        StatGroup { source: "kv".to_owned(), pid: Some(pid), metrics }
    }

    #[test]
    fn counters_have_rates_and_gauges_have_none() {
        let report = report(&[group(7, 300, 5)], &[group(7, 100, 9)], 2.0);
        assert_eq!(report.groups[0].rates, BTreeMap::from([("kv.commands".to_owned(), 100.0)]));
        insta::assert_snapshot!(render(&report, Palette::plain()), @r"
        kv (pid 7)
          kv.clients     5
          kv.commands  300  100/s
        ");
    }

    #[test]
    fn another_process_and_a_counter_made_anew_have_no_wild_rate() {
        assert!(report(&[group(8, 300, 5)], &[group(7, 100, 9)], 1.0).groups[0].rates.is_empty());
        let anew = report(&[group(7, 3, 5)], &[group(7, 100, 9)], 1.0);
        assert_eq!(anew.groups[0].rates["kv.commands"], 0.0);
    }
}
