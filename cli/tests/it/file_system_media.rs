//! `sietch fs grow`, `add` and `drain`: other media for a file system that is not open.

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
    // It is done already.
    run(&testbed, &grow, true);
    let text = run(&testbed, &["grow", "store", "--medium", &medium, "--size", "80mib"], false);
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

#[test]
fn a_disk_is_replaced_after_a_crash() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("replace");
    testbed.create("shm/data");
    run(&testbed, &["add", "store", "--ssd", "old=64mib"], true);
    let mounted = Running::start(&testbed, &["mount", "store", "mnt"]);
    for name in ["first", "second"] {
        fs::write(testbed.file(name), content(40 << 20)).expect("room");
    }
    fs::write(testbed.file("last"), content(1 << 20)).expect("room");
    let old = testbed.path("old");
    let drain = ["drain", "store", "--medium", &old];
    let text = run(&testbed, &drain, false);
    assert!(text.contains("unmount it, or end `sietch fs serve`"), "{text}");
    // It is killed: the log has records that are not digested.
    drop(mounted);
    let text = run(&testbed, &drain, false);
    assert!(text.contains("the other media have room for"), "{text}");
    let text = run(&testbed, &["drain", "store", "--medium", &testbed.path("shm/data")], false);
    assert!(text.contains("only other media can leave"), "{text}");
    run(&testbed, &["add", "store", "--hdd", "new=128mib"], true);
    let text = run(&testbed, &drain, true);
    assert!(text.contains("were moved") && text.contains("may be removed"), "{text}");
    fs::remove_file(&old).expect("it is not used");
    let mounted = Running::start(&testbed, &["mount", "store", "mnt"]);
    for (name, bytes) in [("first", 40 << 20), ("second", 40 << 20), ("last", 1 << 20)] {
        assert!(fs::read(testbed.file(name)).expect("a file") == content(bytes), "{name}");
    }
    drop(mounted);
    let text = run(&testbed, &["check", "store", "--data"], true);
    assert!(text.contains("whole") && text.contains("/new") && !text.contains("/old"), "{text}");
}

#[test]
fn a_disk_is_modelled_in_memory_and_every_output_says_so() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("model");
    let media = ["create", "store", "--nvm", "shm/data=64mib", "--log", "16mib", "--hdd"];
    let create = |disk: &'static str| [&media[..], &[disk, "--hdd-model", "rotating"]].concat();
    // TMPFS_MAGIC, linux/magic.h.
    if rustix::fs::statfs(&testbed.folder).expect("a folder").f_type != 0x0102_1994 {
        let text = run(&testbed, &create("disk=64mib"), false);
        assert!(text.contains("/disk is no file of class hdd on a tmpfs"), "{text}");
    }
    let text = run(&testbed, &create("shm/disk=64mib"), true);
    assert!(text.contains("shm/disk is memory, slowed down (model: ") && text.contains("250 MB/s"), "{text}");
    // It has a medium of each of these classes, and of no other.
    let mounted = Running::start(&testbed, &["mount", "store", "mnt"]);
    fs::write(testbed.file("file"), content(1 << 20)).expect("room");
    let file = testbed.file("file").display().to_string();
    let text = run(&testbed, &["pin", &file, "ssd"], false);
    assert!(text.contains("has no medium of this class"), "{text}");
    run(&testbed, &["pin", &file, "hdd"], true);
    assert!(fs::read(testbed.file("file")).expect("a file") == content(1 << 20));
    drop(mounted);
}
