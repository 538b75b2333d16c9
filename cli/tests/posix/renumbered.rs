//! Threads that change what a number is (`dup2`, `dup`, `close`, `connect`), beside threads that
//! use the number or duplicate it, and beside a fork: no connection fails, and no byte is lost.

use crate::testbed::{self, Sides, Testbed};

fn all_right(testbed: &Testbed, mode: &str) {
    let source = testbed.write("renumbered.c", include_str!("scripts/renumbered.c"));
    let program = testbed.path("renumbered");
    let arguments = [source.as_str(), "-O1", "-pthread", "-o", &program];
    testbed.start(testbed.kernel_command("cc", &arguments), "cc").succeed();
    let run = testbed.client_command(&program, &[mode, testbed.size("10000", "1000")]);
    assert_eq!(testbed.start(run, mode).succeed().text(), "all right\n");
}

fn both(load: fn(&Testbed)) {
    testbed::run(module_path!(), &["cc"], Sides::BOTH, &[Sides::BOTH], load);
}

#[test]
fn a_write_beside_dup2_goes_to_one_of_the_connections() {
    both(|testbed| all_right(testbed, "dup2"));
}

#[test]
fn a_write_beside_dup2_goes_to_a_connection_or_a_file() {
    both(|testbed| all_right(testbed, "null"));
}

#[test]
fn a_write_beside_close_and_dup_goes_to_a_connection_or_nowhere() {
    both(|testbed| all_right(testbed, "close"));
}

#[test]
fn a_send_beside_connect_resets_nothing() {
    both(|testbed| all_right(testbed, "connect"));
}

#[test]
fn a_child_forked_beside_dup2_has_one_of_the_connections() {
    both(|testbed| all_right(testbed, "fork"));
}

#[test]
fn a_duplicate_made_beside_dup2_is_of_its_files_connection() {
    both(|testbed| all_right(testbed, "source"));
}
