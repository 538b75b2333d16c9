//! Python's http.server (a thread a connection, blocking sockets) and asyncio's streams (epoll,
//! half-closed connections).

use rustix::process::Signal;

use crate::place::{Place, Sides, pattern, same};

/// A thread for each connection.
mod http {
    use super::{Place, Sides, pattern, same};
    use crate::combinations;

    combinations!(load, needs ["python3", "curl"], in CI [Sides::BOTH]);

    fn load(place: &Place) {
        let large = place.write("www/large.bin", pattern(place.size(20 << 20, 200 << 20)));
        for number in 0..20 {
            place.write(&format!("www/{number}.txt"), format!("file {number}\n").repeat(number * 100));
        }
        let folder = place.path("www");
        let mut server = place.serve(
            "python3",
            &["-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", &folder],
            8000,
        );
        place.client("curl", &["-sS", "--fail", "-o", "large.out", "http://127.0.0.1:8000/large.bin"]);
        same(large.as_ref(), &place.folder.join("large.out"));
        // Fewer threads than its backlog of five: connections beyond that are the kernel's.
        let script = place.write("fetch.py", include_str!("scripts/fetch.py"));
        let said = place.ask("python3", &[&script, "8000", &folder, "4", place.size("5", "100")]);
        assert!(said.contains("all right"), "{said}");
        server.must_run();
    }
}

/// One loop for all connections.
mod asyncio {
    use super::{Place, Sides, Signal};
    use crate::combinations;

    combinations!(load, needs ["python3"], in CI [Sides::BOTH]);

    fn load(place: &Place) {
        let script = place.write("streams.py", include_str!("scripts/streams.py"));
        let server = place.serve("python3", &[&script, "serve", "8001"], 8001);
        let (connections, bytes) = (place.size("20", "100"), place.size("1000000", "10000000"));
        let said = place.ask("python3", &[&script, "load", "8001", connections, bytes]);
        assert!(said.contains("all right"), "{said}");
        // Its loop learns of the signal through a socket pair.
        server.signal(Signal::TERM);
        assert!(server.succeed().text().contains(&format!("served {connections}")));
    }
}
