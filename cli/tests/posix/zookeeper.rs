//! ZooKeeper's lock recipe: a server in Java on a socket of both families, and clients in Python
//! (kazoo) whose threads wait in `select`.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(
    load,
    needs ["java", "/usr/share/java/zookeeper.jar", "python3", "/usr/lib/python3/dist-packages/kazoo/__init__.py"],
    in CI [Sides::BOTH]
);

fn load(testbed: &Testbed) {
    let data = testbed.path("data");
    let options = ["-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"];
    let server = ["-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.server.ZooKeeperServerMain"];
    let mut server = testbed.serve("java", &[&options[..], &server, &["2181", &data]].concat(), 2181);
    let script = testbed.write("locks.py", include_str!("scripts/locks.py"));
    let printed = testbed.client_output("python3", &[&script, "2181", "4", testbed.size("25", "500")]);
    assert!(printed.contains("all right"), "{printed}");
    server.must_run();
}
