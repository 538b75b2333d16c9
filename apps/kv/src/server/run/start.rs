//! The start of the server: everything is acquired, recovered and opened before it reports that it
//! serves.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use sietch::{Client, Doorbell as _, StartupReport, VnicQueue};

use super::Server;
use super::devices::{Sockets, open_log, open_network, open_sockets};
use super::doorbells::{DISK, LEASE, SIGNAL, VNIC, watch};
use super::password::require_password;
use super::process::{monotonic_ns, random_bytes};
use crate::foundation::settings::Settings;
use crate::server::key_view::KeyView;
use crate::server::metrics::MetricsPages;
use crate::server::reactor::Reactor;
use crate::server::transport::vnic::VnicTransport;
use crate::server::{Error, Options};
use crate::shard::{Shard, TimeSource};

/// Descriptors reserved for other uses than clients: standard streams, rings, devices, counter
/// pages, the control connection, and one to refuse a client with. Redis reserves 32.
const RESERVED_DESCRIPTORS: usize = 64;

/// The warning for a VNIC without a password.
const OPEN_VNIC: &str = "the VNIC serves without a password, and protected mode is for kernel sockets alone: every host that the VNIC's filters let through may read and write everything; set one in the file that SIETCH_KV_PASSWORD_FILE names";

/// The settings of the shard.
#[expect(clippy::field_reassign_with_default, reason = "what is only shown is private to the settings")]
fn settings(options: &Options) -> Settings {
    let mut settings = Settings::default();
    settings.maxmemory = options.maxmemory;
    settings.policy = options.policy;
    settings.durability = options.durability;
    settings.port = options.port;
    settings.shards = options.shards;
    settings.bind = options.listen.map(|address| address.ip().to_string()).unwrap_or_default();
    settings
}

/// Shows the addresses that the store serves, and its directory, as settings.
fn show_bind_and_dir(shard: &mut Shard, ready: &StartupReport) {
    let all = ready.vnic.iter().chain(&ready.vnic6).chain(&ready.kernel);
    let addresses: Vec<_> = all.map(|address| address.ip().to_string()).collect();
    let directory = std::env::current_dir().map_or_else(|_| String::new(), |path| path.display().to_string());
    shard.show_bind_and_dir(addresses.join(" "), directory);
}

impl Server {
    /// Starts the server; the process may open so many `files`.
    pub(super) fn start(mut options: Options, signals: UnixStream, files: usize) -> Result<Self, Error> {
        let path = options.control_socket.take().unwrap_or_else(sietch::socket_path);
        let mut client = Client::connect(&path, "kv")?;
        let mut settings = settings(&options);
        settings.maxclients = settings.maxclients.min(files.saturating_sub(RESERVED_DESCRIPTORS)).max(1);
        let mut shard = Shard::new(settings, u64::from_ne_bytes(random_bytes()?));
        shard.measure_with(TimeSource { monotonic_ns, sleep: std::thread::sleep });
        require_password(&mut shard)?;
        if let Some(address) = options.listen
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                "the store listens on {address}, which other hosts may reach, and their connections are not encrypted; without a password it refuses them (CONFIG SET requirepass, protected-mode)"
            );
        }
        let log = open_log(&options, &mut client, &mut shard)?;
        let key_view = log.as_ref().map(|log| KeyView::new(log.grant.clone()));
        let (log_writer, storage) = log.map(|log| (log.log_writer, log.description)).unzip();
        let network = open_network(&options, &mut client)?;
        if network.transport.is_some() && !shard.is_protected() {
            tracing::warn!("{OPEN_VNIC}");
        }
        let Sockets { queue: mut sockets, bound: kernel, streams } = open_sockets(&options, &path)?;
        if network.transport.is_none() && kernel.is_none() {
            return Err(Error::NoWayIn);
        }
        watch(&mut sockets, signals.as_fd(), SIGNAL)?;
        if let Some(doorbell) = log_writer.as_ref().and_then(|log_writer| log_writer.log().disk().doorbell())
        {
            watch(&mut sockets, doorbell, DISK)?;
        }
        let (transport, vnic_grant) = network.transport.unzip();
        let ready = StartupReport {
            network: transport.as_ref().map_or("linux", |transport| transport.queue().medium()).into(),
            reason: network.reason,
            vnic: transport.as_ref().map(VnicTransport::address),
            vnic6: network.v6,
            kernel,
            storage: storage.unwrap_or_default(),
            durability: options.durability.name().into(),
            keys: shard.keys() as u64,
        };
        show_bind_and_dir(&mut shard, &ready);
        if let Some(doorbell) = transport.as_ref().and_then(|transport| transport.queue().doorbell()) {
            watch(&mut sockets, doorbell, VNIC)?;
        }
        let link =
            transport.as_ref().is_some_and(|transport| matches!(transport.queue(), VnicQueue::Link(_)));
        let link = link.then_some((path.clone(), options.vnic));
        let mut reactor = Reactor::new(shard, log_writer, transport, Some(sockets));
        if let Some(streams) = streams {
            reactor.attach_streams(streams);
        }
        let report = MetricsPages::new(&reactor).map_err(sietch::Error::from)?;
        for page in report.pages() {
            client.share_metrics(page)?;
        }
        let lease = client.hold()?;
        let mut server = Self {
            reactor,
            lease,
            report,
            key_view,
            vnic_grant,
            link,
            link_lease: None,
            reacquiring_link: None,
            path,
            reacquiring_area: None,
            area_granted: false,
            area: options.vsa,
            port: options.port,
            stopping: false,
            signals,
        };
        if let Some(sockets) = server.reactor.sockets_mut() {
            watch(sockets, server.lease.doorbell(), LEASE)?;
        }
        if let Some(pipe) = options.ready {
            ready
                .announce(pipe)
                .map_err(|cause| Error::System { action: "reporting that it serves", cause })?;
        }
        Ok(server)
    }
}
