//! Duplicates of a number that another thread gives to other files (`duplicates.c`).

use std::process::Command;

use super::{Program, Served};

#[test]
fn a_duplicate_made_beside_dup2_reads_its_own_file() {
    let Some(served) = Served::start("duplicates") else { return };
    let folder = &served.testbed.folder;
    std::fs::write(folder.join("duplicates.c"), include_str!("duplicates.c")).expect("write a program");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "duplicates.c", "-o", "duplicates"]).current_dir(folder);
    assert!(compiler.status().expect("cc is there").success(), "compile duplicates.c");
    let mut command = served.under(&folder.join("duplicates"));
    command.arg("2");
    let mut program = Program::start(&served, "duplicates", command);
    program.succeeded();
    assert_eq!(String::from_utf8_lossy(&program.output()), "0 of other files\n");
}
