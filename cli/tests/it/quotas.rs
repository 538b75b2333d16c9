//! `sietch fs quota`: limits of users, who are refused through FUSE what exceeds them.
//!
//! Needs root and `/dev/fuse`; otherwise each test prints SKIPPED and the reason.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::file_system::{Testbed, can_mount};

/// A user that no other test has.
const USER: u32 = 54_321;

/// A mount or a service; it ends with the test.
struct Running(Child);

impl Running {
    fn start(testbed: &Testbed, arguments: &[&str]) -> Self {
        let mut child = testbed.sietch(arguments).stdout(Stdio::piped()).spawn().expect("start sietch");
        let output = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(line.contains("Ctrl-C"), "{line:?}");
        Self(child)
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("a signal");
        let status = self.0.wait().expect("an end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// What the command says; it succeeds.
fn quota(testbed: &Testbed, arguments: &[&str]) -> String {
    let output = testbed.run(&[&["quota"], arguments].concat());
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Runs a script as the user, in the mount.
fn as_user(testbed: &Testbed, script: &str) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(testbed.folder.join("mnt")).uid(USER).gid(USER);
    let output = shell.output().expect("start a shell");
    if output.status.success() { Ok(()) } else { Err(said(&output)) }
}

fn is_refused(testbed: &Testbed, script: &str) {
    let cause = as_user(testbed, script).expect_err(script);
    assert!(cause.contains("quota exceeded"), "{script}: {cause}");
}

/// A mount that everybody may use.
fn mounted(testbed: &Testbed) -> Running {
    let mount = Running::start(testbed, &["mount", "store", "mnt", "--allow-other"]);
    fs::set_permissions(testbed.folder.join("mnt"), fs::Permissions::from_mode(0o777)).expect("a mount");
    mount
}

/// What the command says of the user, in JSON.
fn of_user(testbed: &Testbed, place: &str) -> String {
    quota(testbed, &[place, "--user", &USER.to_string(), "--json"]).split_whitespace().collect()
}

fn expected(used: (u64, u64), most: (&str, &str)) -> String {
    let (bytes, inodes) = used;
    format!(
        "{{\"users\":[{{\"uid\":{USER},\"name\":null,\"used_bytes\":{bytes},\"used_inodes\":{inodes},\
         \"most_bytes\":{},\"most_inodes\":{}}}]}}",
        most.0, most.1
    )
}

#[test]
fn a_user_is_refused_what_exceeds_a_limit() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("quota");
    testbed.create("shm/medium");
    let user = USER.to_string();
    let mount = mounted(&testbed);
    quota(&testbed, &["mnt", "--user", &user, "--bytes", "1mib", "--inodes", "3"]);
    assert_eq!(as_user(&testbed, "head -c 1048576 /dev/zero > full"), Ok(()));
    is_refused(&testbed, "head -c 1 /dev/zero >> full");
    is_refused(&testbed, "fallocate -l 2m full");
    assert_eq!(as_user(&testbed, "mkdir d && : > d/empty"), Ok(()));
    is_refused(&testbed, "mkdir e");
    is_refused(&testbed, "ln -s x e");
    assert_eq!(as_user(&testbed, "ln full d/link && mv full other && rm d/link"), Ok(()));
    assert_eq!(of_user(&testbed, "mnt/d"), expected((1 << 20, 3), ("1048576", "3")));
    // Root writes for the user, beyond the limit.
    fs::write(testbed.file("d/empty"), [1; 8192]).expect("root may");
    is_refused(&testbed, "head -c 1 /dev/zero > d/empty");
    assert_eq!(as_user(&testbed, "rm other && rm d/empty && echo > small"), Ok(()));
    assert_eq!(of_user(&testbed, "mnt"), expected((4096, 2), ("1048576", "3")));
    // What is not given stays as it is.
    quota(&testbed, &["mnt", "--user", &user, "--inodes", "none"]);
    assert_eq!(of_user(&testbed, "mnt"), expected((4096, 2), ("1048576", "null")));
    let text = quota(&testbed, &["mnt"]);
    let line = text.lines().find(|line| line.contains(&user)).expect("the user is there");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["-", "4", "KiB", "1", "MiB", "2", "-"]);
    let binary = env!("CARGO_BIN_EXE_sietch");
    assert_eq!(as_user(&testbed, &format!("{binary} fs quota . --user {user}")), Ok(()));
    let cause = as_user(&testbed, &format!("{binary} fs quota .")).expect_err("not for everybody");
    assert!(cause.contains("--user NAME"), "{cause}");
    let raised = as_user(&testbed, &format!("{binary} fs quota . --user {user} --bytes 1gib"));
    assert!(raised.expect_err("not for everybody").contains("run as root"));
    // The folder of a mount is not enough.
    let busy = said(&testbed.run(&["quota", "store"]));
    assert!(busy.contains("name the directory that shows it"), "{busy}");
    mount.end();
    whole(&testbed);
    assert_eq!(of_user(&testbed, "store"), expected((4096, 2), ("1048576", "null")));
}

fn whole(testbed: &Testbed) {
    let checked = testbed.run(&["check", "store", "--data"]);
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn limits_are_set_offline_and_where_a_service_runs() {
    if !can_mount() {
        return;
    }
    let testbed = Testbed::new("quota-served");
    testbed.create("shm/medium");
    let user = USER.to_string();
    quota(&testbed, &["store", "--user", &user, "--inodes", "2"]);
    let service = Running::start(&testbed, &["serve", "store"]);
    let mount = mounted(&testbed);
    assert_eq!(as_user(&testbed, ": > a; : > b"), Ok(()));
    is_refused(&testbed, ": > c");
    quota(&testbed, &["store", "--user", &user, "--inodes", "3", "--bytes", "8kib"]);
    assert_eq!(as_user(&testbed, ": > c; head -c 8192 /dev/zero > a"), Ok(()));
    is_refused(&testbed, "head -c 1 /dev/zero > b");
    assert_eq!(of_user(&testbed, "store"), expected((8192, 3), ("8192", "3")));
    mount.end();
    service.end();
    whole(&testbed);
    quota(&testbed, &["store", "--recount"]);
    assert_eq!(of_user(&testbed, "store"), expected((8192, 3), ("8192", "3")));
    let elsewhere = said(&testbed.run(&["quota", "shm"]));
    assert!(elsewhere.contains("below a `sietch fs mount`"), "{elsewhere}");
    whole(&testbed);
}
