//! `sietch service`: a service core, the software switch between the VNICs that `sietch.toml` says are of it.
//!
//! 1. It says to the daemon that it is the service core, and is sent its ports with their rules, one after the other, and which of them have ended.
//! 2. One thread switches ([`sietch_service::run`]); this one talks to the daemon.
//! 3. A daemon that goes away disturbs no traffic: it is looked for again, and told which ports there are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sietch::nic::shm::{EndpointFds, Geometry};
use sietch::nic::xdp::{Ipv4Prefix, Ipv6Prefix, VnicSpec};
use sietch_protocol::{CallError, Connection, HeldGrant, Notice, PortGrant, PortRange};
use sietch_service::Command;

use crate::arguments::ServiceArguments;
use crate::error::Error;
use crate::privilege;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the switch has lost a port, and whether the daemon is back.
const PAUSE: Duration = Duration::from_millis(500);
/// What a VNIC may send at once at least: a segmentation-sized burst; and the share of a second's bytes: a millisecond's.
const MIN_BURST: u64 = 64 * 1024;
const BURST_SHARE: u64 = 1000;

/// The switch's thread as this one sees it.
struct Core {
    commands: Sender<Command>,
    bell: OwnedFd,
    gone: Receiver<u64>,
    /// Ports by grant, with their generations.
    ports: BTreeMap<u64, u64>,
}

/// Serves until it is ended.
///
/// # Errors
/// [`Error::Control`]: no daemon at the start, or it refuses; [`Error::Privilege`]; [`Error::Start`]: no thread.
pub fn run(arguments: &ServiceArguments, socket: &Path) -> Result<(), Error> {
    if let Some(account) = arguments.run_as {
        privilege::give_up(account)?;
    }
    let failed = |source| Error::Start { what: "the switch", source };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = eventfd(0, flags).map_err(|error| failed(error.into()))?;
    let (commands, orders) = channel();
    let (lost, gone) = channel();
    let own = bell.try_clone().map_err(failed)?;
    let switch = std::thread::Builder::new()
        .name("sietch-switch".to_owned())
        .spawn(move || sietch_service::run(&orders, &own, &lost))
        .map_err(failed)?;
    let mut core = Core { commands, bell, gone, ports: BTreeMap::new() };
    let mut connection = core.connect(socket)?;
    tracing::info!("serving");
    while !switch.is_finished() {
        match core.listen(&mut connection) {
            Ok(()) => {}
            Err(cause) => {
                tracing::warn!("{cause}; the ports go on, and the daemon is looked for");
                connection = loop {
                    std::thread::sleep(PAUSE);
                    match core.connect(socket) {
                        Ok(connection) => break connection,
                        // It is not there yet.
                        Err(CallError::Connect { .. } | CallError::Closed | CallError::Frame(_)) => {}
                        Err(other) => return Err(other.into()),
                    }
                };
                tracing::info!("the daemon is back");
            }
        }
    }
    match switch.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(failed(source)),
        Err(_) => Err(failed(std::io::Error::other("it panicked"))),
    }
}

impl Core {
    fn connect(&mut self, socket: &Path) -> Result<Connection, CallError> {
        self.forget_lost();
        let mut connection = Connection::connect(socket, "service", PATIENCE)?;
        let held = self.ports.iter().map(|(&grant, &generation)| HeldGrant { grant, generation });
        connection.serve(held.collect())?;
        Ok(connection)
    }

    fn forget_lost(&mut self) {
        while let Ok(grant) = self.gone.try_recv() {
            self.ports.remove(&grant);
        }
    }

    /// Handles the notices that have come, or waits a moment for one.
    fn listen(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        self.forget_lost();
        while let Some((notice, descriptors)) = connection.take_notice()? {
            match notice {
                Notice::Port(port) => self.add(&port, descriptors),
                Notice::Unplug { grant } => {
                    self.ports.remove(&grant);
                    self.send(Command::Remove(grant));
                }
                _ => {}
            }
        }
        let limit = Timespec::try_from(PAUSE).ok();
        // Interrupted or not: the caller comes again.
        let _ = poll(&mut [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)], limit.as_ref());
        Ok(())
    }

    fn send(&self, command: Command) {
        // A switch that has ended is found out by the caller; a full counter is a ring already.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn add(&mut self, port: &PortGrant, descriptors: Vec<OwnedFd>) {
        let Ok([own, peer, bell]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            tracing::error!("VNIC {}: its port came without its descriptors", port.name);
            return;
        };
        let (reply, told) = channel();
        self.send(Command::Add {
            id: port.grant,
            spec: specification(port),
            fds: EndpointFds { own, peer, bell },
            geometry: Geometry { slots: port.geometry.slots, data: port.geometry.data },
            mtu: usize::try_from(port.mtu).unwrap_or(usize::MAX),
            reply,
        });
        match told.recv() {
            Ok(Ok(())) => {
                self.ports.insert(port.grant, port.generation);
                tracing::info!(grant = port.grant, "VNIC {} is on the switch", port.name);
            }
            // The descriptors are closed, and the holder hears that.
            Ok(Err(cause)) => tracing::error!("VNIC {}: {cause}", port.name),
            Err(_) => {}
        }
    }
}

fn specification(port: &PortGrant) -> VnicSpec {
    let ranges = |ports: &[PortRange]| ports.iter().map(|range| range.first..=range.last).collect();
    let rate = port.rate.map(|rate| rate.bytes_per_second);
    VnicSpec {
        mac: port.mac.0,
        address: port.address,
        address6: port.address6,
        tcp_ports: ranges(&port.tcp_ports),
        udp_ports: ranges(&port.udp_ports),
        peers: port.peers.iter().filter_map(|peer| Ipv4Prefix::new(peer.address, peer.prefix)).collect(),
        peers6: port.peers6.iter().filter_map(|peer| Ipv6Prefix::new(peer.address, peer.prefix)).collect(),
        rate,
        burst: rate.map_or(0, |rate| (rate / BURST_SHARE).max(MIN_BURST)),
        uplink: None,
        host_mac: port.switch_mac.0,
        generation: port.generation,
    }
}
