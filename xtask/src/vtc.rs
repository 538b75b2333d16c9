//! A suite of `.vtc` files, Varnish's or HAProxy's, on the kernel's sockets and under `sietch run`,
//! also with `--always`: a file that passes there must pass here.
//!
//! 1. Neither the files nor the tester (`varnishtest`, `vtest`) are part of this repository: their
//!    paths are given.
//! 2. All files run on a side in one set of namespaces, [`WORKERS`] at once. A file that hangs is
//!    ended after [`TIMEOUT`], and has failed.
//! 3. Files that pass on the kernel alone run once more on both sides, so that a test that depends
//!    on time does not count as a difference.

use std::path::{Path, PathBuf};

use crate::suites::{self, Outcome, Outcomes};

/// Seconds for one file.
const TIMEOUT: &str = "60";

/// Files that run at once.
const WORKERS: &str = "2";

/// Runs the files of its arguments and prints `vtc FILE STATUS` for each. `TESTER` is a command.
const LOOP: &str = r#"
printf '%s\n' "$@" | xargs -P "$WORKERS" -I '{}' sh -c '
    timeout -k 5 "$TIMEOUT" $TESTER "$1" >/dev/null 2>&1 </dev/null
    echo "vtc $1 $?"' sh '{}'
"#;

/// The sides: name, side of the script, and options of `sietch run`.
const SIDES: [(&str, &str, &str); 3] =
    [("kernel", "kernel", ""), ("sietch", "sietch", ""), ("always", "sietch", "--always")];

/// Runs the files below `folder` with the command `tester`.
pub(crate) fn run(root: &Path, folder: &str, tester: &[&str]) -> Result<(), String> {
    if let Some(why) = suites::missing(&["unshare", "ip", "xargs", "timeout"]) {
        println!("SKIPPED vtc: {why}");
        return Ok(());
    }
    let mut files = Vec::new();
    collect(Path::new(folder), &mut files)?;
    files.sort();
    let suite = Suite { root, tester: tester.join(" ") };
    suites::build(root)?;
    let kernel = suite.side(SIDES[0], &files)?;
    let mut failed = Vec::new();
    for side in &SIDES[1..] {
        let differ = suites::compared(&kernel, &suite.side(*side, &files)?);
        if !differ.is_empty() {
            let files: Vec<_> = differ.iter().map(PathBuf::from).collect();
            let kernel = suite.side(SIDES[0], &files)?;
            let again = suites::compared(&kernel, &suite.side(*side, &files)?);
            failed.extend(again.iter().map(|file| format!("{}: {file}", side.0)));
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("vtc: these pass on the kernel's sockets alone:\n  {}", failed.join("\n  ")))
    }
}

/// A suite with its tester.
struct Suite<'a> {
    root: &'a Path,
    tester: String,
}

impl Suite<'_> {
    /// The outcomes of `files` on a side.
    fn side(&self, (name, side, options): (&str, &str, &str), files: &[PathBuf]) -> Result<Outcomes, String> {
        let reports = self.root.join("target/suites");
        let error = |cause| format!("cannot make {}: {cause}", reports.display());
        std::fs::create_dir_all(&reports).map_err(error)?;
        let report = reports.join(format!("vtc-{name}"));
        let mut command = suites::on(self.root, side, &report);
        command
            .args(["sh", "-c", LOOP, "sh"])
            .args(files)
            .env("OPTIONS", options)
            // Testers in a build tree find its programs from here.
            .env("FOLDER", ".")
            .env("TESTER", &self.tester)
            .env("TIMEOUT", TIMEOUT)
            .env("WORKERS", WORKERS);
        suites::done(&mut command)?;
        let log = report.with_extension("log");
        let text = std::fs::read_to_string(&log).map_err(|cause| format!("{}: {cause}", log.display()))?;
        let outcomes = outcomes(&text);
        println!("{name}: {}", suites::counts(&outcomes));
        if side == "sietch" {
            println!("  {} connections went through memory", suites::connections(&report));
        }
        Ok(outcomes)
    }
}

/// All `.vtc` files below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let error = |cause| format!("{}: {cause}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(error)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "vtc") {
            files.push(std::fs::canonicalize(&path).map_err(error)?);
        }
    }
    Ok(())
}

/// Parses the lines of [`LOOP`].
fn outcomes(text: &str) -> Outcomes {
    let line = |line: &str| {
        let (file, status) = line.strip_prefix("vtc ")?.rsplit_once(' ')?;
        let outcome = match status {
            "0" => Outcome::Passed,
            "77" => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        Some((file.to_owned(), outcome))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_passes_is_skipped_or_fails_by_its_status() {
        let found = outcomes("vtc /a/b c.vtc 0\nother\nvtc /d.vtc 77\nvtc /e.vtc 2\nvtc /f.vtc 124\n");
        let expected = [
            ("/a/b c.vtc", Outcome::Passed),
            ("/d.vtc", Outcome::Skipped),
            ("/e.vtc", Outcome::Failed),
            ("/f.vtc", Outcome::Failed),
        ];
        assert_eq!(found, expected.map(|(file, outcome)| (file.to_owned(), outcome)).into());
    }
}
