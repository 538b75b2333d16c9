//! A running executor.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::content;
use crate::program::Program;

/// After this long without output the executor is stuck: it interrupts every call sooner.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How an executor is started.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The executor, or a program that becomes the executor.
    pub executor: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Environment variables, in addition to those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Where each executor gets a folder for its files.
    pub folder: Option<PathBuf>,
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
    folder: Option<PathBuf>,
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
        let folder = setting.folder.as_deref().map(new_folder).transpose()?;
        let mut command = Command::new(&setting.executor);
        command.args(&setting.arguments);
        command.envs(setting.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &folder {
            command.current_dir(folder);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
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
        Ok(Self { setting: setting.clone(), folder, child, input, lines })
    }

    /// Runs a program and returns a line for each step, and then one for each file that is left.
    /// If the executor hangs or ends, the last line says so, and a new executor is started.
    ///
    /// # Errors
    /// The new executor cannot be started.
    pub fn run(&mut self, program: &Program, tick: u32) -> io::Result<Vec<String>> {
        self.folder.as_deref().map(clear).transpose()?;
        let sent = self.input.write_all(format!("program {tick}\n{program}end\n").as_bytes());
        let mut answer = Vec::new();
        let last = loop {
            if sent.is_err() {
                break "the executor has ended before".to_owned();
            }
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) if line == "end" => {
                    answer.extend(self.files(program.steps.len()));
                    return Ok(answer);
                }
                Ok(line) if line.starts_with("look ") => {
                    let found = self.look(line.trim_start_matches("look "));
                    if writeln!(self.input, "{found}").is_err() {
                        break "the executor has ended before".to_owned();
                    }
                }
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
        let folder = self.folder.take();
        let fresh = Self::start(&self.setting)?;
        *self = fresh;
        // What a hanging executor has open stays there.
        let _ = folder.map(std::fs::remove_dir_all);
        Ok(answer)
    }

    /// Size and hash of a file in the folder.
    fn look(&self, name: &str) -> String {
        let Some(folder) = &self.folder else { return "no folder".to_owned() };
        match std::fs::read(folder.join(name)) {
            Ok(bytes) => format!("size={} data={}", bytes.len(), content::hash(&[&bytes])),
            Err(cause) => format!("{:?}", cause.kind()),
        }
    }

    /// A line for each file that a program left.
    fn files(&self, steps: usize) -> Vec<String> {
        let entries = self.folder.as_deref().and_then(|folder| std::fs::read_dir(folder).ok());
        let names = entries.into_iter().flatten().flatten();
        // Names of `mkstemp` are random.
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<_> = names
            .map(|name| {
                let text = self.look(&name);
                let shown = if name.len() == 1 { name.as_str() } else { "temporary" };
                format!("{shown} {text}")
            })
            .collect();
        found.sort();
        found.iter().enumerate().map(|(at, line)| format!("{} {line}", steps + at)).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.folder.take().map(std::fs::remove_dir_all);
    }
}

/// Makes a folder that no other executor has.
fn new_folder(within: &Path) -> io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = within.join(format!("{}-{number}", std::process::id()));
    std::fs::create_dir(&folder)?;
    Ok(folder)
}

/// Removes the files of a folder.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(())
}
