//! Redis' own benchmark, complete, against both addresses.

use std::process::Command;

use crate::testbed::{Testbed, has, in_own_network, text};

/// Requests of each of its twenty tests.
const REQUESTS: &str = "1500";

#[test]
fn the_whole_redis_benchmark_finishes_without_an_error() {
    let name = "the_whole_redis_benchmark_finishes_without_an_error";
    in_own_network(name, move || {
        if !has(name, "redis-benchmark") {
            return;
        }
        let testbed = Testbed::new("benchmark");
        let up = testbed.up(&[]);
        for address in [testbed.vnic(), testbed.kernel()] {
            for options in [&[][..], &["-P", "16"], &["-d", "1024"], &["--threads", "2"]] {
                let output = Command::new("redis-benchmark")
                    .args(["-q", "-n", REQUESTS, "-h", &address.ip().to_string(), "-p"])
                    .arg(address.port().to_string())
                    .args(options)
                    .output()
                    .expect("redis-benchmark");
                let printed = text(&output.stdout) + &text(&output.stderr);
                assert!(output.status.success(), "{address} {options:?}: {printed}");
                let results = printed.matches("requests per second").count();
                assert!(results >= 20, "{address} {options:?}: {results} results: {printed}");
                for word in ["Error", "ERR", "WARN", "closed"] {
                    assert!(!printed.contains(word), "{address} {options:?}: {printed}");
                }
            }
        }
        up.stop();
    });
}
