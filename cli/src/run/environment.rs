//! What the program gets in its environment, and where that is found.
//!
//! 1. `LD_PRELOAD`: the library, before what is there already. The library is `$SIETCH_PRELOAD`, or lies beside this program, in `deps/` beside
//!    it (where cargo puts it for tests), or in `../lib/sietch/` (where it is installed).
//! 2. `SIETCH_SOCKETS`: the service's socket, as an absolute path: the program may change its folder.
//! 3. `SIETCH_APPLICATION`: 128 random bits that this program and what it starts have in common.
//! 4. `SIETCH_VNIC`: as asked; else it is removed, so that none is inherited by chance.
//!
//! The service is greeted first, in its own protocol (`docs/spec/sockets.md`), and asked for the ports of the host that are to be published.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sietch_protocol::socket_service::{self, Descriptors, Name, Reply, ReplyKind, Request, RequestKind};

use crate::arguments::run::Publish;

use super::elf;
use super::error::RunError;

/// The library's file.
pub const LIBRARY: &str = "libsietch_posix.so";

/// Names another library.
pub const PRELOAD_VARIABLE: &str = "SIETCH_PRELOAD";

/// The library, readable and of this machine.
///
/// # Errors
/// [`RunError::NoLibrary`], [`RunError::Library`], [`RunError::LibraryPath`].
pub fn library(named: Option<&OsStr>, program: &Path) -> Result<PathBuf, RunError> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = match named.filter(|name| !name.is_empty()) {
        Some(path) => vec![PathBuf::from(path)],
        None => vec![
            folder.join(LIBRARY),
            folder.join("deps").join(LIBRARY),
            folder.parent().unwrap_or(folder).join("lib/sietch").join(LIBRARY),
        ],
    };
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(RunError::NoLibrary { looked: looked.join(", ") });
    };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let refused = |cause: String| RunError::Library { path: path.clone(), cause };
    let file = std::fs::File::open(&path).map_err(|cause| refused(cause.to_string()))?;
    match elf::facts(&file) {
        Ok(facts) if facts.own_machine => {}
        Ok(_) => return Err(refused("is made for another kind of processor".to_owned())),
        Err(cause) => return Err(refused(cause.to_string())),
    }
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(RunError::LibraryPath { path });
    }
    Ok(path)
}

/// `library` before what LD_PRELOAD holds already; once.
pub fn preload(library: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    let inherited = inherited.unwrap_or_default().as_bytes();
    let others = inherited.split(|byte| matches!(byte, b' ' | b':')).filter(|path| !path.is_empty());
    for path in others.filter(|path| *path != library.as_os_str().as_bytes()) {
        all.push(":");
        all.push(OsStr::from_bytes(path));
    }
    all
}

/// The service at a socket, as the application that this process becomes.
pub struct Service<'a> {
    /// Its socket.
    pub path: &'a Path,
    /// The application's id.
    pub application: [u8; 16],
}

impl Service<'_> {
    /// Whether it answers.
    ///
    /// # Errors
    /// [`RunError::NoService`].
    pub fn greet(&self) -> Result<(), RunError> {
        let failed = |cause: Errno| {
            let path = self.path.to_owned();
            match cause {
                Errno::PROTO => RunError::OtherService { path },
                cause => RunError::NoService { path, source: cause.into() },
            }
        };
        match self.ask(&Request::new(RequestKind::Hello, self.application)) {
            Ok(reply) if reply.kind() == ReplyKind::Here => Ok(()),
            Ok(reply) if reply.kind() == ReplyKind::Refused => Err(failed(reply.error())),
            Ok(_) => Err(failed(Errno::PROTO)),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Has a port of the host lead to one of the VNIC.
    ///
    /// # Errors
    /// [`RunError::Publish`].
    pub fn publish(&self, vnic: &str, publish: &Publish) -> Result<(), RunError> {
        let mut request = Request::new(RequestKind::Publish, self.application);
        request.set_vnic(vnic);
        request.local = Name::from(SocketAddr::new(publish.address, publish.host_port));
        request.remote = Name::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), publish.port));
        let failed = |cause: Errno| RunError::Publish { ports: publish.to_string(), source: cause.into() };
        match self.ask(&request) {
            Ok(reply) if reply.kind() == ReplyKind::Done => Ok(()),
            Ok(reply) if reply.kind() == ReplyKind::Refused => Err(failed(reply.error())),
            Ok(_) => Err(failed(Errno::PROTO)),
            Err(cause) => Err(failed(cause)),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, Errno> {
        let mut received: Descriptors = [const { None }; socket_service::MOST_DESCRIPTORS];
        socket_service::call(self.path.as_os_str().as_bytes(), request, &[], &mut received)
    }
}

/// A new application's id: 128 random bits.
///
/// # Errors
/// [`RunError::Random`].
pub fn application() -> Result<[u8; 16], RunError> {
    let mut bits = [0_u8; 16];
    let failed = |source: std::io::Error| RunError::Random { source };
    let count = rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|cause| failed(cause.into()))?;
    // So few bytes are never cut short (getrandom(2)).
    if count != bits.len() {
        return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bits)
}

/// The id as its variable holds it: hexadecimal.
pub fn written(application: &[u8; 16]) -> String {
    application.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/lib/libsietch_posix.so");
        for (inherited, expected) in [
            (None, "/lib/libsietch_posix.so"),
            (Some(""), "/lib/libsietch_posix.so"),
            (Some("/a.so"), "/lib/libsietch_posix.so:/a.so"),
            (Some("/a.so /b.so:"), "/lib/libsietch_posix.so:/a.so:/b.so"),
            (Some("/a.so:/lib/libsietch_posix.so"), "/lib/libsietch_posix.so:/a.so"),
        ] {
            assert_eq!(preload(library, inherited.map(OsStr::new)), OsStr::new(expected));
        }
    }

    #[test]
    fn applications_differ() {
        let (one, other) = (application().expect("random"), application().expect("random"));
        assert_ne!(one, other);
        let text = written(&one);
        assert!(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
}
