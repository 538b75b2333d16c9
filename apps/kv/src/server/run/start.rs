//! The start of the server: everything is acquired, recovered and opened before it reports that it
//! serves.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sietch::disk::AreaQueue;
use sietch::{Client, Doorbell as _, StartupReport, VnicQueue};
use sietch_ring::thread_doorbell::EventDoorbell;
use sietch_socket::Choice;

use super::Server;
use super::devices::{Sockets, keys, open_log, open_network, open_sockets, socket_choice};
use super::doorbells::{CORES, DISK, LEASE, SIGNAL, VNIC, watch};
use super::members::{Member, Members};
use super::password::require_password;
use super::process::{monotonic_ns, random_bytes};
use crate::foundation::settings::{MAX_SHARDS, Settings};
use crate::server::cores::channels::Channels;
use crate::server::key_view::KeyView;
use crate::server::metrics::MetricsPages;
use crate::server::reactor::Reactor;
use crate::server::transport::spread::Intake;
use crate::server::transport::vnic::VnicTransport;
use crate::server::{Error, Options};
use crate::shard::{Placement, Shard, TimeSource, Totals};

/// Descriptors reserved for other uses than clients: standard streams, rings, devices, counter
/// pages, the control connection, and one to refuse a client with. Redis reserves 32.
const RESERVED_DESCRIPTORS: usize = 64;

/// Descriptors of each further core: its sockets' ring or epoll set, its poller, its doorbell, and
/// copies of what it sleeps on.
const DESCRIPTORS_OF_MEMBER: usize = 16;

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
fn show_bind_and_dir(shards: &mut [Box<Shard>], ready: &StartupReport) {
    let all = ready.vnic.iter().chain(&ready.vnic6).chain(&ready.kernel);
    let addresses: Vec<_> = all.map(|address| address.ip().to_string()).collect();
    let directory = std::env::current_dir().map_or_else(|_| String::new(), |path| path.display().to_string());
    for shard in shards {
        shard.show_bind_and_dir(addresses.join(" "), directory.clone());
    }
}

/// Limits the clients, now and in a later CONFIG SET, to those that `files` descriptors suffice
/// for.
fn limit_clients(settings: &mut Settings, files: usize) {
    let reserved = RESERVED_DESCRIPTORS + (settings.shards - 1) * DESCRIPTORS_OF_MEMBER;
    settings.most_clients = settings.most_clients.min(files.saturating_sub(reserved)).max(1);
    settings.maxclients = settings.maxclients.min(settings.most_clients);
}

/// The shards of a store, empty; the process may open so many `files`.
fn shards(options: &Options, files: usize) -> Result<Vec<Box<Shard>>, Error> {
    let count = options.shards;
    if !(1..=MAX_SHARDS).contains(&count) {
        return Err(Error::Shards { shards: count });
    }
    let mut settings = settings(options);
    limit_clients(&mut settings, files);
    let totals = Arc::new(Totals::new(count));
    let mut shards = (0..count)
        .map(|own| {
            let seed = u64::from_ne_bytes(random_bytes()?);
            let placement = Placement::new(own, count);
            let mut shard = Shard::with_placement(settings.clone(), seed, placement, Arc::clone(&totals));
            shard.measure_with(TimeSource { monotonic_ns, sleep: std::thread::sleep });
            Ok(Box::new(shard))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    require_password(&mut shards)?;
    Ok(shards)
}

/// Has the reactor of core 0 join the cores of the `others`, and starts a thread for each of those.
/// Returns the threads and the doorbell of core 0, or `None` if there are no others.
fn start_members(
    reactor: &mut Reactor<VnicQueue, AreaQueue>,
    others: Vec<Box<Shard>>,
    report: &MetricsPages,
    choice: Choice,
) -> Result<Option<(Members, EventDoorbell)>, Error> {
    if others.is_empty() {
        return Ok(None);
    }
    let count = others.len() + 1;
    let channels =
        Channels::connect(count).map_err(|cause| Error::System { action: "connecting the shards", cause })?;
    let mut ends = channels.into_iter().zip(Intake::of_cores(count));
    let Some((own, intake)) = ends.next() else { return Err(Error::Shards { shards: 0 }) };
    let doorbell = own.doorbell().clone();
    reactor.join(Placement::new(0, count), Box::new(own));
    reactor.share_clients(intake);
    if let Some(sockets) = reactor.sockets_mut() {
        watch(sockets, doorbell.as_fd(), CORES)?;
    }
    let members = others.into_iter().zip(ends).zip(report.members(&doorbell)).zip(1..);
    let members = members.map(|(((shard, (channels, intake)), counters), own)| Member {
        shard,
        placement: Placement::new(own, count),
        channels,
        intake,
        counters,
        choice,
    });
    Ok(Some((Members::start(members.collect(), &doorbell)?, doorbell)))
}

impl Server {
    /// Starts the server; the process may open so many `files`.
    pub(super) fn start(mut options: Options, signals: UnixStream, files: usize) -> Result<Self, Error> {
        let mut shards = shards(&options, files)?;
        let path = options.control_socket.take().unwrap_or_else(sietch::socket_path);
        let mut client = Client::connect(&path, "kv")?;
        if let Some(address) = options.listen
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                "the store listens on {address}, which other hosts may reach, and their connections are not encrypted; without a password it refuses them (CONFIG SET requirepass, protected-mode)"
            );
        }
        let log = open_log(&options, &mut client, &mut shards)?;
        let key_view = log.as_ref().map(|log| KeyView::new(log.grant.clone()));
        let (log_writer, storage) = log.map(|log| (log.log_writer, log.description)).unzip();
        let network = open_network(&options, &mut client)?;
        if network.transport.is_some() && !shards[0].is_protected() {
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
            keys: keys(&shards),
        };
        show_bind_and_dir(&mut shards, &ready);
        if let Some(doorbell) = transport.as_ref().and_then(|transport| transport.queue().doorbell()) {
            watch(&mut sockets, doorbell, VNIC)?;
        }
        let link =
            transport.as_ref().is_some_and(|transport| matches!(transport.queue(), VnicQueue::Link(_)));
        let link = link.then_some((path.clone(), options.vnic.clone()));
        let others = shards.split_off(1);
        let Some(shard) = shards.pop() else { return Err(Error::Shards { shards: 0 }) };
        let mut reactor = Reactor::new(shard, log_writer, transport, Some(sockets));
        if let Some(streams) = streams {
            reactor.attach_streams(streams);
        }
        let report = MetricsPages::new(&reactor, others.len()).map_err(sietch::Error::from)?;
        let (members, cores_doorbell) =
            start_members(&mut reactor, others, &report, socket_choice(&options))?.unzip();
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
            unserved: None,
            area: options.vsa,
            port: options.port,
            stopping: false,
            members,
            cores_doorbell,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::process::Command;

    use super::*;
    use crate::shard::Now;

    #[test]
    fn clients_leave_the_descriptors_that_the_store_itself_needs() {
        let limited = |shards, files| {
            let mut settings = Settings { shards, ..Settings::default() };
            limit_clients(&mut settings, files);
            (settings.maxclients, settings.most_clients)
        };
        assert_eq!(limited(1, 20_064), (10_000, 20_000));
        assert_eq!(limited(3, 1096), (1000, 1000));
        assert_eq!(limited(3, 10), (1, 1));
    }

    /// The orders in which a store, as it starts, shows keys and the elements of a set.
    fn orders_of_a_store() -> [String; 2] {
        let mut shards = shards(&Options::default(), 1024).expect("a store starts");
        let shard = &mut shards[0];
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let client = shard.connect(address, address, Now::default()).expect("the first client");
        let mut commands: String = (0..300).map(|n| format!("SADD s e{n}\r\n")).collect();
        commands.extend((0..300).map(|n| format!("SET k{n} v\r\n")));
        commands.push_str("DBSIZE\r\nKEYS k*\r\nSMEMBERS s\r\n");
        shard.feed(client, commands.as_bytes(), Now::default());
        shard.seal(0);
        let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
        let (_, orders) = reply.split_once(":301\r\n*300\r\n").expect("all keys and elements are there");
        let (keys, elements) = orders.split_once("*300\r\n").expect("all elements are shown");
        [keys, elements].map(|order| order.replace("\r\n", " "))
    }

    /// The order follows the seeds of the hash tables. The seeds are drawn for each start in each
    /// process, so this test runs itself again.
    #[test]
    fn hash_seeds_differ_in_each_start_and_in_each_process() {
        const AGAIN: &str = "SIETCH_KV_TEST_ORDERS";
        if std::env::var_os(AGAIN).is_some() {
            for _ in 0..2 {
                orders_of_a_store().iter().for_each(|order| println!("\norder {order}"));
            }
            return;
        }
        let mut orders = BTreeSet::new();
        for _ in 0..2 {
            let mut again = Command::new(std::env::current_exe().expect("this test"));
            again.args(["--exact", "--nocapture"]);
            again.arg("server::run::start::tests::hash_seeds_differ_in_each_start_and_in_each_process");
            let output = again.env(AGAIN, "").output().expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let found: Vec<&str> = text.lines().filter(|line| line.starts_with("order ")).collect();
            assert_eq!(found.len(), 4, "{text}");
            orders.extend(found.into_iter().map(str::to_owned));
        }
        assert_eq!(orders.len(), 8, "no two tables of two processes have the same order");
    }
}
