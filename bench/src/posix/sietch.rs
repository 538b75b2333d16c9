//! The socket service, and `sietch run`.
//!
//! 1. The program and its library are copied to a folder that every user may enter, because
//!    PostgreSQL runs as a user of its own.
//! 2. For host addressing the service runs alone. For a VNIC a daemon also runs, and the service
//!    core gets its VNIC from it.

use std::cell::RefCell;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::program::{Program, words};
use crate::error::{Error, system};
use crate::process;

/// How long the service may take until it listens.
const START: Duration = Duration::from_secs(15);

/// The service's socket is beside the daemon's socket, on which nothing listens here.
const DAEMON: &str = "sietch.sock";
const SOCKETS: &str = "sockets.sock";

/// The VNIC of servers, and its address.
pub(super) const VNIC: &str = "bench";
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 85, 0, 2);

/// The user of the service core: the daemon gives it its VNIC as this user
/// (docs/spec/sietch-toml.md, `[service]`).
const ACCOUNT: u32 = 61871;

/// Its user is PostgreSQL's; root may use it as well.
fn configuration() -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = if users.lines().any(|line| line.starts_with("postgres:")) { "\"postgres\"" } else { "0" };
    format!(
        "[[vnic]]\nname = \"{VNIC}\"\nuid = {user}\naddress = \"{ADDRESS}/24\"\nhost_address = \"10.85.0.1\"\n\
         tcp_ports = [\"7300-7999\"]\nserved = true\n"
    )
}

/// The service. Dropping it ends the service.
#[derive(Debug)]
pub(super) struct Sietch {
    program: PathBuf,
    daemon: PathBuf,
    // The service core ends before the daemon that granted its VNIC.
    service: RefCell<Program>,
    control: Option<RefCell<Program>>,
}

/// Copies the program and its library to `folder`; returns the path of the program.
fn copy_to(folder: &Path) -> Result<PathBuf, Error> {
    let copy = |from: PathBuf| {
        let name = from.file_name().unwrap_or_default();
        let to = folder.join(name);
        std::fs::copy(&from, &to).map(|_| to).map_err(system("copying sietch and its library"))
    };
    copy(process::preload_library()?)?;
    copy(process::sietch_program()?)
}

fn command(program: &Path, daemon: &Path, rest: &[&std::ffi::OsStr]) -> Vec<OsString> {
    let socket = ["--socket".as_ref(), daemon.as_os_str()];
    words(&[&[program.as_os_str()], &socket[..], rest].concat())
}

impl Sietch {
    /// Copies the program to `folder` and starts the service.
    pub(super) fn start(folder: &Path, log: &Path, stop: &AtomicBool) -> Result<Self, Error> {
        let program = copy_to(folder)?;
        let daemon = folder.join(DAEMON);
        let words = command(&program, &daemon, &["service".as_ref(), "--sockets-only".as_ref()]);
        let mut service = Program::start("sietch service", &words, log)?;
        let socket = folder.join(SOCKETS);
        service.wait_until(START, stop, || socket.exists())?;
        Ok(Self { program, daemon, service: RefCell::new(service), control: None })
    }

    /// Like [`Self::start`], but with a VNIC: starts a daemon, and a service core that requests the
    /// VNIC from it. `log` returns the files for their output.
    pub(super) fn start_with_vnic(
        folder: &Path,
        log: &dyn Fn(&str) -> PathBuf,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        let program = copy_to(folder)?;
        let (daemon, file) = (folder.join(DAEMON), folder.join("sietch.toml"));
        std::fs::write(&file, configuration()).map_err(system("writing the daemon's configuration"))?;
        let data = folder.join("daemon");
        let options = ["--config".as_ref(), file.as_os_str(), "--data".as_ref(), data.as_os_str()];
        let words = command(&program, &daemon, &[&["daemon".as_ref()], &options[..]].concat());
        let mut control = Program::start("sietch daemon", &words, &log("daemon"))?;
        control.wait_until(START, stop, || daemon.exists())?;
        let account = format!("{ACCOUNT}:{ACCOUNT}");
        let words = command(&program, &daemon, &["service".as_ref(), "--run-as".as_ref(), account.as_ref()]);
        let mut service = Program::start("sietch service", &words, &log("service-core"))?;
        let socket = folder.join(SOCKETS);
        service.wait_until(START, stop, || socket.exists())?;
        let control = Some(RefCell::new(control));
        Ok(Self { program, daemon, service: RefCell::new(service), control })
    }

    /// The words before a program that runs under Sietch.
    pub(super) fn prefix(&self, vnic: Option<&str>) -> Vec<OsString> {
        let mut command = command(&self.program, &self.daemon, &["run".as_ref()]);
        if let Some(vnic) = vnic {
            command.extend(words(&["--vnic", vnic]));
        }
        command.push("--".into());
        command
    }

    /// Fails if the service, or its daemon, has ended.
    pub(super) fn is_up(&self) -> Result<(), Error> {
        self.control.as_ref().map_or(Ok(()), |control| control.borrow_mut().is_up())?;
        self.service.borrow_mut().is_up()
    }

    /// The service's process.
    pub(super) fn service(&self) -> u32 {
        self.service.borrow().pid()
    }
}
