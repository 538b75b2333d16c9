//! Whom the mount serves, and with which privileges.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown};

use crate::mounted::{Mounted, options};

fn mode(mounted: &Mounted, name: &str) -> u32 {
    fs::symlink_metadata(mounted.path(name)).expect("attributes").mode() & 0o7777
}

fn make(mounted: &Mounted, name: &str, owner: (u32, u32), mode: u32) {
    fs::write(mounted.path(name), "data\n").expect("written");
    chown(mounted.path(name), Some(owner.0), Some(owner.1)).expect("owned");
    fs::set_permissions(mounted.path(name), Permissions::from_mode(mode)).expect("set");
}

#[test]
fn supplementary_groups_grant_and_deny_as_main_groups_do() {
    let Some(mounted) = Mounted::new("groups") else { return };
    make(&mounted, "file", (1, 2000), 0o640);
    make(&mounted, "denied", (1, 2000), 0o604);
    assert_eq!(mounted.shell_as(3000, 3000, "2000", "cat file"), "data");
    assert_eq!(mounted.shell_as(3000, 2000, "", "cat file"), "data");
    assert!(mounted.shell_as(3000, 3000, "2001", "cat file").ends_with("Permission denied"));
    assert!(mounted.shell_as(3000, 3000, "2000", "cat denied").ends_with("Permission denied"));
    assert_eq!(mounted.shell_as(3000, 3000, "", "cat denied"), "data");
    // A change of the mode counts at once, and so does one by another client.
    fs::set_permissions(mounted.path("file"), Permissions::from_mode(0o600)).expect("set");
    assert!(mounted.shell_as(3000, 3000, "2000", "cat file").ends_with("Permission denied"));
}

#[test]
fn what_a_user_creates_is_the_users_with_the_umask_and_the_group_of_the_directory() {
    let Some(mounted) = Mounted::new("owners") else { return };
    let create = |name, directory_mode| {
        fs::create_dir(mounted.path(name)).expect("created");
        chown(mounted.path(name), Some(0), Some(2000)).expect("owned");
        fs::set_permissions(mounted.path(name), Permissions::from_mode(directory_mode)).expect("set");
        let script = format!("cd {name}; umask 027; echo x > file; mkdir inner; ln -s x link; mkfifo pipe");
        assert_eq!(mounted.shell_as(3000, 3001, "", &script), "");
        ["file", "inner", "link", "pipe"].map(|kind| {
            let shown = fs::symlink_metadata(mounted.path(name).join(kind)).expect("attributes");
            (shown.uid(), shown.gid(), shown.mode() & 0o7777)
        })
    };
    let plain = create("plain", 0o777);
    assert_eq!(plain, [(3000, 3001, 0o640), (3000, 3001, 0o750), (3000, 3001, 0o777), (3000, 3001, 0o640)]);
    let inherited = create("inherited", 0o2777);
    let expected = [(3000, 2000, 0o640), (3000, 2000, 0o2750), (3000, 2000, 0o777), (3000, 2000, 0o640)];
    assert_eq!(inherited, expected);
}

#[test]
fn a_change_by_a_user_clears_set_id_bits_and_one_by_root_does_not() {
    let Some(mounted) = Mounted::new("set-id") else { return };
    let scripts = [
        ("write", "echo x >> file"),
        ("cut", "truncate -s 1 file"),
        ("replace", ": > file"),
        ("reserve", "fallocate -l 10000 file"),
    ];
    for (what, script) in scripts {
        for (uid, left) in [(3000, 0o777), (0, 0o6777)] {
            make(&mounted, "file", (0, 0), 0o6777);
            assert_eq!(mounted.shell_as(uid, uid, "", script), "", "{what} by {uid}");
            assert_eq!(mode(&mounted, "file"), left, "{what} by {uid}");
        }
    }
    // A change of the owner clears them, also by root.
    make(&mounted, "file", (0, 0), 0o6755);
    chown(mounted.path("file"), Some(1), None).expect("owned");
    assert_eq!(mode(&mounted, "file"), 0o755);
    make(&mounted, "file", (0, 0), 0o6755);
    chown(mounted.path("file"), None, None).expect("owned");
    assert_eq!(mode(&mounted, "file"), 0o755);
    // Without the permission to execute, set-group-ID is no privilege.
    make(&mounted, "file", (0, 0), 0o2644);
    chown(mounted.path("file"), Some(1), None).expect("owned");
    assert_eq!(mode(&mounted, "file"), 0o2644);
}

#[test]
fn an_owner_that_stays_sets_only_the_time_of_change_of_every_kind() {
    let Some(mounted) = Mounted::new("same-owner") else { return };
    let script = "echo x > file; mkdir directory; ln -s file link; ln -s nowhere dangling; mkfifo pipe";
    assert_eq!(mounted.shell_as(0, 0, "", script), "");
    for name in ["file", "directory", "link", "dangling", "pipe"] {
        let path = mounted.path(name);
        lchown(&path, Some(3000), Some(3001)).expect("owned");
        let before = fs::symlink_metadata(&path).expect("attributes");
        std::thread::sleep(std::time::Duration::from_millis(2));
        lchown(&path, None, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        let after = fs::symlink_metadata(&path).expect("attributes");
        let kept = |shown: &fs::Metadata| (shown.uid(), shown.gid(), shown.mode(), shown.mtime_nsec());
        assert_eq!(kept(&after), kept(&before), "{name}");
        let changed = |shown: &fs::Metadata| (shown.ctime(), shown.ctime_nsec());
        assert!(changed(&after) > changed(&before), "{name}");
    }
}

#[test]
fn sticky_directories_owners_and_privileged_attributes_are_guarded() {
    let Some(mounted) = Mounted::new("guarded") else { return };
    fs::set_permissions(&mounted.directory, Permissions::from_mode(0o1777)).expect("set");
    make(&mounted, "file", (3000, 3000), 0o666);
    for script in ["rm -f file", "mv file other", "chmod 600 file", "chown 3001 file", "touch -d @0 file"] {
        let said = mounted.shell_as(3001, 3001, "", script);
        assert!(said.contains("Operation not permitted"), "{script}: {said}");
    }
    assert_eq!(mounted.shell_as(3001, 3001, "", "touch file"), "", "with the permission to write");
    assert!(mounted.shell_as(3000, 3000, "", "chown 3001 file").contains("Operation not permitted"));
    rustix::fs::setxattr(mounted.path("file"), "trusted.a", b"1", rustix::fs::XattrFlags::empty())
        .expect("set");
    let names = |uid| {
        let script = "python3 -c 'import os; print(os.listxattr(\"file\"))'";
        mounted.shell_as(uid, uid, "", script)
    };
    if names(0).contains("trusted.a") {
        assert_eq!(names(3000), "[]");
    } else {
        println!("SKIPPED the names of attributes: {}", names(0));
    }
    assert_eq!(mounted.shell_as(3000, 3000, "", "chmod 600 file && mv file other && rm other"), "");
}

#[test]
fn without_permission_for_others_only_the_mounting_user_gets_in() {
    let options = sietch_fuse::Options { allow_other: false, ..options() };
    let Some(mounted) = Mounted::with("private", &options) else { return };
    File::create(mounted.path("file")).expect("created");
    let script = format!("ls {}", mounted.directory.display());
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=3000", "--regid=3000", "--clear-groups", "sh", "-c", &script])
        .current_dir("/")
        .output()
        .expect("setpriv of util-linux runs");
    assert!(!output.status.success());
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let options = sietch_fuse::Options { read_only: true, ..options() };
    let Some(mounted) = Mounted::with("read-only", &options) else { return };
    let error = File::create(mounted.path("file")).expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}
