//! A VNIC as an application gets it: an AF_XDP socket on one end of a veth pair, behind its
//! filters. The other end is the kernel's.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use rustix::thread::UnshareFlags;
use sietch_nic::af_xdp::{self, XskLayout};
use sietch_nic::xdp::{Buffers, Reason, VnicPrograms, VnicSpec, offload};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
/// The kernel's end.
pub(crate) const HOST_END: &str = "vh0";

/// Addresses, ports and size.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The kernel's address, of a network of 24 bits.
    pub host: Ipv4Addr,
    /// The VNIC's.
    pub address: Ipv4Addr,
    /// The kernel's IPv6 address, of a network of 64 bits, and the VNIC's.
    pub ipv6: Option<(Ipv6Addr, Ipv6Addr)>,
    /// The TCP ports that it may use.
    pub ports: RangeInclusive<u16>,
    pub mtu: usize,
    /// The kernel leaves checksums unfinished, and the queue says so.
    pub unfinished: bool,
}

/// A pair with its queue. The filters stay attached as long as it lives.
pub(crate) struct Pair {
    pub queue: af_xdp::Queue,
    pub filters: Filters,
}

/// The filters of a pair.
pub(crate) struct Filters(VnicPrograms);

/// Puts the calling thread, and those that it will start, into a network namespace of their own.
/// False if it may not.
pub(crate) fn enter_namespace() -> bool {
    #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
    rustix::thread::unshare(UnshareFlags::NEWNET).is_ok()
}

/// Runs `ip` with these words.
pub(crate) fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn index(name: &str) -> io::Result<u32> {
    Ok(netdevice::name_to_index(socket(AddressFamily::INET, SocketType::DGRAM, None)?, name)?)
}

impl Pair {
    /// Makes one in the calling thread's namespace.
    pub(crate) fn new(plan: &Plan) -> io::Result<Self> {
        let Plan { host, address, mtu, .. } = plan;
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        ip("link set lo up")?;
        ip(&format!(
            "link add vn0 mtu {mtu} address {} numtxqueues 1 numrxqueues 1 type veth peer name {HOST_END} mtu {mtu} address {} \
             numtxqueues 1 numrxqueues 1",
            text(MAC),
            text(HOST_MAC)
        ))?;
        // Without IPv6 addresses of its own the kernel adds no frames to the VNIC's. Below 1280
        // bytes there is no IPv6.
        let quiet = if *mtu < 1280 { "" } else { "addrgenmode none" };
        ip(&format!("link set vn0 {quiet} up"))?;
        ip(&format!("link set {HOST_END} {quiet} up"))?;
        ip(&format!("addr add {host}/24 dev {HOST_END}"))?;
        if let Some((host, _)) = plan.ipv6 {
            ip(&format!("addr add {host}/64 dev {HOST_END} nodad"))?;
        }
        let (own, peer) = (index("vn0")?, index(HOST_END)?);
        let other = |cause: &dyn std::fmt::Display| io::Error::other(cause.to_string());
        if !plan.unfinished {
            offload::disable_transmit_checksum(peer).map_err(|e| other(&e))?;
        }
        let layout = XskLayout::for_mtu(own, 0, *mtu).map_err(|e| other(&e))?;
        let granted = af_xdp::create(layout).map_err(|e| other(&e))?;
        let spec = VnicSpec {
            mac: MAC,
            address: *address,
            address6: plan.ipv6.map(|(_, own)| own),
            tcp_ports: vec![plan.ports.clone()],
            udp_ports: Vec::new(),
            peers: Vec::new(),
            peers6: Vec::new(),
            rate: None,
            burst: 1 << 20,
            uplink: None,
            host_mac: HOST_MAC,
            generation: 1,
        };
        let buffers = if layout.runs > 0 { Buffers::Several } else { Buffers::One };
        let programs = VnicPrograms::install(&spec, own, peer, (granted.socket.as_fd(), 0), buffers)
            .map_err(|e| other(&e))?;
        let socket = granted.socket.try_clone()?;
        let queue = af_xdp::Queue::open(granted, MAC, *mtu)
            .map_err(|e| other(&e))?
            .with_unfinished_checksums(plan.unfinished);
        af_xdp::bind_queue(socket.as_fd(), &layout).map_err(|e| other(&e))?;
        Ok(Self { queue, filters: Filters(programs) })
    }
}

impl Filters {
    /// What the filter dropped of what was sent, by reason.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        let sent = self.0.counters().expect("the maps are ours").transmitted;
        Reason::ALL
            .into_iter()
            .map(|reason| (reason.name(), sent.dropped(reason).frames))
            .filter(|(_, frames)| *frames > 0)
            .collect()
    }
}
