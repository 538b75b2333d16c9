//! OpenJDK's HttpServer and HttpClient: NIO selectors, many threads, signals inside the virtual
//! machine.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["java", "javac"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    let source = testbed.write("Http.java", include_str!("scripts/Http.java"));
    testbed.start(testbed.kernel_command("javac", &["-d", &testbed.path(""), &source]), "javac").succeed();
    let folder = testbed.path("");
    let java = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", &folder, "Http"];
    let mut server = testbed.serve("java", &[&java[..], &["serve", "8003"]].concat(), 8003);
    let printed = testbed
        .client_output("java", &[&java[..], &["load", "8003", testbed.size("200", "10000"), "10"]].concat());
    assert!(printed.contains("all right"), "{printed}");
    server.must_run();
}
