//! The results: a line for each cell during the run, then a table, JSON and an SVG.

use std::path::Path;

use serde::Serialize;

use super::migration::{self, Run};
use super::results::{Cell, Recovery, Sample, Subject};
use crate::error::Error;
use crate::plot::{self, Bar};
use crate::table::{self, median, range};

/// What is not a cell.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Rest<'a> {
    pub recovery: Option<&'a Recovery>,
    pub migration: &'a [Run],
}

fn of(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(figure).collect()
}

/// Sietch's client over each other subject, round by round: operations a second.
fn ratios(cell: &Cell) -> Vec<(&'static str, Vec<f64>)> {
    let Some((ours, others)) = cell.subjects.split_last() else { return Vec::new() };
    let ratio = |(ours, theirs): (&Sample, &Sample)| ours.rate / theirs.rate.max(f64::MIN_POSITIVE);
    let ratios = |theirs: &Subject| ours.samples.iter().zip(&theirs.samples).map(ratio).collect();
    others.iter().map(|theirs| (theirs.name, ratios(theirs))).collect()
}

/// Prints a finished cell.
pub(super) fn progress(cell: &Cell) {
    if cell.subjects.iter().all(|subject| subject.samples.is_empty()) {
        println!("{}: no figures, the machine was disturbed in each of {} rounds", cell.name, cell.dropped);
        return;
    }
    let figures: Vec<String> =
        ratios(cell).iter().map(|(name, ratios)| format!("{:.2}x {name}", median(ratios))).collect();
    println!("{}: {} ({} dropped)", cell.name, figures.join(", "), cell.dropped);
}

/// Prints the table of cells, what was coalesced, recoveries, and runs over time.
pub(super) fn print(cells: &[Cell], rest: Rest<'_>) {
    if !cells.is_empty() {
        println!("\nratio: operations a second of Sietch's client to those of that row");
        println!("durable: when changes are, as far as the medium keeps anything; memory stands in for NVM");
        println!(
            "CPU: of all cores, whatever they did, while the clock ran; what is left for later is not in it"
        );
        println!("several threads share Sietch's one client behind a mutex");
        print!("{}", table(cells));
    }
    cells.iter().filter_map(coalesced).for_each(|line| println!("{line}"));
    if let Some(recovery) = rest.recovery {
        println!("{}", recovered(recovery));
    }
    rest.migration.iter().for_each(|run| println!("{}", migration::describe(run)));
}

/// A row for each subject of each cell.
fn table(cells: &[Cell]) -> String {
    let mut rows = Vec::new();
    for cell in cells.iter().filter(|cell| cell.subjects.iter().any(|subject| !subject.samples.is_empty())) {
        let ratios = ratios(cell);
        for (index, Subject { name, durable, samples }) in cell.subjects.iter().enumerate() {
            let ratio = ratios.get(index).map_or_else(String::new, |(_, ratios)| {
                let (low, high) = range(ratios);
                format!("{:.2} ({low:.2}-{high:.2})", median(ratios))
            });
            let middle = |figure: fn(&Sample) -> f64| median(&of(samples, figure));
            rows.push(vec![
                format!("{}: {name}", cell.name),
                (*durable).to_owned(),
                format!("{:.0}", middle(|s| s.rate)),
                ratio,
                format!("{:.2}/{:.2}/{:.2}", middle(|s| s.p50), middle(|s| s.p99), middle(|s| s.p999)),
                format!("{:.2} ({:.2})", middle(|s| s.longest), range(&of(samples, |s| s.longest)).1),
                Some(middle(|s| s.cpu))
                    .filter(|cpu| *cpu > 0.0)
                    .map_or("-".to_owned(), |cpu| format!("{cpu:.2}")),
                samples.len().to_string(),
            ]);
        }
    }
    let heading = [
        "cell: subject",
        "durable",
        "operations/s",
        "ratio",
        "p50/p99/p99.9 us",
        "longest ms (of all rounds)",
        "CPU us",
        "rounds",
    ];
    table::render(&heading, &rows)
}

/// What the digest was spared, where there was anything.
fn coalesced(cell: &Cell) -> Option<String> {
    let found = cell.coalesced;
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    (found.records > 0).then(|| {
        format!(
            "{}: coalescing spared {:.1} % of {} records, and {:.1} % of {} MB",
            cell.name,
            percent(found.records_saved, found.records),
            found.records,
            percent(found.data_saved, found.data),
            found.data / 1_000_000
        )
    })
}

fn recovered(recovery: &Recovery) -> String {
    let (low, high) = range(&recovery.rates);
    let records: Vec<f64> = recovery.records.iter().map(|records| *records as f64).collect();
    format!(
        "opening after SIGKILL: {:.2} GB/s of data ({:.2}-{:.2}), {:.0} records, {} openings",
        median(&recovery.rates) / 1e9,
        low / 1e9,
        high / 1e9,
        median(&records),
        recovery.rates.len()
    )
}

#[derive(Serialize)]
struct All<'a> {
    cells: &'a [Cell],
    #[serde(flatten)]
    rest: Rest<'a>,
}

/// Writes `fs.json` and `fs.svg` below `out`.
pub(super) fn write(cells: &[Cell], rest: Rest<'_>, out: &Path) -> Result<(), Error> {
    let bars: Vec<Bar> = cells
        .iter()
        .flat_map(|cell| {
            ratios(cell).into_iter().map(|(name, ratios)| Bar {
                name: format!("{}: {name}", cell.name),
                ratio: median(&ratios),
                range: range(&ratios),
            })
        })
        .collect();
    plot::write(out, "fs", "Sietch's file system: operations a second", &All { cells, rest }, &bars)
}

#[cfg(test)]
mod tests {
    use super::super::results::Coalesced;
    use super::*;

    #[test]
    fn each_subject_shows_the_ratio_of_sietch_to_it() {
        let sample = |rate: f64| Sample {
            rate,
            p50: 1e6 / rate,
            p99: 2e6 / rate,
            p999: 4e6 / rate,
            longest: 1e4 / rate,
            cpu: if rate > 3000.0 { 0.0 } else { 1e6 / rate },
        };
        let subject =
            |name, durable, rates: [f64; 3]| Subject { name, durable, samples: rates.map(sample).to_vec() };
        let cell = Cell {
            name: "memory create".to_owned(),
            subjects: vec![
                subject("ext4", "later", [1000.0, 2000.0, 1500.0]),
                subject("sietch", "at once", [4000.0, 4000.0, 3000.0]),
            ],
            dropped: 0,
            coalesced: Coalesced { records: 200, records_saved: 50, data: 8_000_000, data_saved: 6_000_000 },
        };
        insta::assert_snapshot!(coalesced(&cell).unwrap_or_default(), @"memory create: coalescing spared 25.0 % of 200 records, and 75.0 % of 8 MB");
        insta::assert_snapshot!(table(&[cell]), @r"
        cell: subject          durable  operations/s             ratio        p50/p99/p99.9 us  longest ms (of all rounds)  CPU us  rounds
        memory create: ext4      later          1500  2.00 (2.00-4.00)  666.67/1333.33/2666.67                6.67 (10.00)  666.67       3
        memory create: sietch  at once          4000                     250.00/500.00/1000.00                 2.50 (3.33)       -       3
        ");
    }

    #[test]
    fn a_cell_without_records_says_nothing_of_them() {
        let cell =
            Cell { name: String::new(), subjects: Vec::new(), dropped: 0, coalesced: Coalesced::default() };
        assert_eq!(coalesced(&cell), None);
    }

    #[test]
    fn a_recovery_shows_its_rate() {
        let recovery = Recovery { records: vec![10, 30, 20], rates: vec![1e9, 2e9, 1.5e9] };
        insta::assert_snapshot!(recovered(&recovery), @"opening after SIGKILL: 1.50 GB/s of data (1.00-2.00), 20 records, 3 openings");
    }
}
