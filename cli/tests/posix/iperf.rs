//! iperf3 in both directions: bulk data over select(2), several streams, a control connection
//! beside them.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["iperf3"], in CI [Sides::BOTH, Sides::CLIENT]);

fn load(testbed: &Testbed) {
    let mut server = testbed.serve("iperf3", &["-s", "-p", "5201"], 5201);
    let bytes: u64 = testbed.size(100 << 20, 4 << 30);
    let text = bytes.to_string();
    for more in [&[][..], &["-R"], &["-P", "4"], &["-P", "4", "-R"], &["-l", "1000"], &["--bidir"], &["-Z"]] {
        let fixed = ["-c", "127.0.0.1", "-p", "5201", "-J", "-n", &text];
        // The server closes its listener after each run, and opens it again a moment later.
        let printed = testbed.wait_for("the server to listen again", || {
            let printed = testbed.client_output("iperf3", &[&fixed, more].concat());
            (!printed.contains("Connection refused")).then_some(printed)
        });
        let report: serde_json::Value = serde_json::from_str(&printed).expect(&printed);
        assert!(report.get("error").is_none(), "{more:?}: {report}");
        let number = |name: &str| report["end"][name]["bytes"].as_u64().expect(name);
        let (sent, received) = (number("sum_sent"), number("sum_received"));
        // The direction that finishes first ends the test.
        let back = if more == ["--bidir"] { number("sum_sent_bidir_reverse") } else { sent };
        // The end of the test may arrive before the last bytes: on the kernel too.
        assert!(
            sent.max(back) >= bytes && received <= sent && received > sent / 2,
            "{more:?}: {sent} sent, {received} received"
        );
        server.must_run();
    }
}
