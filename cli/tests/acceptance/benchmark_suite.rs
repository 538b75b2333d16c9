//! Redis' own benchmark, whole, against both addresses.

use std::process::Command;

use crate::place::{Place, has, in_own_network, text};

/// Requests of each of its twenty tests.
const REQUESTS: &str = "1500";

#[test]
fn the_whole_redis_benchmark_finishes_without_an_error() {
    let name = "the_whole_redis_benchmark_finishes_without_an_error";
    in_own_network(name, move || {
        if !has(name, "redis-benchmark") {
            return;
        }
        let place = Place::new("benchmark");
        let up = place.up(&[]);
        for address in [place.vnic(), place.kernel()] {
            for options in [&[][..], &["-P", "16"], &["-d", "1024"], &["--threads", "2"]] {
                let output = Command::new("redis-benchmark")
                    .args(["-q", "-n", REQUESTS, "-h", &address.ip().to_string(), "-p"])
                    .arg(address.port().to_string())
                    .args(options)
                    .output()
                    .expect("redis-benchmark");
                let said = text(&output.stdout) + &text(&output.stderr);
                assert!(output.status.success(), "{address} {options:?}: {said}");
                let results = said.matches("requests per second").count();
                assert!(results >= 20, "{address} {options:?}: {results} results: {said}");
                for word in ["Error", "ERR", "WARN", "closed"] {
                    assert!(!said.contains(word), "{address} {options:?}: {said}");
                }
            }
        }
        up.stop();
    });
}
