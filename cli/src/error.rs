//! Failures as the user sees them: the subject, the cause, the fix.
//!
//! 1. Each variant of [`Error`] is one kind of failure. Its message names the subject and the
//!    cause, its `help` the fix.
//! 2. An error of another crate whose message carries its own fix is passed through unchanged
//!    (`transparent`).
//! 3. [`Error::OutputClosed`] is no failure: `main` prints nothing for it.
//!
//! A new variant needs both texts: a message without a subject or a failure without a fix is a
//! defect.

use std::io;
use std::path::{Path, PathBuf};

use sietch_protocol::CallError;

use crate::style::escaped;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum Error {
    /// The reader has closed the output. Not a failure.
    #[error("the output is closed")]
    OutputClosed,

    /// The output cannot be written.
    #[error("standard output: {0}")]
    #[diagnostic(help("check whether the disk that it goes to is full"))]
    Output(#[source] io::Error),

    /// `sietch doctor` found that not even the fallback can run.
    #[error("this machine cannot run Sietch, not even on kernel sockets")]
    #[diagnostic(help("fix what is marked `broken` above"))]
    MachineCannotRun,

    /// A second `sietch up`.
    #[error("sietch is already running: pid {pid}{addresses}")]
    #[diagnostic(help(
        "use it, or stop it with `sietch down` first; a second one needs its own `--socket`, `--data` and `--port`"
    ))]
    AlreadyRunning {
        /// The process of the running instance.
        pid: i32,
        /// `, serving ADDRESS, ...`, or nothing while it starts.
        addresses: String,
    },

    /// Nothing to stop.
    #[error("sietch is not running: nothing holds {path}")]
    #[diagnostic(help("start it with `sietch up`, or name another one with `--socket`"))]
    NotRunning {
        /// The record of a running instance.
        path: PathBuf,
    },

    /// It runs, but not where this command looks.
    #[error("sietch is not running at {path}, but at {other}")]
    #[diagnostic(help("add `--socket {other}` to this command, or set SIETCH_SOCKET to that path"))]
    Elsewhere {
        /// The socket of this command.
        path: PathBuf,
        /// The socket of the daemon that runs.
        other: String,
    },

    /// The instance did not stop.
    #[error("sietch, pid {pid}: still running {seconds} s after the request to stop")]
    #[diagnostic(help(
        "a disk may be slow: wait and try again; `kill -9 {pid}` loses no acknowledged write"
    ))]
    DoesNotStop {
        /// Its process.
        pid: i32,
        /// How long.
        seconds: i64,
    },

    /// A signal could not be sent.
    #[error("sietch, pid {pid}: {source}")]
    #[diagnostic(help("run `sietch down` as the user who ran `sietch up`, or as root"))]
    Signal {
        /// Its process.
        pid: i32,
        /// The cause.
        source: io::Error,
    },

    /// A program was not started. The message carries its fix.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Run(#[from] crate::run::error::RunError),

    /// The daemon does not run, or refused. The message carries its fix.
    #[error(transparent)]
    Control(#[from] CallError),

    /// The socket service's socket.
    #[error("socket service at {path}: {source}")]
    #[diagnostic(help("{fix}"))]
    SocketService {
        /// The path.
        path: PathBuf,
        /// What to do.
        fix: &'static str,
        /// The cause.
        source: io::Error,
    },

    /// An application sent an invalid report of its sockets. The message carries its fix.
    #[error(transparent)]
    Sockets(#[from] sietch_protocol::sockets::SocketsError),

    /// The capture ring. The message carries its fix.
    #[error(transparent)]
    Capture(#[from] sietch::nic::capture::CaptureError),

    /// The native API failed. The message carries its fix.
    #[error(transparent)]
    Api(#[from] sietch::Error),

    /// A file or folder.
    #[error("{path}: {source}")]
    #[diagnostic(help("{fix}"))]
    File {
        /// The path.
        path: PathBuf,
        /// What to do.
        fix: &'static str,
        /// The cause.
        source: io::Error,
    },

    /// There is no default for the data directory.
    #[error("data directory: no default, because neither XDG_DATA_HOME nor HOME is set")]
    #[diagnostic(help("name one with `--data DIR`"))]
    NoDataDirectory,

    /// There is no area of this name.
    #[error("area {name}: there is no file and no area of this name")]
    #[diagnostic(help(
        "`sietch vsa list` shows the areas, their user's to that user and all of them to root"
    ))]
    NoSuchArea {
        /// The name that was given.
        name: String,
    },

    /// Neither a file nor, without a daemon, an area.
    #[error("{name}: there is no such file, and no daemon that could have an area of this name: {source}")]
    #[diagnostic(help("correct the path; for an area, start its daemon or name it with `--socket`"))]
    NoFile {
        /// The name that was given.
        name: String,
        /// The daemon's absence.
        source: CallError,
    },

    /// Something else than an area, by its size or kind.
    #[error("{path}: {what}, and no store's area")]
    #[diagnostic(help(
        "name a file of a volume (`areas/NAME.vsa` in the data directory), a copy of one, or an area"
    ))]
    NotAnArea {
        /// The path that was given.
        path: PathBuf,
        /// What it is.
        what: String,
    },

    /// A backup would go to a terminal.
    #[error("backup: standard output is a terminal")]
    #[diagnostic(help("name a file, or send it through a pipe: `sietch kv backup - | zstd > FILE`"))]
    BackupToTerminal,

    /// Two backups would write one file.
    #[error("backup: another backup is writing {}", path.display())]
    #[diagnostic(help("wait until it has ended, or name another file"))]
    BackupRuns {
        /// The file that it writes.
        path: PathBuf,
    },

    /// The file of a backup was removed while it was written.
    #[error("backup: {} was removed or replaced while it was written", path.display())]
    #[diagnostic(help("run the backup again, and let nothing remove that file meanwhile"))]
    BackupReplaced {
        /// The file that it wrote.
        path: PathBuf,
    },

    /// A store may hold the area that is to be restored.
    #[error("restore: sietch runs, pid {pid}, and its store has the area")]
    #[diagnostic(help("stop it with `sietch down`, restore, and start it again with `sietch up`"))]
    StoreRuns {
        /// The process of the running instance.
        pid: i32,
    },

    /// `sietch.toml`. The message carries its fix.
    #[error(transparent)]
    Configuration(#[from] sietch_daemon::ConfigurationError),

    /// A program of Sietch's cannot be started at all.
    #[error("{what}: cannot be started: {source}")]
    #[diagnostic(help("raise the limits of processes and memory (`ulimit -u`, `ulimit -v`)"))]
    Start {
        /// The program.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },

    /// A program of Sietch's ended before it served.
    #[error("{what} ended before it was ready ({how}){last}")]
    #[diagnostic(help("the whole log is in {log}"))]
    EndedEarly {
        /// The program.
        what: &'static str,
        /// Exit status or signal.
        how: String,
        /// The last lines of its log, each on a line of its own.
        last: String,
        /// Its log.
        log: String,
    },

    /// A file system that cannot be made or opened.
    #[error("{}", escaped(&.0.to_string()))]
    #[diagnostic(help("`sietch help fs` has the options"))]
    FileSystem(Box<sietch_service::fs::StoreError>),

    /// A file system that cannot be shown.
    #[error(transparent)]
    #[diagnostic(help(
        "see whether the directory is there and this machine (or container) lets this user mount"
    ))]
    FuseMount(sietch_fuse::MountError),

    /// The process that served a file system has ended.
    #[error("{folder}: {cause}")]
    #[diagnostic(help(
        "what was done is in its log: serve it again with `sietch fs serve`, and mount it; until then its \
         directory answers ENOTCONN (`umount` takes it away)"
    ))]
    Unserved {
        /// The folder of the file system.
        folder: PathBuf,
        /// Why.
        cause: String,
    },

    /// A mount of a file system that is still served has ended.
    #[error("{folder}: this mount has ended: {cause}")]
    #[diagnostic(help(
        "the service still runs, and has what this mount did: mount it again; until then its directory answers \
         ENOTCONN (`umount` takes it away)"
    ))]
    EndedMount {
        /// The folder of the file system.
        folder: PathBuf,
        /// Why.
        cause: String,
    },

    /// A file system has ended, and its log was not digested.
    #[error("{folder}: the log was not digested at the end: {cause}")]
    #[diagnostic(help(
        "what was done is still in the log: correct the cause, and mount it again; `sietch fs check` shows what is damaged"
    ))]
    Undigested {
        /// The folder of the file system.
        folder: PathBuf,
        /// Why.
        cause: String,
    },

    /// Storage areas that cannot be shown.
    #[error(transparent)]
    #[diagnostic(help("`sietch vsa cat` reads an area without a mount"))]
    Mount(sietch_fuse::MountError),

    /// Giving up privileges failed half-way: the process must not continue.
    #[error("giving up privileges: {step}: {source}")]
    #[diagnostic(help("`--run-as` needs root; leave it out otherwise"))]
    Privilege {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },

    /// The daemon's own error. The message carries its fix.
    #[error("{0}")]
    Daemon(Box<dyn std::error::Error + Send + Sync>),

    /// The store's own error. The message carries its fix.
    #[error("{0}")]
    Store(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// A failure with a file, and what to do about it.
    pub(crate) fn file(path: &Path, fix: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, fix, source }
    }
}

#[cfg(test)]
mod tests {
    use miette::{GraphicalReportHandler, GraphicalTheme};

    use super::*;

    /// The report on a terminal without colours, as `main` prints it.
    fn rendered(error: &Error) -> String {
        let mut text = String::new();
        GraphicalReportHandler::new_themed(GraphicalTheme::none())
            .with_width(80)
            .render_report(&mut text, error)
            .expect("a String takes everything");
        text
    }

    #[test]
    fn a_second_instance_names_the_first() {
        let error = Error::AlreadyRunning { pid: 7, addresses: ", serving 127.0.0.1:6379".to_owned() };
        insta::assert_snapshot!(rendered(&error), @r"
        x sietch is already running: pid 7, serving 127.0.0.1:6379
        help: use it, or stop it with `sietch down` first; a second one needs its
              own `--socket`, `--data` and `--port`
        ");
    }

    #[test]
    fn a_process_that_ended_early_shows_the_end_of_its_log() {
        let error = Error::EndedEarly {
            what: "sietch kv",
            how: "exit status: 1".to_owned(),
            last: "\nport 6379: in use".to_owned(),
            log: "/var/lib/sietch/kv.log".to_owned(),
        };
        insta::assert_snapshot!(rendered(&error), @r"
        x sietch kv ended before it was ready (exit status: 1)
        | port 6379: in use
        help: the whole log is in /var/lib/sietch/kv.log
        ");
    }

    #[test]
    fn a_program_that_cannot_be_served_names_the_cause_and_the_fix() {
        let error = crate::run::error::RunError::Unsupported {
            path: "/usr/bin/true".into(),
            reason: crate::run::Unsupported::Static,
        };
        insta::assert_snapshot!(rendered(&Error::from(error)), @r"
        x /usr/bin/true is linked statically, so that no library can be loaded into
        | it: it would use the kernel's sockets
        help: `sietch run --anyway` starts it all the same, on the kernel's sockets
        ");
    }

    #[test]
    fn the_end_of_a_mount_says_where_what_was_done_is() {
        let (folder, cause) = (PathBuf::from("/srv/mail"), "it did not answer in time".to_owned());
        let rendered = |error: &Error| rendered(error).split_whitespace().collect::<Vec<_>>().join(" ");
        let ended = rendered(&Error::EndedMount { folder: folder.clone(), cause });
        assert!(ended.contains("the service still runs") && ended.contains("mount it again"), "{ended}");
        let undigested = rendered(&Error::Undigested { folder, cause: "a medium failed".to_owned() });
        let parts = ["a medium failed", "is still in the log", "mount it again"];
        assert!(parts.iter().all(|part| undigested.contains(part)), "{undigested}");
        assert!(!undigested.contains("ulimit"), "{undigested}");
    }

    #[test]
    fn a_file_shows_its_cause_and_fix() {
        let error = Error::file(Path::new("/run/sietch"), "see who owns it")(io::ErrorKind::NotFound.into());
        insta::assert_snapshot!(rendered(&error), @r"
        x /run/sietch: entity not found
        `-> entity not found
        help: see who owns it
        ");
    }
}
