//! Why a program is not started.
//!
//! Exit statuses are those of env(1), nohup(1) and timeout(1): 127 where the program is not there,
//! 126 where it cannot be started, 125 where `sietch run` itself failed. Every other status is the
//! program's own.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;

use super::elf::ElfError;
use super::publish;
use super::unsupported::Unsupported;

/// Why a program is not started.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum RunError {
    /// No such file.
    #[error("{program}: there is no such program")]
    #[diagnostic(help("see whether it is spelt right, is installed, and is in a folder of PATH"))]
    NotFound {
        /// What was asked for.
        program: String,
    },

    /// A file that nobody, or not this user, may start.
    #[error("{path}: cannot be started: {source}")]
    #[diagnostic(help("name an executable file, or make it one with `chmod +x`"))]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },

    /// An ELF file that the kernel would refuse.
    #[error("{path}: {cause}")]
    #[diagnostic(help("install it again"))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: ElfError,
    },

    /// The program would not notice that it runs under Sietch.
    #[error("{path} {reason}: it would use the kernel's sockets")]
    #[diagnostic(help("`sietch run --anyway` starts it all the same, on the kernel's sockets"))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Unsupported,
    },

    /// The library is nowhere.
    #[error("libsietch_posix.so: in none of {looked}")]
    #[diagnostic(help(
        "build it beside this program with `cargo build --release`, or name it in SIETCH_PRELOAD"
    ))]
    NoLibrary {
        /// The files that are not there.
        looked: String,
    },

    /// The library cannot be loaded.
    #[error("{path}: {cause}")]
    #[diagnostic(help("name a libsietch_posix.so of this machine in SIETCH_PRELOAD"))]
    Library {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },

    /// LD_PRELOAD has no way to write it.
    #[error("{path}: LD_PRELOAD cannot hold a path with a space or a colon")]
    #[diagnostic(help("move it, and name it in SIETCH_PRELOAD"))]
    LibraryPath {
        /// The file.
        path: PathBuf,
    },

    /// Nobody answers.
    #[error("no service at {path}: {source}")]
    #[diagnostic(help(
        "start it with `sietch up`, or name another one's socket with `--sockets`; `--anyway` runs on the kernel's sockets"
    ))]
    NoService {
        /// Its socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },

    /// Somebody answers, in another language.
    #[error(
        "the service at {path} speaks {theirs}, and the library {own}: programs use the kernel's sockets until both are of the same version and the service has been started again"
    )]
    #[diagnostic(help(
        "install the same version of both, and start `sietch up` again; `--anyway` starts the program all the same, without --vnic and --publish"
    ))]
    OtherService {
        /// Its socket.
        path: PathBuf,
        /// What it speaks.
        theirs: String,
        /// What the library speaks.
        own: String,
    },

    /// The service cannot tell this user from others.
    #[error(
        "the service at {path} lives in a user namespace that has no number of its own for this user: programs use the kernel's sockets"
    )]
    #[diagnostic(help(
        "start a service for this user (`sietch service --sockets-only --sockets PATH`), or map the user in that namespace; `--anyway` starts the program all the same, without --vnic and --publish"
    ))]
    NoNumber {
        /// Its socket.
        path: PathBuf,
    },

    /// A port of the host cannot be had.
    #[error("publishing {ports}: the host's {host}: {cause}")]
    #[diagnostic(help("{}", publish::fix(cause)))]
    Publish {
        /// What was asked for.
        ports: String,
        /// The name that cannot be had.
        host: SocketAddr,
        /// The cause.
        cause: Errno,
    },

    /// Nothing would be different.
    #[error(
        "publishing {ports}: without --vnic the program has the host's own addresses, and is reached at its port already"
    )]
    #[diagnostic(help(
        "leave --publish out, or give it another port of the host: --publish HOST_PORT:{port}"
    ))]
    PublishedAlready {
        /// What was asked for.
        ports: String,
        /// The program's port.
        port: u16,
    },

    /// The protocol has an end.
    #[error("publishing so many ports: {most} of {what} are the most")]
    #[diagnostic(help("leave some out; an address like 0.0.0.0 stands for all of the host's"))]
    PublishMost {
        /// How many there may be.
        most: usize,
        /// Of what.
        what: String,
    },

    /// There are no random numbers.
    #[error("random numbers: {source}")]
    #[diagnostic(help("see whether a sandbox forbids getrandom(2)"))]
    Random {
        /// The cause.
        source: io::Error,
    },

    /// execve(2) failed.
    #[error("{path}: cannot be started: {source}")]
    #[diagnostic(help(
        "see whether its interpreter is installed, and the arguments are not longer than the system allows"
    ))]
    Start {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl RunError {
    /// What to exit with.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. }
            | Self::Damaged { .. }
            | Self::Unsupported { .. }
            | Self::Start { .. } => 126,
            Self::NoLibrary { .. }
            | Self::Library { .. }
            | Self::LibraryPath { .. }
            | Self::NoService { .. }
            | Self::OtherService { .. }
            | Self::NoNumber { .. }
            | Self::Publish { .. }
            | Self::PublishedAlready { .. }
            | Self::PublishMost { .. }
            | Self::Random { .. } => 125,
        }
    }
}
