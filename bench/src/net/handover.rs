//! Hands the ends of a shared-memory link to two workers, as the control plane hands them to two applications.
//!
//! 1. [`link`] makes a pair and sends the descriptors of each side through a socket, of which the other end becomes a worker's stdin.
//! 2. [`take`] receives them there. A worker holds the three descriptors of its side and nothing else of the link.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sietch::nic::shm::{Endpoint, EndpointFds, Geometry, create_pair};

use crate::error::{Error, system};

/// The server's address on the link.
pub(super) const LINK_SERVER: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 2);

/// The client's.
pub(super) const LINK_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);

/// The largest packet on the link: what the kernel's loopback has, less what does not fit a frame of the link.
const MTU: usize = 65_000;

/// Makes a link; each descriptor is a socket in which the descriptors of one side wait.
pub(super) fn link() -> Result<(OwnedFd, OwnedFd), Error> {
    let pair = create_pair(Geometry::for_mtu(MTU), 1).map_err(system("making a link"))?;
    Ok((send(&pair.near)?, send(&pair.far)?))
}

fn send(fds: &EndpointFds) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(system("making a socket pair"))?;
    let descriptors = [fds.own.as_fd(), fds.peer.as_fd(), fds.bell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // The space is for exactly these.
    let _ = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&ours, &[std::io::IoSlice::new(b"L")], &mut ancillary, SendFlags::empty())
        .map_err(system("handing over a link"))?;
    Ok(theirs)
}

/// The end of the link that waits in stdin.
pub(super) fn take(host: u8) -> Result<Endpoint, Error> {
    let missing = || system("taking a link")(std::io::Error::other("stdin holds no descriptors"));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(std::io::stdin(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
        .map_err(system("taking a link"))?;
    let mut all: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            all.extend(descriptors);
        }
    }
    let mut all = all.into_iter();
    let mut next = || all.next().ok_or_else(missing);
    let fds = EndpointFds { own: next()?, peer: next()?, bell: next()? };
    Endpoint::open(fds, Geometry::for_mtu(MTU), [2, 0, 0, 0, 0, host], MTU)
        .map_err(|cause| system("opening a link")(std::io::Error::other(cause)))
}
