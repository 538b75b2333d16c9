//! The namespace as files: what real programs see of areas while the store runs, and who sees nothing.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::Signal;

use crate::client::Client;
use crate::place::{PATIENCE, Place, ROGUE_USER, STORE_USER, in_own_network, signal, text, wait_for};

/// A running `sietch mount`. What is mounted when it is dropped is taken away.
pub struct Mount {
    child: Child,
    /// Kept open: it may still speak.
    output: Option<BufReader<ChildStdout>>,
    pub directory: PathBuf,
}

impl Mount {
    pub fn start(place: &Place, name: &str, more: &[&str]) -> Self {
        let directory = place.folder.join(name);
        let _ = std::fs::create_dir(&directory);
        let shown = directory.display().to_string();
        let mut command = place.sietch(&[&["mount", &shown], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start sietch");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        if output.read_line(&mut line).expect("read") == 0 {
            let mut said = String::new();
            child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("read");
            panic!("sietch mount ended: {:?}: {said}", child.wait());
        }
        Self { child, output: Some(output), directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Ends it as Ctrl-C does.
    pub fn stop(mut self) {
        signal(i64::from(self.child.id()), Signal::INT);
        let status = self.child.wait().expect("wait");
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("read");
        assert!(status.success(), "{status:?}: {said}");
        assert!(said.is_empty(), "{said}");
        assert!(!is_mounted(&self.directory));
    }

    /// Its mount stays until this is dropped.
    pub fn kill(&mut self) {
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
pub fn has_fuse(test: &str) -> bool {
    let found = std::fs::File::open("/dev/fuse").is_ok();
    if !found {
        eprintln!("SKIPPED {test}: needs /dev/fuse and the right to open it; load it with modprobe fuse");
    }
    found
}

/// Runs a program, bounded in time, and returns what it said.
pub fn program(words: &[&str]) -> Output {
    let seconds = PATIENCE.as_secs().to_string();
    Command::new("timeout").args([&["-k", "1", &seconds], words].concat()).output().expect("coreutils")
}

fn said(words: &[&str]) -> String {
    let output = program(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output.stdout)
}

/// The same as an ordinary user; what it says on standard error.
fn refused_to(uid: u32, words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).uid(uid).gid(uid).output().expect("coreutils");
    assert!(!output.status.success(), "{words:?} as {uid}: {output:?}");
    text(&output.stderr)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn areas_are_files_to_real_programs_while_the_store_runs() {
    let name = "areas_are_files_to_real_programs_while_the_store_runs";
    if !has_fuse(name) {
        return;
    }
    in_own_network(name, || {
        let place = Place::new("names");
        let up = place.up(&[]);
        let mut client = Client::connect(place.kernel()).expect("the store answers");
        client.ask("SET greeting hello-from-the-store").expect("SET");
        let mount = Mount::start(&place, "mnt", &[]);
        assert_eq!(said(&["ls", &shown(&mount.directory)]), "main\n");
        assert_eq!(said(&["ls", &shown(&mount.path("main"))]), "store\n");
        let area = shown(&mount.path("main/store"));
        let stat = said(&["stat", "-c", "%F %s %u %a", &area]);
        assert_eq!(stat, format!("regular file {} {STORE_USER} 400\n", 64 << 20));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let written: u64 = said(&["stat", "-c", "%Y", &area]).trim().parse().unwrap();
        assert!(now.abs_diff(written) < 3600, "{written} is no time of writing");
        assert_eq!(said(&["find", &shown(&mount.directory), "-type", "f"]), format!("{area}\n"));

        // The same bytes by every way, in pieces of every size.
        let real = shown(&place.area());
        said(&["cmp", &area, &real]);
        let sum = |words: &[&str]| said(words).split(' ').next().unwrap().to_owned();
        assert_eq!(sum(&["sha256sum", &area]), sum(&["sha256sum", &real]));
        let copy = shown(&place.folder.join("copy"));
        said(&["cp", &area, &copy]);
        said(&["cmp", &copy, &real]);
        let odd = ["bs=777", "skip=3", "count=50", "status=none"];
        assert_eq!(
            program(&[&["dd", &format!("if={area}")], &odd[..]].concat()).stdout,
            program(&[&["dd", &format!("if={real}")], &odd[..]].concat()).stdout
        );
        assert_eq!(
            program(&["tail", "-c", "5000", &area]).stdout,
            program(&["tail", "-c", "5000", &real]).stdout
        );
        assert_eq!(said(&["grep", "-c", "-a", "hello-from-the-store", &area]), "1\n");
        let cat = place.run(&["vsa", "cat", "/main/store", "--offset", "4095", "--length", "10000"]);
        assert_eq!(cat.stdout, program(&["tail", "-c", "+4096", &real]).stdout[..10000]);

        // Nothing can be written, and what is not there is not there.
        let write =
            program(&["dd", "if=/dev/zero", &format!("of={area}"), "bs=1", "count=1", "conv=notrunc"]);
        assert!(text(&write.stderr).contains("Read-only file system"), "{write:?}");
        assert!(text(&program(&["rm", "-f", &area]).stderr).contains("Read-only file system"));
        for missing in ["main/none", "none", "main/store/x", "main/..store"] {
            assert!(!program(&["stat", &shown(&mount.path(missing))]).status.success(), "{missing}");
        }

        // What is made appears, what is deleted disappears, within a second or so.
        assert!(place.run(&["vsa", "create", "second", "1mb"]).status.success());
        wait_for("the new area", || mount.path("main/second").exists().then_some(()));
        let second = std::fs::File::open(mount.path("main/second")).expect("open");
        assert!(place.run(&["vsa", "delete", "second"]).status.success());
        wait_for("its end", || (!mount.path("main/second").exists()).then_some(()));
        // As with any file, who has it open keeps it.
        assert_eq!(std::io::copy(&mut &second, &mut std::io::sink()).expect("read"), 1 << 20);
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
        let place = Place::new("names-others");
        let up = place.up(&[]);
        for folder in [&place.folder, &place.folder.join("mnt")] {
            let _ = std::fs::create_dir(folder);
            std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let uid = ROGUE_USER.to_string();
        assert!(place.run(&["vsa", "create", "rogues", "1mb", "--uid", &uid]).status.success());
        // Without --allow-other the kernel lets nobody in but who mounted.
        let mount = Mount::start(&place, "mnt", &[]);
        let inside = shown(&mount.path("main"));
        assert!(refused_to(ROGUE_USER, &["ls", &inside]).contains("Permission denied"));
        mount.stop();

        let mount = Mount::start(&place, "mnt", &["--allow-other"]);
        let [area, own] = ["main/store", "main/rogues"].map(|name| shown(&mount.path(name)));
        // Root has looked at it: the kernel may not show others what it has kept of that.
        assert_eq!(said(&["ls", &inside]), "rogues\nstore\n");
        said(&["head", "-c", "10", &area]);
        for words in [&["cat", &area][..], &["stat", &area], &["head", "-c", "1", &area]] {
            assert!(refused_to(ROGUE_USER, words).contains("Permission denied"), "{words:?}");
        }
        let listed = Command::new("ls").arg(&inside).uid(ROGUE_USER).gid(ROGUE_USER).output().unwrap();
        assert_eq!(text(&listed.stdout), "rogues\n");
        let read = Command::new("cat").arg(&own).uid(ROGUE_USER).gid(ROGUE_USER).output().unwrap();
        assert_eq!(read.stdout.len(), 1 << 20, "{read:?}");
        mount.stop();

        // Not through the daemon either, whatever it is asked with.
        let binary = place.folder.join("sietch");
        std::fs::copy(env!("CARGO_BIN_EXE_sietch"), &binary).expect("copy");
        let socket = shown(&place.socket());
        let cat = |path: &str| {
            [shown(&binary), "--socket".into(), socket.clone(), "vsa".into(), "cat".into(), path.into()]
        };
        let words = cat("/main/store");
        let said = refused_to(ROGUE_USER, &words.each_ref().map(String::as_str));
        assert!(said.contains("not for uid"), "{said}");
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
        let place = Place::new("names-restart");
        let up = place.up(&[]);
        let mut mount = Mount::start(&place, "mnt", &[]);
        let area = mount.path("main/store");
        let held = std::fs::File::open(&area).expect("open");
        let [daemon, ..] = place.pids();
        signal(daemon, Signal::KILL);
        // What is open goes on without any daemon.
        let mut bytes = [1; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&held, &mut bytes, 0).expect("read");
        wait_for("another daemon", || place.try_status().filter(|status| status["daemon"]["pid"] != daemon));
        wait_for("the area", || std::fs::read(&area).ok().filter(|bytes| bytes.len() == 64 << 20));
        let directory = shown(&mount.directory);
        let second = place.run(&["mount", &directory]);
        assert!(text(&second.stderr).contains("shown there already"), "{second:?}");
        drop(held);
        mount.kill();
        let dead = program(&["ls", &directory]);
        assert!(text(&dead.stderr).contains("not connected"), "{dead:?}");
        let again = Mount::start(&place, "mnt", &[]);
        assert!(area.exists());
        // Somebody who is in it does not keep it.
        let _held = std::fs::File::open(&area).expect("open");
        again.stop();
        // Unmounted by others, it ends.
        let mut mount = Mount::start(&place, "mnt", &[]);
        said(&["umount", &directory]);
        let status = wait_for("its end", || mount.child.try_wait().expect("wait"));
        assert!(status.success(), "{status:?}");
        up.stop();
    });
}
