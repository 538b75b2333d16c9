//! The namespace as files: what real programs read of areas while the store runs, and what other
//! users cannot see.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::Signal;

use crate::client::Client;
use crate::testbed::{PATIENCE, ROGUE_USER, STORE_USER, Testbed, in_own_network, signal, text, wait_for};

/// A running `sietch mount`. Dropping it removes the mount.
pub(crate) struct Mount {
    child: Child,
    /// Kept open: the process may still write to it.
    output: Option<BufReader<ChildStdout>>,
    pub directory: PathBuf,
}

impl Mount {
    pub(crate) fn start(testbed: &Testbed, name: &str, more: &[&str]) -> Self {
        let directory = testbed.folder.join(name);
        let _ = std::fs::create_dir(&directory);
        let shown = directory.display().to_string();
        let mut command = testbed.sietch(&[&["mount", &shown], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start sietch");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        if output.read_line(&mut line).expect("read") == 0 {
            let mut printed = String::new();
            child.stderr.take().expect("a pipe").read_to_string(&mut printed).expect("read");
            panic!("sietch mount ended: {:?}: {printed}", child.wait());
        }
        Self { child, output: Some(output), directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn stop(mut self) {
        signal(i64::from(self.child.id()), Signal::INT);
        let status = self.child.wait().expect("wait");
        let mut printed = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut printed).expect("read");
        assert!(status.success(), "{status:?}: {printed}");
        assert!(printed.is_empty(), "{printed}");
        assert!(!is_mounted(&self.directory));
    }

    /// Its mount stays until this is dropped.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.output = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.directory).stderr(Stdio::null()).status();
    }
}

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    table.contains(&format!(" {} ", directory.display()))
}

/// Whether a file system in user space can be mounted here.
pub(crate) fn has_fuse(test: &str) -> bool {
    let found = std::fs::File::open("/dev/fuse").is_ok();
    if !found {
        eprintln!("SKIPPED {test}: needs /dev/fuse and the right to open it; load it with modprobe fuse");
    }
    found
}

/// Runs a program, bounded in time, and returns its output.
pub(crate) fn program(words: &[&str]) -> Output {
    let seconds = PATIENCE.as_secs().to_string();
    Command::new("timeout").args([&["-k", "1", &seconds], words].concat()).output().expect("coreutils")
}

fn printed(words: &[&str]) -> String {
    let output = program(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output.stdout)
}

/// The same as an ordinary user; returns its standard error.
fn refused_to(uid: u32, words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).uid(uid).gid(uid).output().expect("coreutils");
    assert!(!output.status.success(), "{words:?} as {uid}: {output:?}");
    text(&output.stderr)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Compares what is read through the mount with what the area's file holds. The store goes on
/// writing (an idle log proves that it is durable), so the file must be the same before and after.
fn assert_same<T: PartialEq>(mounted: impl Fn() -> T, real: impl Fn() -> T) {
    let quiet = (0..20).find_map(|_| {
        let (before, shown) = (real(), mounted());
        (real() == before).then_some(shown == before)
    });
    assert_eq!(quiet, Some(true), "None: the store never stopped writing");
}

#[test]
fn areas_are_files_to_real_programs_while_the_store_runs() {
    let name = "areas_are_files_to_real_programs_while_the_store_runs";
    if !has_fuse(name) {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("names");
        let up = testbed.up(&[]);
        let mut client = Client::connect(testbed.kernel()).expect("the store answers");
        client.request("SET greeting hello-from-the-store").expect("SET");
        let mount = Mount::start(&testbed, "mnt", &[]);
        assert_eq!(printed(&["ls", &shown(&mount.directory)]), "main\n");
        assert_eq!(printed(&["ls", &shown(&mount.path("main"))]), "store\nstore.view\n");
        let area = shown(&mount.path("main/store"));
        let stat = printed(&["stat", "-c", "%F %s %u %a", &area]);
        assert_eq!(stat, format!("regular file {} {STORE_USER} 400\n", 64 << 20));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let written: u64 = printed(&["stat", "-c", "%Y", &area]).trim().parse().unwrap();
        assert!(now.abs_diff(written) < 3600, "{written} is no time of writing");
        let found = printed(&["find", &shown(&mount.directory), "-maxdepth", "2", "-type", "f"]);
        assert_eq!(found, format!("{area}\n"));

        // The same bytes by every access path, in pieces of every size.
        let real = shown(&testbed.area());
        let copy = shown(&testbed.folder.join("copy"));
        let sum = |path: &str| printed(&["sha256sum", path]).split(' ').next().unwrap().to_owned();
        assert_same(|| sum(&area), || sum(&real));
        let copied = || {
            printed(&["cp", &area, &copy]);
            sum(&copy)
        };
        assert_same(copied, || sum(&real));
        let odd = ["bs=777", "skip=3", "count=50", "status=none"];
        let pieces = |path: &str| program(&[&["dd", &format!("if={path}")], &odd[..]].concat()).stdout;
        assert_same(|| pieces(&area), || pieces(&real));
        let tail = |path: &str| program(&["tail", "-c", "5000", path]).stdout;
        assert_same(|| tail(&area), || tail(&real));
        assert_eq!(printed(&["grep", "-c", "-a", "hello-from-the-store", &area]), "1\n");
        let cat =
            || testbed.run(&["vsa", "cat", "/main/store", "--offset", "4095", "--length", "10000"]).stdout;
        assert_same(cat, || program(&["tail", "-c", "+4096", &real]).stdout[..10000].to_vec());

        // Nothing can be written, and missing names are missing.
        let write =
            program(&["dd", "if=/dev/zero", &format!("of={area}"), "bs=1", "count=1", "conv=notrunc"]);
        assert!(text(&write.stderr).contains("Read-only file system"), "{write:?}");
        assert!(text(&program(&["rm", "-f", &area]).stderr).contains("Read-only file system"));
        for missing in ["main/none", "none", "main/store/x", "main/..store"] {
            assert!(!program(&["stat", &shown(&mount.path(missing))]).status.success(), "{missing}");
        }

        // A new area appears, and a deleted one disappears, within about a second.
        assert!(testbed.run(&["vsa", "create", "second", "1mb"]).status.success());
        wait_for("the new area", || mount.path("main/second").exists().then_some(()));
        let second = std::fs::File::open(mount.path("main/second")).expect("open");
        assert!(testbed.run(&["vsa", "delete", "second"]).status.success());
        wait_for("its end", || (!mount.path("main/second").exists()).then_some(()));
        // A process that has it open keeps no room that the volume counts as free.
        assert_eq!(std::io::copy(&mut &second, &mut std::io::sink()).expect("read"), 0);
        drop(second);
        mount.stop();
        up.stop();
    });
}

#[test]
fn a_mount_shows_others_nothing_but_their_own() {
    let name = "a_mount_shows_others_nothing_but_their_own";
    if !has_fuse(name) {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("names-others");
        let up = testbed.up(&[]);
        for folder in [&testbed.folder, &testbed.folder.join("mnt")] {
            let _ = std::fs::create_dir(folder);
            std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let uid = ROGUE_USER.to_string();
        assert!(testbed.run(&["vsa", "create", "rogues", "1mb", "--uid", &uid]).status.success());
        // Without --allow-other the kernel admits only the mounting user.
        let mount = Mount::start(&testbed, "mnt", &[]);
        let inside = shown(&mount.path("main"));
        assert!(refused_to(ROGUE_USER, &["ls", &inside]).contains("Permission denied"));
        mount.stop();

        let mount = Mount::start(&testbed, "mnt", &["--allow-other"]);
        let view = shown(&mount.path("main/store.view"));
        let [area, own] = ["main/store", "main/rogues"].map(|name| shown(&mount.path(name)));
        // Root has read it: the kernel may not show its cached copy to other users.
        assert_eq!(printed(&["ls", &inside]), "rogues\nstore\nstore.view\n");
        printed(&["head", "-c", "10", &area]);
        printed(&["ls", &format!("{view}/keys/0")]);
        for words in [&["cat", &area][..], &["stat", &area], &["ls", &view], &["ls", &format!("{view}/keys")]]
        {
            assert!(refused_to(ROGUE_USER, words).contains("Permission denied"), "{words:?}");
        }
        let listed = Command::new("ls").arg(&inside).uid(ROGUE_USER).gid(ROGUE_USER).output().unwrap();
        assert_eq!(text(&listed.stdout), "rogues\n");
        let read = Command::new("cat").arg(&own).uid(ROGUE_USER).gid(ROGUE_USER).output().unwrap();
        assert_eq!(read.stdout.len(), 1 << 20, "{read:?}");
        mount.stop();

        // The daemon refuses too, whatever the request.
        let binary = testbed.folder.join("sietch");
        std::fs::copy(env!("CARGO_BIN_EXE_sietch"), &binary).expect("copy");
        let socket = shown(&testbed.socket());
        let cat = |path: &str| {
            [shown(&binary), "--socket".into(), socket.clone(), "vsa".into(), "cat".into(), path.into()]
        };
        let words = cat("/main/store");
        let printed = refused_to(ROGUE_USER, &words.each_ref().map(String::as_str));
        assert!(printed.contains("not for uid"), "{printed}");
        up.stop();
    });
}

#[test]
fn a_mount_outlives_the_daemon_and_a_killed_one_is_cleared_away() {
    let name = "a_mount_outlives_the_daemon_and_a_killed_one_is_cleared_away";
    if !has_fuse(name) {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("names-restart");
        let up = testbed.up(&[]);
        let mut mount = Mount::start(&testbed, "mnt", &[]);
        let area = mount.path("main/store");
        let held = std::fs::File::open(&area).expect("open");
        let [daemon, ..] = testbed.pids();
        signal(daemon, Signal::KILL);
        // Open files stay readable without a daemon.
        let mut bytes = [1; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&held, &mut bytes, 0).expect("read");
        wait_for("another daemon", || {
            testbed.try_status().filter(|status| status["daemon"]["pid"] != daemon)
        });
        wait_for("the area", || std::fs::read(&area).ok().filter(|bytes| bytes.len() == 64 << 20));
        let directory = shown(&mount.directory);
        let second = testbed.run(&["mount", &directory]);
        assert!(text(&second.stderr).contains("mounted there already"), "{second:?}");
        drop(held);
        mount.kill();
        let dead = program(&["ls", &directory]);
        assert!(text(&dead.stderr).contains("not connected"), "{dead:?}");
        let again = Mount::start(&testbed, "mnt", &[]);
        assert!(area.exists());
        // A process that has a file open does not keep the mount.
        let _held = std::fs::File::open(&area).expect("open");
        again.stop();
        // If another process unmounts it, it ends.
        let mut mount = Mount::start(&testbed, "mnt", &[]);
        printed(&["umount", &directory]);
        let status = wait_for("its end", || mount.child.try_wait().expect("wait"));
        assert!(status.success(), "{status:?}");
        up.stop();
    });
}

/// A store with a few keys, and its view mounted.
fn with_view(name: &str, test: impl FnOnce(&Testbed, &Mount, &Path, &mut Client) + Send + 'static) {
    if !has_fuse(name) {
        return;
    }
    let folder = name[..12].to_owned();
    in_own_network(name, move || {
        let testbed = Testbed::new(&folder);
        let up = testbed.up(&[]);
        let mut client = Client::connect(testbed.kernel()).expect("the store answers");
        for command in ["SET greeting hello", "SET a/b slash", "RPUSH list one two", "SET empty x"] {
            client.request(command).expect("a reply");
        }
        client.command(&[b"SET", b"large", &vec![b'x'; 3_000_000]]).expect("SET");
        let mount = Mount::start(&testbed, "mnt", &[]);
        let keys = mount.path("main/store.view/keys/0");
        test(&testbed, &mount, &keys, &mut client);
        mount.stop();
        up.stop();
    });
}

#[test]
fn keys_of_the_store_are_files_that_its_owner_shows_while_it_serves() {
    let name = "keys_of_the_store_are_files_that_its_owner_shows_while_it_serves";
    with_view(name, |testbed, mount, keys, client| {
        assert_eq!(printed(&["ls", &shown(&mount.path("main"))]), "store\nstore.view\n");
        assert_eq!(printed(&["ls", &shown(keys)]), "a%2Fb\nempty\ngreeting\nlarge\nlist\n");
        let file = |name: &str| shown(&keys.join(name));
        assert_eq!(
            printed(&["cat", &file("greeting"), &file("a%2Fb"), &file("list")]),
            "helloslash\"one\"\n\"two\"\n"
        );
        let stat = printed(&["stat", "-c", "%F %s %u %a", &file("greeting"), &shown(keys)]);
        assert_eq!(stat, format!("regular file 5 {STORE_USER} 400\ndirectory 0 {STORE_USER} 500\n"));
        let copy = shown(&testbed.folder.join("large"));
        printed(&["cp", &file("large"), &copy]);
        assert_eq!(std::fs::read(&copy).unwrap(), vec![b'x'; 3_000_000]);
        assert_eq!(printed(&["tail", "-c", "3", &file("greeting")]), "llo");
        assert_eq!(
            printed(&["dd", &format!("if={}", file("greeting")), "bs=2", "skip=1", "count=1", "status=none"]),
            "ll"
        );
        for missing in ["none", "..", "%61", "greeting/x"] {
            let path = shown(keys) + "/" + missing;
            assert!(!program(&["cat", &path]).status.success(), "{missing}");
        }
        // Thousands of keys are a listing of many pages; deleted keys disappear.
        for number in 0..2000 {
            client.request(&format!("SET many:{number} {number}")).expect("SET");
        }
        client.request("DEL empty").expect("DEL");
        wait_for("all keys", || (printed(&["ls", &shown(keys)]).lines().count() == 2004).then_some(()));
        let found = printed(&["find", &shown(&mount.path("main/store.view")), "-type", "f"]);
        assert_eq!(found.lines().count(), 2004);
        // The same without a mount.
        let cat = testbed.run(&["vsa", "cat", "/main/store", "--view", "keys/0/greeting"]);
        assert_eq!(text(&cat.stdout), "hello", "{cat:?}");
        let part = ["vsa", "cat", "store", "--view", "keys/0/large", "--offset", "2999990", "--length", "5"];
        assert_eq!(text(&testbed.run(&part).stdout), "xxxxx");
        assert_eq!(text(&testbed.run(&["vsa", "ls", "store"]).stdout), "keys/\n");
        assert_eq!(text(&testbed.run(&["vsa", "ls", "store", "keys/0"]).stdout).lines().count(), 2004);
        let none = testbed.run(&["vsa", "cat", "store", "--view", "keys/0/none"]);
        assert!(text(&none.stderr).contains("no such file"), "{none:?}");
    });
}

#[test]
fn a_stopped_or_dead_owner_is_an_error_in_bounded_time_and_blocks_no_other() {
    let name = "a_stopped_or_dead_owner_is_an_error_in_bounded_time_and_blocks_no_other";
    with_view(name, |testbed, mount, keys, client| {
        let greeting = keys.join("greeting");
        let mut open = std::fs::File::open(&greeting).expect("open");
        let [_, _, store] = testbed.pids();
        signal(store, Signal::STOP);
        // The timeout of `program` is much longer than the second that an owner has.
        for words in [&["cat", &shown(&greeting)][..], &["ls", &shown(&keys.join("list"))]] {
            let output = program(words);
            assert!(text(&output.stderr).contains("Connection timed out"), "{words:?}: {output:?}");
        }
        assert!(testbed.run(&["vsa", "cat", "store", "--view", "keys/0/greeting"]).status.code() == Some(1));
        // The area itself and the daemon are not affected.
        let head = program(&["head", "-c", "8192", &shown(&mount.path("main/store"))]);
        assert_eq!(head.stdout.len(), 8192, "{head:?}");
        assert!(testbed.run(&["vsa", "list"]).status.success());
        signal(store, Signal::CONT);
        wait_for("the owner", || std::fs::read(&greeting).ok().filter(|bytes| bytes == b"hello"));
        assert_eq!(
            client.request("GET greeting").expect("it was not disturbed"),
            crate::client::Reply::Bulk(b"hello".to_vec())
        );

        // Killed during a request.
        signal(store, Signal::STOP);
        let mut reader =
            Command::new("cat").arg(&greeting).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        signal(store, Signal::KILL);
        let mut complaint = String::new();
        reader.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert!(!reader.wait().unwrap().success());
        let expected = ["Input/output error", "No such file or directory", "Connection timed out"];
        assert!(expected.iter().any(|expected| complaint.contains(expected)), "{complaint}");
        let mut bytes = Vec::new();
        let error = open.read_to_end(&mut bytes).expect_err("its owner is dead");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        // Another store has taken its place automatically.
        wait_for("the next owner", || std::fs::read(&greeting).ok().filter(|bytes| bytes == b"hello"));
    });
}

/// A folder in memory, removed when this is dropped.
struct InMemory(PathBuf);

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn up_warns_of_a_volume_whose_areas_cannot_be_revoked() {
    in_own_network("up_warns_of_a_volume_whose_areas_cannot_be_revoked", || {
        const WARNING: &str = "revoking an area does not stop a process that has it open; put the volume on";
        for in_memory in [false, true] {
            let testbed = Testbed::new("unrevocable");
            let folder =
                InMemory(PathBuf::from(format!("/dev/shm/sietch-unrevocable-{}", std::process::id())));
            if in_memory {
                std::fs::create_dir(&folder.0).expect("a file system in memory");
                std::os::unix::fs::symlink(&folder.0, testbed.folder.join("data")).expect("a new name");
            }
            let mut up = testbed.up(&["--net", "linux"]);
            let status = text(&testbed.run(&["status"]).stdout);
            for printed in [up.remainder(), status] {
                assert_eq!(printed.contains(WARNING), in_memory, "{printed}");
            }
            up.stop();
        }
    });
}
