//! What the control plane grants for an area behind a broker.
//!
//! 1. The memory is a fresh memfd, so its bytes are zero. It is sized, its header is written, and
//!    it is sealed: no process can shrink it while another has it mapped. Only the control plane's
//!    user can open it anew.
//! 2. The doorbell is a pair of stream sockets. Each side has an open file of its own, so neither
//!    can make the other block; and neither accepts descriptors ([`socket_pair`]).
//! 3. The control plane keeps nothing of it: the broker takes an area back, by letting nothing more
//!    through.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate};
use rustix::io::pwrite;
use rustix::net::SocketFlags;
use sietch_protocol::closer::PeerSocket;
use sietch_ring::socket_pair;

use super::layout::BrokerLayout;

/// What one side is given.
#[derive(Debug)]
pub struct BrokerFds {
    /// The shared memory.
    pub memory: OwnedFd,
    /// This side's end of the doorbell.
    pub doorbell: OwnedFd,
}

/// Both sides of a new grant.
#[derive(Debug)]
pub struct BrokerPair {
    /// The application's.
    pub application: BrokerFds,
    /// The service core's.
    pub host: BrokerFds,
}

/// An end of a doorbell whose other end has a process of `uid`, as it is used and closed.
pub fn peer_socket(doorbell: OwnedFd, uid: u32) -> PeerSocket {
    let refuses = socket_pair::refuses_descriptors(&doorbell);
    PeerSocket::new(doorbell, refuses, uid)
}

/// Makes zeroed, sealed memory of that shape, and a doorbell.
///
/// # Errors
/// A layout out of bounds (`InvalidInput`), or those of the system calls.
pub fn create_pair(layout: BrokerLayout, generation: u64) -> io::Result<BrokerPair> {
    if !layout.is_valid() {
        let cause = format!("shared memory of that shape is none of an area: {layout:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    }
    let flags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
    let memory = rustix::fs::memfd_create("sietch-area", flags)?;
    ftruncate(&memory, layout.bytes() as u64)?;
    pwrite(&memory, &layout.header(generation), 0)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL))?;
    fchmod(&memory, Mode::RUSR.union(Mode::WUSR))?;
    let (near, far) = socket_pair::pair(SocketFlags::NONBLOCK)?;
    Ok(BrokerPair {
        application: BrokerFds { memory: memory.try_clone()?, doorbell: near },
        host: BrokerFds { memory, doorbell: far },
    })
}
