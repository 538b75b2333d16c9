//! `sietch.toml`: which user may have which VNIC and which VSA.
//!
//! 1. The text is parsed strictly: an unknown key, a wrong unit or a wrong type is an error with
//!    its line.
//! 2. Then whole rules are checked (names are unique, addresses do not collide, limits hold), again
//!    with the line.
//! 3. What is derived is derived here: the uid of a user's name, a MAC from machine and name.
//! 4. Links between two applications are in [`links`].
//! 5. Where storage areas lie is in [`volumes`].
//! 6. A missing file is written with defaults that make `sietch up` work.
//!    `docs/spec/sietch-toml.md` explains every key.

mod addresses;
pub mod links;
pub mod ports;
pub mod volumes;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sietch_protocol::MAIN_VOLUME;
use sietch_protocol::message::is_name;
use sietch_protocol::socket_service::Rule as SocketRule;
use sietch_protocol::types::{Mac, Network, Network6, PortRange, Rate, Size};
use toml::Spanned;

use crate::identity::{stable_hash, uid_of};
use addresses::{Peer, by_family, everyone, pair6};
use links::{Link, LinkText};
use ports::{Port, SERVICE_UID};
use volumes::{Volume, VolumeText};

/// The most VNICs and the most VSAs: a Status of all of them fits a frame.
pub const MAX_DEVICES: usize = 64;
/// The most `[sockets] rules`: they travel on a command line, and each is looked at for each
/// connection.
pub const MAX_SOCKET_RULES: usize = 256;
/// The most port ranges a VNIC may have for one protocol: a grant with all of them fits a frame
/// many times over.
pub const MAX_PORT_RANGES: usize = 64;
/// The most peer networks a VNIC may have, for the same reason.
pub const MAX_PEERS: usize = 64;
/// The smallest MTU: what every IPv4 host must accept (RFC 791).
pub const MIN_MTU: u32 = 576;
/// The largest MTU: the longest IPv4 packet. An uplink, and kernels before 6.6, allow less: then
/// the VNIC has what they allow.
pub const MAX_MTU: u32 = 65_535;
/// The MTU of a VNIC that has none: its frames take up sixteen pages when sent, and seventeen
/// pieces of 3840 bytes when received, none of them nearly empty. Packets that go on to narrower
/// networks are no larger than those take (RFC 1191, RFC 8201).
pub const USUAL_VNIC_MTU: u32 = 65_264;
/// The user that kv runs as when the daemon is root: outside what distributions give out, and
/// without a login.
pub const KV_UID: u32 = 61870;
/// The largest `sietch.toml` in bytes: 128 devices take a tenth of it.
const MAX_TEXT: u64 = 1 << 20;
/// The unit of a VSA's size.
const BLOCK: u64 = sietch_disk::BLOCK as u64;

/// Why `sietch.toml` is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It cannot be read or written.
    #[error("{}: cannot {action}: {source}; see who owns it, or name another with `--config`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key or value that does not belong there.
    #[error("{}: {source}correct that line; docs/spec/sietch-toml.md explains every key", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Line, column and cause.
        source: Box<toml::de::Error>,
    },
    /// It is understood but makes no sense.
    #[error("{}:{line}: {what}: {cause}; {fix}", path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As in `VNIC kv`.
        what: String,
        /// What is wrong.
        cause: String,
        /// What to write.
        fix: String,
    },
}

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
    /// Whom the service core runs as.
    pub service_uid: u32,
    /// Who may listen and connect under `sietch run`.
    pub socket_rules: Vec<SocketRule>,
    /// `[[link]]`, in the order of their names.
    pub links: Vec<Link>,
    /// `[[volume]]`, in the order of their names; `main` is always among them.
    pub volumes: Vec<Volume>,
    /// `[[vsa]]`, in the order of their names.
    pub vsas: Vec<Vsa>,
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

/// A VNIC that one user may have.
#[derive(Debug, Clone, PartialEq)]
pub struct Vnic {
    /// Its name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// Its address and network.
    pub address: Network,
    /// The host's address on its veth pair.
    pub host_address: Ipv4Addr,
    /// Its IPv6 address and network, and the host's address in it.
    pub ipv6: Option<(Network6, Ipv6Addr)>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Local TCP ports.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 it may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 it may talk to. None beside a network of no bits in `peers`: everybody.
    pub peers6: Vec<Network6>,
    /// What it may send.
    pub rate: Option<Rate>,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Whether the service core has it, for programs of the user that link no engine.
    pub served: bool,
}

/// A VSA that one user may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vsa {
    /// Its name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The volume it lies on.
    pub volume: String,
    /// Bytes it is made with.
    pub size: u64,
}

/// `[kv]`: what `sietch up` starts. The daemon only checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kv {
    /// The user it runs as.
    pub uid: u32,
    /// Its VNIC's name.
    pub vnic: String,
    /// Its VSA's name.
    pub vsa: String,
    /// Addresses of the host that it answers on beside its VNIC's.
    pub listen: Vec<IpAddr>,
    /// Its port, everywhere.
    pub port: u16,
    /// Bytes of data at which it evicts or refuses; 0 is no limit.
    pub maxmemory: u64,
    /// What it does then, in Redis' words.
    pub maxmemory_policy: String,
    /// `always`, `interval`, `never` or `none`.
    pub durability: String,
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
    kv: KvText,
    #[serde(default)]
    service: ServiceText,
    #[serde(default)]
    sockets: SocketsText,
}

/// The kinds that a `[[vnic]]` may have.
#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum KindText {
    #[default]
    Veth,
    Switch,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VnicText {
    name: Spanned<String>,
    uid: Spanned<User>,
    #[serde(default)]
    kind: KindText,
    address: Spanned<Network>,
    address6: Option<Spanned<Network6>>,
    host_address: Option<Ipv4Addr>,
    host_address6: Option<Ipv6Addr>,
    mac: Option<Spanned<Mac>>,
    #[serde(default)]
    tcp_ports: Vec<PortRange>,
    #[serde(default)]
    udp_ports: Vec<PortRange>,
    #[serde(default = "everyone")]
    peers: Vec<Peer>,
    rate: Option<Rate>,
    mtu: Option<Spanned<u32>>,
    memory: Option<Spanned<Size>>,
    #[serde(default)]
    served: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VsaText {
    name: Spanned<String>,
    uid: Spanned<User>,
    volume: Option<Spanned<String>>,
    size: Spanned<Size>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct KvText {
    uid: Option<Spanned<User>>,
    vnic: Option<String>,
    vsa: Option<String>,
    listen: Option<Vec<IpAddr>>,
    port: Option<u16>,
    maxmemory: Option<Size>,
    maxmemory_policy: Option<Spanned<String>>,
    durability: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a uid or a user's name")]
enum User {
    Number(u32),
    Name(String),
}

const fn usual_mtu() -> u32 {
    1500
}

/// The policies Redis has.
const POLICIES: [&str; 8] = [
    "noeviction",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

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

    /// Checks `text`, said to come from `path`.
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
            kv,
        })
    }
}

struct Rules<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Rules<'_> {
    fn refuse(
        &self,
        at: usize,
        what: String,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfigurationError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = 1 + before.bytes().filter(|&byte| byte == b'\n').count();
        ConfigurationError::Rule { path: self.path.into(), line, what, cause: cause.into(), fix: fix.into() }
    }

    fn count(&self, table: &str, count: usize) -> Result<(), ConfigurationError> {
        if count <= MAX_DEVICES {
            return Ok(());
        }
        let cause = format!("{count} are over the limit of {MAX_DEVICES}");
        Err(self.refuse(0, format!("[[{table}]]"), cause, "remove some"))
    }

    fn name(&self, sort: &str, name: &Spanned<String>, taken: bool) -> Result<String, ConfigurationError> {
        let at = name.span().start;
        let text = name.get_ref();
        let what = format!("{sort} {}", text.chars().take(40).collect::<String>().escape_debug());
        if !is_name(text) {
            return Err(self.refuse(at, what, "not a name", "use 1 to 32 letters, digits, `-` and `_`"));
        }
        if taken {
            return Err(self.refuse(at, what, "the name is there twice", "give one of them another name"));
        }
        Ok(text.clone())
    }

    fn uid(&self, what: &str, user: &Spanned<User>) -> Result<u32, ConfigurationError> {
        match user.get_ref() {
            User::Number(uid) => Ok(*uid),
            User::Name(name) => uid_of(name).ok_or_else(|| {
                let cause = format!("no user `{}` in /etc/passwd", name.escape_debug());
                self.refuse(user.span().start, what.to_owned(), cause, "write an existing user or a number")
            }),
        }
    }

    fn of_sockets(&self, sockets: &SocketsText) -> Result<Vec<SocketRule>, ConfigurationError> {
        if sockets.rules.len() > MAX_SOCKET_RULES {
            let cause = format!("{} are over the limit of {MAX_SOCKET_RULES}", sockets.rules.len());
            return Err(self.refuse(0, "[sockets] rules".to_owned(), cause, "join some"));
        }
        let read = |text: &Spanned<String>| {
            SocketRule::read(text.get_ref(), uid_of).map_err(|error| {
                let fix = "docs/spec/sietch-toml.md says what a rule is";
                self.refuse(text.span().start, "[sockets] rules".to_owned(), error.to_string(), fix)
            })
        };
        sockets.rules.iter().map(read).collect()
    }

    fn vnic(&self, vnic: VnicText, machine: &str, others: &[Vnic]) -> Result<Vnic, ConfigurationError> {
        let taken = others.iter().any(|other| other.name == *vnic.name.get_ref());
        let name = self.name("VNIC", &vnic.name, taken)?;
        let what = format!("VNIC {name}");
        let at = vnic.name.span().start;
        let refuse = |cause: String, fix: &str| Err(self.refuse(at, what.clone(), cause, fix));
        let address = *vnic.address.get_ref();
        let Some(host) = vnic.host_address else {
            return refuse("it has no host_address".to_owned(), "give the host an address of its network");
        };
        if vnic.memory.is_some() {
            let cause = "memory is for VNICs of the switch".to_owned();
            return refuse(cause, "remove it, or write `kind = \"switch\"`");
        }
        let mtu = vnic.mtu.as_ref().map_or(USUAL_VNIC_MTU, |mtu| *mtu.get_ref());
        let usable = |ip: Ipv4Addr| {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
        };
        if !usable(address.address) || !usable(host) || address.address == host {
            return refuse(
                format!("{} and {host} are not addresses of two hosts", address.address),
                "give VNIC and host one unicast address each",
            );
        }
        if !address.contains(host) {
            return refuse(format!("{host} is not in {address}"), "choose a host_address of that network");
        }
        if let Some(other) = others.iter().find(|other| other.address.address == address.address) {
            let cause = format!("{} is VNIC {}'s address too", address.address, other.name);
            return refuse(cause, "give each VNIC its own address");
        }
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            let cause = format!("an mtu of {mtu} is not between {MIN_MTU} and {MAX_MTU}");
            return refuse(cause, "leave it out for the usual one");
        }
        if vnic.tcp_ports.len().max(vnic.udp_ports.len()) > MAX_PORT_RANGES || vnic.peers.len() > MAX_PEERS {
            let cause = format!("more than {MAX_PORT_RANGES} ranges of ports or {MAX_PEERS} peers");
            return refuse(cause, "join neighbouring ones");
        }
        if vnic.peers.is_empty() {
            return refuse(
                "peers is empty, so it could talk to nobody".to_owned(),
                "leave it out for everybody",
            );
        }
        let ipv6 = match pair6(&vnic, mtu, others) {
            Ok(ipv6) => ipv6,
            Err((cause, fix)) => return refuse(cause, fix),
        };
        let mac = match vnic.mac {
            Some(mac) if !mac.get_ref().is_unicast() => {
                let cause = format!("{} is no address of one station", mac.get_ref());
                return refuse(cause, "make the first byte even, or leave mac out");
            }
            Some(mac) => mac.into_inner(),
            None => derived_mac(machine, &name, "vnic"),
        };
        let (peers, peers6) = by_family(&vnic.peers);
        Ok(Vnic {
            uid: self.uid(&what, &vnic.uid)?,
            name,
            address,
            host_address: host,
            ipv6,
            mac,
            tcp_ports: vnic.tcp_ports,
            udp_ports: vnic.udp_ports,
            peers,
            peers6,
            rate: vnic.rate,
            mtu,
            served: vnic.served,
        })
    }

    fn vsa(&self, vsa: VsaText, others: &[Vsa], volumes: &[Volume]) -> Result<Vsa, ConfigurationError> {
        let taken = others.iter().any(|other| other.name == *vsa.name.get_ref());
        let name = self.name("VSA", &vsa.name, taken)?;
        let what = format!("VSA {name}");
        let size = self.whole(&what, &vsa.size)?;
        let uid = self.uid(&what, &vsa.uid)?;
        let volume = match vsa.volume {
            Some(volume) if !volumes.iter().any(|other| other.name == *volume.get_ref()) => {
                let shown: String = volume.get_ref().chars().take(40).collect();
                let cause = format!("there is no volume `{}`", shown.escape_debug());
                return Err(self.refuse(volume.span().start, what, cause, "add a [[volume]] of that name"));
            }
            Some(volume) => volume.into_inner(),
            None => MAIN_VOLUME.to_owned(),
        };
        Ok(Vsa { name, uid, volume, size })
    }

    fn kv(&self, kv: KvText, vnics: &[Vnic], vsas: &[Vsa]) -> Result<Kv, ConfigurationError> {
        let one_of = |text: Option<Spanned<String>>, key: &str, words: &[&str]| match text {
            None => Ok(words[0].to_owned()),
            Some(text) if words.contains(&text.get_ref().as_str()) => Ok(text.into_inner()),
            Some(text) => {
                let cause = format!("`{}` is no {key}", text.get_ref().escape_debug());
                let fix = format!("write one of {}", words.join(", "));
                Err(self.refuse(text.span().start, "[kv]".to_owned(), cause, fix))
            }
        };
        let vnic = kv.vnic.unwrap_or_else(|| "kv".to_owned());
        let vsa = kv.vsa.unwrap_or_else(|| "kv".to_owned());
        let uid = match &kv.uid {
            Some(user) => self.uid("[kv]", user)?,
            None => vsas
                .iter()
                .find(|other| other.name == vsa)
                .map(|other| other.uid)
                .or_else(|| vnics.iter().find(|other| other.name == vnic).map(|other| other.uid))
                .unwrap_or(KV_UID),
        };
        Ok(Kv {
            uid,
            vnic,
            vsa,
            listen: kv.listen.unwrap_or_else(|| vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]),
            port: kv.port.unwrap_or(6379),
            maxmemory: kv.maxmemory.map_or(0, |size| size.bytes),
            maxmemory_policy: one_of(kv.maxmemory_policy, "maxmemory_policy", &POLICIES)?,
            durability: one_of(kv.durability, "durability", &["always", "interval", "never", "none"])?,
        })
    }
}

/// A locally administered unicast address that stays the same for this machine, name and end.
pub(crate) fn derived_mac(machine: &str, name: &str, end: &str) -> Mac {
    let [_, _, a, b, c, d, e, f] =
        stable_hash(&[machine.as_bytes(), name.as_bytes(), end.as_bytes()]).to_be_bytes();
    Mac([a & 0xfc | 0x02, b, c, d, e, f])
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
