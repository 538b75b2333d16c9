//! The results: one line for each row during the run, then a table with the goals, JSON and an SVG.

use std::path::Path;

use serde::Serialize;

use super::idle::{self, Idle};
use super::results::{Column, Measured, Sample};
use super::rows::{Figure, Goal};
use super::variants::{BOTH, ONE_END, SERVED};
use crate::error::Error;
use crate::plot::{self, Bar};
use crate::table::{self, median, range};

/// From this ratio on, a column counts as fast as Linux: here, medians of seven rounds of two equal
/// columns differ by this much.
const NOISE: f64 = 0.03;

fn take(sample: &Sample, figure: Figure) -> Option<f64> {
    let client = &sample.client;
    match figure {
        Figure::Rate => Some(client.rate),
        Figure::Median => client.p50,
        Figure::P99 => client.p99,
        Figure::Tail => client.p999,
        Figure::Cpu => Some(sample.cpu_us),
    }
}

/// How many times better `column` is than Linux, round by round.
fn ratios(result: &Measured, column: &Column, figure: Figure) -> Vec<f64> {
    paired(result, column, |sample| take(sample, figure))
        .map(|(linux, other)| if figure == Figure::Rate { other / linux } else { linux / other })
        .collect()
}

/// Applies `of` to each round in which Linux and `column` both have a value.
fn paired<'a>(
    result: &'a Measured,
    column: &'a Column,
    of: impl Fn(&Sample) -> Option<f64> + 'a,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let linux = &result.columns[0].samples;
    linux.iter().zip(&column.samples).filter_map(move |(linux, other)| {
        let (linux, other) = (of(linux.as_ref()?)?, of(other.as_ref()?)?);
        (linux > 0.0 && other > 0.0).then_some((linux, other))
    })
}

fn middle(column: &Column, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = column.samples.iter().flatten().filter_map(of).collect();
    (!values.is_empty()).then(|| median(&values))
}

/// A number with three digits, a dash for none.
fn short(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v >= 1e6 => format!("{:.2}M", v / 1e6),
        Some(v) if v >= 1e4 => format!("{:.1}k", v / 1e3),
        Some(v) if v >= 100.0 => format!("{v:.0}"),
        Some(v) if v >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
    }
}

/// The goals of a column. With both ends under Sietch they are the row's. With one end the goal is
/// to be no slower; on a VNIC, no slower with less processor time. Other columns have none.
fn goals(result: &Measured, column: &Column) -> Vec<Goal> {
    let own = &result.row.goals;
    let as_good = || own.iter().map(|goal| Goal { factor: 1.0, ..*goal });
    match column.variant {
        variant if variant == BOTH.name => own.clone(),
        variant if variant == ONE_END.name => as_good().collect(),
        variant if variant == SERVED.name => {
            as_good().chain([Goal { figure: Figure::Cpu, factor: 1.0 }]).collect()
        }
        _ => Vec::new(),
    }
}

fn verdict(result: &Measured, column: &Column) -> String {
    let verdicts: Vec<String> = goals(result, column)
        .iter()
        .map(|goal| {
            let ratios = ratios(result, column, goal.figure);
            let reached = median(&ratios) >= goal.factor - if goal.factor == 1.0 { NOISE } else { 0.0 };
            let name = goal.figure.name();
            match (ratios.is_empty(), reached) {
                (true, _) => format!("{name} {}x: not measured", goal.factor),
                (_, true) => format!("{name} {}x: reached ({:.2})", goal.factor, median(&ratios)),
                (_, false) => format!("{name} {}x: MISSED ({:.2})", goal.factor, median(&ratios)),
            }
        })
        .collect();
    verdicts.join(", ")
}

/// Prints a finished row.
pub(super) fn progress(result: &Measured) {
    if let Some(why) = &result.skipped {
        println!("{}: skipped: {why}", result.row.name);
        return;
    }
    let columns = result.columns.iter().enumerate().map(|(at, column)| {
        let rate = middle(column, |sample| Some(sample.client.rate));
        let mut text = format!("{} {}", column.variant, short(rate));
        let ratios = ratios(result, column, Figure::Rate);
        if at > 0 && !ratios.is_empty() {
            text.push_str(&format!(" ({:.2}x)", median(&ratios)));
        }
        if let Some(cause) = &column.failed {
            text.push_str(&format!(", failed: {cause}"));
        }
        text
    });
    let columns: Vec<String> = columns.collect();
    println!(
        "{} [{}/s]: {}; {} dropped",
        result.row.name,
        result.row.unit,
        columns.join("; "),
        result.dropped
    );
}

/// One line of the table.
fn line(result: &Measured, column: &Column, name: String) -> Vec<String> {
    let rates = ratios(result, column, Figure::Rate);
    let (low, high) = range(&rates);
    let linux = &result.columns[0];
    let both = |of: fn(&Sample) -> Option<f64>| match (middle(linux, of), middle(column, of)) {
        (None, None) => "-".to_owned(),
        (linux, other) => format!("{}/{}", short(linux), short(other)),
    };
    let cpu: Vec<f64> =
        paired(result, column, |sample| Some(sample.cpu_us)).map(|(linux, other)| other / linux).collect();
    let ratio =
        |values: &[f64]| if values.is_empty() { "-".into() } else { format!("{:.2}", median(values)) };
    vec![
        name,
        result.row.unit.into(),
        short(middle(linux, |sample| Some(sample.client.rate))),
        short(middle(column, |sample| Some(sample.client.rate))),
        ratio(&rates),
        if rates.is_empty() { "-".into() } else { format!("{low:.2}-{high:.2}") },
        both(|sample| sample.client.least),
        both(|sample| sample.client.p50),
        both(|sample| sample.client.p99),
        both(|sample| sample.client.p999),
        both(|sample| Some(sample.cpu_us)),
        ratio(&cpu),
        both(|sample| Some(sample.foreign)),
        format!("{} ({})", rates.len(), result.dropped),
        verdict(result, column),
    ]
}

/// Prints the table, the reasons for missing figures, and the idle columns.
pub(super) fn print(results: &[Measured], idle: &[Idle]) {
    if results.iter().any(|result| result.skipped.is_none()) {
        println!(
            "\nLinux/Sietch where a cell has two figures; latencies in us; CPU is that of the whole machine, its ratio Sietch's to Linux';\n\
             foreign: cores used by other processes; rounds: measured (dropped); redis-benchmark reports latencies in steps of 8 us"
        );
        print!("{}", table(results));
    }
    print!("{}{}", missing(results), idle_lines(idle));
}

/// A row for each column beside Linux of each measured row.
fn table(results: &[Measured]) -> String {
    let mut rows = Vec::new();
    for result in results.iter().filter(|result| result.skipped.is_none()) {
        // Linux has a line of its own only if it is the only column.
        let from = usize::from(result.columns.len() > 1);
        for column in &result.columns[from..] {
            let name = match column.variant {
                variant if variant == BOTH.name => result.row.name.clone(),
                other => format!("{} ({other})", result.row.name),
            };
            rows.push(line(result, column, name));
        }
    }
    let heading = [
        "row",
        "unit",
        "Linux/s",
        "Sietch/s",
        "ratio",
        "range",
        "least",
        "p50",
        "p99",
        "p99.9",
        "CPU us/unit",
        "ratio",
        "foreign",
        "rounds",
        "goal",
    ];
    table::render(&heading, &rows)
}

/// A line for each row that was skipped, and for each column that failed.
fn missing(results: &[Measured]) -> String {
    let mut text = String::new();
    for result in results {
        if let Some(why) = &result.skipped {
            text.push_str(&format!("{}: skipped: {why}\n", result.row.name));
        }
        for column in &result.columns {
            if let Some(cause) = &column.failed {
                text.push_str(&format!("{} ({}): failed: {cause}\n", result.row.name, column.variant));
            }
        }
    }
    if results.iter().flat_map(|result| &result.columns).any(|column| column.failed.is_some()) {
        text.push_str("the output of failed programs is in the logs below target/bench\n");
    }
    text
}

/// A line for each column of silent applications.
fn idle_lines(idle: &[Idle]) -> String {
    let mut text = String::new();
    for column in idle {
        let figure = match (&column.failed, column.cores) {
            (Some(cause), _) => format!("failed: {cause}"),
            (_, Some(cores)) => {
                let verdict = if cores < idle::GOAL { "reached" } else { "MISSED" };
                format!("{:.3} % of a core; goal {} %: {verdict}", cores * 100.0, idle::GOAL * 100.0)
            }
            _ => continue,
        };
        text.push_str(&format!("{} ({}): {figure}\n", idle::NAME, column.variant));
    }
    text
}

#[derive(Serialize)]
struct All<'a> {
    rows: &'a [Measured],
    idle: &'a [Idle],
}

/// Writes `posix.json` and `posix.svg` below `out`, or `posix-vnic.json` and `posix-vnic.svg`.
pub(super) fn write(results: &[Measured], idle: &[Idle], out: &Path, vnic: bool) -> Result<(), Error> {
    let (name, title) = if vnic {
        ("posix-vnic", "Unmodified servers on a VNIC over AF_XDP, kernel clients, beside Linux")
    } else {
        ("posix", "Unmodified programs under sietch run, beside Linux")
    };
    let mut bars = Vec::new();
    for result in results {
        for column in result.columns.iter().skip(1) {
            for figure in [Figure::Rate, Figure::Median] {
                let ratios = ratios(result, column, figure);
                // At a fixed rate there is no rate to compare, and the median of a full pipeline
                // repeats the rate.
                let shown = match figure {
                    Figure::Rate => !result.row.name.starts_with("rpc"),
                    _ => result.row.name.starts_with("rpc") || result.row.name.ends_with("c1 P1"),
                };
                if shown && !ratios.is_empty() {
                    let what = if figure == Figure::Rate { "" } else { " p50" };
                    let end = if [BOTH.name, SERVED.name].contains(&column.variant) {
                        String::new()
                    } else {
                        format!(" ({})", column.variant)
                    };
                    let name = format!("{}{what}{end}", result.row.name);
                    bars.push(Bar { name, ratio: median(&ratios), range: range(&ratios) });
                }
            }
        }
    }
    plot::write(out, name, title, &All { rows: results, idle }, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::results::ClientReport;
    use crate::posix::rows;

    fn column(variant: &'static str, rates: &[f64]) -> Column {
        let sample = |rate: &f64| {
            let client = ClientReport {
                operations: 1.0,
                rate: *rate,
                p50: Some(1e6 / rate),
                ..ClientReport::default()
            };
            Some(Sample { client, cpu_us: 1.0, foreign: 0.0, stolen: 0.0, slowness: 1.0 })
        };
        Column { variant, samples: rates.iter().map(sample).collect(), failed: None }
    }

    fn measured(name: &str, columns: Vec<Column>) -> Measured {
        let row = rows::all().into_iter().find(|row| row.name == name).expect("there is such a row");
        Measured { row, columns, dropped: 0, skipped: None }
    }

    #[test]
    fn goals_are_judged_by_the_median_of_the_pairs() {
        let both = measured(
            "redis GET c1 P1",
            vec![column("Linux", &[1e4, 2e4, 1e4]), column("Sietch", &[5e4, 5e4, 4e4])],
        );
        assert_eq!(ratios(&both, &both.columns[1], Figure::Rate), [5.0, 2.5, 4.0]);
        let mut on_vnic = measured(
            "redis GET c50 P1",
            vec![column("Linux", &[1e4, 1e4]), column(SERVED.name, &[2e4, 2e4])],
        );
        // On a VNIC no operation may cost more processor time than on Linux.
        for sample in on_vnic.columns[1].samples.iter_mut().flatten() {
            sample.cpu_us = 2.0;
        }
        insta::assert_snapshot!(table(&[both, on_vnic]), @r"
        row                                            unit  Linux/s  Sietch/s  ratio      range  least       p50  p99  p99.9  CPU us/unit  ratio    foreign  rounds                                             goal
        redis GET c1 P1                                 req    10.0k     50.0k   4.00  2.50-5.00      -  100/20.0    -      -    1.00/1.00   1.00  0.00/0.00   3 (0)  p50 4x: reached (4.00), rate 1x: reached (4.00)
        redis GET c50 P1 (Sietch VNIC, kernel client)   req    10.0k     20.0k   2.00  2.00-2.00      -  100/50.0    -      -    1.00/2.00   2.00  0.00/0.00   2 (0)   rate 1x: reached (2.00), CPU 1x: MISSED (0.50)
        ");
    }

    #[test]
    fn rounds_in_which_one_failed_do_not_pair() {
        let mut result =
            measured("redis GET c50 P1", vec![column("Linux", &[1e4, 1e4]), column("Sietch", &[3e4, 5e4])]);
        result.columns[1].samples[1] = None;
        assert_eq!(ratios(&result, &result.columns[1], Figure::Rate), [3.0]);
        assert_eq!(verdict(&result, &result.columns[1]), "rate 4x: MISSED (3.00)");
    }

    #[test]
    fn missing_figures_have_a_reason() {
        let mut skipped = measured("redis GET c1 P1", Vec::new());
        skipped.skipped = Some("needs redis-server".to_owned());
        let mut failed = measured("redis GET c50 P1", vec![column("Linux", &[]), column("Sietch", &[])]);
        failed.columns[1].failed = Some("redis-server ended".to_owned());
        let idle = |variant, cores| Idle { variant, cores: Some(cores), failed: None };
        let text = missing(&[skipped, failed]) + &idle_lines(&[idle("Linux", 0.0), idle("Sietch", 0.02)]);
        insta::assert_snapshot!(text, @r"
        redis GET c1 P1: skipped: needs redis-server
        redis GET c50 P1 (Sietch): failed: redis-server ended
        the output of failed programs is in the logs below target/bench
        idle: 10 silent applications (Linux): 0.000 % of a core; goal 1 %: reached
        idle: 10 silent applications (Sietch): 2.000 % of a core; goal 1 %: MISSED
        ");
    }
}
