//! Many short-lived connections a second: `sietch run` leaves most of them to the kernel (the test
//! fails if next to nothing crosses its loopback). Neither they nor a long-lived connection beside
//! them are disturbed.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["python3"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    testbed.allow_kernel_connections();
    let script = testbed.write("short_lived.py", include_str!("scripts/short_lived.py"));
    let mut server = testbed.serve("python3", &[&script, "serve", "8055"], 8055);
    let printed = testbed.client_output("python3", &[&script, "load", "8055", testbed.size("2000", "50000")]);
    assert!(printed.contains("all right"), "{printed}");
    server.must_run();
}
