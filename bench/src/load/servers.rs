//! The sides of the comparison: three servers up at the same time, and the generator's connections
//! to each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use sietch::{Client, HeldGrants, Stack};

use super::generator::Generator;
use super::transport::{Flows, Sockets};
use crate::error::{Error, system};
use crate::kv::servers::{LOOPBACK_DURABLE, LOOPBACK_MEMORY, Pair, STORE_USER};
use crate::process::{self, Process};

const STORE: Ipv4Addr = Ipv4Addr::new(10, 84, 1, 2);
const PORT: u16 = 6379;
/// The kernel socket of the store on the link, for control connections.
const CONTROL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7003);
/// The generator's end of the link.
const GENERATOR: &str = "generator";

/// All servers. Dropping this ends them.
#[derive(Debug)]
pub(super) struct Servers {
    kernel: Pair,
    socket: PathBuf,
    _linked: Process,
}

impl Servers {
    /// Starts them; data below `scratch`, logs in `out`.
    pub(super) fn start(name: &str, durable: bool, scratch: &Path, out: &Path) -> Result<Self, Error> {
        let kernel = Pair::start(if durable { LOOPBACK_DURABLE } else { LOOPBACK_MEMORY }, scratch, out)?;
        let folder = scratch.join(format!("link-{name}"));
        std::fs::create_dir_all(&folder).map_err(system("making the data folder"))?;
        let file = folder.join("sietch.toml");
        std::fs::write(&file, configuration(durable)).map_err(system("writing sietch.toml"))?;
        let socket = folder.join("sietchd.sock");
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let program = path(&process::sietch_program()?);
        let mut words: Vec<String> = ["-c", "0"].map(String::from).to_vec();
        words.extend([
            program,
            "--socket".into(),
            path(&socket),
            "up".into(),
            "--config".into(),
            path(&file),
        ]);
        words.extend(["--data".into(), path(&folder.join("sietch"))]);
        let durability = if durable { "always" } else { "none" };
        words.extend(["--durability", durability, "--net", "af_xdp", "--listen"].map(String::from));
        words.push(CONTROL.to_string());
        let log = out.join(format!("load-link-{name}.log"));
        let mut linked = Process::start("taskset", &words, &log)?;
        // The store fills its area first. A connection over the link before that might time out.
        linked.wait_for(CONTROL)?;
        Ok(Self { kernel, socket, _linked: linked })
    }

    /// The kernel sockets of each side, in the order of [`Servers::connect`].
    pub(super) fn addresses(&self) -> [SocketAddr; 3] {
        [self.kernel.redis, self.kernel.sietch, CONTROL]
    }

    /// Opens this number of connections to each side, with the side's name; redis-server is the
    /// first.
    pub(super) fn connect(&self, count: usize) -> Result<Vec<(&'static str, Generator)>, Error> {
        let connecting = || system("connecting to a server");
        let sockets = |address: SocketAddr| -> Result<Generator, Error> {
            Ok(Generator::new(Sockets::connect(address, count).map_err(connecting())?, count))
        };
        let failed = |cause: sietch::Error| Error::System {
            action: "acquiring the generator's end of the link",
            cause: std::io::Error::other(cause),
        };
        let mut client = Client::connect(&self.socket, "bench").map_err(failed)?;
        let vnic = client.acquire_vnic(GENERATOR).map_err(failed)?;
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(system("reading random bytes"))?;
        let config = vnic.engine_config(secret);
        let held = HeldGrants { grants: vec![vnic.grant], lease: client.hold().map_err(failed)? };
        let stack = Stack::new(vnic.queue, &config).with_grants(held);
        // The store may not have acquired its end yet; frames wait in the link.
        let linked = Flows::connect(stack, (STORE, PORT).into(), count).map_err(connecting())?;
        Ok(vec![
            ("redis-server, loopback", sockets(self.kernel.redis)?),
            ("sietch, loopback", sockets(self.kernel.sietch)?),
            ("sietch, link", Generator::new(linked, count)),
        ])
    }
}

fn configuration(durable: bool) -> String {
    // Half of it may hold the log: a few seconds of the fastest load between two compactions.
    let size = if durable { "1GiB" } else { "64MiB" };
    let own = rustix::process::geteuid();
    let store = if own.is_root() { STORE_USER } else { own.as_raw() };
    let own = own.as_raw();
    format!(
        "[[link]]\nname = \"load\"\nmtu = 1500\n\
         [[link.end]]\nname = \"kv\"\nuid = {store}\naddress = \"{STORE}/24\"\n\
         [[link.end]]\nname = \"{GENERATOR}\"\nuid = {own}\naddress = \"10.84.1.1/24\"\n\n\
         [[vsa]]\nname = \"kv\"\nuid = {store}\nsize = \"{size}\"\n\n\
         [kv]\nuid = {store}\nport = {PORT}\n"
    )
}
