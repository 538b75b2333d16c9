//! The two servers of a setting, up at the same time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::client::Load;
use crate::error::{Error, system};
use crate::machine;
use crate::process::{self, Namespace, Process};

/// A way to put both servers up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Shown in the report.
    pub name: &'static str,
    /// Behind a veth pair; else on loopback.
    pub veth: bool,
    /// Every write durable before it is answered; else in memory.
    pub durable: bool,
    /// Shards of Sietch kv. One runs on core 0, several on every core of the machine.
    pub shards: usize,
}

/// On kernel sockets of this host, in memory.
pub(crate) const LOOPBACK_MEMORY: Setting =
    Setting { name: "loopback memory", veth: false, durable: false, shards: 1 };

/// The same with every write durable.
pub(crate) const LOOPBACK_DURABLE: Setting =
    Setting { name: "loopback durable", veth: false, durable: true, shards: 1 };

/// All of them.
pub(crate) const SETTINGS: [Setting; 4] = [
    Setting { name: "veth memory", veth: true, durable: false, shards: 1 },
    Setting { name: "veth durable", veth: true, durable: true, shards: 1 },
    LOOPBACK_MEMORY,
    LOOPBACK_DURABLE,
];

/// The load of the client in a setting.
pub(crate) fn loads(setting: Setting, value: usize) -> Vec<Load> {
    let commands: &[&str] = if setting.durable { &["set"] } else { &["get", "set"] };
    let mut loads = Vec::new();
    for &command in commands {
        for connections in [1, 50] {
            for pipeline in [1, 16] {
                loads.push(Load { command, connections, pipeline, value });
            }
        }
    }
    loads
}

/// Both servers of a setting. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The address of redis-server.
    pub redis: SocketAddr,
    /// The address of Sietch kv.
    pub sietch: SocketAddr,
    // Servers end before the namespace in which one of them runs.
    _servers: [Process; 2],
    _namespace: Option<Namespace>,
}

/// The two ends of the veth pair for redis-server, in a network other than the VNIC's.
const REDIS_FAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);
const REDIS_NEAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 1);

/// The VNIC's address in the configuration that `sietch up` writes.
const VNIC: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 2);

/// The store's user if the measurement runs as root.
pub(crate) const STORE_USER: u32 = 61870;

const REDIS_PORT: u16 = 7001;
/// The port of Sietch kv on loopback.
pub(super) const SIETCH_PORT: u16 = 7002;
/// On its VNIC the store uses the port that the VNIC's filter allows.
const VNIC_PORT: u16 = 6379;

impl Pair {
    /// Starts both servers of `setting`; data below `scratch`, logs in `out`.
    pub(crate) fn start(setting: Setting, scratch: &Path, out: &Path) -> Result<Self, Error> {
        let label = setting.name.replace(' ', "-");
        let folder = scratch.join(&label);
        std::fs::create_dir_all(&folder).map_err(system("making the data folder"))?;
        let namespace = setting
            .veth
            .then(|| Namespace::create(&REDIS_FAR.to_string(), &REDIS_NEAR.to_string()))
            .transpose()?;
        let redis = SocketAddr::new(
            IpAddr::V4(if setting.veth { REDIS_FAR } else { Ipv4Addr::LOCALHOST }),
            REDIS_PORT,
        );
        let sietch = if setting.veth {
            SocketAddr::new(IpAddr::V4(VNIC), VNIC_PORT)
        } else {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), SIETCH_PORT)
        };
        let log = |side: &str| out.join(format!("{label}-{side}.log"));
        let mut first = start_redis(setting, redis, namespace.as_ref(), &folder, &log("redis"))?;
        first.wait_for(redis)?;
        let mut second = start_sietch(setting, &folder, &log("sietch"))?;
        second.wait_for(sietch)?;
        Ok(Self { redis, sietch, _servers: [first, second], _namespace: namespace })
    }
}

fn start_redis(
    setting: Setting,
    address: SocketAddr,
    namespace: Option<&Namespace>,
    folder: &Path,
    log: &Path,
) -> Result<Process, Error> {
    let mut words: Vec<String> = Vec::new();
    if let Some(namespace) = namespace {
        words.extend(["netns", "exec", namespace.name(), "taskset"].map(String::from));
    }
    words.extend(["-c", "0"].map(String::from));
    words.extend(redis_words(setting, address, folder));
    Process::start(if namespace.is_some() { "ip" } else { "taskset" }, &words, log)
}

/// redis-server and its options.
pub(super) fn redis_words(setting: Setting, address: SocketAddr, folder: &Path) -> Vec<String> {
    let mut words = vec!["redis-server".to_owned()];
    let folder = folder.to_string_lossy();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let common = ["--bind", &ip, "--port", &port, "--save", "", "--dir", &folder, "--protected-mode", "no"];
    words.extend(common.map(String::from));
    if setting.durable {
        // The rewrite would fork in the middle of a block.
        let durable =
            ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];
        words.extend(durable.map(String::from));
    } else {
        words.extend(["--appendonly", "no"].map(String::from));
    }
    words
}

/// The socket of the daemon whose store has its data in `folder`.
pub(super) fn socket(folder: &Path) -> String {
    folder.join("sietchd.sock").to_string_lossy().into_owned()
}

/// One VNIC and one area for the store, as in the file that `sietch up` makes at its first start.
fn configuration() -> String {
    let own = rustix::process::geteuid();
    let store = if own.is_root() { STORE_USER } else { own.as_raw() };
    format!(
        "[[vnic]]\nname = \"kv\"\nuid = {store}\naddress = \"{VNIC}/24\"\nhost_address = \"10.83.0.1\"\n\
         tcp_ports = [\"{VNIC_PORT}\"]\npeers = [\"0.0.0.0/0\"]\nrate = \"10Gbit/s\"\n\n\
         [[vsa]]\nname = \"kv\"\nuid = {store}\nsize = \"1GiB\"\n\n\
         [kv]\nuid = {store}\nlisten = [\"127.0.0.1\"]\n"
    )
}

/// Starts Sietch kv, with its data in `folder`.
pub(super) fn start_sietch(setting: Setting, folder: &Path, log: &Path) -> Result<Process, Error> {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    std::fs::write(path("sietch.toml"), configuration()).map_err(system("writing sietch.toml"))?;
    let program = process::sietch_program()?.to_string_lossy().into_owned();
    let cores = if setting.shards == 1 { "0".to_owned() } else { format!("0-{}", machine::cores() - 1) };
    let mut words: Vec<String> = vec!["-c".into(), cores];
    words.extend([program, "--socket".into(), socket(folder), "up".into()]);
    words.extend(["--shards".into(), setting.shards.to_string()]);
    words.extend(["--config".into(), path("sietch.toml"), "--data".into(), path("sietch")]);
    words.extend(["--durability".into(), if setting.durable { "always" } else { "none" }.into()]);
    if setting.veth {
        words.extend(["--net", "af_xdp", "--listen", "none"].map(String::from));
    } else {
        let port = SIETCH_PORT.to_string();
        words.extend(["--net", "linux", "--port", &port].map(String::from));
    }
    Process::start("taskset", &words, log)
}
