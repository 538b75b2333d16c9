//! The AF_XDP socket and the XDP programs of one VNIC, in the terms of `sietch-nic`.
//!
//! 1. The MTU decides whether the socket and the filters are made for frames in several buffers.
//! 2. Opening: with an uplink, checksum offload off on the host's end, for it joins what comes from other machines; without, the application is
//!    told that the host leaves checksums unfinished. Then the socket bound to the application's end, then the filters on both ends. The
//!    descriptors leave this process only after the filters stand.
//! 3. Closing: the filters drop everything, then the uplink forgets the VNIC. The veth goes after that.
//! 4. Behind an uplink questions for the VNIC's IPv6 address come to a group. A socket of ours is in that group on that interface, so that the card
//!    takes its frames and switches that snoop (RFC 4541) send them: reports of groups are the kernel's, for a VNIC's filter lets none out.
//! 5. The programs outlive the daemon, attached to their interfaces; adopting finds them there.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{set_ipv6_add_membership, set_ipv6_drop_membership};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sietch_nic::af_xdp;
use sietch_nic::xdp::{
    self, Buffers, DirectionCounters, Ipv4Prefix, Ipv6Prefix, Reason, VnicPrograms, VnicSpec,
};
use sietch_protocol::metrics::{Kind, Metric};
use sietch_protocol::{Geometry, PortRange};

use super::{DeviceError, OpenedVnic, VnicPlan};

/// A veth of one queue has this one.
const QUEUE: u32 = 0;
/// What a VNIC may send at once at least: the longest frame, and then some.
const MIN_BURST: u64 = xdp::vnic::MINIMUM_LARGE_BURST;
/// The largest MTU of a veth whose filters see each frame in one buffer.
pub(super) const MAX_SINGLE_MTU: u32 = 3498;
/// The share of a second's bytes that a VNIC may send at once: a millisecond's.
const BURST_SHARE: u64 = 1000;

/// The programs on both ends of a pair.
pub(super) struct Programs(VnicPrograms);

/// The program on a physical interface.
pub(super) struct Uplink {
    program: xdp::Uplink,
    ifindex: u32,
    /// In the groups of all VNICs with IPv6; none on a kernel without it.
    listener: Option<OwnedFd>,
}

impl Uplink {
    /// Joins or leaves the group in which a VNIC's IPv6 address is asked for (RFC 4291 section 2.7.1).
    fn listen(&self, plan: &VnicPlan, join: bool) {
        let (Some((own, _)), Some(listener)) = (plan.ipv6, &self.listener) else { return };
        let [.., high, low] = own.address.segments();
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low);
        let change = if join { set_ipv6_add_membership } else { set_ipv6_drop_membership };
        if let Err(error) = change(listener, &group, self.ifindex) {
            let what = if join { "join" } else { "leave" };
            tracing::warn!(vnic = plan.name, %error, "cannot {what} {group} on the uplink");
        }
    }
}

fn fail(what: String, action: &str, cause: impl std::fmt::Display) -> DeviceError {
    let mend = "see `sietch doctor`, or use `--net linux`".to_owned();
    DeviceError { what, cause: format!("cannot {action}: {cause}"), mend }
}

fn of(plan: &VnicPlan) -> String {
    format!("VNIC {}", plan.name)
}

/// Takes the program that an earlier daemon left on `name`, or attaches one.
pub(super) fn join_uplink(name: &str, ifindex: u32) -> Result<Uplink, DeviceError> {
    let program = xdp::Uplink::adopt(ifindex)
        .or_else(|_| xdp::Uplink::attach(ifindex))
        .map_err(|error| fail(format!("uplink {name}"), "attach its program", error))?;
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None).ok();
    Ok(Uplink { program, ifindex, listener })
}

pub(super) fn leave_uplink(uplink: Uplink) {
    if let Err(error) = uplink.program.detach() {
        tracing::warn!(%error, "the uplink keeps its program");
    }
}

fn specification(plan: &VnicPlan, uplink: Option<&Uplink>) -> VnicSpec {
    let ranges = |ports: &[PortRange]| ports.iter().map(|range| range.first..=range.last).collect();
    let prefix = |network: &sietch_protocol::Network| Ipv4Prefix::new(network.address, network.prefix);
    let prefix6 = |network: &sietch_protocol::Network6| Ipv6Prefix::new(network.address, network.prefix);
    let rate = plan.rate.map(|rate| rate.bytes_per_second);
    VnicSpec {
        mac: plan.mac.0,
        address: plan.address.address,
        address6: plan.ipv6.map(|(own, _)| own.address),
        tcp_ports: ranges(&plan.tcp_ports),
        udp_ports: ranges(&plan.udp_ports),
        peers: plan.peers.iter().filter_map(prefix).collect(),
        peers6: plan.peers6.iter().filter_map(prefix6).collect(),
        rate,
        burst: rate.map_or(0, |rate| (rate / BURST_SHARE).max(MIN_BURST)),
        uplink: uplink.map(|uplink| uplink.ifindex),
        host_mac: plan.host_mac.0,
        generation: plan.generation,
    }
}

pub(super) fn open(
    plan: &VnicPlan,
    host: u32,
    application: u32,
    uplink: Option<&mut Uplink>,
) -> Result<(OpenedVnic, Programs), DeviceError> {
    if uplink.is_some() {
        xdp::offload::disable_transmit_checksum(host)
            .map_err(|error| fail(of(plan), "switch checksum offload off", error))?;
    }
    let buffers = if plan.mtu > MAX_SINGLE_MTU { Buffers::Several } else { Buffers::One };
    let mtu = usize::try_from(plan.mtu).unwrap_or(usize::MAX);
    let geometry = af_xdp::Geometry::for_mtu(application, QUEUE, mtu)
        .map_err(|error| fail(of(plan), "choose the size of its rings", error))?;
    let granted =
        af_xdp::create(geometry).map_err(|error| fail(of(plan), "make its AF_XDP socket", error))?;
    let specification = specification(plan, uplink.as_deref());
    let socket = (granted.socket.as_fd(), QUEUE);
    let programs = VnicPrograms::install(&specification, application, host, socket, buffers)
        .map_err(|error| fail(of(plan), "install its filters", error))?;
    if let Some(uplink) = &uplink
        && uplink.ifindex == host
    {
        return Err(fail(of(plan), "join the uplink", "it is this VNIC's own interface"));
    }
    let behind_uplink = uplink.is_some();
    if let Some(uplink) = uplink {
        uplink
            .program
            .add(plan.address.address, plan.mac.0, host)
            .and_then(|()| match plan.ipv6 {
                Some((own, _)) => uplink.program.add6(own.address, plan.mac.0, plan.address.address),
                None => Ok(()),
            })
            .map_err(|error| fail(of(plan), "join the uplink", error))?;
        uplink.listen(plan, true);
    }
    let geometry = granted.geometry;
    let opened = OpenedVnic {
        xsk: granted.socket,
        umem: granted.umem,
        geometry: Geometry {
            ifindex: geometry.ifindex,
            queue: geometry.queue,
            chunk_size: geometry.chunk_size,
            chunks: geometry.chunks,
            fill: geometry.fill,
            completion: geometry.completion,
            receive: geometry.receive,
            transmit: geometry.transmit,
            runs: geometry.runs,
            run_chunks: geometry.run_chunks,
            unfinished_checksums: !behind_uplink,
        },
        mtu: plan.mtu,
        gateway_mac: (!behind_uplink).then_some(plan.host_mac),
    };
    Ok((opened, Programs(programs)))
}

pub(super) fn adopt(
    plan: &VnicPlan,
    host: u32,
    application: u32,
    uplink: Option<&Uplink>,
) -> Result<Programs, DeviceError> {
    let programs =
        VnicPrograms::adopt(application, host).map_err(|error| fail(of(plan), "find its filters", error))?;
    if programs.generation() != plan.generation {
        let cause = format!("they are of generation {}, not {}", programs.generation(), plan.generation);
        return Err(fail(of(plan), "adopt its filters", cause));
    }
    if let Some(uplink) = uplink {
        uplink.listen(plan, true);
    }
    Ok(Programs(programs))
}

pub(super) fn close(plan: &VnicPlan, programs: Programs, uplink: Option<&mut Uplink>) {
    let Programs(mut programs) = programs;
    if let Err(error) = programs.set_enabled(false) {
        // The interface goes next, which stops the traffic too.
        tracing::warn!(vnic = plan.name, %error, "its filters could not be closed");
    }
    if let Some(uplink) = uplink {
        uplink.listen(plan, false);
        let six = plan.ipv6.map(|(own, _)| uplink.program.remove6(own.address));
        let four = uplink.program.remove(plan.address.address);
        for error in [Some(four), six].into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(vnic = plan.name, %error, "the uplink still knows it");
        }
    }
}

pub(super) fn counters(programs: &Programs) -> Vec<Metric> {
    let Ok(counters) = programs.0.counters() else { return Vec::new() };
    let mut metrics = Vec::new();
    let directions: [(&str, &DirectionCounters); 2] =
        [("received", &counters.received), ("transmitted", &counters.transmitted)];
    for (direction, counted) in directions {
        let mut add = |what: String, value: u64| {
            metrics.push(Metric { name: format!("{direction}.{what}"), kind: Kind::Counter, value });
        };
        add("frames".to_owned(), counted.passed.frames);
        add("bytes".to_owned(), counted.passed.bytes);
        for reason in Reason::ALL {
            let dropped = counted.dropped(reason).frames;
            add(format!("dropped.{}", reason.name()), dropped);
        }
    }
    metrics
}
