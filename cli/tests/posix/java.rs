//! OpenJDK's HttpServer and HttpClient: NIO selectors, many threads, signals inside the virtual
//! machine.

use crate::combinations;
use crate::place::{Place, Sides};

combinations!(load, needs ["java", "javac"], in CI [Sides::BOTH]);

fn load(place: &Place) {
    let source = place.write("Http.java", include_str!("scripts/Http.java"));
    place.start(place.bystander("javac", &["-d", &place.path(""), &source]), "javac").succeed();
    let folder = place.path("");
    let java = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", &folder, "Http"];
    let mut server = place.serve("java", &[&java[..], &["serve", "8003"]].concat(), 8003);
    let said = place.ask("java", &[&java[..], &["load", "8003", place.size("200", "10000"), "10"]].concat());
    assert!(said.contains("all right"), "{said}");
    server.must_run();
}
