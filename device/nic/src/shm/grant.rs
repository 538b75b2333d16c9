//! What the control plane grants for a link, and how it takes it back.
//!
//! 1. Each region is a fresh memfd, so its bytes are zero. It is sized, its header is written, and
//!    it is sealed: no process can shrink it while another has it mapped.
//! 2. Its owner gets the descriptor that can write. The other side gets one that was opened for
//!    reading: a mapping of it cannot be made writable. To keep it from being opened anew through
//!    /proc, the file's mode lets only the control plane's user open it (`fchmod` 0600). So sides
//!    that must not trust each other run as users other than the control plane's.
//! 3. The doorbell is a pair of stream sockets. Each side has an open file of its own, so neither
//!    can make the other block; and neither accepts descriptors ([`socket_pair`]).
//! 4. [`Revocation`] stays with the control plane. It sets the word `revoked` in both regions and
//!    shuts the doorbell: an honest side stops reading what the other writes, and sends it nothing
//!    more.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
};
use rustix::io::pwrite;
use rustix::net::{Shutdown, SocketFlags, shutdown};
use sietch_protocol::closer::PeerSocket;
use sietch_ring::{Mapping, SplitOwnershipLayout, SplitOwnershipRing, UntrustedMapping, socket_pair};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{
    CONSUMER, HEADER, Header, LinkLayout, LinkLayoutError, MAGIC, PRODUCER, REVOKED, RING, VERSION,
};

/// The descriptors that one side of a link gets.
#[derive(Debug)]
pub struct EndpointFds {
    /// Its own region, to be written.
    pub own: OwnedFd,
    /// The peer's region, read-only.
    pub peer: OwnedFd,
    /// Its end of the doorbell. What the other side sends over it is closed by a thread that may
    /// hang, wherever this is dropped.
    pub doorbell: PeerSocket,
}

impl EndpointFds {
    /// Of the descriptors that the control plane passed. `uid`: the user of the other side.
    pub fn received([own, peer, doorbell]: [OwnedFd; 3], uid: u32) -> Self {
        Self { own, peer, doorbell: peer_socket(doorbell).charged_to(uid) }
    }
}

/// Both sides of a new link.
#[derive(Debug)]
pub struct Pair {
    /// One side.
    pub near: EndpointFds,
    /// The other.
    pub far: EndpointFds,
    /// What the control plane keeps.
    pub revocation: Revocation,
}

impl Pair {
    /// Of a link whose near and far side have holders of these users: a thread of a user closes
    /// what he sent over the doorbell.
    #[must_use]
    pub fn charged_to(self, [near, far]: [u32; 2]) -> Self {
        let charged = |end: EndpointFds, uid| EndpointFds { doorbell: end.doorbell.charged_to(uid), ..end };
        let doorbell = self.revocation.doorbell.charged_to(far);
        Self {
            near: charged(self.near, far),
            far: charged(self.far, near),
            revocation: Revocation { doorbell, ..self.revocation },
        }
    }
}

/// Takes a link back.
#[derive(Debug)]
pub struct Revocation {
    regions: [OwnedFd; 2],
    doorbell: PeerSocket,
}

impl Revocation {
    /// Notifies both sides, whatever they are doing, that the link is over. May be repeated.
    ///
    /// # Errors
    /// Those of `pwrite(2)`; the doorbell is shut even so.
    pub fn revoke(&self) -> io::Result<()> {
        let notified: Result<(), _> = self
            .regions
            .iter()
            .try_for_each(|region| pwrite(region, &1_u32.to_ne_bytes(), REVOKED as u64).map(|_| ()));
        // Fails only if a side has closed its end already.
        let _ = shutdown(&self.doorbell, Shutdown::Both);
        notified.map_err(io::Error::from)
    }
}

/// Why a grant could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The numbers are wrong.
    #[error(transparent)]
    Layout(#[from] LinkLayoutError),
    /// A region could be shrunk while it is mapped.
    #[error("a region of the link is not sealed against shrinking: it did not come from the control plane")]
    NotSealed,
    /// A region has another size.
    #[error(
        "a region of the link has {actual} bytes instead of {expected}: the grant and its descriptors disagree"
    )]
    Size {
        /// By the layout.
        expected: u64,
        /// Of the file.
        actual: u64,
    },
    /// A region is not what it should be.
    #[error("the link's header has a wrong {0}: the regions are not two sides of one link of this version")]
    Header(&'static str),
    /// It was opened before.
    #[error("the link was opened before: ask the control plane for a new one")]
    Used,
    /// A system call failed.
    #[error("{step}: {source}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Makes a link: two zeroed, sealed regions and a doorbell.
///
/// # Errors
/// A layout out of bounds (`InvalidInput`), or those of the system calls.
pub fn create_pair(layout: LinkLayout, generation: u64) -> io::Result<Pair> {
    layout.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let (near, far) = (region(layout, 0, generation)?, region(layout, 1, generation)?);
    let (near_doorbell, far_doorbell) = socket_pair::pair(SocketFlags::NONBLOCK)?;
    let doorbell = peer_socket(near_doorbell.try_clone()?);
    let revocation = Revocation { regions: [near.try_clone()?, far.try_clone()?], doorbell };
    let (near_read, far_read) = (read_only(near.as_fd())?, read_only(far.as_fd())?);
    Ok(Pair {
        near: EndpointFds { own: near, peer: far_read, doorbell: peer_socket(near_doorbell) },
        far: EndpointFds { own: far, peer: near_read, doorbell: peer_socket(far_doorbell) },
        revocation,
    })
}

/// An end of a doorbell, as it is used and closed. A process that serves several users names the
/// holder of the other end ([`PeerSocket::charged_to`]).
fn peer_socket(doorbell: OwnedFd) -> PeerSocket {
    let refuses = socket_pair::refuses_descriptors(&doorbell);
    PeerSocket::new(doorbell, refuses, u32::MAX)
}

fn region(layout: LinkLayout, side: u32, generation: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
    let file = rustix::fs::memfd_create("sietch-link", flags)?;
    ftruncate(&file, layout.region_bytes() as u64)?;
    pwrite(&file, Header::new(layout, side, generation).as_bytes(), 0)?;
    fcntl_add_seals(&file, SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL))?;
    fchmod(&file, Mode::RUSR.union(Mode::WUSR))?;
    Ok(file)
}

fn read_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY.union(OFlags::CLOEXEC), Mode::empty())?)
}

/// Both regions, mapped and found sound, and the two rings across them.
pub(super) struct Opened {
    pub mine: Arc<Mapping>,
    pub theirs: Arc<UntrustedMapping>,
    pub outgoing: SplitOwnershipRing,
    pub incoming: SplitOwnershipRing,
    pub doorbell: PeerSocket,
    pub generation: u64,
}

pub(super) fn open(fds: EndpointFds, layout: LinkLayout, mtu: usize) -> Result<Opened, OpenError> {
    layout.validate()?;
    layout.fits(mtu)?;
    let length = layout.region_bytes();
    check_file(fds.own.as_fd(), length)?;
    check_file(fds.peer.as_fd(), length)?;
    let step = |step| move |source: io::Error| OpenError::Step { step, source };
    let mine = Mapping::of_file(&fds.own, 0, length).map_err(step("mapping our region of the link"))?;
    let theirs = UntrustedMapping::of_file(&fds.peer, length)
        .map_err(step("mapping the peer's region of the link"))?;
    let mut bytes = [0; HEADER];
    theirs.bytes(0..HEADER).copy_to(0, &mut bytes);
    let peer = check_header(&bytes, layout)?;
    // SAFETY: the mapping is new and nothing else in this process points into it; other processes
    // do not write this region, but for the control plane's one word, which is behind the header.
    bytes.copy_from_slice(unsafe { mine.bytes(0..HEADER) });
    let own = check_header(&bytes, layout)?;
    if own.generation != peer.generation {
        return Err(OpenError::Header("generation"));
    }
    if own.side == peer.side {
        return Err(OpenError::Header("side"));
    }
    let fresh =
        |word| mine.word(word).is_some_and(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 0);
    if !fresh(PRODUCER) || !fresh(CONSUMER) {
        return Err(OpenError::Used);
    }
    let (mine, theirs) = (Arc::new(mine), Arc::new(theirs));
    let ring_layout =
        SplitOwnershipLayout { producer: PRODUCER, slots: RING, capacity: layout.slots, consumer: CONSUMER };
    // SAFETY: the mappings are new; the endpoint makes one producer of the one and one consumer of
    // the other, and uses the words and slots through them alone.
    let rings = unsafe {
        (
            SplitOwnershipRing::outgoing(&mine, &theirs, ring_layout),
            SplitOwnershipRing::incoming(&mine, &theirs, ring_layout),
        )
    };
    let (Some(outgoing), Some(incoming)) = rings else { return Err(OpenError::Header("layout")) };
    Ok(Opened { mine, theirs, outgoing, incoming, doorbell: fds.doorbell, generation: own.generation })
}

fn check_file(file: BorrowedFd<'_>, length: usize) -> Result<(), OpenError> {
    let step = |step| move |error: rustix::io::Errno| OpenError::Step { step, source: error.into() };
    let seals = fcntl_get_seals(file).map_err(step("reading the seals of the link's memory"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(OpenError::NotSealed);
    }
    let status = fstat(file).map_err(step("reading the size of the link's memory"))?;
    let (expected, actual) = (length as u64, u64::try_from(status.st_size).unwrap_or(0));
    if actual == expected { Ok(()) } else { Err(OpenError::Size { expected, actual }) }
}

fn check_header(bytes: &[u8; HEADER], layout: LinkLayout) -> Result<Header, OpenError> {
    let header = Header::read_from_bytes(bytes).map_err(|_| OpenError::Header("size"))?;
    let checks = [
        (header.magic == MAGIC, "magic"),
        (header.version == VERSION, "version"),
        (header.checksum == header.sum(), "checksum"),
        (header.slots == layout.slots && header.data == layout.data, "layout"),
        (header.side < 2, "side"),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(OpenError::Header(what)),
        None => Ok(header),
    }
}
