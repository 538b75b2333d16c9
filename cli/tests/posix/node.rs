//! Node's http: libuv's epoll, an agent that keeps connections, bodies in both directions.

use rustix::process::Signal;

use crate::combinations;
use crate::place::{Place, Sides};

combinations!(load, needs ["node"], in CI [Sides::BOTH]);

fn load(place: &Place) {
    let script = place.write("http.js", include_str!("scripts/http.js"));
    let server = place.serve("node", &[&script, "serve", "8002"], 8002);
    let said = place.ask("node", &[&script, "load", "8002", place.size("300", "20000"), "20"]);
    assert!(said.contains("all right"), "{said}");
    server.signal(Signal::TERM);
    server.succeed();
}
