//! memcached with four threads that hand connections to one another over pipes, and a client of
//! many threads in Python.

use crate::combinations;
use crate::place::{Place, Sides};

combinations!(load, needs ["memcached", "python3"], in CI [Sides::BOTH]);

fn load(place: &Place) {
    let arguments =
        ["-t", "4", "-u", "nobody", "-l", "127.0.0.1", "-p", "11211", "-U", "0", "-c", "2000", "-m", "256"];
    let mut server = place.serve("memcached", &arguments, 11211);
    let script = place.write("client.py", include_str!("scripts/memcached.py"));
    let said = place.ask("python3", &[&script, "11211", "8", place.size("100", "5000")]);
    assert!(said.contains("all right"), "{said}");
    server.must_run();
}
