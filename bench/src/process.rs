//! Processes and network namespaces that end with their owner.

use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, system};

/// How long a server may take to answer after its start: the first one fills its storage area.
const START: Duration = Duration::from_secs(60);

/// How long a server may take to end before it is killed.
const END: Duration = Duration::from_secs(10);

/// A program. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `program`; its output goes to `log`.
    pub(crate) fn start<S: AsRef<OsStr>>(program: &str, arguments: &[S], log: &Path) -> Result<Self, Error> {
        let out = std::fs::File::create(log).map_err(system("creating a log file"))?;
        let errors = out.try_clone().map_err(system("creating a log file"))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .spawn()
            .map_err(|cause| missing(program, &cause.to_string()))?;
        Ok(Self { name: program.to_owned(), child })
    }

    /// Waits until `address` answers a PING.
    pub(crate) fn wait_for(&mut self, address: SocketAddr) -> Result<(), Error> {
        let started = Instant::now();
        while started.elapsed() < START {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(&self.name, format!("ended with {status} before it served {address}")));
            }
            if answers(address) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(failed(&self.name, format!("does not answer at {address}")))
    }

    /// Waits until `file` exists.
    pub(crate) fn wait_for_file(&mut self, file: &Path) -> Result<(), Error> {
        self.wait_until(&format!("did not make {}", file.display()), || file.exists())
    }

    /// Waits until it `is_ready`; `otherwise` says what it did not do.
    pub(crate) fn wait_until(&mut self, otherwise: &str, is_ready: impl Fn() -> bool) -> Result<(), Error> {
        let started = Instant::now();
        while started.elapsed() < START {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(&self.name, format!("ended with {status} before it was ready")));
            }
            if is_ready() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(failed(&self.name, otherwise.to_owned()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        let started = Instant::now();
        while started.elapsed() < END {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answers(address: SocketAddr) -> bool {
    use std::io::Write as _;
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
        return false;
    };
    let mut reply = [0; 7];
    stream.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
        && stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut reply).is_ok()
        && &reply == b"+PONG\r\n"
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String, Error> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|cause| missing(program, &cause.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(program, format!("ended with {}: {errors}", output.status)))
}

/// The release build of `sietch`, beside this program; built if it is missing.
pub(crate) fn sietch_program() -> Result<PathBuf, Error> {
    beside("sietch", "sietch-cli")
}

/// The release build of the library of `sietch run`, beside this program; built if it is missing.
pub(crate) fn preload_library() -> Result<PathBuf, Error> {
    beside("libsietch_posix.so", "sietch-posix-preload")
}

fn beside(file: &str, package: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(system("finding this program"))?;
    let found = own.with_file_name(file);
    if !found.exists() {
        output("cargo", &["build", "--release", "--locked", "-p", package])?;
    }
    Ok(found)
}

fn missing(program: &str, what: &str) -> Error {
    Error::Program {
        program: program.to_owned(),
        what: what.to_owned(),
        fix: "install it (Debian: redis-server, redis-tools, iproute2, util-linux) or build it (cargo build --release)",
    }
}

fn failed(program: &str, what: String) -> Error {
    Error::Program { program: program.to_owned(), what, fix: "see its log below target/bench" }
}

/// A network namespace with a veth pair into this process' namespace. A kernel server in it is
/// behind the same kind of link as a VNIC.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    link: String,
}

impl Namespace {
    /// Creates the namespace. The far end has the address `far`, the near end `near`, both in a
    /// /24.
    pub(crate) fn create(far: &str, near: &str) -> Result<Self, Error> {
        let id = std::process::id();
        let (name, link, peer) = (format!("sietch-bench-{id}"), format!("sb{id}"), format!("sp{id}"));
        output("ip", &["netns", "add", &name])?;
        let namespace = Self { name: name.clone(), link: link.clone() };
        output("ip", &["link", "add", &link, "type", "veth", "peer", "name", &peer, "netns", &name])?;
        output("ip", &["addr", "add", &format!("{near}/24"), "dev", &link])?;
        output("ip", &["link", "set", &link, "up"])?;
        output("ip", &["-n", &name, "addr", "add", &format!("{far}/24"), "dev", &peer])?;
        output("ip", &["-n", &name, "link", "set", &peer, "up"])?;
        output("ip", &["-n", &name, "link", "set", "lo", "up"])?;
        let cubic = ["netns", "exec", &name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"];
        output("ip", &cubic)?;
        Ok(namespace)
    }

    /// The name of the near end of the pair.
    pub(crate) fn link(&self) -> &str {
        &self.link
    }

    /// The name of the namespace, for `ip netns exec`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Deleting either end deletes the pair; both may be deleted already.
        let _ = output("ip", &["link", "del", &self.link]);
        let _ = output("ip", &["netns", "del", &self.name]);
    }
}
