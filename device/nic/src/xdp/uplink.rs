//! The program on a physical interface that redirects to each VNIC its frames, and the daemon's
//! side of it.
//!
//! 1. Three kinds of frames are redirected into the peer's end of a VNIC's veth. These are IPv4 and
//!    IPv6 to the VNIC's granted address *and* MAC. ARP about its address passes to its MAC or by
//!    broadcast. Neighbour solicitations about its address pass to a group. They come out at the
//!    application's end, where the receive filter judges them.
//! 2. Everything else goes to the host as before, also packets to all nodes and to link-local
//!    addresses.
//! 3. A frame for a VNIC whose veth is deleted is dropped: the host must not answer for it.
//!
//! The interface must receive frames for the VNICs' MACs: give VNICs its own MAC, or make it
//! promiscuous. Its driver must transmit redirected frames (`ndo_xdp_xmit`); a veth does if its
//! other end carries an XDP program too.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use super::assembler::Register::{R0, R1, R2, R3, R7, R9};
use super::assembler::{AssembleError, Condition, Instruction, MapReference, Register, Size, Width};
use super::counters::{Rows, Tally};
use super::error::XdpError;
use super::frame::{
    Context, DROP, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameProgram, PASS, REDIRECT, wire16,
};
use super::kernel::{Buffers, Map, Program};
use super::layout::{
    MAGIC, UPLINK_CONFIG, UPLINK_COUNTERS, VNIC_DEVICES, VNICS, VNICS6, address_word, mac_word, word_mac,
};
use super::netlink::{self, Expect};

/// The program's name in the kernel.
pub(super) const NAME: &str = "sietch_uplink";

const ROW_REDIRECTED: i32 = 0;
const ROW_HOST: i32 = 1;
const ROW_LOST: i32 = 2;

/// The maps that the program names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UplinkMaps {
    /// [`UPLINK_CONFIG`]. The program only names it, so that the daemon can find it again.
    pub config: MapReference,
    /// [`VNICS`]
    pub vnics: MapReference,
    /// [`VNICS6`]
    pub vnics6: MapReference,
    /// [`VNIC_DEVICES`]
    pub devices: MapReference,
    /// [`UPLINK_COUNTERS`]
    pub counters: MapReference,
}

/// Builds the program.
///
/// # Errors
/// A mistake in this module.
pub(crate) fn assemble(maps: UplinkMaps, context: Context) -> Result<Vec<Instruction>, AssembleError> {
    let mut frame = FrameProgram::begin(context, maps.counters);
    let host = frame.code.label();
    let ipv4 = frame.code.label();
    let ipv6 = frame.code.label();
    let redirect = frame.code.label();
    let lost = frame.code.label();
    frame.code.set_map(R0, maps.config);
    frame.require(14, host);
    frame.load_mac(R9, R2, 0);
    frame.code.load(Size::Half, R1, R7, 12);
    frame.jump_if(Condition::Equal, R1, ETHERTYPE_IPV4, ipv4);
    frame.jump_if(Condition::Equal, R1, ETHERTYPE_IPV6, ipv6);
    frame.jump_if(Condition::NotEqual, R1, ETHERTYPE_ARP, host);
    // ARP for Ethernet and IPv4.
    frame.require(42, host);
    frame.code.load(Size::Word, R1, R7, 14);
    let ethernet_ipv4 = i32::from_ne_bytes([0, 1, 8, 0]);
    frame.code.jump_if(Width::Bits32, Condition::NotEqual, R1, ethernet_ipv4, host);
    frame.code.load(Size::Half, R1, R7, 18);
    frame.jump_if(Condition::NotEqual, R1, wire16(0x0604), host);
    look_up_vnic(&mut frame, maps.vnics, 38, host);
    frame.jump_if(Condition::Equal, R1, R9, redirect);
    frame.code.set_wide(R1, mac_word([0xff; 6]));
    frame.jump_if(Condition::Equal, R1, R9, redirect);
    frame.code.jump(host);
    frame.code.bind(ipv6);
    sort_ipv6(&mut frame, maps.vnics6, redirect, host);
    frame.code.bind(ipv4);
    frame.require(34, host);
    look_up_vnic(&mut frame, maps.vnics, 30, host);
    frame.jump_if(Condition::NotEqual, R1, R9, host);
    frame.code.bind(redirect);
    frame.reload_key(R2);
    frame.redirect(maps.devices);
    frame.jump_if(Condition::NotEqual, R7, REDIRECT, lost);
    frame.count_and_exit(ROW_REDIRECTED, REDIRECT);
    frame.code.bind(lost);
    frame.count_and_exit(ROW_LOST, DROP);
    frame.code.bind(host);
    frame.count_and_exit(ROW_HOST, PASS);
    frame.finish()
}

/// Decides where an IPv6 packet goes. A packet to a VNIC's address must have its MAC; a packet to a
/// group is a VNIC's if it asks about its address.
fn sort_ipv6(
    frame: &mut FrameProgram,
    vnics: MapReference,
    redirect: super::assembler::Label,
    host: super::assembler::Label,
) {
    const ICMP: i32 = 58;
    const SOLICITATION: i32 = 135;
    let group = frame.code.label();
    frame.require(54, host);
    frame.code.load(Size::Half, R1, R7, 0);
    frame.jump_if(Condition::Equal, R1, wire16(0x3333), group);
    frame.look_up_address6(vnics, 38);
    frame.jump_if(Condition::Equal, R0, 0, host);
    frame.code.load(Size::Double, R3, R0, 8);
    frame.set_key(R3);
    frame.code.load(Size::Double, R1, R0, 0);
    frame.jump_if(Condition::NotEqual, R1, R9, host);
    frame.code.jump(redirect);
    frame.code.bind(group);
    frame.require(78, host);
    frame.code.load(Size::Byte, R1, R7, 20);
    frame.jump_if(Condition::NotEqual, R1, ICMP, host);
    frame.code.load(Size::Byte, R1, R7, 54);
    frame.jump_if(Condition::NotEqual, R1, SOLICITATION, host);
    frame.look_up_address6(vnics, 62);
    frame.jump_if(Condition::Equal, R0, 0, host);
    frame.code.load(Size::Double, R3, R0, 8);
    frame.set_key(R3);
    frame.code.jump(redirect);
}

/// `R1 = ` the MAC of the VNIC whose address is at `offset`.
fn look_up_vnic(frame: &mut FrameProgram, vnics: MapReference, offset: i16, none: super::assembler::Label) {
    const ADDRESS: Register = R1;
    frame.code.load(Size::Word, ADDRESS, R7, offset);
    frame.look_up_key(vnics, ADDRESS);
    frame.jump_if(Condition::Equal, R0, 0, none);
    frame.code.load(Size::Double, R1, R0, 0);
}

/// What the program did with frames from the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkCounters {
    /// Redirected to a VNIC.
    pub redirected: Tally,
    /// Left to the host.
    pub host: Tally,
    /// For a VNIC whose veth is deleted.
    pub lost: Tally,
}

/// A physical interface that serves VNICs.
#[derive(Debug)]
pub struct Uplink {
    ifindex: u32,
    program: Program,
    vnics: Map,
    vnics6: Map,
    devices: Map,
    counters: Map,
}

impl Uplink {
    /// Attaches the program to an interface that carries none.
    ///
    /// # Errors
    /// [`XdpError`]; then nothing is attached.
    pub fn attach(ifindex: u32) -> Result<Self, XdpError> {
        let uplink = Self::load(ifindex)?;
        netlink::attach(ifindex, uplink.program.as_fd(), Expect::Nothing)?;
        Ok(uplink)
    }

    pub(super) fn load(ifindex: u32) -> Result<Self, XdpError> {
        let config = Map::create(UPLINK_CONFIG)?;
        let vnics = Map::create(VNICS)?;
        let vnics6 = Map::create(VNICS6)?;
        let devices = Map::create(VNIC_DEVICES)?;
        let counters = Map::create(UPLINK_COUNTERS)?;
        config.update(&0_u32.to_ne_bytes(), &config_row(ifindex))?;
        let of = |map: &Map| MapReference::of(map.as_fd());
        let code = assemble(
            UplinkMaps {
                config: of(&config),
                vnics: of(&vnics),
                vnics6: of(&vnics6),
                devices: of(&devices),
                counters: of(&counters),
            },
            Context::KERNEL,
        )
        .map_err(|source| XdpError::Assemble { program: NAME, source })?;
        Ok(Self {
            ifindex,
            program: Program::load(NAME, &code, Buffers::One)?,
            vnics,
            vnics6,
            devices,
            counters,
        })
    }

    /// Finds the program that an earlier process attached, with the VNICs it serves.
    ///
    /// # Errors
    /// [`XdpError::Foreign`] if what is there, if anything, is not Sietch's or not of this version.
    pub fn adopt(ifindex: u32) -> Result<Self, XdpError> {
        let (program, info) = super::attached_program(ifindex, None, NAME)?;
        let (_, config) = program.map(&info, ifindex, UPLINK_CONFIG)?;
        let mut row = [0; 16];
        config.lookup(&0_u32.to_ne_bytes(), &mut row)?;
        if row != config_row(ifindex) {
            return Err(XdpError::Foreign {
                ifindex,
                reason: "its uplink program was made for another interface".to_owned(),
            });
        }
        let (_, vnics) = program.map(&info, ifindex, VNICS)?;
        let (_, vnics6) = program.map(&info, ifindex, VNICS6)?;
        let (_, devices) = program.map(&info, ifindex, VNIC_DEVICES)?;
        let (_, counters) = program.map(&info, ifindex, UPLINK_COUNTERS)?;
        Ok(Self { ifindex, program, vnics, vnics6, devices, counters })
    }

    /// Directs frames for `address` and `mac` to the VNIC whose peer's end is `peer_ifindex`,
    /// replacing an earlier entry.
    ///
    /// # Errors
    /// The kernel's refusal: no such interface, or too many VNICs.
    pub fn add(&mut self, address: Ipv4Addr, mac: [u8; 6], peer_ifindex: u32) -> Result<(), XdpError> {
        let key = key(address);
        self.devices.update(&key, &peer_ifindex.to_ne_bytes())?;
        self.vnics.update(&key, &mac_word(mac).to_ne_bytes())
    }

    /// Directs frames for the IPv6 address of the VNIC of `address`, which was added before, to it
    /// as well.
    ///
    /// # Errors
    /// The kernel's refusal: too many VNICs.
    pub fn add6(&mut self, address6: Ipv6Addr, mac: [u8; 6], address: Ipv4Addr) -> Result<(), XdpError> {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&mac_word(mac).to_ne_bytes());
        value[8..].copy_from_slice(&address_word(address).to_ne_bytes());
        self.vnics6.update(&address6.octets(), &value)
    }

    /// Stops serving an IPv6 address; `false` if it was not served.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove6(&mut self, address6: Ipv6Addr) -> Result<bool, XdpError> {
        self.vnics6.delete(&address6.octets())
    }

    /// Stops serving `address`; `false` if it was not served.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove(&mut self, address: Ipv4Addr) -> Result<bool, XdpError> {
        let key = key(address);
        let known = self.vnics.delete(&key)?;
        self.devices.delete(&key)?;
        Ok(known)
    }

    /// Stops serving every address but these.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn retain(&mut self, addresses: &[Ipv4Addr], addresses6: &[Ipv6Addr]) -> Result<(), XdpError> {
        let kept: Vec<[u8; 4]> = addresses.iter().map(|&address| key(address)).collect();
        for map in [&self.vnics, &self.devices] {
            for found in map.keys()? {
                if !kept.iter().any(|kept| found == kept) {
                    map.delete(&found)?;
                }
            }
        }
        for found in self.vnics6.keys()? {
            if !addresses6.iter().any(|kept| found == kept.octets()) {
                self.vnics6.delete(&found)?;
            }
        }
        Ok(())
    }

    /// The VNICs that are served.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn vnics(&self) -> Result<Vec<(Ipv4Addr, [u8; 6])>, XdpError> {
        let mut vnics = Vec::new();
        for key in self.vnics.keys()? {
            let mut value = [0; 8];
            if let Ok(octets) = <[u8; 4]>::try_from(key.as_slice())
                && self.vnics.lookup(&key, &mut value)?
            {
                vnics.push((Ipv4Addr::from(octets), word_mac(u64::from_ne_bytes(value))));
            }
        }
        vnics.sort_unstable();
        Ok(vnics)
    }

    /// What the program counted since it was loaded.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn counters(&self) -> Result<UplinkCounters, XdpError> {
        let mut rows = Rows::new(&self.counters)?;
        Ok(UplinkCounters {
            redirected: rows.read(ROW_REDIRECTED as u32)?,
            host: rows.read(ROW_HOST as u32)?,
            lost: rows.read(ROW_LOST as u32)?,
        })
    }

    /// Removes the program from the interface.
    ///
    /// # Errors
    /// It was replaced, or the kernel refused.
    pub fn detach(self) -> Result<(), XdpError> {
        super::detach_if_there(self.ifindex, &self.program)
    }

    /// The program, to run it over test frames.
    #[cfg(test)]
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }
}

fn key(address: Ipv4Addr) -> [u8; 4] {
    // The upper half of an address's word is zero.
    (address_word(address) as u32).to_ne_bytes()
}

fn config_row(ifindex: u32) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    row[8..].copy_from_slice(&u64::from(ifindex).to_ne_bytes());
    row
}
