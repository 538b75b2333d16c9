//! The default paths.
//!
//! Root: `/etc/sietch`, `/var/lib/sietch`, `/run/sietch`. Others: the XDG base directories.

use std::ffi::OsString;
use std::path::PathBuf;

/// The files of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// `sietch.toml`.
    pub configuration: PathBuf,
    /// State and areas.
    pub data: PathBuf,
    /// The socket.
    pub socket: PathBuf,
}

impl Locations {
    /// Those of the user this process runs as.
    pub fn of_this_user() -> Self {
        let uid = rustix::process::geteuid();
        Self::of(uid.is_root(), uid.as_raw(), &|name| std::env::var_os(name))
    }

    fn of(root: bool, uid: u32, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        if root {
            return Self {
                configuration: "/etc/sietch/sietch.toml".into(),
                data: "/var/lib/sietch".into(),
                socket: "/run/sietch/sietch.sock".into(),
            };
        }
        // The XDG specification: a relative path counts as not set.
        let directory = |name| variable(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
        // Without a home: where root alone makes folders. In /tmp, another user could make it
        // first.
        let home = directory("HOME").unwrap_or_else(|| format!("/run/user/{uid}").into());
        let configuration = directory("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let data = directory("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share")).join("sietch");
        let socket = match directory("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join("sietch/sietch.sock"),
            None => data.join("run/sietch.sock"),
        };
        Self { configuration: configuration.join("sietch/sietch.toml"), data, socket }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_user_gets_the_xdg_directories_and_root_the_system_ones() {
        let none = |_: &str| None;
        assert_eq!(Locations::of(true, 0, &none).data, PathBuf::from("/var/lib/sietch"));
        assert_eq!(Locations::of(false, 7, &none).data, PathBuf::from("/run/user/7/.local/share/sietch"));
        let some = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            "XDG_DATA_HOME" => Some("relative".into()),
            _ => None,
        };
        let found = Locations::of(false, 7, &some);
        assert_eq!(found.configuration, PathBuf::from("/home/ada/.config/sietch/sietch.toml"));
        assert_eq!(found.data, PathBuf::from("/home/ada/.local/share/sietch"));
        assert_eq!(found.socket, PathBuf::from("/run/user/7/sietch/sietch.sock"));
    }
}
