//! `[[link]]`: two VNICs joined by shared memory, with nothing in between.
//!
//! 1. A link has two ends. Each end is a VNIC of its own: a name, a user that may acquire it, and
//!    addresses. Ends and `[[vnic]]` tables share one namespace, because both are acquired the same
//!    way.
//! 2. The two ends have two addresses of one network. Different links may reuse addresses: a frame
//!    sent on a link reaches only its other end.
//! 3. There are no ports, peers or rates, because there is no component in between that could
//!    enforce them.

use serde::Deserialize;
use sietch_nic::shm;
use sietch_protocol::types::{Mac, Network, Network6, Size};
use toml::Spanned;

use super::error::ConfigurationError;
use super::limits::{MIN_MTU, MIN_MTU6};
use super::rules::{Rules, User, derived_mac, is_host};

/// The usual MTU of a link: large segments cost less a byte, and the frames in flight still fit a
/// second-level cache.
pub(super) const USUAL_LINK_MTU: u32 = 9000;
/// The largest MTU of a link: the longest IPv4 packet.
const MAX_LINK_MTU: u32 = 65_535;
/// The most memory of one side of a link: a fifth of a second of 10 Gbit/s, and no more than a
/// user's mistake may cost.
const MAX_LINK_MEMORY: u64 = 256 << 20;

/// A point-to-point link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Frames in flight each way.
    pub slots: u32,
    /// Bytes for frames in flight each way.
    pub data: u32,
    /// The two VNICs.
    pub ends: [LinkEnd; 2],
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEnd {
    /// The VNIC's name.
    pub name: String,
    /// The user that may acquire this end.
    pub uid: u32,
    /// Its address and network.
    pub address: Network,
    /// Its IPv6 address and network.
    pub address6: Option<Network6>,
    /// Its Ethernet address.
    pub mac: Mac,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkText {
    name: Spanned<String>,
    mtu: Option<Spanned<u32>>,
    memory: Option<Spanned<Size>>,
    #[serde(default)]
    pub(super) end: Vec<EndText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndText {
    name: Spanned<String>,
    uid: Spanned<User>,
    address: Spanned<Network>,
    address6: Option<Spanned<Network6>>,
    mac: Option<Spanned<Mac>>,
}

impl Rules<'_> {
    /// Checks one link. `taken` are the names of VNICs and of ends so far.
    pub(super) fn link(
        &self,
        text: LinkText,
        machine: &str,
        others: &[Link],
        taken: &mut Vec<String>,
    ) -> Result<Link, ConfigurationError> {
        let twice = others.iter().any(|other| other.name == *text.name.get_ref());
        let name = self.name("link", &text.name, twice)?;
        let (what, at) = (format!("link {name}"), text.name.span().start);
        let count = text.end.len();
        let ends = <[EndText; 2]>::try_from(text.end).map_err(|_| {
            let cause = format!("it has {count} ends");
            self.refuse(at, what.clone(), cause, "write two tables [[link.end]] after it")
        })?;
        let mut checked = Vec::new();
        for end in &ends {
            let end = self.end(end, machine, taken)?;
            taken.push(end.name.clone());
            checked.push(end);
        }
        let ends_of_one_network = "give both ends one address each, of one network";
        let [first, second] = <[LinkEnd; 2]>::try_from(checked)
            .map_err(|_| self.refuse(at, what.clone(), "it has not two ends", ends_of_one_network))?;
        let (near, far) = (first.address, second.address);
        let refuse = |cause: String| {
            Err(self.refuse(ends[1].address.span().start, what.clone(), cause, ends_of_one_network))
        };
        if near.address == far.address || near.prefix != far.prefix || !near.contains(far.address) {
            return refuse(format!("{near} and {far} are not two addresses of one network"));
        }
        if let (Some(near), Some(far)) = (first.address6, second.address6)
            && (near.address == far.address || near.prefix != far.prefix || !near.contains(far.address))
        {
            return refuse(format!("{near} and {far} are not two addresses of one network"));
        }
        if first.mac == second.mac {
            return refuse(format!("both have the Ethernet address {}", first.mac));
        }
        let with6 = first.address6.is_some() || second.address6.is_some();
        let (mtu, layout) = self.shape(at, &what, text.mtu, USUAL_LINK_MTU, text.memory, with6)?;
        Ok(Link { name, mtu, slots: layout.slots, data: layout.data, ends: [first, second] })
    }

    fn end(&self, end: &EndText, machine: &str, taken: &[String]) -> Result<LinkEnd, ConfigurationError> {
        let name = self.name("VNIC", &end.name, taken.contains(end.name.get_ref()))?;
        let what = format!("VNIC {name}");
        let address = *end.address.get_ref();
        let unicast = "give it a unicast address";
        if !is_host(address.address.into()) {
            let cause = format!("{} is no address of a host", address.address);
            return Err(self.refuse(end.address.span().start, what, cause, unicast));
        }
        if let Some(six) = &end.address6
            && !is_host(six.get_ref().address.into())
        {
            let cause = format!("{} is no address of a host", six.get_ref().address);
            return Err(self.refuse(six.span().start, what, cause, unicast));
        }
        let mac = match &end.mac {
            Some(mac) if !mac.get_ref().is_unicast() => {
                let cause = format!("{} is no address of one station", mac.get_ref());
                let fix = "make the first byte even, or leave mac out";
                return Err(self.refuse(mac.span().start, what, cause, fix));
            }
            Some(mac) => *mac.get_ref(),
            None => derived_mac(machine, &name, "vnic"),
        };
        let address6 = end.address6.as_ref().map(|six| *six.get_ref());
        Ok(LinkEnd { uid: self.uid(&what, &end.uid)?, name, address, address6, mac })
    }

    /// MTU and memory of a shared-memory VNIC.
    pub(super) fn shape(
        &self,
        at: usize,
        what: &str,
        mtu: Option<Spanned<u32>>,
        usual_mtu: u32,
        memory: Option<Spanned<Size>>,
        with6: bool,
    ) -> Result<(u32, shm::LinkLayout), ConfigurationError> {
        let place = mtu.as_ref().map_or(at, |mtu| mtu.span().start);
        let mtu = mtu.map_or(usual_mtu, Spanned::into_inner);
        let least = if with6 { MIN_MTU6 } else { MIN_MTU };
        if !(least..=MAX_LINK_MTU).contains(&mtu) {
            let cause = format!("an mtu of {mtu} is not between {least} and {MAX_LINK_MTU}");
            let fix = format!("leave it out for {usual_mtu}");
            return Err(self.refuse(place, what.to_owned(), cause, fix));
        }
        let bytes = usize::try_from(mtu).unwrap_or(usize::MAX);
        let usual = shm::LinkLayout::for_mtu(bytes);
        let Some(memory) = memory else { return Ok((mtu, usual)) };
        let place = memory.span().start;
        let size = memory.into_inner();
        let fix = format!("write a power of two up to {}, or leave it out", Size { bytes: MAX_LINK_MEMORY });
        let refuse = |cause: String| self.refuse(place, what.to_owned(), cause, fix.clone());
        let data = u32::try_from(size.bytes)
            .ok()
            .filter(|_| size.bytes <= MAX_LINK_MEMORY)
            .ok_or_else(|| refuse(format!("a memory of {size} is too much")))?;
        // A slot for every 2 KiB, as the usual layout has: then neither runs out long before the
        // other.
        let layout = shm::LinkLayout { slots: (data / 2048).clamp(usual.slots, 1 << 15), data };
        layout.validate().and_then(|()| layout.fits(bytes)).map_err(|error| refuse(error.to_string()))?;
        Ok((mtu, layout))
    }
}
