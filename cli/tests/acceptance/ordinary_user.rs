//! Without privileges the same store serves on kernel sockets, with io_uring and without.

use std::process::Command;

use crate::client::{Client, Reply};
use crate::testbed::{Testbed, has, in_own_network, text};

const UNPRIVILEGED: u32 = 65534;

#[test]
fn an_ordinary_user_gets_the_same_store_with_and_without_io_uring() {
    let name = "an_ordinary_user_gets_the_same_store_with_and_without_io_uring";
    in_own_network(name, move || {
        let testbed = Testbed::of("user", Some(UNPRIVILEGED));
        if testbed.sietch(&["--version"]).output().is_err() {
            eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
            return;
        }
        for (round, options) in [&[][..], &["--without-io-uring"]].into_iter().enumerate() {
            let up = testbed.up(options);
            let first = up.banner.lines().next().expect("a line");
            assert!(first.contains("linux sockets, because"), "{first}");
            let storage = if options.is_empty() { ", io_uring, O_DIRECT" } else { ", pwritev2, O_DIRECT" };
            if !up.banner.contains(storage) {
                // Containers often refuse io_uring; then both rounds are the same.
                assert!(up.banner.contains("without io_uring"), "{}", up.banner);
            }
            let mut client = Client::connect(testbed.kernel()).unwrap();
            // The data of the previous run are there, whichever way blocks reach the disk.
            assert_eq!(
                client.request("INCR rounds").unwrap(),
                Reply::Integer(i64::try_from(round).unwrap() + 1)
            );
            for pid in testbed.pids() {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
                assert!(status.contains(&format!("Uid:\t{UNPRIVILEGED}\t{UNPRIVILEGED}")), "{status}");
                assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
            }
            if has(name, "redis-benchmark") {
                let output = Command::new("redis-benchmark")
                    .args(["-q", "-n", "1000", "-p", &testbed.port.to_string()])
                    .output()
                    .expect("redis-benchmark");
                let printed = text(&output.stdout) + &text(&output.stderr);
                assert!(output.status.success() && !printed.contains("Error"), "{printed}");
            }
            up.stop();
        }
    });
}
