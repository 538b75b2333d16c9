//! The results: a line for each cell during the run, then a table, JSON and an SVG.

use std::path::Path;

use serde::Serialize;

use super::progress::Progress;
use super::results::{Cell, Recovery, Sample};
use crate::error::Error;
use crate::plot::{self, Bar};
use crate::table::{self, median, range};

fn middle(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(&samples.iter().map(of).collect::<Vec<_>>())
}

/// Sietch over each other subject, round by round: appends a second, and median latency.
fn ratios(cell: &Cell, of: impl Fn(&Sample) -> f64) -> Vec<(&'static str, Vec<f64>)> {
    let Some(((_, ours), others)) = cell.subjects.split_last() else { return Vec::new() };
    others
        .iter()
        .map(|(name, theirs)| {
            let pairs = ours.iter().zip(theirs);
            (*name, pairs.map(|(ours, theirs)| of(ours) / of(theirs).max(f64::MIN_POSITIVE)).collect())
        })
        .collect()
}

/// Prints a finished cell.
pub(super) fn progress(cell: &Cell) {
    let figures: Vec<String> = ratios(cell, |sample| sample.rate)
        .iter()
        .map(|(name, ratios)| format!("{:.2}x {name}", median(ratios)))
        .collect();
    println!("{}: {} ({} dropped)", cell.name, figures.join(", "), cell.dropped);
}

/// Prints the table of cells and the lines of recoveries.
pub(super) fn print(cells: &[Cell], recoveries: &[Recovery]) {
    if !cells.is_empty() {
        println!("\nratios: Sietch's log to that row; CPU is that of the whole machine; 0.00 ms: not known");
        print!("{}", table(cells));
    }
    recoveries.iter().for_each(|recovery| println!("{}", line(recovery)));
}

/// A row for each subject of each cell.
fn table(cells: &[Cell]) -> String {
    let mut rows = Vec::new();
    for cell in cells {
        let (rates, latencies) = (ratios(cell, |s| s.rate), ratios(cell, |s| s.p50));
        for (index, (name, samples)) in cell.subjects.iter().enumerate() {
            let ratio = rates.get(index).map_or_else(String::new, |(_, ratios)| {
                let (low, high) = range(ratios);
                format!("{:.2} ({low:.2}-{high:.2})", median(ratios))
            });
            let latency =
                latencies.get(index).map_or_else(String::new, |(_, ratios)| format!("{:.2}", median(ratios)));
            let of = |what: fn(&Sample) -> f64| middle(samples, what);
            rows.push(vec![
                format!("{}: {name}", cell.name),
                format!("{:.0}", of(|s| s.rate)),
                ratio,
                format!("{:.2}/{:.2}/{:.2}", of(|s| s.p50), of(|s| s.p99), of(|s| s.p999)),
                latency,
                format!("{:.2}", of(|s| s.silence)),
                format!("{:.2}", of(|s| s.cpu_us)),
                samples.len().to_string(),
            ]);
        }
    }
    let heading = [
        "cell: subject",
        "appends/s",
        "ratio",
        "p50/p99/p99.9 us",
        "p50 ratio",
        "longest silence ms",
        "CPU us/append",
        "rounds",
    ];
    table::render(&heading, &rows)
}

fn line(recovery: &Recovery) -> String {
    let (low, high) = range(&recovery.rates);
    format!(
        "recovery from {}: {:.2} GB/s of payload ({:.2}-{:.2}), {} openings; reading alone: {:.2} GB/s",
        recovery.medium,
        median(&recovery.rates) / 1e9,
        low / 1e9,
        high / 1e9,
        recovery.rates.len(),
        median(&recovery.read_rates) / 1e9
    )
}

/// Prints a writer's measurements during an event.
pub(super) fn print_progress(progress: &[Progress]) {
    if progress.is_empty() {
        return;
    }
    let row = |progress: &Progress| {
        let slices: Vec<f64> = progress.slices.iter().map(|count| *count as f64).collect();
        let (fewest, _) = range(&slices);
        vec![
            format!("{}: {}", progress.event, progress.subject),
            format!("{:.1}", progress.took),
            format!("{:.0}", median(&slices)),
            format!("{fewest:.0}"),
            format!("{:.2}", progress.silence),
        ]
    };
    println!("\none writer of 1 KB during another event");
    let heading = ["meanwhile: subject", "took ms", "appends/100 ms", "fewest", "longest silence ms"];
    table::print(&heading, &progress.iter().map(row).collect::<Vec<_>>());
}

#[derive(Serialize)]
struct All<'a> {
    cells: &'a [Cell],
    recoveries: &'a [Recovery],
    progress: &'a [Progress],
}

/// Writes `storage.json` and `storage.svg` below `out`.
pub(super) fn write(
    cells: &[Cell],
    recoveries: &[Recovery],
    progress: &[Progress],
    out: &Path,
) -> Result<(), Error> {
    let bars: Vec<Bar> = cells
        .iter()
        .flat_map(|cell| {
            ratios(cell, |sample| sample.rate).into_iter().map(|(name, ratios)| Bar {
                name: format!("{}: {name}", cell.name),
                ratio: median(&ratios),
                range: range(&ratios),
            })
        })
        .collect();
    plot::write(
        out,
        "storage",
        "Sietch's log: durable appends a second",
        &All { cells, recoveries, progress },
        &bars,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_shows_the_ratio_of_sietch_to_it() {
        let sample = |rate: f64| Sample {
            rate,
            p50: 1e6 / rate,
            p99: 2e6 / rate,
            p999: 4e6 / rate,
            silence: 1.5,
            cpu_us: 5e5 / rate,
        };
        let cell = Cell {
            name: "1 KB durable".to_owned(),
            subjects: vec![
                ("file", [1000.0, 2000.0, 1500.0].map(sample).to_vec()),
                ("sietch", [4000.0, 4000.0, 3000.0].map(sample).to_vec()),
            ],
            dropped: 0,
        };
        insta::assert_snapshot!(table(&[cell]), @r"
        cell: subject         appends/s             ratio        p50/p99/p99.9 us  p50 ratio  longest silence ms  CPU us/append  rounds
        1 KB durable: file         1500  2.00 (2.00-4.00)  666.67/1333.33/2666.67       0.50                1.50         333.33       3
        1 KB durable: sietch       4000                     250.00/500.00/1000.00                           1.50         125.00       3
        ");
    }

    #[test]
    fn a_recovery_shows_its_rate_beside_that_of_plain_reads() {
        let recovery =
            Recovery { medium: "disk", rates: vec![1e9, 2e9, 1.5e9], read_rates: vec![2e9, 2.5e9] };
        insta::assert_snapshot!(line(&recovery), @"recovery from disk: 1.50 GB/s of payload (1.00-2.00), 3 openings; reading alone: 2.25 GB/s");
    }
}
