//! rsync's daemon over TCP: a process for each connection at the server, two that share one
//! connection at the client, both directions at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::combinations;
use crate::testbed::{Sides, Testbed, pattern};

combinations!(load, needs ["rsync"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    let (source, copy, upload) =
        (testbed.folder.join("source"), testbed.folder.join("copy"), testbed.folder.join("upload"));
    tree(testbed);
    std::fs::create_dir(&upload).unwrap();
    let file = testbed.write(
        "rsyncd.conf",
        format!(
            "use chroot = no\nuid = 0\ngid = 0\nreverse lookup = no\nlock file = {0}lock\npid file = {0}pid\n\
             [source]\npath = {0}source\n[upload]\npath = {0}upload\nread only = no\n",
            testbed.path("")
        ),
    );
    let arguments =
        ["--daemon", "--no-detach", "--address", "127.0.0.1", "--port", "8730", "--config", &file];
    let mut server = testbed.serve("rsync", &arguments, 8730);
    let remote = |name: &str| format!("rsync://127.0.0.1:8730/{name}/");
    let local = |path: &Path| format!("{}/", path.display());
    for round in 0..testbed.size(2, 6) {
        testbed.client("rsync", &["-a", "--delete", &remote("source"), &local(&copy)]);
        compare(&source, &copy);
        testbed.client("rsync", &["-az", "--delete", &local(&copy), &remote("upload")]);
        compare(&source, &upload);
        // Some differ, one is deleted, one is new: rsync matches parts of files against the
        // existing ones.
        testbed.write(&format!("source/3/{round}.new"), pattern(10_000 + round));
        let path = source.join("large");
        let mut large = std::fs::read(&path).unwrap();
        large.splice(1_000_000..1_000_100, *b"changed");
        std::fs::write(&path, large).unwrap();
        std::fs::remove_file(source.join(format!("{}/{round}", round % 5))).unwrap();
    }
    server.must_run();
}

fn tree(testbed: &Testbed) {
    for folder in 0..5 {
        for file in 0..testbed.size(40, 400) {
            testbed.write(&format!("source/{folder}/{file}"), pattern(file * 97 + folder));
        }
    }
    testbed.write("source/large", pattern(testbed.size(20 << 20, 200 << 20)));
}

fn compare(one: &Path, other: &Path) {
    let (left, right) = (files(one), files(other));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left), names(&right));
    for (name, content) in &left {
        assert!(right[name] == *content, "{}", name.display());
    }
}

fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
