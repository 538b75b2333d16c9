//! Finds the file of a command, and decides whether a library can be loaded into it.
//!
//! 1. A name with a slash is the file itself; another is searched for in the folders of `PATH`, as
//!    execvp(3) does.
//! 2. A script (`#!`) is checked by its interpreter, some levels deep, as the kernel starts it;
//!    `/usr/bin/env NAME` by the program of that name. A file of neither kind is a script of the
//!    shell's.
//! 3. An ELF file is checked by its content ([`elf`](super::elf)) and by the privileges that it
//!    gains: if the kernel reports them (AT_SECURE, getauxval(3)), the loader ignores LD_PRELOAD.
//! 4. A file that may be executed but not read cannot be checked: it is started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::elf::{self, ElfError, Source as _};
use super::error::RunError;
use super::unsupported::Unsupported;

/// Where programs are without `PATH`: what execvp(3) takes.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Interpreters of interpreters: the kernel gives up after as many.
const SCRIPT_DEPTH: usize = 5;

/// Bytes of a script's first line that the kernel reads.
const SCRIPT_LINE: usize = 256;

/// Where glibc's loader has the names of its versions: in the string table near its start.
const LOADER_START: usize = 1 << 14;

/// The version of glibc that Sietch's library needs, as its loader names it (also in
/// `api/posix/src/calls/process/exec/target.rs`, which must not use the heap).
const VERSION: &[u8] = b"\0GLIBC_2.34\0";

/// The file that `name` names.
///
/// # Errors
/// [`RunError::NotFound`], [`RunError::NotExecutable`].
pub(super) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, RunError> {
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name)).map(|()| name.into());
    }
    let not_found = || RunError::NotFound { program: name.display().to_string() };
    if name.is_empty() {
        return Err(not_found());
    }
    let mut refused = None;
    // An empty entry is the current folder.
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        let file = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        match executable(&file) {
            Ok(()) => return Ok(file),
            // A folder that may not be searched has nothing for this user, as for shells.
            Err(_) if std::fs::metadata(&file).is_err() => {}
            Err(cause @ RunError::NotExecutable { .. }) => refused = refused.or(Some(cause)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

fn executable(file: &Path) -> Result<(), RunError> {
    let refused = |source| RunError::NotExecutable { path: file.to_owned(), source };
    let metadata = match std::fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(RunError::NotFound { program: file.display().to_string() });
        }
        Err(cause) => return Err(refused(cause)),
    };
    if metadata.is_dir() {
        return Err(refused(rustix::io::Errno::ISDIR.into()));
    }
    rustix::fs::access(file, Access::EXEC_OK).map_err(|cause| refused(cause.into()))
}

/// Whether the library can be loaded into what starting `file` starts.
///
/// # Errors
/// [`RunError::Damaged`]: an ELF file that cannot be started.
pub(super) fn check(file: &Path, path: Option<&OsStr>) -> Result<Option<Unsupported>, RunError> {
    let Some((file, open)) = target(file, path) else { return Ok(None) };
    match elf::facts(&open) {
        Ok(facts) => {
            Ok(unsupported(&facts).or_else(|| gains_privileges(&open).then_some(Unsupported::Privileged)))
        }
        Err(ElfError::NotElf) => Ok(None),
        Err(cause) => Err(RunError::Damaged { path: file, cause }),
    }
}

/// The program that starting `file` starts, if it names liburing among its libraries, whose system
/// calls are its own.
pub(super) fn imports_liburing(file: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    target(file, path).filter(|(_, open)| elf::needs(open, "liburing")).map(|(file, _)| file)
}

/// The file itself, or the interpreter of a script. None: it cannot be read, or cannot be
/// checked.
fn target(file: &Path, path: Option<&OsStr>) -> Option<(PathBuf, File)> {
    let mut file = file.to_owned();
    for _ in 0..SCRIPT_DEPTH {
        let open = File::open(&file).ok()?;
        let line = open.read(0, SCRIPT_LINE);
        if !line.starts_with(b"#!") {
            return Some((file, open));
        }
        file = interpreter(&line, path)?;
    }
    None
}

fn unsupported(facts: &elf::Facts) -> Option<Unsupported> {
    if facts.narrow {
        return Some(Unsupported::Narrow);
    }
    if !facts.own_machine {
        return Some(Unsupported::OtherMachine);
    }
    // Most Go programs are static too; the more specific reason is Go.
    if facts.go {
        return Some(Unsupported::Go);
    }
    let Some(loader) = &facts.loader else { return Some(Unsupported::Static) };
    let name = loader.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let shown = || String::from_utf8_lossy(loader).into_owned();
    if !name.starts_with(b"ld-linux") {
        return Some(Unsupported::OtherLibrary(shown()));
    }
    is_old(Path::new(OsStr::from_bytes(loader))).then(|| Unsupported::OldLibrary(shown()))
}

/// Whether a loader of glibc has not the version that the library's calls need. Of one that cannot
/// be read nothing is known.
fn is_old(loader: &Path) -> bool {
    let Ok(open) = File::open(loader) else { return false };
    let start = open.read(0, LOADER_START);
    !start.is_empty() && !start.windows(VERSION.len()).any(|window| window == VERSION)
}

/// The program in a script's first line: the interpreter, or the program that `env` would start.
fn interpreter(line: &[u8], path: Option<&OsStr>) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?.get(2..)?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    let program = OsString::from_vec(words.next()?.to_vec());
    let program = PathBuf::from(program);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    // `-S` splits words, as was done here; other options and settings are passed over.
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    match name {
        Some(name) => find(OsStr::from_bytes(name), path).ok(),
        None => Some(program),
    }
}

/// Whether starting it changes user or group, or brings capabilities (capabilities(7), AT_SECURE).
fn gains_privileges(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let mode = metadata.permissions().mode();
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let other_user = mode & 0o4000 != 0 && metadata.uid() != user.as_raw();
    // Without the group's right to start it, the bit means mandatory locking.
    let other_group = mode & 0o2010 == 0o2010 && metadata.gid() != group.as_raw();
    let capabilities = !user.is_root() && has_capabilities(file);
    if !other_user && !other_group && !capabilities {
        return false;
    }
    let ignored = rustix::thread::no_new_privs().unwrap_or(false)
        || rustix::fs::fstatvfs(file)
            .is_ok_and(|system| system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    !ignored
}

fn has_capabilities(file: &File) -> bool {
    // Version 3 has 24 bytes.
    let mut value = [0_u8; 64];
    rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok_and(|length| length > 0)
}

#[cfg(test)]
mod tests;
