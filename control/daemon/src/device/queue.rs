//! The AF_XDP socket and the XDP programs of one VNIC, in the terms of `sietch-nic`.
//!
//! 1. The MTU decides whether the socket and the filters are made for frames in several buffers.
//! 2. Opening, first step: with an uplink, checksum offload is switched off on the host's end,
//!    because the uplink joins it with frames from other machines. Without an uplink, the
//!    application is notified that the host leaves checksums unfinished.
//! 3. Opening, next steps: the socket is made in the namespace of the application's end, then the
//!    filters on both ends. The descriptors leave this process only after the filters are attached.
//!    The socket is bound when the holder has mapped its rings.
//! 4. Closing: the filters drop everything, then the uplink forgets the VNIC. The veth is removed
//!    after that.
//! 5. Behind an uplink, neighbour solicitations for the VNIC's IPv6 address come to a multicast
//!    group. A socket of the daemon joins that group on that interface, so that the card receives
//!    its frames and switches that snoop (RFC 4541) send them. The kernel sends the group's
//!    reports, because a VNIC's filter lets none out.
//! 6. The programs outlive the daemon, attached to their interfaces. Adopting finds them there.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{set_ipv6_add_membership, set_ipv6_drop_membership, socket_cookie};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sietch_nic::af_xdp::{self, RingWatch};
use sietch_nic::namespace::Namespace;
use sietch_nic::xdp::offload::VlanOffloads;
use sietch_nic::xdp::{
    self, Buffers, DirectionCounters, Ipv4Prefix, Ipv6Prefix, Reason, VnicPrograms, VnicSpec, offload,
};
use sietch_protocol::metrics::{Kind, Metric};
use sietch_protocol::{PortRange, XskLayout};

use super::holder::SocketFound;
use super::veth::Ends;
use super::{DeviceError, OpenedVnic, UplinkBefore, VnicPlan};
use crate::identity::boot;

/// A veth of one queue has this one.
const QUEUE: u32 = 0;
/// What a VNIC may send at once at least: the longest frame, and then some.
const MIN_BURST: u64 = xdp::vnic::MINIMUM_LARGE_BURST;
/// The largest MTU of a veth whose filters see each frame in one buffer.
pub(super) const MAX_SINGLE_MTU: u32 = 3498;
/// The share of a second's bytes that a VNIC may send at once: a millisecond's.
const BURST_SHARE: u64 = 1000;

/// What the daemon has of one VNIC.
pub(super) struct Programs {
    /// On both ends of the pair.
    filters: VnicPrograms,
    /// The watch over the rings that the kernel reads, or the reason why there is none.
    watch: Result<RingWatch, String>,
    /// The socket and where it is to be bound, until it is.
    unbound: Option<(OwnedFd, af_xdp::XskLayout)>,
}

/// The program on a physical interface.
pub(super) struct Uplink {
    program: xdp::Uplink,
    ifindex: u32,
    /// The setting of the VLAN tag offload before a daemon changed it.
    stripped: VlanOffloads,
    /// In the groups of all VNICs with IPv6; none on a kernel without it.
    listener: Option<OwnedFd>,
}

impl Uplink {
    /// Adds the VNIC to the uplink, which passes its frames to the host's end of its pair.
    fn serve(&mut self, plan: &VnicPlan, host: u32) -> Result<(), DeviceError> {
        self.program
            .add(plan.address.address, plan.mac.0, host)
            .and_then(|()| match plan.ipv6 {
                Some((own, _)) => self.program.add6(own.address, plan.mac.0, plan.address.address),
                None => Ok(()),
            })
            .map_err(|error| fail(of(plan), "join the uplink", error))?;
        self.listen(plan, true);
        Ok(())
    }

    /// Removes the VNIC from the uplink, also if an earlier daemon added it.
    pub(super) fn forget(&mut self, plan: &VnicPlan) {
        self.listen(plan, false);
        let six = plan.ipv6.map(|(own, _)| self.program.remove6(own.address));
        let four = self.program.remove(plan.address.address);
        for error in [Some(four), six].into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(vnic = plan.name, %error, "the uplink could not remove it");
        }
    }

    /// Forgets all VNICs but these.
    pub(super) fn retain(&mut self, plans: &[&VnicPlan]) -> Result<(), DeviceError> {
        let addresses: Vec<_> = plans.iter().map(|plan| plan.address.address).collect();
        let addresses6: Vec<_> =
            plans.iter().filter_map(|plan| plan.ipv6).map(|(own, _)| own.address).collect();
        let kept = self.program.retain(&addresses, &addresses6);
        kept.map_err(|error| fail("uplink".to_owned(), "forget VNICs that have ended", error))
    }

    /// Joins or leaves the solicited-node group of a VNIC's IPv6 address (RFC 4291 section 2.7.1).
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
    let fix = "see `sietch doctor`, or use `--net linux`".to_owned();
    DeviceError { what, cause: format!("cannot {action}: {cause}"), fix }
}

fn of(plan: &VnicPlan) -> String {
    format!("VNIC {}", plan.name)
}

/// What an uplink is like before this daemon changes it, or was before an earlier one did.
pub(super) fn uplink_before(ifindex: u32, remembered: Option<UplinkBefore>) -> Option<UplinkBefore> {
    let now = offload::tags_taken_off(ifindex).ok()?;
    let same = |before: &UplinkBefore| (before.ifindex, before.boot.as_str()) == (ifindex, boot());
    let before = remembered.filter(same);
    let was = |of: fn(&UplinkBefore) -> bool| before.as_ref().is_some_and(of);
    Some(UplinkBefore {
        ifindex,
        boot: boot().to_owned(),
        customer_tags: now.customer || was(|before| before.customer_tags),
        service_tags: now.service || was(|before| before.service_tags),
    })
}

/// Takes over the program that an earlier daemon left on `name`, or attaches one.
pub(super) fn join_uplink(
    name: &str,
    ifindex: u32,
    before: Option<&UplinkBefore>,
) -> Result<Uplink, DeviceError> {
    let mut stripped = offload::keep_vlan_tags(ifindex)
        .map_err(|error| fail(format!("uplink {name}"), "see the VLAN tags of its frames", error))?;
    if let Some(before) = before.filter(|before| before.ifindex == ifindex) {
        stripped.customer |= before.customer_tags;
        stripped.service |= before.service_tags;
    }
    let program = xdp::Uplink::adopt(ifindex)
        .or_else(|_| xdp::Uplink::attach(ifindex))
        .map_err(|error| fail(format!("uplink {name}"), "attach its program", error))?;
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None).ok();
    Ok(Uplink { program, ifindex, listener, stripped })
}

pub(super) fn leave_uplink(uplink: Uplink) {
    if uplink.stripped != VlanOffloads::default()
        && let Err(error) = offload::strip_vlan_tags(uplink.ifindex, uplink.stripped)
    {
        tracing::warn!(%error, "the VLAN tag offload of the uplink could not be restored");
    }
    if let Err(error) = uplink.program.detach() {
        tracing::warn!(%error, "the program of the uplink could not be removed");
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
    Ends { host, application, .. }: Ends,
    namespace: &Namespace,
    uplink: Option<&mut Uplink>,
) -> Result<(OpenedVnic, Programs), DeviceError> {
    if uplink.is_some() {
        xdp::offload::disable_transmit_checksum(host)
            .map_err(|error| fail(of(plan), "switch checksum offload off", error))?;
    }
    let buffers = if plan.mtu > MAX_SINGLE_MTU { Buffers::Several } else { Buffers::One };
    let layout = layout(plan, application)?;
    let granted = namespace
        .enter(|| af_xdp::create(layout))
        .map_err(|error| fail(of(plan), "enter its network namespace", error))?
        .map_err(|error| fail(of(plan), "make its AF_XDP socket", error))?;
    let socket = granted.socket.as_fd();
    let watch = RingWatch::over(socket, &layout)
        .map_err(|error| fail(of(plan), "map the rings to watch them", error))?;
    let cookie = socket_cookie(socket).map_err(|error| fail(of(plan), "read its socket's cookie", error))?;
    let unbound =
        socket.try_clone_to_owned().map_err(|error| fail(of(plan), "keep its AF_XDP socket", error))?;
    let specification = specification(plan, uplink.as_deref());
    let socket = (granted.socket.as_fd(), QUEUE);
    let inside = (application, Some(namespace));
    let programs = VnicPrograms::install_in(&specification, inside, host, socket, buffers)
        .map_err(|error| fail(of(plan), "install its filters", error))?;
    if let Some(uplink) = &uplink
        && uplink.ifindex == host
    {
        return Err(fail(of(plan), "join the uplink", "it is this VNIC's own interface"));
    }
    let behind_uplink = uplink.is_some();
    if let Some(uplink) = uplink {
        uplink.serve(plan, host)?;
    }
    let layout = granted.layout;
    let opened = OpenedVnic {
        xsk: granted.socket,
        umem: granted.umem,
        layout: XskLayout {
            ifindex: layout.ifindex,
            queue: layout.queue,
            chunk_size: layout.chunk_size,
            chunks: layout.chunks,
            fill: layout.fill,
            completion: layout.completion,
            receive: layout.receive,
            transmit: layout.transmit,
            runs: layout.runs,
            run_chunks: layout.run_chunks,
            unfinished_checksums: !behind_uplink,
        },
        mtu: plan.mtu,
        gateway_mac: (!behind_uplink).then_some(plan.host_mac),
        cookie,
    };
    Ok((opened, Programs { filters: programs, watch: Ok(watch), unbound: Some((unbound, layout)) }))
}

/// Binds the socket, once.
pub(super) fn bind(plan: &VnicPlan, programs: &mut Programs) -> Result<(), DeviceError> {
    let Some((socket, layout)) = &programs.unbound else {
        return Err(fail(of(plan), "bind its AF_XDP socket", "it is bound already"));
    };
    af_xdp::bind_queue(socket.as_fd(), layout)
        .map_err(|error| fail(of(plan), "bind its AF_XDP socket", error))?;
    programs.unbound = None;
    Ok(())
}

/// Why no frame passes, or what of the protection is missing.
pub(super) fn problem(programs: &Programs) -> Option<String> {
    if programs.unbound.is_some() {
        return Some("its holder has not mapped the rings yet: no frame passes".to_owned());
    }
    programs.watch.as_ref().err().map(|why| format!("its rings are not watched: {why}"))
}

/// The entries that the holder's rings claim beyond their slots. If there are any, no more frames
/// are let in, and the kernel's walk is ended.
pub(super) fn ring_violation(programs: &mut Programs) -> Option<String> {
    let (ring, claimed) = programs.watch.as_ref().ok()?.overrun()?;
    if let Err(error) = programs.filters.set_enabled(false) {
        tracing::warn!(%error, "the filters of a VNIC whose rings are wrong could not be closed");
    }
    repair_rings(programs);
    Some(format!("its {ring} ring claims {claimed} entries, more than it has"))
}

/// Ends the kernel's walk over a holder's entries.
pub(super) fn repair_rings(programs: &Programs) {
    if let Ok(watch) = &programs.watch {
        watch.repair();
    }
}

/// A watch over the socket of `plan`, which is found among the descriptors of its holder.
///
/// # Errors
/// The outer one: the socket is not there, although all descriptors could be read. The inner one:
/// the descriptors could not be read, or the rings could not be mapped.
fn find_watch(
    plan: &VnicPlan,
    found: impl FnOnce() -> SocketFound,
    layout: &af_xdp::XskLayout,
) -> Result<Result<RingWatch, String>, String> {
    if plan.socket == 0 {
        return Ok(Err("an earlier version of the daemon made it; restart its application".to_owned()));
    }
    let socket = match found()? {
        Ok(socket) => socket,
        Err(why) => return Ok(Err(why)),
    };
    let mapped = RingWatch::over(&socket, layout);
    Ok(mapped.map_err(|error| {
        format!(
            "the kernel maps no rings of a bound socket ({error}); restart its application, or use Linux 6.4"
        )
    }))
}

pub(super) fn adopt(
    plan: &VnicPlan,
    ends: Ends,
    found: impl FnOnce() -> SocketFound,
    uplink: Option<&mut Uplink>,
) -> Result<Programs, DeviceError> {
    let programs = VnicPrograms::adopt((ends.application, ends.namespace), ends.host)
        .map_err(|error| fail(of(plan), "find its filters", error))?;
    if programs.generation() != plan.generation {
        let cause = format!("they are of generation {}, not {}", programs.generation(), plan.generation);
        return Err(fail(of(plan), "adopt its filters", cause));
    }
    let layout = layout(plan, ends.application)?;
    let watch = find_watch(plan, found, &layout).map_err(|cause| fail(of(plan), "watch its rings", cause))?;
    if let Err(why) = &watch {
        tracing::warn!(vnic = plan.name, why, "its rings are not watched");
    }
    if let Some(uplink) = uplink {
        // Its program may be new and lack the entry that an earlier daemon added to another one.
        uplink.serve(plan, ends.host)?;
    }
    Ok(Programs { filters: programs, watch, unbound: None })
}

fn layout(plan: &VnicPlan, application: u32) -> Result<af_xdp::XskLayout, DeviceError> {
    let mtu = usize::try_from(plan.mtu).unwrap_or(usize::MAX);
    af_xdp::XskLayout::for_mtu(application, QUEUE, mtu)
        .map_err(|error| fail(of(plan), "choose the size of its rings", error))
}

pub(super) fn close(plan: &VnicPlan, programs: Programs) {
    let Programs { mut filters, watch: _kept, .. } = programs;
    if let Err(error) = filters.set_enabled(false) {
        // The interface is removed next, which stops the traffic too.
        tracing::warn!(vnic = plan.name, %error, "its filters could not be closed");
    }
}

pub(super) fn counters(programs: &Programs) -> Vec<Metric> {
    let Ok(counters) = programs.filters.counters() else { return Vec::new() };
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
