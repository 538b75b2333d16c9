//! `sietch.toml`: which user may have which VNIC and which VSA.
//!
//! 1. The text is parsed strictly: an unknown key, a wrong unit or a wrong type is an error with
//!    its line.
//! 2. Then rules are checked (names are unique, addresses do not collide, limits hold), again with
//!    the line. Each table has a file of its own; [`rules`] has what they share.
//! 3. Derived values are derived here: the uid of a user's name, a MAC from machine and name.
//! 4. A missing file is written with defaults that make `sietch up` work.
//!    `docs/spec/sietch-toml.md` explains every key.

mod addresses;
mod error;
mod file_systems;
mod kv;
mod limits;
mod links;
mod ports;
mod rules;
mod vnics;
mod volumes;
mod vsas;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sietch_protocol::MAIN_VOLUME;
use sietch_protocol::socket_service::Rule as SocketRule;
use toml::Spanned;

use crate::identity::uid_of;
use file_systems::FileSystemText;
use kv::{KvText, unprivileged_ports};
use limits::{KV_UID, MAX_SOCKET_RULES, MAX_TEXT};
use links::LinkText;
use ports::SERVICE_UID;
use rules::{Rules, User};
use vnics::{KindText, VnicText};
use volumes::VolumeText;
use vsas::VsaText;

pub use error::ConfigurationError;
pub use file_systems::FileSystem;
pub use kv::Kv;
pub use links::{Link, LinkEnd};
pub use ports::Port;
pub use vnics::Vnic;
pub use volumes::{Quota, Volume};
pub use vsas::Vsa;

pub(crate) use limits::MAX_DEVICES;
pub use limits::MAX_KV_SHARDS;
pub(crate) use rules::derived_mac;

/// The whole file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// Where it was read.
    pub path: PathBuf,
    /// `[daemon]`.
    pub daemon: Daemon,
    /// `[[vnic]]`, in the order of their names.
    pub vnics: Vec<Vnic>,
    /// `[[vnic]]` of the switch, in the order of their names.
    pub ports: Vec<Port>,
    /// The user that the service core runs as.
    pub service_uid: u32,
    /// The users and programs that may listen and connect under `sietch run`.
    pub socket_rules: Vec<SocketRule>,
    /// `[[link]]`, in the order of their names.
    pub links: Vec<Link>,
    /// `[[volume]]`, in the order of their names; `main` is always among them.
    pub volumes: Vec<Volume>,
    /// `[[vsa]]`, in the order of their names.
    pub vsas: Vec<Vsa>,
    /// `[[fs]]`, in the order of the file.
    pub file_systems: Vec<FileSystem>,
    /// `[kv]`.
    pub kv: Kv,
}

/// `[daemon]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// The socket.
    pub socket: Option<PathBuf>,
    /// State and areas.
    pub data: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    daemon: Daemon,
    #[serde(default)]
    vnic: Vec<VnicText>,
    #[serde(default)]
    link: Vec<LinkText>,
    #[serde(default)]
    volume: Vec<VolumeText>,
    #[serde(default)]
    vsa: Vec<VsaText>,
    #[serde(default)]
    fs: Vec<FileSystemText>,
    #[serde(default)]
    kv: KvText,
    #[serde(default)]
    service: ServiceText,
    #[serde(default)]
    sockets: SocketsText,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ServiceText {
    uid: Option<Spanned<User>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SocketsText {
    rules: Vec<Spanned<String>>,
}

impl Configuration {
    /// Reads `path`.
    ///
    /// # Errors
    /// See [`ConfigurationError`].
    pub fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let fail = |action, source| ConfigurationError::File { path: path.into(), action, source };
        let length = std::fs::metadata(path).map_err(|error| fail("read it", error))?.len();
        if length > MAX_TEXT {
            let source = std::io::Error::other(format!("{length} bytes are over the limit of {MAX_TEXT}"));
            return Err(fail("read it", source));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail("read it", error))?;
        Self::parse(&text, path)
    }

    /// Reads `path`, after writing the defaults there if it is missing.
    ///
    /// # Errors
    /// See [`ConfigurationError`].
    pub fn load_or_create(path: &Path) -> Result<Self, ConfigurationError> {
        if matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
            let fail = |action, source| ConfigurationError::File { path: path.into(), action, source };
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory).map_err(|error| fail("make its directory", error))?;
            }
            let uid = rustix::process::geteuid();
            let kv = if uid.is_root() { KV_UID } else { uid.as_raw() };
            let mut name = path.as_os_str().to_owned();
            name.push(".new");
            let new = PathBuf::from(name);
            std::fs::write(&new, default_text(kv)).map_err(|error| fail("write the defaults", error))?;
            std::fs::rename(&new, path).map_err(|error| fail("write the defaults", error))?;
        }
        Self::load(path)
    }

    /// Checks `text`, which was read from `path`.
    ///
    /// # Errors
    /// See [`ConfigurationError`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigurationError> {
        let parsed: Text = toml::from_str(text)
            .map_err(|source| ConfigurationError::Text { path: path.into(), source: Box::new(source) })?;
        let rules = Rules { text, path };
        let ends: usize = parsed.link.iter().map(|link| link.end.len()).sum();
        rules.count("vnic", parsed.vnic.len() + ends)?;
        rules.count("vsa", parsed.vsa.len())?;
        rules.count("fs", parsed.fs.len())?;
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let mut vnics: Vec<Vnic> = Vec::new();
        let (on_switch, on_host): (Vec<_>, Vec<_>) =
            parsed.vnic.into_iter().partition(|vnic| vnic.kind == KindText::Switch);
        for vnic in on_host {
            let vnic = rules.vnic(vnic, machine.trim(), &vnics)?;
            vnics.push(vnic);
        }
        let mut taken: Vec<String> = vnics.iter().map(|vnic| vnic.name.clone()).collect();
        let mut ports: Vec<Port> = Vec::new();
        for port in on_switch {
            let port = rules.port(port, machine.trim(), &ports, &taken)?;
            taken.push(port.name.clone());
            ports.push(port);
        }
        let service_uid = match &parsed.service.uid {
            Some(user) => rules.uid("[service]", user)?,
            None => SERVICE_UID,
        };
        let socket_rules = rules.of_sockets(&parsed.sockets)?;
        let mut links: Vec<Link> = Vec::new();
        for link in parsed.link {
            let link = rules.link(link, machine.trim(), &links, &mut taken)?;
            links.push(link);
        }
        let mut volumes: Vec<Volume> = Vec::new();
        for volume in parsed.volume {
            let volume = rules.volume(volume, &volumes)?;
            volumes.push(volume);
        }
        if !volumes.iter().any(|volume| volume.name == MAIN_VOLUME) {
            volumes.push(Volume::main());
        }
        let mut vsas: Vec<Vsa> = Vec::new();
        for vsa in parsed.vsa {
            let vsa = rules.vsa(vsa, &vsas, &volumes)?;
            vsas.push(vsa);
        }
        let mut file_systems: Vec<FileSystem> = Vec::new();
        for text in parsed.fs {
            let file_system = rules.file_system(text, &file_systems)?;
            file_systems.push(file_system);
        }
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        links.sort_by(|a, b| a.name.cmp(&b.name));
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        vsas.sort_by(|a, b| a.name.cmp(&b.name));
        let kv = rules.kv(parsed.kv, &vnics, &vsas)?;
        Ok(Self {
            path: path.into(),
            daemon: parsed.daemon,
            vnics,
            ports,
            service_uid,
            socket_rules,
            links,
            volumes,
            vsas,
            file_systems,
            kv,
        })
    }

    /// Checks that the store of `kv` can start: `[kv]`, with what the command line of `sietch up`
    /// says instead. Its start and each reload call this, so that no reload accepts what the next
    /// start refuses. What depends on the machine alone (a port in use) is not checked.
    ///
    /// # Errors
    /// [`ConfigurationError::Store`].
    pub fn check_store(&self, kv: &Kv) -> Result<(), ConfigurationError> {
        let own = rustix::process::geteuid();
        let refuse = |what: &str, cause: String, fix: String| {
            Err(ConfigurationError::Store { path: self.path.clone(), what: what.to_owned(), cause, fix })
        };
        if own.is_root() && kv.uid == 0 {
            let fix = "set `uid` of its VNIC, its VSA and [kv] there to an ordinary user's".to_owned();
            return refuse("store", "it would run as root, which it never does".to_owned(), fix);
        }
        // Without root it runs as the user of `sietch up`.
        let uid = if own.is_root() { kv.uid } else { own.as_raw() };
        let privileged = unprivileged_ports();
        if own.is_root() && kv.port < privileged && !kv.listen.is_empty() {
            let cause = format!("an ordinary user may not listen on port {}", kv.port);
            return refuse("[kv]", cause, format!("choose a port from {privileged} on"));
        }
        if kv.durability == "none" {
            return Ok(());
        }
        let what = format!("VSA {}", kv.vsa);
        match self.vsas.iter().find(|vsa| vsa.name == kv.vsa) {
            None => {
                let fix = "add it there, or name another with `vsa` in [kv] or `--vsa`".to_owned();
                refuse(&what, "the store needs it, and it is not there".to_owned(), fix)
            }
            Some(vsa) if vsa.uid != uid => {
                let cause = format!("it is for uid {}, and the store runs as uid {uid}", vsa.uid);
                refuse(&what, cause, "give [kv] and its VSA the same `uid`".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// The port of the switch of that name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The link that has an end of that name, and which end it is.
    pub fn link_end(&self, name: &str) -> Option<(&Link, usize)> {
        self.links.iter().find_map(|link| {
            link.ends.iter().position(|end| end.name == name).map(|position| (link, position))
        })
    }
}

impl Rules<'_> {
    fn of_sockets(&self, sockets: &SocketsText) -> Result<Vec<SocketRule>, ConfigurationError> {
        if sockets.rules.len() > MAX_SOCKET_RULES {
            let cause = format!("{} are over the limit of {MAX_SOCKET_RULES}", sockets.rules.len());
            return Err(self.refuse(0, "[sockets] rules".to_owned(), cause, "join some"));
        }
        let read = |text: &Spanned<String>| {
            SocketRule::read(text.get_ref(), uid_of).map_err(|error| {
                let fix = "see docs/spec/sietch-toml.md for the syntax of a rule";
                self.refuse(text.span().start, "[sockets] rules".to_owned(), error.to_string(), fix)
            })
        };
        sockets.rules.iter().map(read).collect()
    }
}

/// What is written where there is no file: one VNIC and one VSA for kv.
fn default_text(kv: u32) -> String {
    format!(
        r#"# Who may have which VNIC (virtual NIC) and which VSA (virtual storage area).
# Written by sietch at its first start; yours from now on. `sietch status` shows what became of it.

[[vnic]]
name = "kv"
uid = {kv}
address = "10.83.0.2/24"
host_address = "10.83.0.1"
tcp_ports = ["6379"]
udp_ports = []
peers = ["0.0.0.0/0"]
rate = "10Gbit/s"

[[vsa]]
name = "kv"
uid = {kv}
size = "1GiB"

# What `sietch up` starts.
[kv]
uid = {kv}
listen = ["127.0.0.1"]
port = 6379
maxmemory = "0B"
maxmemory_policy = "noeviction"
durability = "always"
"#
    )
}

#[cfg(test)]
mod tests;
