//! The test suites of other projects, on the kernel's sockets and under `sietch run`: a test that
//! passes there must pass here.
//!
//! 1. A suite comes in a package of Debian, which apt downloads into `target/suites`. Nothing of it
//!    is in the repository.
//! 2. Each of its modules runs twice, in namespaces of its own: on the kernel's sockets, and under
//!    `sietch run` beside `sietch up`. Whatever either starts ends with its PID namespace.
//! 3. Results are compared test by test ([`compared`]). A module in which a test passes on the
//!    kernel alone runs once more on both sides. Only a difference that appears again and is not
//!    among [`KNOWN`] is a failure: tests that depend on time fail occasionally on both.
//! 4. The service counts the connections that went through shared memory. A suite without any has
//!    tested nothing.
//!
//! It needs root, for the namespaces, and prints `SKIPPED` without its requirements.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A suite that CPython's runner runs: package, and modules of it that use sockets.
const PACKAGE: &str = "libpython3.11-testsuite";
const PYTHON: &str = "/usr/bin/python3.11";
const MODULES: [&str; 20] = [
    "test_asynchat",
    "test_asyncio",
    "test_asyncore",
    "test_docxmlrpc",
    "test_epoll",
    "test_ftplib",
    "test_httplib",
    "test_httpservers",
    "test_imaplib",
    "test_nntplib",
    "test_poll",
    "test_poplib",
    "test_select",
    "test_selectors",
    "test_smtplib",
    "test_socket",
    "test_ssl",
    "test_telnetlib",
    "test_urllib2_localnet",
    "test_xmlrpc",
];

/// Tests that pass on the kernel alone, and why that is right.
const KNOWN: [(&str, &str); 0] = [];

/// Tests that are left out: sockets between virtual machines. A test waits for ever on a machine
/// that supports only a part of them.
const IGNORED: &str = "*VSOCK*";

/// Seconds for one test.
const TIMEOUT: &str = "600";

/// The shell script of a side: `SIDE` is `kernel` or `sietch`, `OPTIONS` are those of `sietch run`.
const SCRIPT: &str = r#"
set -e
ip link set lo up
mount -t tmpfs tmpfs /run
cd "$FOLDER"
if [ "$SIDE" = sietch ]; then
    mkdir /run/data
    sietch up --data /run/data --net linux --detach
    set -- sietch run $OPTIONS -- "$@"
fi
# The report has the outcome of each test, so the exit status is ignored.
"$@" >"$REPORT.log" 2>&1 || true
if [ "$SIDE" = sietch ]; then
    sietch stat --json >"$REPORT.stat"
    sietch down
fi
"#;

/// Runs all modules, or one.
pub(crate) fn run(root: &Path, module: Option<&str>) -> Result<(), String> {
    if let Some(why) = missing(&["unshare", "apt-get", "dpkg-deb", "ip", PYTHON]) {
        println!("SKIPPED suites: {why}");
        return Ok(());
    }
    let folder = root.join("target/suites");
    std::fs::create_dir_all(&folder).map_err(|cause| format!("cannot make {}: {cause}", folder.display()))?;
    build(root)?;
    let suite = fetched(&folder)?;
    let side = |name, module| Side { root, folder: &folder, suite: &suite, name, module }.run();
    let (mut connections, mut failed) = (0, Vec::new());
    for module in MODULES.iter().filter(|each| module.is_none_or(|module| module == **each)) {
        let [kernel, sietch] = [side("kernel", module)?, side("sietch", module)?];
        connections += sietch.connections;
        println!("{module}: kernel {}; sietch {}", counts(&kernel.outcomes), counts(&sietch.outcomes));
        let differ = compared(&kernel.outcomes, &sietch.outcomes);
        if differ.is_empty() {
            continue;
        }
        let [kernel, sietch] = [side("kernel", module)?, side("sietch", module)?];
        let again = compared(&kernel.outcomes, &sietch.outcomes);
        for test in differ.into_iter().filter(|test| again.contains(test)) {
            match KNOWN.iter().find(|(known, _)| test.ends_with(known)) {
                Some((_, why)) => println!("  {test}: known: {why}"),
                None => failed.push(test),
            }
        }
    }
    println!("{connections} connections went through memory");
    if module.is_none() && connections == 0 {
        return Err("suites: no connection went through memory".to_owned());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("suites: these pass on the kernel's sockets alone:\n  {}", failed.join("\n  ")))
    }
}

/// Builds what the sides need.
pub(crate) fn build(root: &Path) -> Result<(), String> {
    let packages = ["build", "--release", "-p", "sietch-cli", "-p", "sietch-posix-preload"];
    crate::cargo::cargo(root, &packages, &[])
}

/// What this machine lacks to run `programs` in namespaces.
pub(crate) fn missing(programs: &[&str]) -> Option<String> {
    let lacks = |program: &&str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    };
    if let Some(program) = programs.iter().find(|program| lacks(program)) {
        return Some(format!("there is no {program}"));
    }
    let is_root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
    (!is_root).then(|| "it needs root, for namespaces".to_owned())
}

/// The folder with the suite, fetched once. The files of the installed library that the runner
/// needs are beside it.
fn fetched(folder: &Path) -> Result<PathBuf, String> {
    let suite = folder.join(PACKAGE);
    let library = suite.join("usr/lib/python3.11");
    if library.join("test/test_socket.py").is_file() {
        return Ok(library);
    }
    done(Command::new("apt-get").args(["download", "-qq", PACKAGE]).current_dir(folder))?;
    let script = format!("dpkg-deb -x {PACKAGE}_*.deb {PACKAGE} && rm {PACKAGE}_*.deb");
    done(Command::new("sh").args(["-c", &script]).current_dir(folder))?;
    let script = "cp -rn /usr/lib/python3.11/test/. test/";
    done(Command::new("sh").args(["-c", script]).current_dir(&library))?;
    Ok(library)
}

pub(crate) fn done(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|cause| format!("cannot run {command:?}: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// By the test's name.
pub(crate) type Outcomes = BTreeMap<String, Outcome>;

/// One module on one side.
struct Side<'a> {
    root: &'a Path,
    folder: &'a Path,
    suite: &'a Path,
    name: &'static str,
    module: &'static str,
}

/// Its results.
struct Run {
    outcomes: Outcomes,
    connections: u64,
}

impl Side<'_> {
    fn run(&self) -> Result<Run, String> {
        let report = self.folder.join(format!("{}-{}", self.module, self.name));
        for ending in ["xml", "stat", "log"] {
            let _ = std::fs::remove_file(report.with_extension(ending));
        }
        let xml = report.with_extension("xml");
        let mut command = on(self.root, self.name, &report);
        command
            .args([PYTHON, "-m", "test", "--timeout", TIMEOUT, "--ignore", IGNORED, "--junit-xml"])
            .arg(&xml)
            .arg(self.module)
            .env("FOLDER", self.folder)
            .env("PYTHONPATH", self.suite);
        done(&mut command)?;
        let text = std::fs::read_to_string(&xml).map_err(|cause| {
            format!("{} on {} left no report ({cause}); see {}.log", self.module, self.name, report.display())
        })?;
        Ok(Run { outcomes: outcomes(&text), connections: connections(&report) })
    }
}

/// The beginning of a command in namespaces of its own, on one side. Its output goes to
/// `report.log`.
pub(crate) fn on(root: &Path, side: &str, report: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", SCRIPT, "sh"])
        .env("SIDE", side)
        .env("OPTIONS", "")
        .env("REPORT", report)
        .env("PATH", format!("{}:{path}", root.join("target/release").display()))
        .env_remove("XDG_RUNTIME_DIR");
    command
}

/// How many connections of that side went through memory.
pub(crate) fn connections(report: &Path) -> u64 {
    let counted = std::fs::read_to_string(report.with_extension("stat")).unwrap_or_default();
    number(&counted, "\"connected\":")
}

/// How many tests had each outcome.
pub(crate) fn counts(outcomes: &Outcomes) -> String {
    let of = |outcome| outcomes.values().filter(|each| **each == outcome).count();
    let [passed, failed, skipped] = [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(of);
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

/// The number that follows `name`; 0 if there is none.
fn number(text: &str, name: &str) -> u64 {
    let digits = text.split_once(name).map_or("", |(_, rest)| rest.trim_start());
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// Parses the runner's report: an element `testcase` for each test, which contains an element with
/// the outcome if the test did not pass.
fn outcomes(report: &str) -> Outcomes {
    let mut found = Outcomes::new();
    for case in report.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let Some(name) = case.split_once("name=\"").and_then(|(_, rest)| rest.split('"').next()) else {
            continue;
        };
        let has = |element: &str| case.contains(element);
        let outcome = if has("<error") || has("<failure") {
            Outcome::Failed
        } else if has("<skipped") {
            Outcome::Skipped
        } else {
            Outcome::Passed
        };
        found.insert(name.to_owned(), outcome);
    }
    found
}

/// Tests that pass on the kernel and not under Sietch, including those that did not run there.
pub(crate) fn compared(kernel: &Outcomes, sietch: &Outcomes) -> Vec<String> {
    let passed = kernel.iter().filter(|(_, outcome)| **outcome == Outcome::Passed);
    let differ = passed.filter(|(name, _)| sietch.get(*name) != Some(&Outcome::Passed));
    differ.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<testsuites tests="4"><testsuite>
        <testcase name="test.a.One.test_good" status="run" result="completed" time="0.1" />
        <testcase name="test.a.One.test_bad" status="run"><failure type="x" message="y">z</failure></testcase>
        <testcase name="test.a.One.test_worse" status="run"><error type="x">z</error></testcase>
        <testcase name="test.a.One.test_left_out" status="run"><skipped>no root</skipped></testcase>
        </testsuite></testsuites>"#;

    #[test]
    fn a_report_has_the_outcome_of_each_test() {
        let found = outcomes(REPORT);
        let expected = [
            ("test.a.One.test_bad", Outcome::Failed),
            ("test.a.One.test_good", Outcome::Passed),
            ("test.a.One.test_left_out", Outcome::Skipped),
            ("test.a.One.test_worse", Outcome::Failed),
        ];
        assert_eq!(found, expected.map(|(name, outcome)| (name.to_owned(), outcome)).into());
    }

    #[test]
    fn a_test_that_fails_or_does_not_run_under_sietch_is_found() {
        let kernel = outcomes(REPORT);
        assert_eq!(compared(&kernel, &kernel), Vec::<String>::new());
        assert_eq!(compared(&kernel, &Outcomes::new()), ["test.a.One.test_good"]);
        let worse = outcomes(&REPORT.replace(r#"time="0.1" />"#, "><failure></failure></testcase>"));
        assert_eq!(compared(&kernel, &worse), ["test.a.One.test_good"]);
    }

    #[test]
    fn a_counter_is_read() {
        assert_eq!(number(r#"{"connected": 17, "x": 3}"#, "\"connected\":"), 17);
        assert_eq!(number("{}", "\"connected\":"), 0);
    }
}
