//! The results: a line for each cell during the run, then a table, JSON and an SVG.

use std::path::Path;

use super::cells::Side;
use super::measure::{Outcome, Shares};
use super::results::Measured;
use crate::error::Error;
use crate::plot::{self, Bar};
use crate::table::{self, median, range};

fn middle(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    median(&outcomes.iter().map(of).collect::<Vec<_>>())
}

/// The value that counts as the result of a block: bytes or idle cores where those are measured,
/// otherwise operations a second.
fn figure(outcome: &Outcome) -> f64 {
    match (outcome.bytes, outcome.idle) {
        (Some(bytes), _) => bytes as f64,
        (_, Some(cores)) => cores,
        _ => outcome.rate(),
    }
}

/// The least served flow relative to an equal share, where flows are compared.
fn least_share(outcome: &Outcome) -> f64 {
    outcome.flows.map_or(0.0, |shares| shares.least_share)
}

/// The ratios of Sietch to `side`, round by round.
fn ratios(result: &Measured, side: usize, of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    let Some((_, sietch)) = result.sides.iter().find(|(side, _)| side.is_sietch()) else { return Vec::new() };
    let of = &of;
    sietch.iter().zip(&result.sides[side].1).map(|(a, b)| of(a) / of(b).max(f64::MIN_POSITIVE)).collect()
}

/// Prints a finished cell.
pub(super) fn progress(result: &Measured) {
    let parts: Vec<String> = result
        .sides
        .iter()
        .enumerate()
        .map(|(index, (side, outcomes))| {
            let mut text = format!("{} {}", side.name(), short(middle(outcomes, figure)));
            if !side.is_sietch() {
                text.push_str(&format!(" ({:.2}x)", median(&ratios(result, index, figure))));
            }
            if outcomes.iter().any(|outcome| outcome.flows.is_some()) {
                text.push_str(&format!(", least share {:.3}", middle(outcomes, least_share)));
            }
            text
        })
        .collect();
    println!("{} [{}]: {}; {} dropped", result.name, result.unit, parts.join(", "), result.dropped);
}

/// A number with three digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2}G", v / 1e9),
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v if v < 10.0 => format!("{v:.4}"),
        v => format!("{v:.0}"),
    }
}

/// Prints the table.
pub(super) fn print(results: &[Measured]) {
    println!("\nmedians over rounds; CPU is that of the whole machine, both ends included");
    print!("{}", table(results));
}

/// A row for each side of each cell.
fn table(results: &[Measured]) -> String {
    let heading = [
        "work",
        "side",
        "result",
        "range",
        "Sietch/it",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "CPU us/op",
        "Sietch/it",
        "least/fair",
        "Jain",
    ];
    let mut rows = Vec::new();
    for result in results {
        for (index, (side, outcomes)) in result.sides.iter().enumerate() {
            let values: Vec<f64> = outcomes.iter().map(figure).collect();
            let (low, high) = range(&values);
            let latency = |at: usize| match middle(outcomes, |outcome| outcome.latency[at] as f64) {
                0.0 => "-".to_owned(),
                nanoseconds => format!("{:.2}", nanoseconds / 1000.0),
            };
            let against = |of: fn(&Outcome) -> f64| {
                if side.is_sietch() {
                    "-".to_owned()
                } else {
                    format!("{:.2}", median(&ratios(result, index, of)))
                }
            };
            let share = |of: fn(Shares) -> f64| {
                let shares: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.flows).map(of).collect();
                if shares.is_empty() { "-".to_owned() } else { format!("{:.3}", median(&shares)) }
            };
            let cpu = middle(outcomes, Outcome::cpu_us);
            rows.push(vec![
                if index == 0 { format!("{} [{}]", result.name, result.unit) } else { String::new() },
                side.name().to_owned(),
                short(median(&values)),
                format!("{}-{}", short(low), short(high)),
                against(figure),
                latency(0),
                latency(1),
                latency(2),
                if cpu < 0.01 { format!("{:.6}", cpu) } else { format!("{cpu:.3}") },
                against(Outcome::cpu_us),
                share(|shares| shares.least_share),
                share(|shares| shares.fairness),
            ]);
        }
    }
    table::render(&heading, &rows)
}

/// Writes `net.json` and `net.svg` below `out`.
pub(super) fn write(results: &[Measured], out: &Path) -> Result<(), Error> {
    let mut bars = Vec::new();
    for result in results {
        for (index, (side, outcomes)) in result.sides.iter().enumerate() {
            if matches!(side, Side::LoopbackBlocking | Side::LoopbackSpinning | Side::VethBlocking) {
                let ratios = ratios(result, index, figure);
                let name = format!("{} / {}", result.name, side.name());
                if outcomes.iter().any(|outcome| outcome.flows.is_some()) {
                    let ratios = self::ratios(result, index, least_share);
                    let name = format!("{name}, least share");
                    bars.push(Bar { name, ratio: median(&ratios), range: range(&ratios) });
                }
                bars.push(Bar { name, ratio: median(&ratios), range: range(&ratios) });
            }
        }
    }
    plot::write(out, "net", "Sietch's network beside kernel sockets", results, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes of a second, with so many operations each.
    fn outcomes(operations: [u64; 3], flows: Option<Shares>) -> Vec<Outcome> {
        let outcome = |operations| Outcome {
            operations,
            elapsed: 1_000_000_000,
            busy: 500_000_000,
            latency: [10_000, 20_500, 0],
            flows,
            ..Outcome::default()
        };
        operations.map(outcome).to_vec()
    }

    #[test]
    fn every_side_is_compared_with_sietch() {
        let shares = Shares { least: 9, most: 11, least_share: 0.9, fairness: 0.99 };
        let rpc = Measured {
            name: "app: rpc".to_owned(),
            unit: "requests/s",
            sides: vec![
                (Side::LoopbackBlocking, outcomes([50_000, 40_000, 60_000], None)),
                (Side::Link, outcomes([200_000, 100_000, 300_000], Some(shares))),
            ],
            dropped: 0,
        };
        let mut held = outcomes([1; 3], None);
        held.iter_mut().for_each(|outcome| outcome.bytes = Some(4096));
        let memory = Measured {
            name: "app: memory".to_owned(),
            unit: "B",
            sides: vec![(Side::Link, held)],
            dropped: 1,
        };
        insta::assert_snapshot!(table(&[rpc, memory]), @r"
        work                                 side  result          range  Sietch/it  p50 us  p99 us  p99.9 us   CPU us/op  Sietch/it  least/fair   Jain
        app: rpc [requests/s]  linux lo, blocking   50.0k    40.0k-60.0k       4.00   10.00   20.50         -      10.000       0.25           -      -
                                      sietch link  200.0k  100.0k-300.0k          -   10.00   20.50         -       2.500          -       0.900  0.990
        app: memory [B]               sietch link    4.1k      4.1k-4.1k          -   10.00   20.50         -  500000.000          -           -      -
        ");
    }
}
