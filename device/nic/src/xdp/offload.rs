//! Offloads of an interface that XDP must not meet: `ethtool -K IFACE tx off`, `rxvlan off` and
//! `rx-vlan-stag-hw-parse off`, by ioctl.
//!
//! A veth passes frames with an unfinished L4 checksum (`CHECKSUM_PARTIAL`), counting on the
//! receiver to be the same kernel. An AF_XDP socket at the other end sees such a frame as corrupt.
//! With transmit checksumming switched off on the sending end the kernel finishes each checksum
//! itself.
//!
//! A device that takes VLAN tags off received frames keeps them where XDP does not see them. A
//! frame of another network is then indistinguishable from one of this network.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::XdpError;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
/// The set of strings that are names of features, and the bytes of each.
const ETH_SS_FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;

/// The device takes VLAN tags off received frames: those of 802.1Q, and those of 802.1ad.
const CUSTOMER: &str = "rx-vlan-hw-parse";
const SERVICE: &str = "rx-vlan-stag-hw-parse";

/// Switches transmit checksumming off, so that every frame leaves `ifindex` with a true checksum.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface, no CAP_NET_ADMIN, or a driver that refuses.
pub fn disable_transmit_checksum(ifindex: u32) -> Result<(), XdpError> {
    ethtool(ifindex, ETHTOOL_STXCSUM, 0)?;
    if transmit_checksum(ifindex)? {
        return Err(XdpError::Interface {
            ifindex,
            what: "switch transmit checksum offload off",
            source: io::Error::other("the driver keeps it on"),
        });
    }
    Ok(())
}

/// Whether `ifindex` leaves checksums to its device.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface.
pub(crate) fn transmit_checksum(ifindex: u32) -> Result<bool, XdpError> {
    Ok(ethtool(ifindex, ETHTOOL_GTXCSUM, 0)? != 0)
}

/// Which VLAN tags a device takes off received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanOffloads {
    /// Those of 802.1Q (`rx-vlan-hw-parse`, which ethtool also calls `rxvlan`).
    pub customer: bool,
    /// Those of 802.1ad (`rx-vlan-stag-hw-parse`).
    pub service: bool,
}

impl VlanOffloads {
    fn any(self) -> bool {
        self.customer || self.service
    }
}

/// What an interface's driver can do, and does: a bit for each name.
struct Features {
    names: Vec<String>,
    active: Vec<u32>,
}

impl Features {
    fn of(ifindex: u32) -> io::Result<Self> {
        let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
        // A number of eight bytes, in which the set has a bit.
        let mask = (1_u64 << ETH_SS_FEATURES).to_ne_bytes();
        for (word, bytes) in info[2..4].iter_mut().zip(mask.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        exchange(ifindex, &mut info)?;
        let count = info[4] as usize;
        let mut strings = vec![0; 3 + count * NAME_BYTES / 4];
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info[4]]);
        exchange(ifindex, &mut strings)?;
        let bytes: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        let names = bytes.chunks_exact(NAME_BYTES).map(name);
        let names = names.map(|name| String::from_utf8_lossy(&name).into_owned()).collect();
        let words = count.div_ceil(32);
        // Of each 32: available, requested, active, never changed.
        let mut state = vec![0; 2 + words * 4];
        state[..2].copy_from_slice(&[ETHTOOL_GFEATURES, words as u32]);
        exchange(ifindex, &mut state)?;
        Ok(Self { names, active: state[2..].chunks_exact(4).map(|block| block[2]).collect() })
    }

    fn place(&self, name: &str) -> Option<(usize, u32)> {
        let at = self.names.iter().position(|other| other == name)?;
        Some((at / 32, 1 << (at % 32)))
    }

    fn is_active(&self, name: &str) -> bool {
        self.place(name)
            .is_some_and(|(word, bit)| self.active.get(word).is_some_and(|active| active & bit != 0))
    }

    fn tags(&self) -> VlanOffloads {
        VlanOffloads { customer: self.is_active(CUSTOMER), service: self.is_active(SERVICE) }
    }

    /// Requests some of them to be switched on, or off.
    fn set(&self, ifindex: u32, tags: VlanOffloads, on: bool) -> io::Result<()> {
        let mut request = vec![0; 2 + self.active.len() * 2];
        request[..2].copy_from_slice(&[ETHTOOL_SFEATURES, self.active.len() as u32]);
        let wanted = [(CUSTOMER, tags.customer), (SERVICE, tags.service)];
        for (word, bit) in wanted.iter().filter(|(_, is)| *is).filter_map(|(name, _)| self.place(name)) {
            request[2 + word * 2] |= bit;
            request[3 + word * 2] |= if on { bit } else { 0 };
        }
        exchange(ifindex, &mut request)
    }
}

/// Which VLAN tags `ifindex` takes off the frames that it receives.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface.
pub fn tags_taken_off(ifindex: u32) -> Result<VlanOffloads, XdpError> {
    let what = "ask which VLAN tags are taken off received frames (`ethtool -k IFACE`)";
    Features::of(ifindex).map(|features| features.tags()).map_err(|source| XdpError::Interface {
        ifindex,
        what,
        source,
    })
}

/// Has `ifindex` leave VLAN tags in the frames that it receives. Says which it took off before.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface, no CAP_NET_ADMIN, or a driver that refuses.
pub fn keep_vlan_tags(ifindex: u32) -> Result<VlanOffloads, XdpError> {
    const WHAT: &str =
        "have VLAN tags left in received frames (`ethtool -K IFACE rxvlan off rx-vlan-stag-hw-parse off`)";
    let failed = |source| XdpError::Interface { ifindex, what: WHAT, source };
    let features = Features::of(ifindex).map_err(failed)?;
    let before = features.tags();
    if before.any() {
        features.set(ifindex, before, false).map_err(failed)?;
        if Features::of(ifindex).map_err(failed)?.tags().any() {
            return Err(failed(io::Error::other("the driver takes them off all the same")));
        }
    }
    Ok(before)
}

/// Lets `ifindex` take VLAN tags off received frames again.
///
/// # Errors
/// As [`keep_vlan_tags`].
pub fn strip_vlan_tags(ifindex: u32, tags: VlanOffloads) -> Result<(), XdpError> {
    let what =
        "have VLAN tags taken off received frames (`ethtool -K IFACE rxvlan on rx-vlan-stag-hw-parse on`)";
    let set = Features::of(ifindex).and_then(|features| features.set(ifindex, tags, true));
    set.map_err(|source| XdpError::Interface { ifindex, what, source })
}

fn ethtool(ifindex: u32, command: u32, data: u32) -> Result<u32, XdpError> {
    call(ifindex, command, data).map_err(|source| XdpError::Interface {
        ifindex,
        what: "ask or set transmit checksum offload (ethtool ioctl)",
        source,
    })
}

fn call(ifindex: u32, command: u32, data: u32) -> io::Result<u32> {
    let mut value = [command, data];
    exchange(ifindex, &mut value)?;
    Ok(value[1])
}

/// Passes to the kernel a command, which `value` begins with, and its data.
fn exchange(ifindex: u32, value: &mut [u32]) -> io::Result<()> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this fd, and no other code has its number.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: `name` has the IFNAMSIZ bytes that the function may write.
    if unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: value.as_mut_ptr().cast() },
    };
    // SAFETY: SIOCETHTOOL takes an ifreq whose data points at a command and what belongs to it.
    // Both live until the call returns. The commands of this module with a value read and write two
    // words, the others as many as the lengths in them say, which are those of `value`.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, std::ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
