//! memcached with four threads that pass connections to one another over pipes, and a client with
//! many threads in Python.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["memcached", "python3"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    let arguments =
        ["-t", "4", "-u", "nobody", "-l", "127.0.0.1", "-p", "11211", "-U", "0", "-c", "2000", "-m", "256"];
    let mut server = testbed.serve("memcached", &arguments, 11211);
    let script = testbed.write("client.py", include_str!("scripts/memcached.py"));
    let printed = testbed.client_output("python3", &[&script, "11211", "8", testbed.size("100", "5000")]);
    assert!(printed.contains("all right"), "{printed}");
    server.must_run();
}
