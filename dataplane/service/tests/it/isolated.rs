//! Tests that count or limit what the whole process has, or that say when a descriptor is closed,
//! run in a process of their own. Other tests open and close descriptors beside them.

use std::process::Command;

/// The variable by which this program knows that it runs one test.
const ALONE: &str = "SIETCH_TEST_ALONE";

/// Runs the test of this name in a process of its own, and returns true when it has passed there;
/// false in that process, which then does what the test says. No other test's name may contain this
/// one.
pub(crate) fn passes(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let output =
        Command::new(program).args([test, "--nocapture"]).env(ALONE, "").output().expect("a process");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    println!("{}", said.concat());
    assert!(
        output.status.success() && said[0].contains("1 passed"),
        "{}: it failed by itself",
        output.status
    );
    true
}
