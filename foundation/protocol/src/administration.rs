//! The administrators' socket, beside the public socket of a service.
//!
//! 1. A user id is not enough to identify an administrator. A container's root has uid 0 as well,
//!    without a capability and in other namespaces, and the public socket may be mounted into the
//!    container. So no request over the public socket administers, whatever the caller's uid.
//! 2. The administrators' socket has the same name in the folder `admin` beside the public one.
//!    Folder (0700) and socket (0600) belong to the user that started the service. A folder that
//!    another user owns, or that others may enter, is refused.
//! 3. A container that is given the whole run folder has the folder `admin` too. So the peer must
//!    also live in the user and PID namespaces of the service ([`shares_namespaces`]).

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

/// The folder beside a public socket.
pub const FOLDER: &str = "admin";
/// Connections that wait to be accepted: commands that people type.
const BACKLOG: i32 = 64;

/// The administrators' socket of a service whose public socket is `open`.
pub fn administrator_socket(open: &Path) -> PathBuf {
    open.with_file_name(FOLDER).join(open.file_name().unwrap_or_else(|| OsStr::new("sietch.sock")))
}

/// Creates and checks the folder, and listens in it. The socket is renamed to its final path once
/// it listens, and replaces the socket of a dead service.
///
/// # Errors
/// `PermissionDenied`: the folder belongs to another user, or others may enter it; those of the
/// system calls.
pub fn listen(open: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let path = administrator_socket(open);
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => check(folder)?,
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let new = path.with_extension(format!("new{}", std::process::id()));
    let _ = std::fs::remove_file(&new);
    rustix::net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    let placed = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?))
        .and_then(|()| std::fs::rename(&new, &path));
    placed.inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })?;
    Ok(socket)
}

/// Whether the folder is this user's alone, so that no other user can put a socket there or reach
/// the one that is there.
fn check(folder: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    let fault = if !found.is_dir() {
        "it is no folder".to_owned()
    } else if found.uid() != own {
        format!("it belongs to uid {}, and this is uid {own}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("its mode is {:o}, and others may not enter it", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    let shown = folder.display();
    let text = format!("the administrators' folder {shown}: {fault}; remove it, and it is created again");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Removes the socket, and the folder if no other socket is in it. A missing one is no error.
pub fn remove(open: &Path) {
    let path = administrator_socket(open);
    if std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = std::fs::remove_file(&path);
    }
    if let Some(folder) = path.parent() {
        // Another service of this folder may still have its socket there.
        let _ = std::fs::remove_dir(folder);
    }
}

/// Whether `error`, of connecting to an administrators' socket, means that this process cannot
/// reach it and should use the public socket.
pub fn is_unreachable(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NOTDIR | Errno::CONNREFUSED)
}

/// Whether `peer`, the process at the other end of a connected socket, runs in the user and PID
/// namespaces of this process, according to `/proc`. False if `/proc` does not say. `None` is a
/// process that has no number in the PID namespace of this process.
pub fn shares_namespaces(peer: Option<Pid>) -> bool {
    let Some(peer) = peer else { return false };
    let (own, peer) = (namespaces("self"), namespaces(&peer.as_raw_nonzero().to_string()));
    own.is_some() && own == peer
}

/// The depth of a process in PID namespaces as seen from here, and its map of user ids.
fn namespaces(process: &str) -> Option<(usize, String)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    // Without PID namespaces in the kernel there is no such line, for neither of the two.
    let depth = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let depth = depth.map_or(0, |numbers| numbers.split_ascii_whitespace().count());
    Some((depth, std::fs::read_to_string(format!("/proc/{process}/uid_map")).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sietch-admin-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn the_socket_is_its_owners_alone_and_replaces_a_dead_one() {
        let folder = folder("own");
        let open = folder.join("sockets.sock");
        for _ in 0..2 {
            drop(listen(&open, SocketType::STREAM).expect("a folder of our own"));
            let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
            assert_eq!((mode(&folder.join("admin")), mode(&administrator_socket(&open))), (0o700, 0o600));
        }
        remove(&open);
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0);
        std::fs::remove_dir(&folder).expect("it is empty");
    }

    #[test]
    fn a_folder_that_others_may_enter_or_that_is_a_link_is_refused() {
        let folder = folder("open");
        let open = folder.join("sockets.sock");
        let admin = folder.join("admin");
        std::fs::create_dir(&admin).expect("a folder");
        std::fs::set_permissions(&admin, std::fs::Permissions::from_mode(0o711)).expect("it is ours");
        let error = listen(&open, SocketType::STREAM).expect_err("others may enter it").to_string();
        assert!(error.contains("711") && error.contains("remove it"), "{error}");
        std::fs::remove_dir(&admin).expect("it is empty");
        std::os::unix::fs::symlink("/tmp", &admin).expect("a link");
        let error = listen(&open, SocketType::STREAM).expect_err("it is a link").to_string();
        assert!(error.contains("no folder"), "{error}");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn a_process_shares_its_own_namespaces() {
        assert!(shares_namespaces(Some(rustix::process::getpid())));
        assert!(!shares_namespaces(None));
    }
}
