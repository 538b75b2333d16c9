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
    #[diagnostic(help("check that it is spelt right, is installed, and is in a folder of PATH"))]
    NotFound {
        /// The requested program.
        program: String,
    },

    /// A file that is not executable, or not by this user.
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
        /// The damage.
        cause: ElfError,
    },

    /// The library cannot be loaded into the program.
    #[error("{path} {reason}: it would use the kernel's sockets")]
    #[diagnostic(help("`sietch run --anyway` starts it all the same, on the kernel's sockets"))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Unsupported,
    },

    /// The library was not found.
    #[error("libsietch_posix.so: in none of {searched}")]
    #[diagnostic(help(
        "build it beside this program with `cargo build --release`, or name it in SIETCH_PRELOAD"
    ))]
    NoLibrary {
        /// The files that are not there.
        searched: String,
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

    /// The path cannot be written in LD_PRELOAD.
    #[error("{path}: LD_PRELOAD cannot hold a path with a space or a colon")]
    #[diagnostic(help("move it, and name it in SIETCH_PRELOAD"))]
    LibraryPath {
        /// The file.
        path: PathBuf,
    },

    /// Not a mount whose programs may become clients.
    #[error("{path}: {cause}")]
    #[diagnostic(help(
        "serve its file system with `sietch fs serve FOLDER`, and then mount it with `sietch fs mount FOLDER DIR`"
    ))]
    NotServed {
        /// The folder that was named.
        path: PathBuf,
        /// Why not.
        cause: String,
    },

    /// The service does not answer.
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

    /// The service has another version.
    #[error(
        "the service at {path} speaks {theirs}, and the library {own}: programs use the kernel's sockets until both are of the same version and the service has been started again"
    )]
    #[diagnostic(help(
        "install the same version of both, and start `sietch up` again; `--anyway` starts the program all the same, without --vnic and --publish"
    ))]
    OtherService {
        /// Its socket.
        path: PathBuf,
        /// Its version.
        theirs: String,
        /// The library's version.
        own: String,
    },

    /// The service cannot distinguish this user from others.
    #[error(
        "the service at {path} runs in a user namespace that has no number of its own for this user: programs use the kernel's sockets"
    )]
    #[diagnostic(help(
        "start a service for this user (`sietch service --sockets-only --sockets PATH`), or map the user in that namespace; `--anyway` starts the program all the same, without --vnic and --publish"
    ))]
    NoNumber {
        /// Its socket.
        path: PathBuf,
    },

    /// A port of the host is not available.
    #[error("publishing {ports}: the host's {host}: {cause}")]
    #[diagnostic(help("{}", publish::fix(cause)))]
    Publish {
        /// The requested ports.
        ports: String,
        /// The name that cannot be had.
        host: SocketAddr,
        /// The cause.
        cause: Errno,
    },

    /// Publishing would change nothing.
    #[error(
        "publishing {ports}: without --vnic the program has the host's own addresses, and is reached at its port already"
    )]
    #[diagnostic(help(
        "leave --publish out, or give it another port of the host: --publish HOST_PORT:{port}"
    ))]
    PublishedAlready {
        /// The requested ports.
        ports: String,
        /// The program's port.
        port: u16,
    },

    /// More ports than the protocol allows.
    #[error("publishing so many ports: {most} of {what} are the most")]
    #[diagnostic(help("leave some out; an address like 0.0.0.0 stands for all of the host's"))]
    PublishMost {
        /// How many there may be.
        most: usize,
        /// The subject of the limit.
        what: String,
    },

    /// Random numbers are not available.
    #[error("random numbers: {source}")]
    #[diagnostic(help("check whether a sandbox forbids getrandom(2)"))]
    Random {
        /// The cause.
        source: io::Error,
    },

    /// execve(2) failed.
    #[error("{path}: cannot be started: {source}")]
    #[diagnostic(help(
        "check that its interpreter is installed, and that the arguments are not longer than the system allows"
    ))]
    Start {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl RunError {
    /// The exit status.
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
            | Self::NotServed { .. }
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
