//! Python's http.server (a thread a connection, blocking sockets), and asyncio's streams
//! (half-closed connections) on its own loop and on uvloop's.

use rustix::process::Signal;

use crate::testbed::{Sides, Testbed, assert_same_files, pattern};

/// A thread for each connection.
mod http {
    use super::{Sides, Testbed, assert_same_files, pattern};
    use crate::combinations;

    combinations!(load, needs ["python3", "curl"], in CI [Sides::BOTH]);

    fn load(testbed: &Testbed) {
        let large = testbed.write("www/large.bin", pattern(testbed.size(20 << 20, 200 << 20)));
        for number in 0..20 {
            testbed.write(&format!("www/{number}.txt"), format!("file {number}\n").repeat(number * 100));
        }
        let folder = testbed.path("www");
        let mut server = testbed.serve(
            "python3",
            &["-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", &folder],
            8000,
        );
        testbed.client("curl", &["-sS", "--fail", "-o", "large.out", "http://127.0.0.1:8000/large.bin"]);
        assert_same_files(large.as_ref(), &testbed.folder.join("large.out"));
        // Fewer threads than its backlog of five: further connections are on the kernel.
        let script = testbed.write("fetch.py", include_str!("scripts/fetch.py"));
        let printed =
            testbed.client_output("python3", &[&script, "8000", &folder, "4", testbed.size("5", "100")]);
        assert!(printed.contains("all right"), "{printed}");
        server.must_run();
    }
}

/// One loop for all connections.
mod asyncio {
    use super::{Sides, Testbed, streams};
    use crate::combinations;

    combinations!(load, needs ["python3"], in CI [Sides::BOTH]);

    fn load(testbed: &Testbed) {
        streams(testbed, &[]);
    }
}

/// The same on libuv's loop, which calls `epoll`, `read` and `write` from C.
mod uvloop {
    use super::{Sides, Testbed, streams};
    use crate::combinations;

    combinations!(
        load,
        needs ["python3", "/usr/lib/python3/dist-packages/uvloop/__init__.py"],
        in CI [Sides::BOTH]
    );

    fn load(testbed: &Testbed) {
        streams(testbed, &["--uvloop"]);
    }
}

fn streams(testbed: &Testbed, loops: &[&str]) {
    let script = testbed.write("streams.py", include_str!("scripts/streams.py"));
    let command = [&[script.as_str()], loops].concat();
    let server = testbed.serve("python3", &[&command[..], &["serve", "8001"]].concat(), 8001);
    let (connections, bytes) = (testbed.size("20", "100"), testbed.size("1000000", "10000000"));
    let printed =
        testbed.client_output("python3", &[&command[..], &["load", "8001", connections, bytes]].concat());
    assert!(printed.contains("all right"), "{printed}");
    // Its loop gets the signal through a socket pair.
    server.signal(Signal::TERM);
    assert!(server.succeed().text().contains(&format!("served {connections}")));
}
