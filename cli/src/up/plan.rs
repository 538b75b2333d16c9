//! The decisions of `sietch up`, and the command lines of the processes that it starts.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use sietch_daemon::configuration::{FileSystem, Volume, Vsa};
use sietch_daemon::{Configuration, Locations};
use sietch_protocol::VolumeKind;
use sietch_protocol::socket_service::Rule;

use crate::arguments::{Account, Durability, Net, PlaceArguments, UpArguments};
use crate::error::Error;
use crate::paths;
use crate::settings::Settings;

/// Every decision that is made before a process starts.
#[derive(Debug)]
pub(super) struct Plan {
    pub socket: PathBuf,
    pub data: PathBuf,
    /// Whether the data directory was not there before.
    pub is_new: bool,
    pub configuration: PathBuf,
    pub uplink: Option<String>,
    pub settings: Settings,
    /// The account that the store runs as, if this is root.
    pub account: Option<Account>,
    /// The account that the service core runs as.
    pub service_account: Option<Account>,
    /// Which users may listen and connect under `sietch run`.
    pub socket_rules: Vec<Rule>,
    /// Whether the storage broker serves the store's area. The area ends with the service core, and
    /// the store is then restarted.
    pub brokered: bool,
    /// Bytes in the store's area as it is made; a store without a log has none.
    pub area: Option<u64>,
    /// What is mounted.
    pub file_systems: Vec<FileSystem>,
}

/// The largest file that a store without an area may write: its log messages.
const NO_AREA: u64 = 64 << 20;

/// Where a daemon is, or would be.
pub(crate) struct Places {
    /// `sietch.toml`, and what it says.
    pub file: PathBuf,
    pub configuration: Configuration,
    pub socket: PathBuf,
    pub data: PathBuf,
}

impl Places {
    /// What the command line says, else the configuration, else the defaults of this user.
    pub(crate) fn of(arguments: &PlaceArguments, socket: Option<PathBuf>) -> Result<Self, Error> {
        arguments.config.as_deref().map_or(Ok(()), paths::check_configuration)?;
        let file = arguments.config.clone().unwrap_or_else(|| Locations::of_this_user().configuration);
        let configuration = Configuration::load_or_create(&file)?;
        let named = std::env::var_os(sietch::SOCKET_VARIABLE).is_some();
        let socket = socket
            .or_else(|| configuration.daemon.socket.clone().filter(|_| !named))
            .unwrap_or_else(sietch::own_socket_path);
        let data = arguments.data.as_deref().or(configuration.daemon.data.as_deref());
        let is_named = data.is_some();
        let data = paths::data_directory(data)?;
        if is_named {
            paths::check_data_directory(&data)?;
        }
        Ok(Self { file, configuration, socket, data })
    }
}

impl Plan {
    pub(super) fn new(arguments: &UpArguments, socket: Option<PathBuf>) -> Result<Self, Error> {
        let Places { file, configuration, socket, data } = Places::of(&arguments.control.place, socket)?;
        let is_new = !data.exists();
        let settings = Settings::from(&configuration.kv).with(&arguments.store);
        let area = configuration.vsas.iter().find(|vsa| vsa.name == settings.vsa);
        let is_brokered = |vsa: &Vsa| {
            let on = |volume: &&Volume| volume.name == vsa.volume;
            configuration.volumes.iter().find(on).is_some_and(|volume| volume.kind == VolumeKind::Extents)
        };
        let area = area.filter(|_| settings.durability != Durability::None);
        let brokered = area.is_some_and(is_brokered);
        let area = area.map(|area| area.size);
        configuration.check_store(&settings.merged(&configuration.kv))?;
        let root = rustix::process::geteuid().is_root();
        let uid = configuration.kv.uid;
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
            file_systems: configuration.file_systems,
            area,
            uplink: arguments.control.uplink.clone(),
            configuration: file,
            socket,
            data,
            is_new,
            settings,
        })
    }

    /// The command line of the daemon.
    pub(super) fn daemon(&self) -> Vec<OsString> {
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
    pub(super) fn service(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--socket".into(), self.socket.clone().into(), "service".into()];
        if let Some(account) = self.service_account {
            line.push(format!("--run-as={}:{}", account.uid, account.gid).into());
        }
        line.extend(self.socket_rules.iter().map(|rule| format!("--rule={rule}").into()));
        line.extend(["--parent".into(), std::process::id().to_string().into()]);
        line
    }

    /// The command line of the mount of a file system.
    pub(super) fn mount(file_system: &FileSystem) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["fs".into(), "mount".into()];
        if file_system.allow_other {
            line.push("--allow-other".into());
        }
        if file_system.trusted {
            line.push("--trusted".into());
        }
        line.extend(["--parent".into(), std::process::id().to_string().into(), "--".into()]);
        line.extend([file_system.folder.clone().into(), file_system.directory.clone().into()]);
        line
    }

    /// The command line of the store, whose area has so many bytes.
    pub(super) fn store(&self, area: Option<u64>) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--socket".into(), self.socket.clone().into(), "kv".into()];
        line.extend(self.settings.to_options().into_iter().map(OsString::from));
        line.push(format!("--file-size-limit={}", area.unwrap_or(NO_AREA)).into());
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
