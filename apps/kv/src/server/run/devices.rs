//! Acquires and opens what the server runs on: the area with its log, the VNIC, kernel sockets, and
//! streams through memory.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use sietch::disk::AreaQueue;
use sietch::{Client, GrantedVsa, Vnic, VnicQueue};
use sietch_socket::{Choice, SocketQueue};

use super::doorbells::{STREAMS, watch};
use super::process::{clock, random_bytes};
use crate::foundation::metrics::Recovery;
use crate::server::transport::streams::StreamTransport;
use crate::server::transport::vnic::VnicTransport;
use crate::server::{Error, LogWriter, NetChoice, Options, recover};
use crate::shard::Shard;

/// A recovered log.
pub(super) struct OpenLog {
    pub(super) log_writer: LogWriter<AreaQueue>,
    /// A description of the disk queue.
    pub(super) description: String,
    pub(super) grant: sietch::Grant,
}

/// Acquires the storage area and recovers all shards from it. `None` if the store runs without a
/// log.
pub(super) fn open_log(
    options: &Options,
    client: &mut Client,
    shards: &mut [Box<Shard>],
) -> Result<Option<OpenLog>, Error> {
    if !options.durability.keeps_log() {
        tracing::info!("durability none: there is no log, and every key is lost when the store ends");
        return Ok(None);
    }
    let area = client.acquire_vsa_descriptors(&options.vsa)?;
    let grant = area.grant.clone();
    client.serve_view(&grant);
    let (disk, description) = open_disk(options, area)?;
    let identity = u128::from_ne_bytes(random_bytes()?);
    let begin = clock();
    let (log_writer, report) =
        recover::recover_shards(&options.vsa, disk, shards, options.durability, identity, begin)?;
    let elapsed = clock().monotonic_ns.saturating_sub(begin.monotonic_ns);
    let recovery = Recovery::new(&report, elapsed, keys(shards));
    for shard in shards {
        shard.persistence_mut().recovery = recovery;
    }
    tracing::info!("{recovery}");
    Ok(Some(OpenLog { log_writer, description, grant }))
}

/// Keys of all shards.
pub(super) fn keys(shards: &[Box<Shard>]) -> u64 {
    shards.iter().map(|shard| shard.keys() as u64).sum()
}

fn open_disk(options: &Options, mut area: GrantedVsa) -> Result<(AreaQueue, String), Error> {
    let failed = |cause| Error::Area { name: options.vsa.clone(), cause };
    let disk = match area.files.pop() {
        Some(file) if options.without_io_uring && !area.is_memory() => {
            let queue = sietch::disk::BlockingQueue::open(file, area.description.size).map_err(failed)?;
            AreaQueue::Blocking(queue, "not wanted".into())
        }
        file => {
            area.files.extend(file);
            area.queue()?
        }
    };
    let description = disk.description();
    Ok((disk, description))
}

/// Kernel sockets, and what listens beside them.
pub(super) struct Sockets {
    pub(super) queue: SocketQueue,
    /// The address that they listen on, if they do.
    pub(super) bound: Option<SocketAddr>,
    /// Streams of the same address.
    pub(super) streams: Option<StreamTransport>,
}

/// How kernel sockets are served.
pub(super) fn socket_choice(options: &Options) -> Choice {
    if options.without_io_uring { Choice::Epoll } else { Choice::Automatic }
}

/// Opens kernel sockets. If they listen, the listening socket is offered to the socket service
/// beside the daemon at `path`.
pub(super) fn open_sockets(options: &Options, path: &Path) -> Result<Sockets, Error> {
    let mut queue = SocketQueue::open(socket_choice(options))?;
    let Some(address) = options.listen else { return Ok(Sockets { queue, bound: None, streams: None }) };
    let listen = |cause| sietch_socket::Error::Listen { address, cause };
    let service = sietch::socket_service_beside(path)
        .map_err(|cause| Error::System { action: "reading random bytes", cause })?;
    match StreamTransport::open(service, address) {
        Ok(streams) => {
            queue.listen_on(streams.kernel_listener().map_err(listen)?).map_err(listen)?;
            watch(&mut queue, streams.doorbell(), STREAMS)?;
            Ok(Sockets { queue, bound: streams.address(), streams: Some(streams) })
        }
        // By a rule of the service, or by the kernel.
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            let bound = Some(queue.listen(address)?);
            tracing::warn!(
                "the socket service does not serve {address} (`[sockets] rules` of sietch.toml); programs under `sietch run` reach the store through the kernel"
            );
            Ok(Sockets { queue, bound, streams: None })
        }
        Err(cause) => Err(listen(cause).into()),
    }
}

/// The VNIC's transport, or the reason why there is none.
pub(super) struct Network {
    pub(super) transport: Option<(VnicTransport<VnicQueue>, sietch::Grant)>,
    /// Its IPv6 address.
    pub(super) v6: Option<SocketAddr>,
    pub(super) reason: Option<String>,
}

/// Acquires the VNIC, if one is requested. With [`NetChoice::Auto`] a refusal is not an error.
pub(super) fn open_network(options: &Options, client: &mut Client) -> Result<Network, Error> {
    if options.net == NetChoice::Linux {
        return Ok(Network { transport: None, v6: None, reason: Some("--net linux".into()) });
    }
    let vnic = match client.acquire_vnic(&options.vnic) {
        Ok(vnic) => vnic,
        Err(cause) if options.net == NetChoice::Auto => {
            return Ok(Network { transport: None, v6: None, reason: Some(cause.to_string()) });
        }
        Err(cause) => return Err(cause.into()),
    };
    let v6 = vnic.description.address6.map(|network| SocketAddr::from((network.address, options.port)));
    Ok(Network { transport: Some(open_transport(vnic, &options.vnic, options.port)?), v6, reason: None })
}

/// Runs a network engine that listens on a VNIC.
pub(super) fn open_transport(
    vnic: Vnic,
    name: &str,
    port: u16,
) -> Result<(VnicTransport<VnicQueue>, sietch::Grant), Error> {
    let engine = vnic.engine(random_bytes()?);
    let listen = |cause| Error::Listen { name: name.to_owned(), cause };
    let transport =
        VnicTransport::open(vnic.queue, engine, vnic.description.address, port).map_err(listen)?;
    Ok((transport, vnic.grant))
}
