//! Connections that are over after one question, many a second: `sietch run` leaves most of them to
//! the kernel (the test fails if next to nothing crosses its loopback), and neither side notices;
//! nor does a connection beside them that lasts.

use crate::combinations;
use crate::place::{Place, Sides};

combinations!(load, needs ["python3"], in CI [Sides::BOTH]);

fn load(place: &Place) {
    place.as_by_default();
    let script = place.write("brief.py", include_str!("scripts/brief.py"));
    let mut server = place.serve("python3", &[&script, "serve", "8055"], 8055);
    let said = place.ask("python3", &[&script, "load", "8055", place.size("2000", "50000")]);
    assert!(said.contains("all right"), "{said}");
    server.must_run();
}
