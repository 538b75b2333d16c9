//! A file system on the guest's disk: it is made, served and mounted, the kernel's own calls and an
//! unmodified program use it, its service is killed, and what was done is there again.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use super::commands::{command, done, holds, kill, sietch, text, wait};

/// Its folder, its medium, and where it is mounted.
const STORE: &str = "/var/lib/files";
const MEDIUM: &str = "/var/lib/files.data=16mib";
const MOUNT: &str = "/tmp/files";

/// What redis-server appends to, and the sets that it is sent. Each is a write and a sync.
const APPENDED: &str = "appendonlydir/appendonly.aof.1.incr.aof";
const SETS: usize = 20;

/// The log of a second client: the mount is the first one.
const SECOND_LOG: &str = "/var/lib/files/log.2";

/// Does all of it.
pub(super) fn run() -> Result<(), String> {
    prepare().map_err(|cause| cause.to_string())?;
    done(&mut command("mount", &["-t", "tmpfs", "tmpfs", "/dev/shm"]))?;
    sietch(&["fs", "create", STORE, "--ssd", MEDIUM, "--log", "2mib"])?;
    let (mut service, mut mount) = (serve()?, show()?);
    change().map_err(|cause| format!("on the mount: {cause}"))?;
    program()?;
    end(&mut service, 9)?;
    // It ends by a failure, and its directory stays.
    mount.wait().map_err(|cause| cause.to_string())?;
    if fs::metadata(Path::new(MOUNT).join(APPENDED)).is_ok() {
        return Err("the mount answers without its service".to_owned());
    }
    let (mut service, mut mount) = (serve()?, show()?);
    look().map_err(|cause| format!("after the recovery: {cause}"))?;
    end(&mut mount, 15)?;
    end(&mut service, 15)?;
    let report = sietch(&["fs", "check", STORE, "--data"])?;
    println!("{}", report.trim());
    Ok(())
}

fn prepare() -> std::io::Result<()> {
    fs::create_dir_all("/dev/shm")?;
    fs::create_dir_all(MOUNT)
}

/// Starts a command that goes on, and waits for a word of what it says.
fn start(arguments: &[&str], output: &str, word: &str) -> Result<Child, String> {
    let log = File::create(output).map_err(|cause| cause.to_string())?;
    let errors = log.try_clone().map_err(|cause| cause.to_string())?;
    let mut child = command("sietch", arguments);
    let mut child = child.stdout(log).stderr(errors).spawn().map_err(|cause| cause.to_string())?;
    let said = wait(word, || holds(&text(output), word));
    println!("{}", text(output));
    if said.is_err() {
        let _ = child.kill();
    }
    said.map(|()| child)
}

fn serve() -> Result<Child, String> {
    start(&["fs", "serve", STORE], "/run/fs-serve", "is served")
}

fn show() -> Result<Child, String> {
    start(&["fs", "mount", STORE, MOUNT], "/run/fs-mount", "shows")
}

/// Sends a signal, and waits for the end.
fn end(child: &mut Child, signal: i32) -> Result<(), String> {
    kill(signal, &child.id().to_string())?;
    child.wait().map(drop).map_err(|cause| cause.to_string())
}

/// A few operations of each kind.
fn change() -> std::io::Result<()> {
    let at = |name: &str| Path::new(MOUNT).join(name);
    fs::create_dir(at("folder"))?;
    let mut file = File::create(at("folder/a"))?;
    file.write_all(&[7; 100_000])?;
    file.write_all_at(b"in the middle", 50_000)?;
    fs::hard_link(at("folder/a"), at("b"))?;
    std::os::unix::fs::symlink("folder/a", at("link"))?;
    fs::rename(at("folder/a"), at("folder/c"))?;
    fs::write(at("removed"), "gone")?;
    fs::remove_file(at("removed"))?;
    file.set_len(90_000)?;
    file.sync_all()?;
    OpenOptions::new().append(true).open(at("b"))?.write_all(b"end")
}

/// A server of Debian whose log of commands is on the mount, and which writes it itself.
fn program() -> Result<(), String> {
    let mut server = command("sietch", &["run", "--fs", MOUNT, "--", "/bin/redis-server", "--port", "7001"]);
    server.args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    // The kernel would do the first calls on a file.
    server.current_dir(MOUNT).env("SIETCH_FILES_CALLS", "1").stdout(Stdio::null());
    let mut server = server.spawn().map_err(|cause| format!("sietch run: {cause}"))?;
    let outcome = send();
    if outcome.is_err() {
        let _ = server.kill();
    }
    let ended = server.wait().map_err(|cause| cause.to_string())?;
    outcome.and_then(|()| if ended.success() { Ok(()) } else { Err(format!("redis-server: {ended}")) })
}

/// Sends all sets once the server answers, and ends it.
fn send() -> Result<(), String> {
    const COMMANDS: &str = "/run/commands";
    wait("redis-server", || {
        let answer = done(&mut command("redis-cli", &["-p", "7001", "ping"]))?;
        holds(&answer, "PONG")
    })?;
    let sets: String = (0..SETS).map(|number| format!("set key{number:02} kept\n")).collect();
    fs::write(COMMANDS, sets).map_err(|cause| cause.to_string())?;
    let commands = File::open(COMMANDS).map_err(|cause| cause.to_string())?;
    done(command("redis-cli", &["-p", "7001"]).stdin(commands))?;
    if !Path::new(SECOND_LOG).exists() {
        return Err("the program was no client".to_owned());
    }
    done(&mut command("redis-cli", &["-p", "7001", "shutdown", "nosave"])).map(drop)
}

/// The log of redis-server after them.
fn appended() -> Vec<u8> {
    let set = |number| format!("*3\r\n$3\r\nset\r\n$5\r\nkey{number:02}\r\n$4\r\nkept\r\n");
    let sets: String = (0..SETS).map(set).collect();
    format!("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n{sets}").into_bytes()
}

/// What must be there then.
fn look() -> Result<(), String> {
    let read = |name: &str| fs::read(Path::new(MOUNT).join(name)).map_err(|cause| format!("{name}: {cause}"));
    let mut expected = vec![7; 90_000];
    expected[50_000..][..13].copy_from_slice(b"in the middle");
    expected.extend(b"end");
    if read("folder/c")? != expected || read("b")? != expected {
        return Err("the file has other bytes".to_owned());
    }
    let target = fs::read_link(Path::new(MOUNT).join("link")).map_err(|cause| cause.to_string())?;
    if target != Path::new("folder/a") || read(APPENDED)? != appended() || read("removed").is_ok() {
        return Err("something else is there".to_owned());
    }
    Ok(())
}
