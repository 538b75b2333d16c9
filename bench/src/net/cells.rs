//! The cells: work, the sides that do it, and the processes that live as long as the measurement.

use std::cell::OnceCell;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Serialize;

use super::measure::Outcome;
use super::work::{FAIR_SECONDS, NARROW, NARROW_BURST, NARROW_QUEUE, SILENCE, Work};
use crate::error::{Error, system};
use crate::isolation::Scratch;
use crate::process::{self, Namespace, Process};

/// The sockets that do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Side {
    /// Kernel sockets over loopback, sleeping.
    LoopbackBlocking,
    /// Kernel sockets over loopback, both ends spinning.
    LoopbackSpinning,
    /// Kernel sockets over a veth pair into another namespace, sleeping.
    VethBlocking,
    /// The same, the server spinning (and the client, where both ends are applications' own).
    VethSpinning,
    /// Sietch at both ends of a shared-memory link.
    Link,
    /// A Sietch server on a VNIC over AF_XDP, a blocking kernel client.
    Vnic,
    /// Sietch at both ends, on two VNICs of the software switch, the client's with a limit.
    Switch,
}

impl Side {
    /// Its name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LoopbackBlocking => "linux lo, blocking",
            Self::LoopbackSpinning => "linux lo, spinning",
            Self::VethBlocking => "linux veth, blocking",
            Self::VethSpinning => "linux veth, spinning",
            Self::Link => "sietch link",
            Self::Vnic => "sietch af_xdp",
            Self::Switch => "sietch switch",
        }
    }

    /// Whether it is Sietch, which the others are compared with.
    pub(super) fn is_sietch(self) -> bool {
        matches!(self, Self::Link | Self::Vnic | Self::Switch)
    }
}

/// A piece of work and the sides that do it.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    location: &'static str,
    pub work: Work,
    pub sides: &'static [Side],
}

impl Cell {
    /// Its name, by which it can be chosen.
    pub(super) fn name(&self) -> String {
        let what = match self.work {
            Work::UdpEcho { bytes, window } => format!("udp echo {bytes} B, {window} in flight"),
            Work::Rpc { bytes, connections, pipeline } => {
                format!("rpc {bytes} B, {connections} connections, pipeline {pipeline}")
            }
            Work::Bulk { flows } => format!("bulk {flows} flows"),
            Work::Churn => "connections that come and go".into(),
            Work::Hold { connections } => format!("memory of {connections} idle connections"),
            Work::Idle { connections } => {
                format!("{connections} silent connections, then a request every {} ms", SILENCE.as_millis())
            }
            Work::Fair { bytes, connections } => {
                format!("fair {connections} flows, requests of {bytes} B through 1 Gbit/s")
            }
        };
        format!("{}: {what}", self.location)
    }
}

/// Two applications of this host.
const APP: &[Side] = &[Side::LoopbackBlocking, Side::LoopbackSpinning, Side::Link];
/// The same for UDP, beside veth too.
const APP_AND_VETH: &[Side] =
    &[Side::LoopbackBlocking, Side::LoopbackSpinning, Side::VethBlocking, Side::VethSpinning, Side::Link];
/// A kernel client and a server behind a veth pair.
const BEHIND_VETH: &[Side] = &[Side::VethBlocking, Side::VethSpinning, Side::Vnic];
/// A client that is limited, on this host: kernel sockets through a token bucket (`tbf`) on a veth
/// pair, Sietch on the switch.
const LIMITED: &[Side] = &[Side::VethBlocking, Side::VethSpinning, Side::Switch];

/// Every cell.
pub(super) fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut app = |work, sides| cells.push(Cell { location: "app", work, sides });
    for bytes in [64, 1024] {
        for window in [1, 32] {
            app(Work::UdpEcho { bytes, window }, APP_AND_VETH);
        }
    }
    for connections in [1, 64, 1000] {
        for pipeline in [1, 16] {
            app(Work::Rpc { bytes: 64, connections, pipeline }, APP);
        }
    }
    for flows in [1, 64] {
        app(Work::Bulk { flows }, APP);
    }
    app(Work::Churn, APP);
    app(Work::Hold { connections: 10_000 }, &[Side::LoopbackBlocking, Side::Link]);
    app(Work::Idle { connections: 10 }, &[Side::LoopbackBlocking, Side::Link]);
    app(Work::Fair { bytes: 4096, connections: 400 }, LIMITED);
    let mut veth = |work| cells.push(Cell { location: "veth", work, sides: BEHIND_VETH });
    for bytes in [64, 1024] {
        veth(Work::UdpEcho { bytes, window: 32 });
    }
    for (connections, pipeline) in [(1, 1), (64, 1), (64, 16)] {
        veth(Work::Rpc { bytes: 64, connections, pipeline });
    }
    veth(Work::Bulk { flows: 1 });
    veth(Work::Bulk { flows: 64 });
    cells
}

/// The veth pair of the kernel's server, and the VNIC of Sietch's.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 1);
const VNIC: Ipv4Addr = Ipv4Addr::new(10, 85, 0, 2);
const LINK_SERVER: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 2);
const SWITCH_SERVER: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 2);
const PORT: u16 = 7100;

/// The daemon's configuration. It grants a VNIC behind a veth pair with its usual MTU (the kernel's
/// own veth pair carries segments of 64 KiB at any MTU), and both ends of a link whose MTU is about
/// that of the kernel's loopback. It also grants two VNICs of the switch with the MTU of Ethernet,
/// one of them limited to [`NARROW`] and with room for [`NARROW_QUEUE`].
const CONFIGURATION: &str = r#"
[[vnic]]
name = "switch-server"
kind = "switch"
uid = 0
address = "10.87.0.2/24"
tcp_ports = ["7100"]
memory = "4MiB"

[[vnic]]
name = "switch-client"
kind = "switch"
uid = 0
address = "10.87.0.1/24"
tcp_ports = ["1024-65535"]
memory = "4MiB"
rate = "1Gbit/s"

[[vnic]]
name = "bench"
uid = 0
address = "10.85.0.2/24"
host_address = "10.85.0.1"
tcp_ports = ["7100"]
udp_ports = ["7100"]

[[link]]
name = "bench"
mtu = 65000
[[link.end]]
name = "bench-server"
uid = 0
address = "10.86.0.2/24"
[[link.end]]
name = "bench-client"
uid = 0
address = "10.86.0.1/24"
"#;

/// The processes that live as long as the measurement: the namespace of kernel servers and the
/// daemon.
#[derive(Debug)]
pub(super) struct Environment {
    program: PathBuf,
    out: PathBuf,
    socket: PathBuf,
    // The switch and the daemon end before the folder is removed.
    switch: OnceCell<Process>,
    _daemon: Process,
    namespace: Namespace,
    _scratch: Scratch,
}

impl Environment {
    /// Makes the namespace and starts the daemon.
    pub(super) fn create(out: &Path) -> Result<Self, Error> {
        let namespace = Namespace::create(&FAR.to_string(), &NEAR.to_string())?;
        let scratch = Scratch::create(None)?;
        let file = scratch.path().join("sietch.toml");
        std::fs::write(&file, CONFIGURATION).map_err(system("writing the daemon's configuration"))?;
        let socket = scratch.path().join("sietchd.sock");
        let words: Vec<std::ffi::OsString> = vec![
            "--socket".into(),
            socket.clone().into(),
            "daemon".into(),
            "--config".into(),
            file.into(),
            "--data".into(),
            scratch.path().join("sietch").into(),
        ];
        let sietch = process::sietch_program()?;
        let mut daemon = Process::start(&sietch.to_string_lossy(), &words, &out.join("net-daemon.log"))?;
        daemon.wait_for_file(&socket)?;
        let program = std::env::current_exe().map_err(system("finding this program"))?;
        let switch = OnceCell::new();
        Ok(Self {
            program,
            out: out.to_owned(),
            socket,
            switch,
            _daemon: daemon,
            namespace,
            _scratch: scratch,
        })
    }

    /// Makes the bottleneck of work that has one: for the kernel a token bucket behind the
    /// client's end of the pair, for Sietch the switch, which stays from then on (an idle one uses
    /// no processor).
    fn bottleneck(&self, work: Work, side: Side) -> Result<Option<Bottleneck<'_>>, Error> {
        if !matches!(work, Work::Fair { .. }) {
            return Ok(None);
        }
        if side != Side::Switch {
            return Bottleneck::make(&self.namespace).map(Some);
        }
        if self.switch.get().is_none() {
            let sietch = process::sietch_program()?;
            let words: [&std::ffi::OsStr; 3] =
                ["--socket".as_ref(), self.socket.as_os_str(), "service".as_ref()];
            let log = self.out.join("net-switch.log");
            // The workers request its ports until it answers.
            let _ = self.switch.set(Process::start(&sietch.to_string_lossy(), &words, &log)?);
        }
        Ok(None)
    }

    /// One block: a new server and a new client. Returns the client's outcome.
    pub(super) fn block(&self, work: Work, side: Side, seconds: f64) -> Result<Outcome, Error> {
        let (listen, server, client) = match side {
            Side::LoopbackBlocking => (Ipv4Addr::LOCALHOST, "blocking", "blocking"),
            Side::LoopbackSpinning => (Ipv4Addr::LOCALHOST, "spinning", "spinning"),
            Side::VethBlocking => (FAR, "blocking", "blocking"),
            Side::VethSpinning => (FAR, "spinning", "spinning"),
            Side::Link => (LINK_SERVER, "bench-server", "bench-client"),
            Side::Vnic => (VNIC, "bench", "blocking"),
            Side::Switch => (SWITCH_SERVER, "switch-server", "switch-client"),
        };
        let _narrow = self.bottleneck(work, side)?;
        let seconds = if matches!(work, Work::Fair { .. }) { seconds.max(FAIR_SECONDS) } else { seconds };
        let inside = matches!(side, Side::VethBlocking | Side::VethSpinning);
        let address = SocketAddr::from((listen, PORT));
        let log = self.out.join("net-server.log");
        let command = self.command("server", server, work, address, seconds, inside);
        let mut server = Worker::start(command, &log)?;
        server.line("the server")?;
        let log = self.out.join("net-client.log");
        let mut command = self.command("client", client, work, address, seconds, false);
        command.args(["--peer", &server.child.id().to_string()]);
        let mut client = Worker::start(command, &log)?;
        let line = client.line("the client")?;
        serde_json::from_str(&line).map_err(|cause| Error::Program {
            program: "bench worker".into(),
            what: format!("invalid output ({cause}): {line}"),
            fix: "see its log below target/bench",
        })
    }

    fn command(
        &self,
        role: &str,
        way: &str,
        work: Work,
        address: SocketAddr,
        seconds: f64,
        inside: bool,
    ) -> Command {
        let mut command = if inside {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", self.namespace.name()]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        let core = if role == "server" { "0" } else { "1" };
        command
            .args(["worker", "--role", role, "--way", way, "--work", &work.to_string()])
            .args(["--address", &address.to_string(), "--seconds", &seconds.to_string(), "--core", core])
            .arg("--socket")
            .arg(&self.socket);
        command
    }
}

/// A token bucket on our end of the kernel's pair, as long as this lives.
struct Bottleneck<'a>(&'a Namespace);

impl<'a> Bottleneck<'a> {
    fn make(namespace: &'a Namespace) -> Result<Self, Error> {
        let (rate, burst) = (format!("{}bit", NARROW * 8), format!("{NARROW_BURST}b"));
        let limit = format!("{NARROW_QUEUE}b");
        let bucket = ["tbf", "rate", &rate, "burst", &burst, "limit", &limit];
        process::output(
            "tc",
            &[&["qdisc", "replace", "dev", namespace.link(), "root"][..], &bucket].concat(),
        )?;
        Ok(Self(namespace))
    }
}

impl Drop for Bottleneck<'_> {
    fn drop(&mut self) {
        // It goes with the pair at the latest.
        let _ = process::output("tc", &["qdisc", "del", "dev", self.0.link(), "root"]);
    }
}

/// A worker process that is killed when this is dropped.
struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    log: PathBuf,
}

impl Worker {
    fn start(mut command: Command, log: &Path) -> Result<Self, Error> {
        let errors = std::fs::File::create(log).map_err(system("creating a log file"))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(system("starting a worker"))?;
        let out = child
            .stdout
            .take()
            .ok_or_else(|| system("starting a worker")(std::io::Error::other("no pipe")))?;
        Ok(Self { child, out: BufReader::new(out), log: log.to_owned() })
    }

    /// The next line of its output.
    fn line(&mut self, role: &str) -> Result<String, Error> {
        let mut line = String::new();
        self.out.read_line(&mut line).map_err(system("reading from a worker"))?;
        if line.is_empty() {
            let mut output = String::new();
            if let Ok(mut file) = std::fs::File::open(&self.log) {
                // A log that cannot be read is not quoted.
                let _ = file.read_to_string(&mut output);
            }
            return Err(Error::Program {
                program: format!("bench worker ({role})"),
                what: format!("ended without output: {}", output.trim()),
                fix: "see the error above",
            });
        }
        Ok(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
