//! `sietch doctor`: what this machine can do, and how to fix what is missing.
//!
//! 1. Every check *tries* the operation where that is harmless, instead of guessing from versions.
//!    It opens an AF_XDP socket, makes a veth pair in a network namespace of its own, and sets up
//!    an io_uring.
//! 2. A check ends as `ok`, `limited`, `missing` or `broken`. Limited: Sietch runs, slower or with
//!    less. Missing: the VNIC path cannot run. Broken: not even the fallback can run. Each of the
//!    last three names a fix.
//! 3. The exit code is 0 unless something is `broken`.

mod check;
mod machine;
mod network;
mod storage;

use std::path::Path;

use serde::Serialize;

use crate::arguments::DoctorArguments;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::style::{Cell, Palette, Table, Tone};
use check::{Check, Verdict};

/// All checks, and the data path that they allow.
#[derive(Debug, Serialize)]
struct Report {
    /// `af_xdp`, `linux` or `none`: what `sietch up` can choose here.
    network: &'static str,
    checks: Vec<Check>,
}

impl Report {
    fn of(checks: Vec<Check>) -> Self {
        let worse = |verdict: Verdict| checks.iter().any(|check| check.verdict == verdict);
        let network = if worse(Verdict::Broken) {
            "none"
        } else if worse(Verdict::Missing) {
            "linux"
        } else {
            "af_xdp"
        };
        Self { network, checks }
    }
}

/// Runs every check and prints what was found.
///
/// # Errors
/// [`Error::MachineCannotRun`] if not even the fallback can run; [`Error::Output`] if nothing can
/// be printed.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Error> {
    let data = paths::data_directory(arguments.data.as_deref())?;
    let report = Report::of(examine(&data));
    let text = if arguments.json { output::json(&report)? } else { render(&report, Palette::of_stdout()) };
    output::print(&text)?;
    if report.network == "none" {
        return Err(Error::MachineCannotRun);
    }
    Ok(())
}

fn examine(data: &Path) -> Vec<Check> {
    let mut checks = machine::checks();
    checks.extend(network::checks());
    checks.extend(storage::checks(data));
    checks
}

fn render(report: &Report, palette: Palette) -> String {
    let mut table = Table::new(0);
    for check in &report.checks {
        let (word, tone) = check.verdict.word();
        table.row(vec![Cell::text(word).tone(tone), Cell::text(check.name), Cell::text(&check.found)]);
        if let Some(fix) = &check.fix {
            table.row(vec![
                Cell::text(""),
                Cell::text(""),
                Cell::text(format!("fix: {fix}")).tone(Tone::Faint),
            ]);
        }
    }
    let verdict = match report.network {
        "af_xdp" => "`sietch up` can give the store a VNIC over AF_XDP here.",
        "linux" => "`sietch up` will serve kernel sockets here; the lines marked `missing` say why.",
        _ => "`sietch up` cannot run here; the lines marked `broken` say why.",
    };
    format!("{}\n{verdict}\n", table.render(palette))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: &[Verdict]) -> Report {
        Report::of(verdicts.iter().map(|verdict| Check::not(*verdict, "x", "y", "z")).collect())
    }

    #[test]
    fn the_worst_check_decides_the_modes_of_up() {
        assert_eq!(report(&[Verdict::Ok, Verdict::Limited]).network, "af_xdp");
        assert_eq!(report(&[Verdict::Ok, Verdict::Missing]).network, "linux");
        assert_eq!(report(&[Verdict::Missing, Verdict::Broken]).network, "none");
    }

    #[test]
    fn a_report_lists_checks_with_their_fixes_and_ends_with_the_modes_of_up() {
        let checks = vec![
            Check::ok("kernel", "6.6.0"),
            Check::not(Verdict::Limited, "clock source", "hpet: slow", "boot with `clocksource=tsc`"),
            Check::not(Verdict::Missing, "privileges", "lacks CAP_BPF", "run `sietch up` as root"),
        ];
        insta::assert_snapshot!(render(&Report::of(checks), Palette::plain()), @r"
        ok       kernel        6.6.0
        limited  clock source  hpet: slow
                               fix: boot with `clocksource=tsc`
        missing  privileges    lacks CAP_BPF
                               fix: run `sietch up` as root

        `sietch up` will serve kernel sockets here; the lines marked `missing` say why.
        ");
    }

    #[test]
    fn every_check_that_is_not_ok_says_how_to_fix_it() {
        for check in examine(&std::env::temp_dir()) {
            assert_eq!(check.fix.is_none(), check.verdict == Verdict::Ok, "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }
}
