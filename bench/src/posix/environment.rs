//! The processes and files that live as long as the measurement, and how its servers start.

use std::cell::{Cell, OnceCell};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::network::{self, Behind};
use super::program::{self, Program, failed, find, words};
use super::rows::{Server, ZOOKEEPER};
use super::sietch::{Sietch, VNIC};
use super::variants::{Location, Variant};
use crate::error::{Error, system};
use crate::isolation::Scratch;
use crate::process;

/// How long a server may take until it serves.
const START: Duration = Duration::from_secs(15);

/// How long the creation of a database may take.
const DATABASE: Duration = Duration::from_secs(120);

/// The first port; each further server has the next one.
const FIRST_PORT: u16 = 7300;

/// The CPU of servers, and the CPU of clients.
const SERVER: &str = "1";
const CLIENT: &str = "0";

/// The programs of clients and servers that no package has.
const ALL_REDUCE: &str = include_str!("scripts/all_reduce.cc");
const LOCK: &str = include_str!("scripts/lock.py");

/// Bytes of the file that nginx serves.
const FILE: usize = 1024;

/// A running server.
#[derive(Debug)]
pub(super) struct Running {
    pub program: Program,
    pub address: SocketAddr,
}

/// The processes and files that live as long as the measurement.
#[derive(Debug)]
pub(super) struct Environment {
    pub out: PathBuf,
    pub stop: Arc<AtomicBool>,
    /// This program; some clients and servers are subcommands of it.
    own: PathBuf,
    /// The socket service, or why there is none.
    sietch: OnceCell<Result<Sietch, String>>,
    /// The same with a VNIC, which needs a daemon.
    served: OnceCell<Result<Sietch, String>>,
    /// The namespace of the kernel's servers behind a veth pair.
    behind: OnceCell<Behind>,
    port: Cell<u16>,
    /// A database that is copied for each server.
    database: OnceCell<PathBuf>,
    /// The compiled program of both ranks of gloo.
    all_reduce: OnceCell<PathBuf>,
    scratch: Scratch,
}

impl Environment {
    /// Creates the folder for files.
    pub(super) fn create(out: &Path, stop: Arc<AtomicBool>) -> Result<Self, Error> {
        // PostgreSQL is another user: every user must be able to enter the folder.
        let scratch = Scratch::create(Some(&std::env::temp_dir().join("sietch-bench-posix")))?;
        let own = std::env::current_exe().map_err(system("finding this program"))?;
        Ok(Self {
            out: out.to_owned(),
            stop,
            own,
            sietch: OnceCell::new(),
            served: OnceCell::new(),
            behind: OnceCell::new(),
            port: Cell::new(FIRST_PORT),
            database: OnceCell::new(),
            all_reduce: OnceCell::new(),
            scratch,
        })
    }

    /// Fails if the user has interrupted the measurement.
    pub(super) fn check_interrupt(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) { Err(program::interrupted()) } else { Ok(()) }
    }

    /// The socket service.
    pub(super) fn service(&self) -> Option<u32> {
        self.sietch.get()?.as_ref().ok().map(Sietch::service)
    }

    /// The words before a program that runs under Sietch. The first call starts the service.
    fn prefix(&self, location: Location) -> Result<Vec<OsString>, Error> {
        let (cell, vnic) = match location {
            Location::Vnic => (&self.served, Some(VNIC)),
            Location::Loopback | Location::Veth => (&self.sietch, None),
        };
        let start = || {
            let log = |name: &str| self.log(name);
            let folder = self.scratch.path();
            let started = match vnic {
                Some(_) => Sietch::start_with_vnic(folder, &log, &self.stop),
                None => Sietch::start(folder, &log("service"), &self.stop),
            };
            started.map_err(|cause| cause.cause())
        };
        let sietch = cell.get_or_init(start);
        let sietch = sietch.as_ref().map_err(|cause| failed("the socket service", cause.clone()))?;
        sietch.is_up()?;
        Ok(sietch.prefix(vnic))
    }

    /// The namespace of servers behind a veth pair. The first call creates it.
    fn behind(&self) -> Result<&Behind, Error> {
        match self.behind.get() {
            Some(behind) => Ok(behind),
            None => {
                let made = Behind::create()?;
                Ok(self.behind.get_or_init(|| made))
            }
        }
    }

    /// This program as the words of a command: `role` at `address`.
    pub(super) fn agent(&self, role: &str, address: SocketAddr) -> Vec<OsString> {
        let own = self.own.as_os_str();
        words(&[
            own,
            "posix-client".as_ref(),
            role.as_ref(),
            "--address".as_ref(),
            address.to_string().as_ref(),
        ])
    }

    /// The whole command of a server or a client: pinned, and under Sietch if the column requires
    /// it. `user` is the user that runs it, if not this process' user.
    fn command(
        &self,
        core: &str,
        user: Option<&str>,
        sietch: Option<Location>,
        program: Vec<OsString>,
    ) -> Result<Vec<OsString>, Error> {
        let mut command = words(&["taskset", "-c", core]);
        if let Some(user) = user {
            command.extend(words(&["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]));
        }
        if let Some(location) = sietch {
            command.extend(self.prefix(location)?);
        }
        command.extend(program);
        Ok(command)
    }

    /// A client's whole command.
    pub(super) fn client(&self, variant: Variant, program: Vec<OsString>) -> Result<Vec<OsString>, Error> {
        self.command(CLIENT, None, variant.client.then_some(variant.location), program)
    }

    /// The log file for the output of a program.
    pub(super) fn log(&self, what: &str) -> PathBuf {
        self.out.join(format!("posix-{what}.log"))
    }

    /// Runs a preparation command to its end.
    fn prepare(&self, name: &str, command: &[OsString]) -> Result<(), Error> {
        let log = self.log(&format!("prepare-{name}"));
        Program::start(name, command, &log)?.output(DATABASE, &self.stop).map(drop)
    }

    /// The folder of the server on `port`.
    pub(super) fn folder(&self, port: u16) -> PathBuf {
        self.scratch.path().join(port.to_string())
    }

    /// The command of a rank of gloo. The first call compiles it.
    pub(super) fn all_reduce(
        &self,
        role: &str,
        folder: &Path,
        floats: usize,
    ) -> Result<Vec<OsString>, Error> {
        let program = match self.all_reduce.get() {
            Some(program) => program,
            None => {
                let made = self.scratch.path().join("all_reduce");
                let source = made.with_extension("cc");
                std::fs::write(&source, ALL_REDUCE).map_err(system("writing a program"))?;
                let mut compile = words(&["g++", "-O2", "-std=c++17"]);
                compile.extend([source.into(), "-lgloo".into(), "-lpthread".into(), "-o".into()]);
                compile.push(made.clone().into());
                self.prepare("g++", &compile)?;
                self.all_reduce.get_or_init(|| made)
            }
        };
        let floats = floats.to_string();
        Ok(words(&[program.as_os_str(), role.as_ref(), folder.as_os_str(), floats.as_ref()]))
    }

    /// Starts a server of a column and waits until it serves.
    pub(super) fn start(&self, server: Server, variant: Variant) -> Result<Running, Error> {
        let port = self.port.get();
        self.port.set(port + 1);
        let address = SocketAddr::from((network::host(variant.location), port));
        let folder = self.folder(port);
        std::fs::create_dir_all(&folder).map_err(system("making a server's folder"))?;
        let (name, program) = match server {
            Server::Redis => ("redis-server", redis(address, &folder)),
            Server::Memcached { threads } => ("memcached", memcached(address, threads)),
            Server::Nginx { open_files } => ("nginx", nginx(address, &folder, open_files)?),
            Server::Postgres => ("postgres", self.postgres(address, &folder)?),
            Server::Iperf => {
                let (host, port) = (address.ip().to_string(), port.to_string());
                ("iperf3", words(&["iperf3", "-s", "-B", &host, "-p", &port]))
            }
            Server::ZooKeeper => ("zookeeper", zookeeper(address, &folder)?),
            Server::Gloo { floats } => ("gloo", self.all_reduce("serve", &folder, floats)?),
            Server::Rpc => ("rpc-server", self.agent("rpc-server", address)),
            Server::Silent => ("silent-server", self.agent("silent-server", address)),
        };
        let user = matches!(server, Server::Postgres).then_some("postgres");
        let mut command = self.command(SERVER, user, variant.server.then_some(variant.location), program)?;
        if variant.location == Location::Veth {
            command = self.behind()?.enter(command);
        }
        let log = self.log(&format!("{name}-{}", variant.name.to_lowercase().replace([' ', ','], "-")));
        let mut program = Program::start(name, &command, &log)?;
        if matches!(server, Server::Postgres) {
            // A fast shutdown, which does not wait for clients.
            program.ends_by = Signal::INT;
        }
        let pid = program.pid();
        program.wait_until(START, &self.stop, || match server {
            // It listens on a port that the kernel chooses, and tells it in a file.
            Server::Gloo { .. } => folder.join("0").exists(),
            Server::Postgres => {
                network::is_listening(variant.location, pid, address) && accepts_queries(address)
            }
            _ => network::is_listening(variant.location, pid, address),
        })?;
        let running = Running { program, address };
        self.fill(server, &running, variant)?;
        Ok(running)
    }

    /// The data folder and the command of a PostgreSQL server.
    fn postgres(&self, address: SocketAddr, folder: &Path) -> Result<Vec<OsString>, Error> {
        let tools = postgres_tools()?;
        let template = match self.database.get() {
            Some(template) => template,
            None => {
                let made = self.database(&tools, address.port())?;
                self.database.get_or_init(|| made)
            }
        };
        let data = folder.join("data");
        self.prepare("cp", &words(&["cp".as_ref(), "-a".as_ref(), template.as_os_str(), data.as_os_str()]))?;
        Ok(serve_postgres(&tools, &data, address))
    }

    /// Creates the database that is copied: pgbench's tables, scale 10.
    fn database(&self, tools: &Path, port: u16) -> Result<PathBuf, Error> {
        let data = self.scratch.path().join("database");
        let install = words(&["install", "-d", "-o", "postgres", "-g", "postgres", "-m", "700"]);
        self.prepare("install", &[install, vec![data.clone().into()]].concat())?;
        let initdb: [OsString; 3] = [tools.join("initdb").into(), "-D".into(), data.clone().into()];
        let rest = words(&["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8"]);
        let command = self.command(SERVER, Some("postgres"), None, [initdb.to_vec(), rest].concat())?;
        self.prepare("initdb", &command)?;
        let with_rule = |text: String| text + "host all all 0.0.0.0/0 trust\n";
        let rules = data.join("pg_hba.conf");
        std::fs::read_to_string(&rules)
            .and_then(|text| std::fs::write(&rules, with_rule(text)))
            .map_err(system("letting clients of the veth pair into PostgreSQL"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let command = self.command(SERVER, Some("postgres"), None, serve_postgres(tools, &data, address))?;
        let mut server = Program::start("postgres", &command, &self.log("prepare-postgres"))?;
        server.ends_by = Signal::INT;
        server.wait_until(START, &self.stop, || accepts_queries(address))?;
        let port = port.to_string();
        let fill =
            ["pgbench", "-i", "-s", "10", "-q", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "postgres"];
        self.prepare("pgbench", &words(&fill))?;
        Ok(data)
    }
}

fn redis(address: SocketAddr, folder: &Path) -> Vec<OsString> {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = words(&["redis-server", "--bind", &host, "--port", &port, "--save", ""]);
    command.extend(words(&["--appendonly", "no", "--protected-mode", "no", "--dir"]));
    command.push(folder.into());
    command
}

fn memcached(address: SocketAddr, threads: u32) -> Vec<OsString> {
    let (host, port, threads) = (address.ip().to_string(), address.port().to_string(), threads.to_string());
    words(&["memcached", "-u", "root", "-l", &host, "-p", &port, "-U", "0", "-t", &threads, "-m", "64"])
}

/// The settings of Debian (sendfile, tcp_nopush), with one worker and all files in `folder`.
fn nginx(address: SocketAddr, folder: &Path, open_files: bool) -> Result<Vec<OsString>, Error> {
    let cache = if open_files { "open_file_cache max=1000;" } else { "" };
    let configuration = format!(
        "user root; worker_processes 1; daemon off; pid nginx.pid; error_log stderr;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; {cache}\n\
         client_body_temp_path 1; proxy_temp_path 2; fastcgi_temp_path 3; uwsgi_temp_path 4; scgi_temp_path 5;\n\
         server {{ listen {address}; root .; }} }}\n"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, configuration).map_err(system("writing nginx's configuration"))?;
    std::fs::write(folder.join("file"), vec![b'x'; FILE]).map_err(system("writing nginx's file"))?;
    let program = find("nginx").ok_or_else(|| failed("nginx", "not found".into()))?;
    let options = [
        "-e".as_ref(),
        "stderr".as_ref(),
        "-p".as_ref(),
        folder.as_os_str(),
        "-c".as_ref(),
        file.as_os_str(),
    ];
    Ok([vec![program.into()], words(&options)].concat())
}

/// A single server. Its log is in `folder`, and so is the script of its client.
fn zookeeper(address: SocketAddr, folder: &Path) -> Result<Vec<OsString>, Error> {
    let (host, port) = (address.ip(), address.port());
    let configuration = format!(
        "dataDir={}\nclientPortAddress={host}\nclientPort={port}\nadmin.enableServer=false\n",
        folder.display()
    );
    let file = folder.join("zoo.cfg");
    std::fs::write(&file, configuration).map_err(system("writing ZooKeeper's configuration"))?;
    std::fs::write(folder.join("lock.py"), LOCK).map_err(system("writing ZooKeeper's client"))?;
    let options = ["-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true", "-cp", ZOOKEEPER];
    let main = "org.apache.zookeeper.server.ZooKeeperServerMain";
    Ok([words(&["java"]), words(&options), vec![main.into(), file.into()]].concat())
}

/// The folder in which Debian installs initdb and postgres.
fn postgres_tools() -> Result<PathBuf, Error> {
    process::output("pg_config", &["--bindir"]).map(|text| PathBuf::from(text.trim()))
}

fn serve_postgres(tools: &Path, data: &Path, address: SocketAddr) -> Vec<OsString> {
    let (host, port) = (format!("listen_addresses={}", address.ip()), format!("port={}", address.port()));
    let mut command = vec![tools.join("postgres").into(), "-D".into(), data.into()];
    for setting in [
        &host,
        "unix_socket_directories=",
        "shared_buffers=256MB",
        "max_connections=50",
        "fsync=off",
        "autovacuum=off",
        &port,
    ] {
        command.extend(words(&["-c", setting]));
    }
    command
}

fn accepts_queries(address: SocketAddr) -> bool {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    process::output("pg_isready", &["-q", "-h", &host, "-p", &port, "-t", "2"]).is_ok()
}
