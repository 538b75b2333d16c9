//! Dovecot. Its master starts its workers with an environment that it builds itself. Workers run as
//! other users and in empty folders (chroot). Connections are passed from the login worker to the
//! mailbox worker.

use std::os::unix::fs::PermissionsExt as _;

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["dovecot", "python3"], in CI [Sides::BOTH]);

fn load(testbed: &Testbed) {
    for folder in ["", "mail"] {
        let path = testbed.folder.join(folder);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let file = testbed
        .write("dovecot.conf", include_str!("scripts/dovecot.conf").replace("FOLDER", &testbed.path("")));
    let mut server = testbed.serve("dovecot", &["-F", "-c", &file], 8143);
    let script = testbed.write("imap.py", include_str!("scripts/imap.py"));
    let printed = testbed
        .client_output("python3", &[&script, "8143", testbed.size("4", "20"), testbed.size("20", "200")]);
    assert!(printed.contains("all right"), "{printed}");
    server.must_run();
}
