//! Programs that give up rights, or have children that do: nothing of the file system stays with
//! them but the files of its mount (`rights.c`).

use std::process::Command;

use super::{Program, Served};

fn nothing_stays(name: &str, medium: &str) {
    let Some(served) = Served::start_on(name, medium) else { return };
    let folder = &served.testbed.folder;
    std::fs::write(folder.join("rights.c"), include_str!("rights.c")).expect("write a program");
    let mut compiler = Command::new("cc");
    let built =
        compiler.args(["-O1", "-w", "-pthread", "rights.c", "-o", "rights"]).current_dir(folder).status();
    assert!(built.expect("cc is there").success(), "compile rights.c");
    let mut command = served.under(&folder.join("rights"));
    command.arg(served.testbed.path("mnt")).arg(folder);
    Program::start(&served, "rights", command).succeeded();
}

#[test]
fn who_gives_up_rights_keeps_no_memory_of_media_and_logs() {
    nothing_stays("rights-memory", "shm/data");
}

#[test]
fn who_gives_up_rights_keeps_no_descriptor_of_media_and_logs() {
    nothing_stays("rights-disk", "data");
}
