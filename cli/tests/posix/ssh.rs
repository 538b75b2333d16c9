//! OpenSSH: the process that serves a client before the login has given up most system calls
//! (seccomp), the one after it has not. The connection is passed from one to the other. The test
//! runs commands, copies a file in each direction, and connects through a forwarded port.

use crate::combinations;
use crate::testbed::{Sides, Testbed, assert_same_files, pattern};

combinations!(load, needs ["sshd", "ssh", "scp", "ssh-keygen"], in CI [Sides::BOTH]);

const OPTIONS: [&str; 10] = [
    "-F",
    "none",
    "-i",
    "client",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
];

fn load(testbed: &Testbed) {
    // The folder of its children before the login; Debian makes it at boot.
    std::fs::create_dir_all("/run/sshd").unwrap();
    for name in ["host", "client"] {
        let make = testbed
            .kernel_command("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &testbed.path(name)]);
        testbed.start(make, "ssh-keygen").succeed();
    }
    let large = testbed.write("large", pattern(testbed.size(20 << 20, 500 << 20)));
    let (host, client) = (testbed.path("host"), testbed.path("client.pub"));
    let mut arguments = vec!["-D", "-e", "-f", "none", "-p", "8022", "-h", &host];
    let keys = format!("AuthorizedKeysFile={client}");
    for option in [
        &keys,
        "ListenAddress=127.0.0.1",
        "StrictModes=no",
        "UsePAM=no",
        "PermitRootLogin=yes",
        "PidFile=none",
        "Subsystem=sftp internal-sftp",
    ] {
        arguments.extend(["-o", option]);
    }
    // It executes itself again for each connection, by its absolute path.
    let mut server = testbed.serve("sshd", &arguments, 8022);
    let command = |port: &str, remote: &str| {
        let line = [&OPTIONS[..], &["-p", port, "root@127.0.0.1", remote]].concat();
        testbed.client_output("ssh", &line)
    };
    for round in 0..testbed.size(3, 30) {
        assert_eq!(command("8022", &format!("echo round {round}")), format!("round {round}\n"));
    }
    let copy = |from: &str, to: &str| {
        testbed.client("scp", &[&OPTIONS[..], &["-P", "8022", from, to]].concat());
    };
    let (up, down) = (testbed.path("up"), testbed.path("down"));
    copy(&large, &format!("root@127.0.0.1:{up}"));
    assert_same_files(large.as_ref(), up.as_ref());
    copy(&format!("root@127.0.0.1:{up}"), &down);
    assert_same_files(large.as_ref(), down.as_ref());
    let forwarding =
        [&OPTIONS[..], &["-p", "8022", "-N", "-L", "127.0.0.1:8023:127.0.0.1:8022", "root@127.0.0.1"]]
            .concat();
    let mut forwarder = testbed.start(testbed.client_command("ssh", &forwarding), "forwarder");
    testbed.listening(&mut forwarder, 8023);
    assert_eq!(command("8023", "echo through"), "through\n");
    server.must_run();
}
