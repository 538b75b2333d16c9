//! veth pairs over rtnetlink.
//!
//! 1. `make` creates one pair with one queue in each direction. MTU and MACs are set at creation,
//!    and an alias names the owner. The application's end is in a network namespace of its own, so
//!    that the socket made there can be bound to no other interface.
//! 2. IPv6 is switched off before the ends come up, or the kernel would send router solicitations
//!    from them. This applies to the application's end always, and to the host's end unless the
//!    VNIC has an IPv6 address. Then that end configures no address itself, runs no duplicate
//!    address detection, and ignores router advertisements.
//! 3. Without transmit checksumming, the host's end cannot send a packet that consists of fragments
//!    of memory: each would be copied into one. So checksumming stays on, the frames carry
//!    unfinished checksums, and the application is notified. Behind an uplink it is switched off.
//! 4. The host's end gets the host's addresses as /32 and /128, host routes to the VNIC, and
//!    permanent neighbour entries. So the VNIC need not answer ARP or neighbour solicitations. The
//!    application's end gets no address and no ARP.
//! 5. `remove`: deleting one end deletes the pair.
//!
//! Interfaces are looked up over netlink. `/sys` shows only those of the namespace in which it was
//! mounted.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};

use sietch_nic::namespace::Namespace;
use sietch_nic::xdp::netlink;

use super::{DeviceError, VnicPlan};

/// Indexes of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// The host's end.
    pub host: u32,
    /// The application's end.
    pub application: u32,
    /// The number of the namespace that contains it, if that is not the host's.
    pub namespace: Option<i32>,
}

fn fail(plan: &VnicPlan, action: &str, cause: impl std::fmt::Display) -> DeviceError {
    DeviceError {
        what: format!("VNIC {}: veth {}", plan.name, plan.host_interface),
        cause: format!("cannot {action}: {cause}"),
        fix: "run the daemon with CAP_NET_ADMIN (as root), or use `--net linux`".to_owned(),
    }
}

/// A request for a link of `name`.
async fn find(handle: &Handle, name: &str) -> Option<LinkMessage> {
    let mut links = pin!(handle.link().get().match_name(name).execute());
    links.try_next().await.ok().flatten()
}

/// The index of the interface `name`.
pub(super) async fn index_of(handle: &Handle, name: &str) -> Option<u32> {
    find(handle, name).await.map(|link| link.header.index)
}

/// The MTU of the interface `name`.
pub(super) async fn mtu_of(handle: &Handle, name: &str) -> Option<u32> {
    find(handle, name).await?.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// The two ends, if the pair exists. The kernel reports the peer of the host's end.
pub(super) async fn ends(handle: &Handle, plan: &VnicPlan) -> Option<Ends> {
    let host = find(handle, &plan.host_interface).await?;
    let attribute = |of: &dyn Fn(&LinkAttribute) -> Option<u32>| host.attributes.iter().find_map(of);
    let application = attribute(&|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })?;
    let namespace = host.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkNetNsId(number) => Some(*number),
        _ => None,
    });
    Some(Ends { host: host.header.index, application, namespace })
}

/// Makes the pair. Both ends are still down.
pub(super) async fn make(
    handle: &Handle,
    plan: &VnicPlan,
    alias: &str,
    namespace: &Namespace,
) -> Result<Ends, DeviceError> {
    if let Some(found) = find(handle, &plan.host_interface).await {
        if alias_of(&found).is_some_and(|found| found == alias) {
            remove(handle, plan).await?;
        } else {
            return Err(DeviceError {
                what: format!("VNIC {}", plan.name),
                cause: format!("there is an interface {} that this daemon did not make", plan.host_interface),
                fix: format!("give the VNIC another name, or `ip link del {}`", plan.host_interface),
            });
        }
    }
    let single = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];
    let mut peer =
        LinkUnspec::new_with_name(&plan.application_interface).address(plan.mac.0.to_vec()).mtu(plan.mtu);
    peer = peer.setns_by_fd(namespace.as_fd().as_raw_fd());
    let mut host = LinkVeth::new(&plan.host_interface, &plan.application_interface)
        .address(plan.host_mac.0.to_vec())
        .mtu(plan.mtu);
    for attribute in single {
        peer = peer.append_extra_attribute(attribute.clone());
        host = host.append_extra_attribute(attribute);
    }
    let host = host.set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    handle.link().add(host.build()).execute().await.map_err(|error| fail(plan, "create the pair", error))?;
    let ends = ends(handle, plan).await.ok_or_else(|| fail(plan, "find the pair", "it is not there"))?;
    let named = LinkUnspec::new_with_index(ends.host).alias(alias).build();
    handle.link().change(named).execute().await.map_err(|error| fail(plan, "mark the pair", error))?;
    prepare_ipv6(plan, namespace)?;
    Ok(ends)
}

/// Restricts what the kernel does by itself with IPv6 on both ends, as far as its settings permit.
fn prepare_ipv6(plan: &VnicPlan, namespace: &Namespace) -> Result<(), DeviceError> {
    // Mode 1 makes no link-local address.
    const QUIET: [(&str, &str); 4] =
        [("disable_ipv6", "0"), ("addr_gen_mode", "1"), ("accept_ra", "0"), ("router_solicitations", "0")];
    const OFF: [(&str, &str); 1] = [("disable_ipv6", "1")];
    let host: &[_] = if plan.ipv6.is_some() { &QUIET } else { &OFF };
    let set = |interface: &str, settings: &[(&str, &str)]| {
        settings.iter().try_for_each(|(name, value)| {
            match std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{name}"), value) {
                // A kernel without IPv6 has nothing to switch off.
                Err(error) if plan.ipv6.is_some() || error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error)
                }
                _ => Ok(()),
            }
        })
    };
    // What a thread sees there are the settings of its own namespace.
    let inside = namespace.enter(|| set(&plan.application_interface, &OFF)).and_then(|set| set);
    set(&plan.host_interface, host).and(inside).map_err(|error| fail(plan, "configure its IPv6", error))
}

/// Brings both ends up and lets the host reach the VNIC.
pub(super) async fn bring_up(
    handle: &Handle,
    plan: &VnicPlan,
    ends: Ends,
    namespace: &Namespace,
    host_route: bool,
) -> Result<(), DeviceError> {
    namespace
        .enter(|| netlink::bring_up_quietly(ends.application))
        .map_err(|error| fail(plan, "enter its network namespace", error))?
        .map_err(|error| fail(plan, "bring it up", error))?;
    let host = LinkUnspec::new_with_index(ends.host).up().build();
    handle.link().change(host).execute().await.map_err(|error| fail(plan, "bring it up", error))?;
    if !host_route {
        return Ok(());
    }
    handle
        .address()
        .add(ends.host, IpAddr::V4(plan.host_address), 32)
        .replace()
        .execute()
        .await
        .map_err(|error| fail(plan, "give it the host address", error))?;
    handle
        .neighbours()
        .add(ends.host, IpAddr::V4(plan.address.address))
        .link_layer_address(&plan.mac.0)
        .state(NeighbourState::Permanent)
        .replace()
        .execute()
        .await
        .map_err(|error| fail(plan, "add the neighbour entry", error))?;
    let route = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
        .destination_prefix(plan.address.address, 32)
        .output_interface(ends.host)
        .pref_source(plan.host_address)
        .scope(RouteScope::Link)
        .build();
    handle
        .route()
        .add(route)
        .replace()
        .execute()
        .await
        .map_err(|error| fail(plan, "add the route to the VNIC", error))?;
    match plan.ipv6 {
        Some((own, host)) => lead6(handle, plan, ends, own.address, host).await,
        None => Ok(()),
    }
}

/// Lets the host reach the VNIC over IPv6.
async fn lead6(
    handle: &Handle,
    plan: &VnicPlan,
    ends: Ends,
    own: Ipv6Addr,
    host: Ipv6Addr,
) -> Result<(), DeviceError> {
    let mut address = handle.address().add(ends.host, IpAddr::V6(host), 128).replace();
    // This link has no other host. Without duplicate address detection the address can be the
    // route's source at once.
    address.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    let addressed = address.execute().await;
    addressed.map_err(|error| fail(plan, "give it the host's IPv6 address", error))?;
    handle
        .neighbours()
        .add(ends.host, IpAddr::V6(own))
        .link_layer_address(&plan.mac.0)
        .state(NeighbourState::Permanent)
        .replace()
        .execute()
        .await
        .map_err(|error| fail(plan, "add the IPv6 neighbour entry", error))?;
    let route = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(own, 128)
        .output_interface(ends.host)
        .pref_source(host)
        .build();
    let routed = handle.route().add(route).replace().execute().await;
    routed.map_err(|error| fail(plan, "add the IPv6 route to the VNIC", error))
}

/// Deletes the pair if it is there.
pub(super) async fn remove(handle: &Handle, plan: &VnicPlan) -> Result<(), DeviceError> {
    let Some(index) = index_of(handle, &plan.host_interface).await else {
        return Ok(());
    };
    match handle.link().del(index).execute().await {
        Err(_) if index_of(handle, &plan.host_interface).await.is_none() => Ok(()),
        result => result.map_err(|error| fail(plan, "delete it", error)),
    }
}

fn alias_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Deletes pairs whose alias starts with `owner` and whose host end is not in `keep`; returns their
/// names.
pub(super) async fn remove_others(
    handle: &Handle,
    owner: &str,
    keep: &[String],
) -> Result<Vec<String>, DeviceError> {
    let failure = |error: rtnetlink::Error| DeviceError {
        what: "veths without an owner".to_owned(),
        cause: format!("cannot list or delete them: {error}"),
        fix: "see `ip link` and delete those named sv-*".to_owned(),
    };
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.map_err(failure)?;
    let mut removed = Vec::new();
    for link in links {
        let (Some(name), Some(alias)) = (name_of(&link), alias_of(&link)) else { continue };
        let end = name.strip_suffix("-a").unwrap_or(name);
        if !alias.starts_with(owner) || keep.iter().any(|kept| kept == end) {
            continue;
        }
        // Deleting one end deletes the other, which is in the list too. A missing interface is no
        // error.
        if handle.link().del(link.header.index).execute().await.is_ok() {
            removed.push(name.to_owned());
        } else if index_of(handle, name).await.is_some() {
            return Err(failure(rtnetlink::Error::RequestFailed));
        }
    }
    Ok(removed)
}
