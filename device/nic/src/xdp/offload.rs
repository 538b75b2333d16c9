//! Checksum offload of an interface: `ethtool -K IFACE tx off`, by ioctl.
//!
//! A veth passes frames with an unfinished L4 checksum (`CHECKSUM_PARTIAL`), counting on the receiver to be the same
//! kernel. An AF_XDP socket at the other end sees such a frame as corrupt. With transmit checksumming switched off on
//! the sending end the kernel finishes each checksum itself.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::XdpError;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

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
    // until the call returns, and these two commands read and write exactly an `ethtool_value`.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, std::ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
}
