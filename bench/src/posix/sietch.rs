//! The socket service, and `sietch run`.
//!
//! Program and library are copied to a folder that every user may enter: PostgreSQL runs as a user of its own.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::program::{Program, words};
use crate::error::{Error, system};
use crate::process;

/// How long the service may take until it listens.
const START: Duration = Duration::from_secs(15);

/// The service's socket lies beside the daemon's, which nobody listens to here.
const DAEMON: &str = "sietch.sock";
const SOCKETS: &str = "sockets.sock";

/// The service, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Sietch {
    program: PathBuf,
    daemon: PathBuf,
    service: RefCell<Program>,
}

impl Sietch {
    /// Copies the program to `folder` and starts the service.
    pub fn start(folder: &Path, log: &Path, stop: &AtomicBool) -> Result<Self, Error> {
        let copy = |from: PathBuf| {
            let name = from.file_name().unwrap_or_default();
            let to = folder.join(name);
            std::fs::copy(&from, &to).map(|_| to).map_err(system("copying sietch and its library"))
        };
        let program = copy(process::sietch_program()?)?;
        copy(process::preload_library()?)?;
        let daemon = folder.join(DAEMON);
        let socket = ["--socket".as_ref(), daemon.as_os_str()];
        let command =
            [&[program.as_os_str()], &socket[..], &["service".as_ref(), "--sockets-only".as_ref()]].concat();
        let mut service = Program::start("sietch service", &words(&command), log)?;
        let socket = folder.join(SOCKETS);
        service.wait_until(START, stop, || socket.exists())?;
        Ok(Self { program, daemon, service: RefCell::new(service) })
    }

    /// What goes before a program that is to run under Sietch.
    pub fn prefix(&self) -> Vec<OsString> {
        words(&[
            self.program.as_os_str(),
            "--socket".as_ref(),
            self.daemon.as_os_str(),
            "run".as_ref(),
            "--".as_ref(),
        ])
    }

    /// Fails if the service has ended.
    pub fn is_up(&self) -> Result<(), Error> {
        self.service.borrow_mut().is_up()
    }

    /// The service's process.
    pub fn service(&self) -> u32 {
        self.service.borrow().pid()
    }
}
