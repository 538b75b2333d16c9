//! `sietch fs`: a file system is made, mounted, killed and mounted again.
//!
//! Needs root and `/dev/fuse`; otherwise each test prints SKIPPED and the reason.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

/// Whether file systems can be mounted here; it says if not.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        println!("SKIPPED: mounting needs root and /dev/fuse");
    }
    can
}

/// The folders of a test, and what is mounted there.
pub(crate) struct Testbed {
    pub(crate) folder: PathBuf,
    mounted: Option<Child>,
}

impl Testbed {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("sietch-fs-{name}-{}", std::process::id()));
        let testbed = Self { folder, mounted: None };
        testbed.clear();
        for part in ["mnt", "shm"] {
            fs::create_dir_all(testbed.folder.join(part)).expect("make a folder");
        }
        rustix::mount::mount(
            "shm",
            testbed.folder.join("shm"),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .expect("mount a tmpfs");
        testbed
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    pub(crate) fn sietch(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command.arg("fs").args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.sietch(arguments).output().expect("start sietch")
    }

    pub(crate) fn create(&self, medium: &str) {
        self.create_with(medium, &[]);
    }

    fn create_with(&self, medium: &str, more: &[&str]) {
        let medium = format!("{medium}=64mib");
        let class = if medium.starts_with("shm") { "--nvm" } else { "--ssd" };
        let arguments = ["create", "store", class, &medium, "--log", "4mib", "--log-memory", "shm"];
        let made = self.run(&[&arguments, more].concat());
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Mounts the file system, and returns what the command says.
    fn mount(&mut self) -> String {
        let mut child =
            self.sietch(&["mount", "store", "mnt"]).stdout(Stdio::piped()).spawn().expect("start sietch");
        let output = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        self.mounted = Some(child);
        assert!(line.contains("shows"), "{line:?}");
        line
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.mounted.take() else { return };
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).expect("a signal");
        let status = child.wait().expect("an end");
        assert_eq!(status.success(), signal == Signal::TERM, "{status}");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join("mnt").join(name)
    }

    /// The memory of logs is gone, as after a loss of power.
    pub(crate) fn lose_memory(&self) {
        for entry in fs::read_dir(self.folder.join("shm")).expect("list the memory") {
            let path = entry.expect("an entry").path();
            let lost = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            lost.expect("lose the memory of a log");
        }
    }

    fn clear(&self) {
        for part in ["mnt", "other", "shm"] {
            // Nothing may be mounted there, or there is no such folder.
            let _ = rustix::mount::unmount(self.folder.join(part), UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Some(mut child) = self.mounted.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.clear();
    }
}

/// Writes `name` and makes it durable.
fn write_durably(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("write a file");
    fs::File::open(path).expect("open it").sync_all().expect("fsync");
}

#[test]
fn an_operation_that_is_durable_at_once_survives_the_loss_of_memory() {
    if !can_mount() {
        return;
    }
    let mut testbed = Testbed::new("at-once");
    testbed.create_with("data", &["--durability", "operation"]);
    testbed.mount();
    fs::create_dir(testbed.file("d")).expect("make a directory");
    fs::write(testbed.file("d/a"), vec![7; 100_000]).expect("write a file");
    fs::rename(testbed.file("d/a"), testbed.file("b")).expect("rename it");
    fs::set_permissions(testbed.file("b"), fs::Permissions::from_mode(0o640)).expect("change its mode");
    testbed.end(Signal::KILL);
    testbed.lose_memory();
    testbed.mount();
    assert_eq!(fs::read(testbed.file("b")).expect("read it"), vec![7; 100_000]);
    let mode = fs::metadata(testbed.file("b")).expect("its attributes").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(fs::read_dir(testbed.file("d")).expect("list it").count(), 0);
    testbed.end(Signal::TERM);
}

/// Neither files nor the memory of a log; and a killed creation is no obstacle for the next one.
#[test]
fn an_interrupted_creation_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("interrupted");
    let left = || {
        let mut names = Vec::new();
        for folder in [&testbed.folder, &testbed.folder.join("shm"), &testbed.folder.join("store")] {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            names.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.retain(|name| !["mnt", "shm", "store"].contains(&name.as_str()));
        names
    };
    let arguments = |size: &str| {
        let medium = format!("data={size}");
        ["create", "store", "--ssd", &medium, "--log", "4mib", "--log-memory", "shm"].map(str::to_owned)
    };
    for signal in [Signal::INT, Signal::KILL] {
        let arguments = arguments("2gib");
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let mut child = testbed.sietch(&arguments).stderr(Stdio::null()).spawn().expect("start sietch");
        let begun = Instant::now();
        while !testbed.folder.join("data.partial").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is made");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&child), signal).expect("a signal");
        let status = child.wait().expect("an end");
        let expected = if signal == Signal::INT { Some(130) } else { None };
        assert_eq!(status.code(), expected);
        assert_eq!(left().is_empty(), signal == Signal::INT, "{:?}", left());
    }
    let arguments = arguments("8mib");
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let made = testbed.run(&arguments);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut names = left();
    names.sort();
    assert_eq!(names.len(), 4, "the medium, the memory of the log, its copy, fs.toml: {names:?}");
}

#[test]
fn what_a_killed_process_did_is_there() {
    if !can_mount() {
        return;
    }
    for medium in ["shm/data", "data"] {
        let mut testbed = Testbed::new("killed");
        testbed.create(medium);
        testbed.mount();
        fs::create_dir(testbed.file("d")).expect("make a directory");
        fs::write(testbed.file("d/a"), vec![7; 100_000]).expect("write a file");
        fs::rename(testbed.file("d/a"), testbed.file("b")).expect("rename it");
        testbed.end(Signal::KILL);
        testbed.mount();
        assert_eq!(fs::read(testbed.file("b")).expect("read it"), vec![7; 100_000], "{medium}");
        assert_eq!(fs::read_dir(testbed.file("d")).expect("list it").count(), 0, "{medium}");
        testbed.end(Signal::TERM);
        let said = testbed.mount();
        assert!(!said.contains("recovered"), "nothing was left in the log after an end in order: {said}");
    }
}

#[test]
fn what_fsync_made_durable_survives_the_loss_of_memory() {
    if !can_mount() {
        return;
    }
    let mut testbed = Testbed::new("power");
    testbed.create("data");
    testbed.mount();
    for number in 0..20 {
        write_durably(&testbed.file(&format!("f{number}")), &[number; 5000]);
    }
    fs::write(testbed.file("later"), b"not durable").expect("write a file");
    testbed.end(Signal::KILL);
    testbed.lose_memory();
    testbed.mount();
    for number in 0..20 {
        assert_eq!(fs::read(testbed.file(&format!("f{number}"))).expect("read it"), [number; 5000]);
    }
}

#[test]
fn files_of_another_user_are_refused() {
    if !can_mount() {
        return;
    }
    let mut testbed = Testbed::new("foreign");
    testbed.create("shm/data");
    let log = fs::read_dir(testbed.folder.join("shm")).expect("list it").find_map(|entry| {
        let path = entry.expect("an entry").path();
        path.display().to_string().contains("log").then(|| path.join("memory"))
    });
    let log = log.expect("the log's memory");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).expect("chmod");
    let refused = testbed.run(&["mount", "store", "mnt"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("0600"), "{text}");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).expect("chmod");
    testbed.mount();
}

#[test]
fn a_file_system_is_not_made_twice_nor_opened_twice() {
    if !can_mount() {
        return;
    }
    let mut testbed = Testbed::new("twice");
    testbed.create("shm/data");
    let again = testbed.run(&["create", "store", "--nvm", "shm/other=64mib", "--log-memory", "shm"]);
    assert!(!again.status.success(), "a folder has one file system");
    assert!(!testbed.folder.join("shm/other").exists(), "nothing stays behind");
    testbed.mount();
    fs::write(testbed.file("a"), b"first").expect("write a file");
    fs::create_dir(testbed.folder.join("second")).expect("make a folder");
    let second = testbed.run(&["mount", "store", "second"]);
    assert!(!second.status.success(), "{}", String::from_utf8_lossy(&second.stdout));
    assert_eq!(fs::read(testbed.file("a")).expect("read it"), b"first");
    println!("{}", testbed.path("store"));
}

/// A process of `sietch fs` that runs until it is killed.
pub(crate) struct Running(Child);

impl Running {
    /// Starts it, and waits for its line.
    pub(crate) fn start(testbed: &Testbed, arguments: &[&str]) -> Self {
        let mut child = testbed.sietch(arguments).stdout(Stdio::piped()).spawn().expect("start sietch");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "{arguments:?} ended: {:?}", child.wait());
        Self(child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a signal");
    }

    /// Waits for its end, which must come by itself.
    pub(crate) fn ended(&mut self) -> bool {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.0.try_wait().expect("wait") {
                return status.success();
            }
            assert!(Instant::now() < patience, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mounts_that_share_a_file_system_survive_each_other() {
    if !can_mount() {
        return;
    }
    for medium in ["shm/data", "data"] {
        let testbed = Testbed::new("shared");
        testbed.create(medium);
        fs::create_dir_all(testbed.folder.join("other")).expect("make a folder");
        let other = |name: &str| testbed.folder.join("other").join(name);
        let mut service = Running::start(&testbed, &["serve", "store"]);
        let first = Running::start(&testbed, &["mount", "store", "mnt"]);
        let mut second = Running::start(&testbed, &["mount", "store", "other"]);
        fs::create_dir(testbed.file("d")).expect("make a directory");
        for number in 0..50 {
            fs::write(testbed.file(&format!("d/{number}")), [number; 3000]).expect("write a file");
            assert_eq!(fs::read(other(&format!("d/{number}"))).expect("read it"), [number; 3000]);
            fs::rename(other(&format!("d/{number}")), other(&format!("{number}"))).expect("rename it");
        }
        fs::write(testbed.file("last"), b"last").expect("write a file");
        let (status, report) = check(&testbed);
        assert_eq!((status, &report["verdict"]), (Some(0), &"whole".into()), "{report}");
        assert!(report["log"].is_null(), "its logs are in use: {report}");

        // A mount that is killed takes nothing with it.
        first.signal(Signal::KILL);
        drop(first);
        assert_eq!(fs::read(other("last")).expect("read it"), b"last", "{medium}");
        let mut first = Running::start(&testbed, &["mount", "store", "mnt"]);
        assert_eq!(fs::read(testbed.file("49")).expect("read it"), [49; 3000]);
        fs::write(testbed.file("more"), b"more").expect("write a file");

        // Without their service, mounts end. What they did is there, and nothing goes to the
        // directory below.
        service.signal(Signal::KILL);
        assert!(!service.ended() && !first.ended() && !second.ended());
        for path in [testbed.file("stray"), other("stray")] {
            let error = fs::write(path, b"stray").expect_err("nothing serves it");
            assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");
        }
        let mut service = Running::start(&testbed, &["serve", "store"]);
        let mut second = Running::start(&testbed, &["mount", "store", "other"]);
        assert_eq!(fs::read(other("more")).expect("read it"), b"more", "{medium}");
        second.signal(Signal::TERM);
        assert!(second.ended(), "it ends in order");
        service.signal(Signal::TERM);
        assert!(service.ended(), "it ends in order");
        let check = testbed.run(&["check", "store", "--data"]);
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}

#[test]
fn a_check_of_what_is_served_goes_on_beside_its_clients() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("beside");
    testbed.create("shm/data");
    let _service = Running::start(&testbed, &["serve", "store"]);
    let _mount = Running::start(&testbed, &["mount", "store", "mnt"]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                let (new, old) = (testbed.file(&format!("{written}")), written.saturating_sub(8));
                fs::write(new, vec![written as u8; 50_000]).expect("write a file");
                if written >= 8 {
                    fs::remove_file(testbed.file(&format!("{old}"))).expect("remove a file");
                }
                written += 1;
            }
            written
        });
        let mut checks = 0;
        while checks < 20 {
            let (status, report) = check(&testbed);
            assert_eq!((status, &report["verdict"]), (Some(0), &"whole".into()), "{report}");
            checks += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("a writer") > 20);
    });
}

/// What a process says until it ends, and whether it ended in order.
fn said(child: Child) -> (String, bool) {
    let output = child.wait_with_output().expect("an end");
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.success())
}

/// Starts a mount, and waits until it is there.
fn start_mount(testbed: &Testbed, directory: &str) -> Child {
    let mut command = testbed.sietch(&["mount", "store", directory]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start sietch");
    let patience = Instant::now() + Duration::from_secs(30);
    let table = || fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    while !table().contains(&format!(" {} ", testbed.path(directory))) {
        assert!(Instant::now() < patience, "nothing is mounted");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

#[test]
fn a_mount_in_use_says_by_which_process_and_ends_with_it() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("in-use");
    testbed.create("shm/data");
    let mount = start_mount(&testbed, "mnt");
    fs::create_dir(testbed.file("d")).expect("make a directory");
    let mut user =
        Command::new("sleep").arg("600").current_dir(testbed.file("d")).spawn().expect("a process");
    kill_process(Pid::from_child(&mount), Signal::INT).expect("a signal");
    let patience = Instant::now() + Duration::from_secs(30);
    while testbed.file("d").exists() {
        assert!(Instant::now() < patience, "it is not detached");
        std::thread::sleep(Duration::from_millis(20));
    }
    let number = user.id();
    user.kill().and_then(|()| user.wait()).expect("it ends");
    let (text, is_ordered) = said(mount);
    let held = format!("mnt is detached, and still in use by process {number} (sleep)");
    assert!(is_ordered && text.contains(&held) && text.contains("ends when the last one"), "{text}");
}

#[test]
fn a_mount_that_ends_alone_says_to_mount_it_again() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("fenced");
    testbed.create("shm/data");
    fs::create_dir_all(testbed.folder.join("other")).expect("make a folder");
    let _service = Running::start(&testbed, &["serve", "store"]);
    let first = start_mount(&testbed, "mnt");
    let _second = Running::start(&testbed, &["mount", "store", "other"]);
    fs::create_dir(testbed.file("d")).expect("make a directory");
    fs::write(testbed.file("d/a"), b"first").expect("write a file");
    let number = Pid::from_child(&first);
    kill_process(number, Signal::STOP).expect("a signal");
    // It needs the lease of the process that is stopped.
    fs::write(testbed.folder.join("other/d/b"), b"second").expect("write a file");
    kill_process(number, Signal::CONT).expect("a signal");
    let (text, is_ordered) = said(first);
    assert!(!is_ordered && text.contains("this mount has ended"), "{text}");
    assert!(text.contains("the service still runs") && !text.contains("sietch fs serve"), "{text}");
    assert_eq!(fs::read(testbed.folder.join("other/d/a")).expect("read it"), b"first");
}

/// A needle that no other byte of a file system looks like.
const NEEDLE: [u8; 4096] = [0xa7; 4096];

/// Runs a check, and returns its exit status and its report.
fn check(testbed: &Testbed) -> (Option<i32>, serde_json::Value) {
    let output = testbed.run(&["check", "store", "--data", "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn a_check_finds_what_was_damaged_and_changes_nothing() {
    if !can_mount() {
        return;
    }
    let mut testbed = Testbed::new("check");
    testbed.create("shm/data");
    testbed.mount();
    fs::write(testbed.file("a"), NEEDLE).expect("write a file");
    let (status, _) = check(&testbed);
    assert_eq!(status, Some(2), "a mount has it alone");
    testbed.end(Signal::TERM);

    let (status, report) = check(&testbed);
    assert_eq!((status, &report["verdict"]), (Some(0), &"whole".into()), "{report}");
    assert_eq!((&report["inodes"], &report["entries"]), (&2.into(), &1.into()), "{report}");
    assert_eq!((&report["verified_bytes"], &report["log"]["records"]), (&4096.into(), &0.into()), "{report}");

    testbed.mount();
    fs::create_dir(testbed.file("d")).expect("make a directory");
    testbed.end(Signal::KILL);
    for _ in 0..2 {
        let (status, report) = check(&testbed);
        assert_eq!(status, Some(0), "{report}");
        let seen = report["log"]["records"].as_u64().unwrap_or(0) + report["inodes"].as_u64().unwrap_or(0);
        assert_eq!(seen, 3, "a record that is not digested stays in the log: {report}");
    }

    let medium = testbed.folder.join("shm/data");
    let mut content = fs::read(&medium).expect("read the medium");
    let place = content.windows(NEEDLE.len()).position(|window| window == NEEDLE).expect("the data");
    content[place + 100] ^= 1;
    fs::write(&medium, content).expect("damage the medium");
    let (status, report) = check(&testbed);
    assert_eq!((status, &report["verdict"]), (Some(1), &"damaged".into()), "{report}");
    assert_eq!(report["damaged_bytes"], 4096, "{report}");
    assert!(report["findings"][0].as_str().is_some_and(|finding| finding.contains("inode")), "{report}");
}
