//! The results: a line for each cell during the run, then a table, JSON and an SVG.

use std::path::Path;

use super::results::{Cell, Sample};
use crate::error::Error;
use crate::plot::{self, Bar};
use crate::table::{self, median, range};

/// The pairwise ratios, Sietch over redis, of the value that `of` takes from a sample.
fn ratios(cell: &Cell, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    cell.sietch
        .iter()
        .zip(&cell.redis)
        .map(|(sietch, redis)| of(sietch) / of(redis).max(f64::MIN_POSITIVE))
        .collect()
}

fn middle(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(&samples.iter().map(of).collect::<Vec<_>>())
}

fn name(cell: &Cell) -> String {
    let load = cell.load;
    format!("{} {} c{} P{}", cell.setting, load.command.to_uppercase(), load.connections, load.pipeline)
}

/// Prints a finished cell.
pub(super) fn progress(cell: &Cell) {
    let ratios = ratios(cell, |sample| sample.block.rate);
    let (low, high) = range(&ratios);
    println!(
        "{}: {:.2}x requests/s ({low:.2} to {high:.2}), {} pairs, {} dropped",
        name(cell),
        median(&ratios),
        cell.redis.len(),
        cell.dropped
    );
}

/// Prints the table.
pub(super) fn print(cells: &[Cell]) {
    println!(
        "\nredis/sietch where a cell has two figures; CPU is that of the whole machine, including the client"
    );
    print!("{}", table(cells));
}

fn table(cells: &[Cell]) -> String {
    let heading = [
        "setting, command, connections, pipeline",
        "redis req/s",
        "sietch req/s",
        "ratio",
        "range",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "CPU us/req",
        "ratio",
    ];
    let both = |cell: &Cell, of: fn(&Sample) -> f64| {
        format!("{:.3}/{:.3}", middle(&cell.redis, of), middle(&cell.sietch, of))
    };
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|cell| {
            let rates = ratios(cell, |sample| sample.block.rate);
            let (low, high) = range(&rates);
            vec![
                name(cell),
                format!("{:.0}", middle(&cell.redis, |sample| sample.block.rate)),
                format!("{:.0}", middle(&cell.sietch, |sample| sample.block.rate)),
                format!("{:.2}", median(&rates)),
                format!("{low:.2}-{high:.2}"),
                both(cell, |sample| sample.block.p50),
                both(cell, |sample| sample.block.p99),
                both(cell, |sample| sample.block.p999),
                format!(
                    "{:.2}/{:.2}",
                    middle(&cell.redis, |sample| sample.cpu_us),
                    middle(&cell.sietch, |sample| sample.cpu_us)
                ),
                format!("{:.2}", median(&ratios(cell, |sample| sample.cpu_us))),
            ]
        })
        .collect();
    table::render(&heading, &rows)
}

/// Writes `kv.json` and `kv.svg` below `out`.
pub(super) fn write(cells: &[Cell], out: &Path) -> Result<(), Error> {
    let bars: Vec<Bar> = cells
        .iter()
        .map(|cell| {
            let rates = ratios(cell, |sample| sample.block.rate);
            Bar { name: name(cell), ratio: median(&rates), range: range(&rates) }
        })
        .collect();
    plot::write(out, "kv", "Sietch kv beside redis-server: requests a second", cells, &bars)
}

#[cfg(test)]
mod tests {
    use super::super::client::{Block, Load};
    use super::*;

    #[test]
    fn a_cell_shows_medians_and_the_range_of_pairwise_ratios() {
        let sample = |rate: f64| Sample {
            block: Block { rate, p50: 0.1, p99: 0.2, p999: 0.4 },
            cpu_us: 1e6 / rate,
            stolen: 0.0,
            slowness: 1.0,
        };
        let cell = Cell {
            setting: "loopback memory".to_owned(),
            load: Load { command: "get", connections: 50, pipeline: 1, value: 64 },
            redis: [1e5, 1.1e5, 0.9e5].map(sample).to_vec(),
            sietch: [3e5, 2.2e5, 3.6e5].map(sample).to_vec(),
            dropped: 1,
        };
        insta::assert_snapshot!(table(&[cell]), @r"
        setting, command, connections, pipeline  redis req/s  sietch req/s  ratio      range       p50 ms       p99 ms     p99.9 ms  CPU us/req  ratio
        loopback memory GET c50 P1                    100000        300000   3.00  2.00-4.00  0.100/0.100  0.200/0.200  0.400/0.400  10.00/3.33   0.33
        ");
    }
}
