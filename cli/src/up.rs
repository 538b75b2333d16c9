//! `sietch up`: daemon, service core and store, from start to clean end.
//!
//! 1. Only one at a time: the record beside the socket is claimed first ([`instance`]).
//! 2. The daemon is started and waited for; then the service core, for programs under `sietch run`,
//!    VNICs of the switch and areas on volumes of extents; then the store. The last two run as
//!    unprivileged users when this is root. A daemon that runs already (under systemd, say) is used
//!    as it is, its service core is not ours to start, and both are left alone at the end.
//! 3. What became of them is printed: the mode and why, addresses, protection, data directory,
//!    durability.
//! 4. Whatever ends before its time is started again ([`supervisor`]). The store goes on without
//!    its daemon, and notices no restart of it.
//! 5. At SIGINT, SIGTERM or SIGHUP the store is stopped (it flushes its log), then the service
//!    core, then the daemon (it removes its devices), then the record is removed. If this process
//!    is killed, the kernel asks its children to do the same.

mod banner;
mod child;
mod detach;
pub mod instance;
mod supervisor;

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use sietch_daemon::configuration::Vsa;
use sietch_daemon::configuration::volumes::Volume;
use sietch_daemon::{Configuration, Locations};
use sietch_protocol::VolumeKind;
use sietch_protocol::socket_service::Rule;

use crate::arguments::{Account, Durability, Net, UpArguments};
use crate::error::Error;
use crate::paths;
use crate::settings::Settings;

/// Everything decided before anything is started.
#[derive(Debug)]
struct Plan {
    socket: PathBuf,
    data: PathBuf,
    configuration: PathBuf,
    uplink: Option<String>,
    settings: Settings,
    /// Whom the store becomes, when this is root.
    account: Option<Account>,
    /// Whom the service core becomes.
    service_account: Option<Account>,
    /// Who may listen and connect under `sietch run`.
    socket_rules: Vec<Rule>,
    /// Whether the store's area is behind the storage broker: it ends with the service core, and
    /// the store begins anew.
    brokered: bool,
    /// Bytes in the store's area; a store without a log has none.
    area: Option<u64>,
}

/// Bytes that a store without an area may write into one file at most: its own log messages.
const NO_AREA: u64 = 64 << 20;

/// Runs until it is told to stop.
///
/// # Errors
/// [`Error::AlreadyRunning`]; whatever keeps daemon or store from serving.
pub fn run(arguments: &UpArguments, socket: Option<PathBuf>) -> Result<(), Error> {
    if arguments.detach {
        return detach::start();
    }
    if arguments.detached {
        detach::leave_terminal()?;
    }
    let plan = Plan::new(arguments, socket)?;
    let claim = instance::claim(&paths::record(&plan.socket))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Start { what: "event loop", source })?;
    runtime.block_on(supervisor::run(plan, claim, arguments.detached))
}

impl Plan {
    fn new(arguments: &UpArguments, socket: Option<PathBuf>) -> Result<Self, Error> {
        let control = &arguments.control;
        let file = control.config.clone().unwrap_or_else(|| Locations::of_this_user().configuration);
        let configuration = Configuration::load_or_create(&file)?;
        let settings = Settings::from(&configuration.kv).with(&arguments.store);
        let named = std::env::var_os(sietch::SOCKET_VARIABLE).is_some();
        let socket = socket
            .or_else(|| configuration.daemon.socket.clone().filter(|_| !named))
            .unwrap_or_else(sietch::own_socket_path);
        let data = paths::data_directory(control.data.as_deref().or(configuration.daemon.data.as_deref()))?;
        let area = configuration.vsas.iter().find(|vsa| vsa.name == settings.vsa);
        let is_brokered = |vsa: &Vsa| {
            let on = |volume: &&Volume| volume.name == vsa.volume;
            configuration.volumes.iter().find(on).is_some_and(|volume| volume.kind == VolumeKind::Extents)
        };
        let area = area.filter(|_| settings.durability != Durability::None);
        let brokered = area.is_some_and(is_brokered);
        let area = area.map(|area| area.size);
        if area.is_none() && settings.durability != Durability::None {
            let (name, configuration) = (settings.vsa.clone(), file.display().to_string());
            return Err(Error::NoArea { name, configuration });
        }
        let root = rustix::process::geteuid().is_root();
        let uid = configuration.kv.uid;
        if root && uid == 0 {
            return Err(Error::StoreAsRoot { configuration: file.display().to_string() });
        }
        make_folder(&data, 0o700)?;
        if let Some(folder) = socket.parent() {
            // The store, an ordinary user, goes through here to the socket.
            make_folder(folder, 0o755)?;
        }
        Ok(Self {
            account: root.then_some(Account { uid, gid: uid }),
            brokered,
            service_account: root
                .then_some(Account { uid: configuration.service_uid, gid: configuration.service_uid }),
            socket_rules: configuration.socket_rules,
            area,
            uplink: control.uplink.clone(),
            configuration: file,
            socket,
            data,
            settings,
        })
    }

    /// The command line of the daemon.
    fn daemon(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--socket".into(), self.socket.clone().into(), "daemon".into()];
        line.extend(["--config".into(), self.configuration.clone().into()]);
        line.extend(["--data".into(), self.data.clone().into()]);
        if let Some(uplink) = &self.uplink {
            line.extend(["--uplink".into(), uplink.into()]);
        }
        if self.settings.net == Net::Linux {
            line.push("--without-network".into());
        }
        line.extend(["--parent".into(), std::process::id().to_string().into()]);
        line
    }

    /// The command line of the service core.
    fn service(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--socket".into(), self.socket.clone().into(), "service".into()];
        if let Some(account) = self.service_account {
            line.push(format!("--run-as={}:{}", account.uid, account.gid).into());
        }
        line.extend(self.socket_rules.iter().map(|rule| format!("--rule={rule}").into()));
        line.extend(["--parent".into(), std::process::id().to_string().into()]);
        line
    }

    /// The command line of the store.
    fn store(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--socket".into(), self.socket.clone().into(), "kv".into()];
        line.extend(self.settings.to_options().into_iter().map(OsString::from));
        line.push(format!("--file-size-limit={}", self.area.unwrap_or(NO_AREA)).into());
        if let Some(account) = self.account {
            line.push(format!("--run-as={}:{}", account.uid, account.gid).into());
        }
        line.extend(["--parent".into(), std::process::id().to_string().into()]);
        line
    }
}

fn make_folder(path: &Path, mode: u32) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(Error::file(path, "choose other folders with `--data DIR` and `--socket PATH`"))
}
