//! Damaged or wrong files: a superblock, a full disk, sietch.toml. The error names the damage and
//! the fix, and nothing is overwritten.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::Command;

use rustix::process::Signal;

use crate::client::{Client, Reply};
use crate::testbed::{STORE_USER, Testbed, has, in_own_network, signal, text, wait_for};

/// Bytes of one copy of the superblock, and how many there are (docs/spec/log.md).
const COPY: usize = 4096;
const COPIES: usize = 4;

fn contains_all(printed: &str, words: &[&str]) {
    for word in words {
        assert!(printed.contains(word), "{word:?} is not in: {printed}");
    }
}

/// Damages the copies and returns the resulting area.
fn corrupt(testbed: &Testbed, copies: &[usize]) -> Vec<u8> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(testbed.area()).expect("the area");
    for copy in copies {
        let mut bytes = vec![0; COPY];
        let offset = u64::try_from(copy * COPY).unwrap();
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes.iter_mut().skip(8).take(200).for_each(|byte| *byte ^= 0x5a);
        file.write_all_at(&bytes, offset).unwrap();
    }
    drop(file);
    std::fs::read(testbed.area()).unwrap()
}

#[test]
fn a_corrupted_superblock_is_survived_and_four_are_named() {
    in_own_network("a_corrupted_superblock_is_survived_and_four_are_named", || {
        let testbed = Testbed::new("superblock");
        let up = testbed.up(&["--net", "linux"]);
        let mut client = Client::connect(testbed.kernel()).unwrap();
        assert_eq!(client.request("SET a 1").unwrap(), Reply::ok());
        up.stop();
        for copy in 0..COPIES {
            corrupt(&testbed, &[copy]);
            let up = testbed.up(&["--net", "linux"]);
            let mut client = Client::connect(testbed.kernel()).unwrap();
            assert_eq!(client.request("GET a").unwrap().number(), 1, "without copy {copy}");
            up.stop();
        }
        let before = corrupt(&testbed, &[0, 1, 2, 3]);
        let printed = testbed.failing_store(&["--net", "linux"]);
        contains_all(&printed, &["store", "superblock"]);
        assert!(std::fs::read(testbed.area()).unwrap() == before, "the damaged area was written to");
        eprintln!("{printed}");
    });
}

#[test]
fn a_full_disk_is_reported_with_needed_and_free_bytes() {
    let name = "a_full_disk_is_reported_with_needed_and_free_bytes";
    in_own_network(name, move || {
        if !has(name, "unshare") {
            return;
        }
        let testbed = Testbed::new("full-disk");
        let data = testbed.folder.join("data");
        std::fs::create_dir(&data).unwrap();
        let up = testbed.up_command(&["--net", "linux"]);
        // A mount namespace that ends with the command, and a small file system in it.
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", "mount -t tmpfs -o size=32m none \"$0\" && exec \"$@\""])
            .arg(&data)
            .arg(up.get_program())
            .args(up.get_args())
            .env("HOME", &testbed.folder)
            .env("NO_COLOR", "1");
        let up = testbed.up_by(command);
        let words = up.banner.split_whitespace().collect::<Vec<_>>().join(" ");
        up.stop();
        eprintln!("{words}");
        contains_all(&words, &["volume main", "67108864 bytes were requested", "are free", "smaller size"]);
    });
}

#[test]
fn an_unreadable_or_invalid_sietch_toml_is_named_with_its_line() {
    let name = "an_unreadable_or_invalid_sietch_toml_is_named_with_its_line";
    in_own_network(name, move || {
        let testbed = Testbed::new("toml");
        let good = testbed.configuration();
        for (wrong, words) in [
            (good.replace("[[vsa]]", "[[vsa]"), &["vsa"][..]),
            (good.replace("64MiB", "64 parsecs"), &["64 parsecs", "MiB"]),
            (good.replace("10.84.0.2/24", "10.84.0.256/24"), &["10.84.0.256"]),
            (good.replace("tcp_ports", "tpc_ports"), &["tpc_ports", "tcp_ports"]),
            (good.replace("rogue", "kv"), &["kv"]),
            (good.replace("64MiB", "0MiB"), &["0"]),
        ] {
            let line = 1 + good.lines().zip(wrong.lines()).take_while(|(left, right)| left == right).count();
            testbed.configure(&wrong);
            let printed = testbed.refused(&[]);
            let places =
                [format!("sietch.toml: TOML parse error at line {line},"), format!("sietch.toml:{line}: ")];
            assert!(places.iter().any(|place| printed.contains(place)), "line {line} is not in: {printed}");
            contains_all(&printed, words);
        }
        std::fs::write(testbed.folder.join("sietch.toml"), [0xff, 0xfe, 0, 1]).unwrap();
        contains_all(&testbed.refused(&[]), &["sietch.toml", "UTF-8"]);

        let testbed = Testbed::of("toml-user", Some(65534));
        if testbed.sietch(&["--version"]).output().is_err() {
            eprintln!("SKIPPED a part of {name}: needs a target folder that an ordinary user can read");
            return;
        }
        let file = testbed.folder.join("sietch.toml");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        let printed = testbed.refused(&[]);
        eprintln!("{printed}");
        contains_all(&printed, &["sietch.toml", "ermission denied"]);
    });
}

#[test]
fn an_area_is_checked_by_its_name_while_no_store_holds_it() {
    in_own_network("an_area_is_checked_by_its_name_while_no_store_holds_it", || {
        let testbed = Testbed::new("check");
        let up = testbed.up(&["--net", "linux"]);
        let mut client = Client::connect(testbed.kernel()).unwrap();
        assert_eq!(client.request("SET a 1").unwrap(), Reply::ok());
        let held = testbed.run(&["kv", "check", "store"]);
        assert_eq!(held.status.code(), Some(2), "{held:?}");
        contains_all(&text(&held.stderr), &["store", "pid"]);
        up.stop();
        let path = |name: &str| testbed.folder.join(name).display().to_string();
        let (config, data) = (path("sietch.toml"), path("data"));
        let mut daemon = testbed
            .sietch(&["daemon", "--without-network", "--config", &config, "--data", &data])
            .spawn()
            .expect("start the daemon");
        wait_for("the daemon", || testbed.run(&["vsa", "list"]).status.success().then_some(()));
        for name in ["store", "/main/store"] {
            let good = testbed.run(&["kv", "check", name]);
            assert_eq!(good.status.code(), Some(0), "{good:?}");
            contains_all(&text(&good.stdout), &["good", "1 log records", "closed in order"]);
        }
        let missing = testbed.run(&["kv", "check", "nothing"]);
        assert_eq!(missing.status.code(), Some(2), "{missing:?}");
        assert!(!text(&testbed.run(&["vsa", "list"]).stdout).contains("nothing"), "a check has made an area");
        signal(i64::from(daemon.id()), Signal::TERM);
        daemon.wait().unwrap();
        corrupt(&testbed, &[0, 1, 2, 3]);
        let bad = testbed.run(&["kv", "check", &testbed.area().display().to_string()]);
        assert_eq!(bad.status.code(), Some(1), "{bad:?}");
        contains_all(&text(&bad.stdout), &["damaged", "superblocks", "acknowledged", "backup"]);
    });
}

#[test]
fn a_backup_that_may_only_be_read_is_checked() {
    in_own_network("a_backup_that_may_only_be_read_is_checked", || {
        let testbed = Testbed::of("backup", Some(STORE_USER));
        if testbed.sietch(&["--version"]).output().is_err() {
            eprintln!("SKIPPED: needs a target folder that an ordinary user can read");
            return;
        }
        let up = Testbed::new("backed-up");
        let running = up.up(&["--net", "linux"]);
        let mut client = Client::connect(up.kernel()).unwrap();
        assert_eq!(client.request("SET a 1").unwrap(), Reply::ok());
        running.stop();
        let backup = testbed.folder.join("store.backup");
        std::fs::copy(up.area(), &backup).unwrap();
        std::fs::set_permissions(&backup, std::fs::Permissions::from_mode(0o444)).unwrap();
        // As its reader, an ordinary user.
        let checked = testbed.run(&["kv", "check", &backup.display().to_string()]);
        assert_eq!(checked.status.code(), Some(0), "{}{}", text(&checked.stdout), text(&checked.stderr));
    });
}
