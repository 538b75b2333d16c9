//! A running executor.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::program::Program;

/// After this long without output the executor is stuck: it interrupts every call sooner.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How an executor is started.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The executor.
    pub executor: PathBuf,
    /// Environment variables, in addition to those of this process.
    pub environment: Vec<(OsString, OsString)>,
}

impl Setting {
    /// The executor without the shim: the kernel's sockets.
    pub fn plain(executor: &Path) -> Self {
        Self { executor: executor.to_owned(), ..Self::default() }
    }
}

/// A running executor; dropped, it is killed.
pub struct Session {
    setting: Setting,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Session {
    /// Starts an executor.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(setting: &Setting) -> io::Result<Self> {
        let mut child = Command::new(&setting.executor)
            .envs(setting.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the executor has no pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { setting: setting.clone(), child, input, lines })
    }

    /// Runs a program and returns a line for each step. If the executor hangs or ends, the last
    /// line says so, and a new executor is started.
    ///
    /// # Errors
    /// The new executor cannot be started.
    pub fn run(&mut self, program: &Program, tick: u32) -> io::Result<Vec<String>> {
        let sent = self.input.write_all(format!("program {tick}\n{program}end\n").as_bytes());
        let mut answer = Vec::new();
        let last = loop {
            if sent.is_err() {
                break "the executor has ended before".to_owned();
            }
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) if line == "end" => return Ok(answer),
                Ok(line) if line == "hung" => break "the executor hangs in that call".to_owned(),
                Ok(line) => answer.push(line),
                Err(RecvTimeoutError::Timeout) => break "the executor is stuck".to_owned(),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended =
                        self.child.wait().map_or_else(|cause| cause.to_string(), |status| status.to_string());
                    break format!("the executor has ended: {ended}");
                }
            }
        };
        answer.push(last);
        let fresh = Self::start(&self.setting)?;
        *self = fresh;
        Ok(answer)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
