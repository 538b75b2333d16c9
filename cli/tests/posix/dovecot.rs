//! Dovecot: a master that starts its workers with an environment of its own making, workers in
//! other users' names and in empty folders (chroot), and connections that are handed from the
//! worker of the login to the one of the mail box.

use std::os::unix::fs::PermissionsExt as _;

use crate::combinations;
use crate::place::{Place, Sides};

combinations!(load, needs ["dovecot", "python3"], in CI [Sides::BOTH]);

fn load(place: &Place) {
    for folder in ["", "mail"] {
        let path = place.folder.join(folder);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let file =
        place.write("dovecot.conf", include_str!("scripts/dovecot.conf").replace("FOLDER", &place.path("")));
    let mut server = place.serve("dovecot", &["-F", "-c", &file], 8143);
    let script = place.write("imap.py", include_str!("scripts/imap.py"));
    let said = place.ask("python3", &[&script, "8143", place.size("4", "20"), place.size("20", "200")]);
    assert!(said.contains("all right"), "{said}");
    server.must_run();
}
