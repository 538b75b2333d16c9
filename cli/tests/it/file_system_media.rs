//! `sietch fs grow` and `sietch fs add`: other media for a file system that is not open.

use std::fs;

use crate::file_system::{Running, Testbed, can_mount};

/// Runs a command that must succeed, or fail; returns what it prints.
fn run(testbed: &Testbed, arguments: &[&str], succeeds: bool) -> String {
    let output = testbed.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.success(), succeeds, "{arguments:?}: {text}");
    text
}

/// Bytes of a file in the mount.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3 % 251) as u8).collect()
}

#[test]
fn a_full_file_system_grows_and_gets_another_medium() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("media");
    testbed.create("shm/data");
    let mounted = Running::start(&testbed, &["mount", "store", "mnt"]);
    fs::write(testbed.file("first"), content(40 << 20)).expect("room");
    assert!(fs::write(testbed.file("second"), content(40 << 20)).is_err(), "the medium is full");
    fs::remove_file(testbed.file("second")).expect("removing works");
    let medium = testbed.path("shm/data");
    let grow = ["grow", "store", "--medium", &medium, "--size", "96mib"];
    let text = run(&testbed, &grow, false);
    assert!(text.contains("unmount it, or end `sietch fs serve`"), "{text}");
    drop(mounted);
    // It was killed: the next mount recovers its log, also after the medium has grown.
    let text = run(&testbed, &grow, true);
    assert!(text.contains("nvm  100663296 bytes"), "{text}");
    let text = run(&testbed, &["grow", "store", "--medium", &medium, "--size", "96mib"], false);
    assert!(text.contains("a medium only gets larger"), "{text}");
    let text = run(&testbed, &["grow", "store", "--medium", "nothing", "--size", "96mib"], false);
    assert!(text.contains("has no medium") && text.contains("shm/data"), "{text}");
    let text = run(&testbed, &["add", "store", "--ssd", "more=64mib"], true);
    assert!(text.contains("ssd  67108864 bytes"), "{text}");
    let text = run(&testbed, &["add", "store", "--hdd", "more=64mib"], false);
    assert!(text.contains("exists already"), "{text}");
    let text = run(&testbed, &["add", "store"], false);
    assert!(text.contains("--ssd"), "{text}");
    let mounted = Running::start(&testbed, &["mount", "store", "mnt"]);
    for name in ["second", "third"] {
        fs::write(testbed.file(name), content(40 << 20)).expect("room");
    }
    for name in ["first", "second", "third"] {
        assert!(fs::read(testbed.file(name)).expect("a file") == content(40 << 20), "{name}");
    }
    mounted.signal(rustix::process::Signal::TERM);
    let mut mounted = mounted;
    assert!(mounted.ended());
    let text = run(&testbed, &["check", "store", "--data"], true);
    assert!(text.contains("whole") && text.contains("/more"), "{text}");
}
