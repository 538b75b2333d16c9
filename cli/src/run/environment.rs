//! The environment of the program, and where its values come from.
//!
//! 1. `LD_PRELOAD`: the library, before what is there already. The library is `$SIETCH_PRELOAD` if
//!    that is set. Else it is the newer of the one beside this program and the one in `deps/`
//!    beside it, where cargo puts it for tests. Else it is the installed one in `../lib/sietch/`.
//! 2. `SIETCH_SOCKETS`: the service's socket, as an absolute path: the program may change its
//!    folder.
//! 3. `SIETCH_APPLICATION`: 128 random bits that this program and what it starts have in common.
//! 4. `SIETCH_VNIC` and `SIETCH_PUBLISH`: as the options say. Without the option the variable is
//!    removed, so that none is inherited by chance.
//! 5. `SIETCH_SHORT_LIVED`, unless `--always` is given: short-lived connections stay on kernel TCP.
//!
//! 6. `SIETCH_FILES`: the mounts of `--fs`, as absolute paths with colons between them.
//!
//! The service is greeted first, in its own protocol (`docs/spec/sockets.md`), and its build
//! compared with the library's.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sietch_protocol::socket_service::{self, BUILD_BYTES, BUILD_SECTION, Build, HelloReply};

use super::elf;
use super::error::RunError;

/// The library's file.
pub(super) const LIBRARY: &str = "libsietch_posix.so";

/// Names another library.
pub(super) const PRELOAD_VARIABLE: &str = "SIETCH_PRELOAD";

/// The library, readable and of this machine.
///
/// # Errors
/// [`RunError::NoLibrary`], [`RunError::Library`], [`RunError::LibraryPath`].
pub(super) fn library(named: Option<&OsStr>, program: &Path) -> Result<PathBuf, RunError> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = match named.filter(|name| !name.is_empty()) {
        Some(path) => vec![PathBuf::from(path)],
        None => vec![
            folder.join(LIBRARY),
            folder.join("deps").join(LIBRARY),
            folder.parent().unwrap_or(folder).join("lib/sietch").join(LIBRARY),
        ],
    };
    // A target folder has two builds, of which one may be stale: cargo rebuilds only the requested
    // one.
    let (built, installed) = candidates.split_at(candidates.len().min(2));
    let time = |path: &&PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let newest = built.iter().filter(|path| path.is_file()).max_by_key(time);
    let Some(path) = newest.or_else(|| installed.iter().find(|path| path.is_file())) else {
        let searched: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(RunError::NoLibrary { searched: searched.join(", ") });
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
pub(super) fn preload(library: &Path, inherited: Option<&OsStr>) -> OsString {
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
pub(super) struct Service<'a> {
    /// Its socket.
    pub path: &'a Path,
    /// The application's id.
    pub application: [u8; 16],
    /// The build of the library that is to speak to it.
    pub library: Build,
}

impl Service<'_> {
    /// Whether it answers, and understands the library.
    ///
    /// # Errors
    /// [`RunError::NoService`], [`RunError::OtherService`], [`RunError::NoNumber`].
    pub(super) fn greet(&self) -> Result<(), RunError> {
        let own = &self.library;
        let path = || self.path.to_owned();
        let other =
            |theirs: String| Err(RunError::OtherService { path: path(), theirs, own: own.to_string() });
        match socket_service::greet(self.path.as_os_str().as_bytes(), self.application) {
            Ok(HelloReply::SameVersion(None)) if own.version == socket_service::VERSION => Ok(()),
            Ok(HelloReply::SameVersion(Some(build))) if build.fits(own) => Ok(()),
            Ok(HelloReply::SameVersion(Some(build)) | HelloReply::OtherVersion(_, Some(build))) => {
                other(build.to_string())
            }
            Ok(HelloReply::SameVersion(None)) => other(unnamed(socket_service::VERSION)),
            Ok(HelloReply::OtherVersion(version, None)) => other(unnamed(version)),
            Err(Errno::PROTO) => other("what no version of sietch speaks".to_owned()),
            Err(Errno::OVERFLOW) => Err(RunError::NoNumber { path: path() }),
            Err(cause) => Err(RunError::NoService { path: path(), source: cause.into() }),
        }
    }
}

/// A build that does not say its name.
fn unnamed(version: u16) -> String {
    format!("a build without a name (messages {version})")
}

/// The build of a library, which says it in its file; this program's, of a file that does not.
pub(super) fn build(library: Option<&PathBuf>) -> Build {
    let file = library.and_then(|library| std::fs::File::open(library).ok());
    let said = file.and_then(|file| elf::section_named(&file, BUILD_SECTION, BUILD_BYTES as u64));
    said.and_then(|bytes| Build::parse(&bytes)).unwrap_or(sietch_service::sockets::BUILD)
}

/// A new application's id: 128 random bits.
///
/// # Errors
/// [`RunError::Random`].
pub(super) fn application() -> Result<[u8; 16], RunError> {
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
pub(super) fn written(application: &[u8; 16]) -> String {
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
    fn of_two_builds_the_newer_one_is_taken() {
        let folder = std::env::temp_dir().join(format!("sietch-library-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("deps")).expect("a folder");
        // Any program of this machine stands for a library.
        let own = std::env::current_exe().expect("this test");
        let (beside, deps) = (folder.join(LIBRARY), folder.join("deps").join(LIBRARY));
        let program = folder.join("sietch");
        for path in [&beside, &deps] {
            std::fs::copy(&own, path).expect("a copy");
        }
        let found = || library(None, &program).expect("there are two");
        for (newer, older) in [(&beside, &deps), (&deps, &beside)] {
            let set = |path: &Path, seconds| {
                let file = std::fs::File::options().append(true).open(path).expect("a file");
                let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
                file.set_modified(time).expect("its own file");
            };
            set(newer, 2000);
            set(older, 1000);
            assert_eq!(&found(), newer);
        }
        std::fs::remove_file(&deps).expect("a file");
        assert_eq!(found(), beside);
        std::fs::remove_dir_all(folder).expect("a folder");
    }

    #[test]
    fn applications_differ() {
        let (one, other) = (application().expect("random"), application().expect("random"));
        assert_ne!(one, other);
        let text = written(&one);
        assert!(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
}
