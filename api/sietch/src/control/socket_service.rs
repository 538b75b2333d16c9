//! The socket service of this machine, as a program that links Sietch reaches it.
//!
//! 1. `SIETCH_SOCKETS`, where it is set, names its socket; `sietch run` sets it. Otherwise the
//!    socket is beside the daemon's ([`socket_path`], or the one that the program was given).
//! 2. The application's number is `SIETCH_APPLICATION`, where it is set; otherwise it is random.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use sietch_protocol::socket_service::{APPLICATION_VARIABLE, SOCKET_NAME, SOCKET_VARIABLE};
use sietch_stream::service::DirectService;

use super::socket_path::socket_path;

/// The socket service that the environment names, or the one beside the daemon. It need not run:
/// listeners are registered when it does.
///
/// # Errors
/// The kernel has no random bytes.
pub fn socket_service() -> io::Result<DirectService> {
    service(socket_path)
}

/// The same for a program that was given the path of the daemon's socket.
///
/// # Errors
/// As [`socket_service`].
pub fn socket_service_beside(daemon: &Path) -> io::Result<DirectService> {
    service(|| daemon.to_owned())
}

fn service(daemon: impl FnOnce() -> PathBuf) -> io::Result<DirectService> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = path(set(SOCKET_VARIABLE), daemon);
    let application = match set(APPLICATION_VARIABLE).as_ref().and_then(|text| number(text.to_str()?)) {
        Some(application) => application,
        None => {
            let mut application = [0; 16];
            getrandom(&mut application, GetRandomFlags::empty())?;
            application
        }
    };
    Ok(DirectService::new(path.into_os_string().into_vec(), application))
}

fn path(named: Option<OsString>, daemon: impl FnOnce() -> PathBuf) -> PathBuf {
    named.map_or_else(|| daemon().with_file_name(SOCKET_NAME), PathBuf::from)
}

/// A number of 32 hexadecimal digits.
fn number(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_the_named_one_or_lies_beside_the_daemon() {
        assert_eq!(path(Some("/a/b.sock".into()), || "/unused".into()), PathBuf::from("/a/b.sock"));
        let beside = path(None, || "/run/sietch/sietch.sock".into());
        assert_eq!(beside, PathBuf::from("/run/sietch/sockets.sock"));
    }

    #[test]
    fn an_application_has_thirty_two_digits() {
        let digits = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(number(digits), Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(number(&digits[1..]), None);
        assert_eq!(number("zz0102030405060708090a0b0c0d0e0f"), None);
    }
}
