//! Offloads of an interface that XDP must not meet: `ethtool -K IFACE tx off` and `rxvlan off`, by ioctl.
//!
//! A veth passes frames with an unfinished L4 checksum (`CHECKSUM_PARTIAL`), counting on the receiver to be the same
//! kernel. An AF_XDP socket at the other end sees such a frame as corrupt. With transmit checksumming switched off on
//! the sending end the kernel finishes each checksum itself.
//!
//! A device that takes VLAN tags off received frames keeps them where XDP does not see them: a frame of another network looks
//! like one of ours.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::XdpError;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
/// The device takes VLAN tags off received frames.
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Switches transmit checksumming off, so that every frame leaves `ifindex` with a true checksum.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface, no CAP_NET_ADMIN, or a driver that will not.
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
pub fn transmit_checksum(ifindex: u32) -> Result<bool, XdpError> {
    Ok(ethtool(ifindex, ETHTOOL_GTXCSUM, 0)? != 0)
}

/// Has `ifindex` leave VLAN tags in the frames that it receives. Says whether it took them off before.
///
/// # Errors
/// [`XdpError::Interface`]: no such interface, no CAP_NET_ADMIN, or a driver that will not.
pub fn keep_vlan_tags(ifindex: u32) -> Result<bool, XdpError> {
    const WHAT: &str = "have VLAN tags left in received frames (`ethtool -K IFACE rxvlan off`)";
    let failed = |source| XdpError::Interface { ifindex, what: WHAT, source };
    let flags = match call(ifindex, ETHTOOL_GFLAGS, 0) {
        // A driver without such flags takes nothing off.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(false),
        flags => flags.map_err(failed)?,
    };
    if flags & ETH_FLAG_RXVLAN == 0 {
        return Ok(false);
    }
    call(ifindex, ETHTOOL_SFLAGS, flags & !ETH_FLAG_RXVLAN).map_err(failed)?;
    if call(ifindex, ETHTOOL_GFLAGS, 0).map_err(failed)? & ETH_FLAG_RXVLAN != 0 {
        return Err(failed(io::Error::other("the driver takes them off all the same")));
    }
    Ok(true)
}

/// Lets `ifindex` take VLAN tags off received frames again.
///
/// # Errors
/// As [`keep_vlan_tags`].
pub fn strip_vlan_tags(ifindex: u32) -> Result<(), XdpError> {
    let what = "have VLAN tags taken off received frames (`ethtool -K IFACE rxvlan on`)";
    let failed = |source| XdpError::Interface { ifindex, what, source };
    let flags = call(ifindex, ETHTOOL_GFLAGS, 0).map_err(failed)?;
    call(ifindex, ETHTOOL_SFLAGS, flags | ETH_FLAG_RXVLAN).map_err(failed).map(|_| ())
}

fn ethtool(ifindex: u32, command: u32, data: u32) -> Result<u32, XdpError> {
    call(ifindex, command, data).map_err(|source| XdpError::Interface {
        ifindex,
        what: "ask or set transmit checksum offload (ethtool ioctl)",
        source,
    })
}

fn call(ifindex: u32, command: u32, data: u32) -> io::Result<u32> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this fd to us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: `name` has the IFNAMSIZ bytes that the function may write.
    if unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut value = EthtoolValue { command, data };
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: std::ptr::from_mut(&mut value).cast() },
    };
    // SAFETY: SIOCETHTOOL takes an ifreq whose data points at a struct that begins with its command; both live
    // until the call returns, and these commands read and write exactly an `ethtool_value`.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, std::ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
}
