//! File systems of `[[fs]]` under `sietch up`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Testbed, Up, in_own_network, query, signal_process, text};

/// The process that shows a directory: the banner has it.
fn shown_by(up: &Up, name: &str) -> i64 {
    let line = up.banner.lines().find(|line| line.starts_with("files:") && line.contains(name));
    let pid = line.and_then(|line| line.rsplit_once("pid ")).expect("a file system in the banner");
    pid.1.trim().parse().expect("a pid")
}

/// Whether this machine has FUSE; without it, says that the test is skipped.
fn has_fuse() -> bool {
    let has_fuse = std::path::Path::new("/dev/fuse").exists();
    if !has_fuse {
        eprintln!("SKIPPED: there is no /dev/fuse");
    }
    has_fuse
}

/// Waits until `is_so`.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A file system in the folder `store`, which `[[fs]]` shows in `mnt`.
struct Files<'a>(&'a Testbed);

impl<'a> Files<'a> {
    fn new(testbed: &'a Testbed) -> Self {
        let files = Self(testbed);
        let path = |name: &str| testbed.folder.join(name).display().to_string();
        let medium = format!("{}=16mib", path("medium"));
        let create = ["fs", "create", &path("store"), "--ssd", &medium, "--log", "1mib", "--log-memory"];
        std::fs::create_dir(path("shm")).expect("make a folder");
        rustix::mount::mount("shm", files.shm(), "tmpfs", rustix::mount::MountFlags::empty(), None)
            .expect("a tmpfs");
        let made = testbed.run(&[&create[..], &[&path("shm")]].concat());
        assert!(made.status.success(), "{made:?}");
        std::fs::create_dir(path("mnt")).expect("make a folder");
        let table = format!(
            "\n[[fs]]\nname = \"mail\"\nfolder = {:?}\ndirectory = {:?}\n",
            path("store"),
            path("mnt")
        );
        let configuration = testbed.folder.join("sietch.toml");
        let text = std::fs::read_to_string(&configuration).expect("read") + &table;
        std::fs::write(&configuration, text).expect("write sietch.toml");
        files
    }

    fn shm(&self) -> PathBuf {
        self.0.folder.join("shm")
    }

    fn file(&self) -> PathBuf {
        self.0.folder.join("mnt/a")
    }

    fn wait_for(&self, content: &[u8]) {
        let has = || std::fs::read(self.file()).ok().as_deref() == Some(content);
        wait_until("the file system does not come back", has);
    }
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.shm(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn file_systems_are_mounted_again_when_their_process_dies_and_unmounted_at_the_end() {
    if !has_fuse() {
        return;
    }
    in_own_network("file_systems_are_mounted_again", || {
        let testbed = Testbed::new("files", None);
        let files = Files::new(&testbed);
        let up = testbed.up(&["--net", "linux"]);
        std::fs::write(files.file(), b"kept").expect("write a file");
        signal_process(shown_by(&up, "mail"), Signal::KILL);
        files.wait_for(b"kept");
        assert_eq!(query(testbed.kernel(), "SET a 1"), "+OK", "the store does not notice");
        let (status, printed) = up.interrupt();
        assert!(status.success() && printed.contains("mounting it again"), "{status:?}: {printed}");
        assert!(!files.file().exists(), "it is not mounted any more");
    });
}

#[test]
fn a_file_system_that_is_unmounted_by_hand_stays_so_until_a_reload() {
    if !has_fuse() {
        return;
    }
    in_own_network("a_file_system_that_is_unmounted_by_hand", || {
        let testbed = Testbed::new("unmounted", None);
        let files = Files::new(&testbed);
        let up = testbed.up(&["--net", "linux"]);
        std::fs::write(files.file(), b"kept").expect("write a file");
        let path = |name: &str| testbed.folder.join(name).display().to_string();
        let (store, medium) = (path("store"), path("medium"));
        let grow = ["fs", "grow", &store, "--medium", &medium, "--size", "20mib"];
        let refused = text(&testbed.run(&grow).stderr);
        assert!(refused.contains("`umount DIR`") && refused.contains("`sietch reload`"), "{refused}");
        rustix::mount::unmount(path("mnt"), rustix::mount::UnmountFlags::empty()).expect("unmount");
        let unmounted = || testbed.status()["instance"]["unmounted"].clone();
        let names = serde_json::json!(["the file system mail"]);
        wait_until("it does not rest", || unmounted() == names);
        let grown = testbed.run(&grow);
        assert!(grown.status.success(), "{grown:?}");
        assert!(text(&testbed.run(&["status"]).stdout).contains("unmounted until `sietch reload`"));
        // A command, however long it takes, is not disturbed.
        assert!(!files.file().exists() && unmounted() == names);
        let reloaded = text(&testbed.run(&["reload"]).stdout);
        assert!(reloaded.contains("the file system mail is to be mounted again"), "{reloaded}");
        files.wait_for(b"kept");
        assert_eq!(unmounted(), serde_json::json!([]));
        let (status, printed) = up.interrupt();
        assert!(status.success() && printed.contains("it stays unmounted"), "{status:?}: {printed}");
    });
}
