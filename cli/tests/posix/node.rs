//! Node's http: libuv's epoll, an agent that keeps connections, bodies in both directions.

use rustix::process::Signal;

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["node"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    let script = testbed.write("http.js", include_str!("scripts/http.js"));
    let server = testbed.serve("node", &[&script, "serve", "8002"], 8002);
    let printed =
        testbed.client_output("node", &[&script, "load", "8002", testbed.size("300", "20000"), "20"]);
    assert!(printed.contains("all right"), "{printed}");
    server.signal(Signal::TERM);
    server.succeed();
}
