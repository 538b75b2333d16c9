//! The sizes that both sides of a grant must agree on.
//!
//! 1. A frame that a chunk holds (behind the headroom that the kernel leaves) needs nothing else.
//! 2. A larger one is *received* in several chunks, wherever they are. It is *sent* from a run:
//!    chunks that are neighbours, so that its bytes are too. The runs are the last chunks of the
//!    UMEM. A socket whose UMEM has runs is bound with `XDP_USE_SG`.

use sietch_ring::MAX_PIECES;

use super::error::XskLayoutError;
use crate::queue::ETHERNET_HEADER;

/// Bytes the kernel leaves free before a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const RECEIVE_HEADROOM: usize = 256;

/// Chunk sizes that the kernel takes in aligned mode: a power of two from 2048 to the page size.
const CHUNK_SIZES: [u32; 2] = [2048, 4096];

/// The deepest ring. 2^15 frames of 1500 bytes are 49 MB, more than any receive window in use.
const MAX_RING: u32 = 1 << 15;

/// The most chunks: enough to fill every ring of the greatest depth. 512 MiB of the largest chunks.
const MAX_CHUNKS: u32 = 4 * MAX_RING;

/// The depth of the rings of [`XskLayout::for_mtu`]: 2048 full frames are 3 MB, the bandwidth-delay
/// product of 25 Gbit/s at 1 ms.
const DEFAULT_RING: u32 = 2048;

/// The depth of the receiving rings where a frame takes many chunks: 32 MiB. Each of some tens of
/// flows must be able to have a few segments of 64 KiB in the ring, or all of them starve on
/// timeouts.
const LARGE_RING: u32 = 8192;

/// Runs of [`XskLayout::for_mtu`]: 2 MiB of frames that are on their way, which are those of one
/// `sendto`, for the kernel copies them in that call.
const DEFAULT_RUNS: u32 = 32;

/// The largest MTU: the longest IPv4 packet.
pub(super) const MAX_MTU: usize = 65_535;

/// The largest MTU of which every frame fits one chunk.
pub const MAX_SINGLE_MTU: usize = largest_mtu(CHUNK_SIZES[1]);

/// What was registered and bound. Plain words, so that any message can carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XskLayout {
    /// Index of the interface that the socket is bound to.
    pub ifindex: u32,
    /// Queue of that interface.
    pub queue: u32,
    /// Bytes in a chunk of the UMEM: 2048 or 4096. One chunk holds one frame, or a piece of a
    /// larger one.
    pub chunk_size: u32,
    /// Chunks in the UMEM.
    pub chunks: u32,
    /// Slots of the fill ring (free chunks for the kernel to receive into). Like all rings, a power
    /// of two.
    pub fill: u32,
    /// Slots of the completion ring (chunks that the kernel has sent).
    pub completion: u32,
    /// Slots of the receive ring.
    pub receive: u32,
    /// Slots of the transmit ring.
    pub transmit: u32,
    /// Runs of neighbouring chunks at the end of the UMEM, one for each frame sent that no chunk
    /// holds. None: the socket takes no such frames.
    pub runs: u32,
    /// Chunks in each run.
    pub run_chunks: u32,
}

impl XskLayout {
    /// The usual layout for an interface of `mtu` bytes: rings of 2048, and chunks for a full
    /// receive ring plus a full transmit ring. That is 8 MiB at an MTU of 1500. Above
    /// [`MAX_SINGLE_MTU`] the rings for receiving have 8192 slots, and runs come on top (42 MiB in
    /// all).
    ///
    /// # Errors
    /// [`XskLayoutError::Mtu`] above 65535 bytes.
    pub fn for_mtu(ifindex: u32, queue: u32, mtu: usize) -> Result<Self, XskLayoutError> {
        if mtu > MAX_MTU {
            return Err(XskLayoutError::Mtu { mtu, largest: MAX_MTU });
        }
        let single = CHUNK_SIZES.into_iter().find(|&size| largest_mtu(size) >= mtu);
        let chunk_size = single.unwrap_or(CHUNK_SIZES[1]);
        // At most seventeen.
        let run_chunks = ((mtu + ETHERNET_HEADER).div_ceil(chunk_size as usize) as u32).max(2);
        let (runs, run_chunks) = if single.is_some() { (0, 0) } else { (DEFAULT_RUNS, run_chunks) };
        let receive = if single.is_some() { DEFAULT_RING } else { LARGE_RING };
        Ok(Self {
            ifindex,
            queue,
            chunk_size,
            chunks: receive + DEFAULT_RING + runs * run_chunks,
            runs,
            run_chunks,
            fill: receive,
            completion: DEFAULT_RING,
            receive,
            transmit: DEFAULT_RING,
        })
    }

    /// Bytes in the UMEM.
    pub fn umem_bytes(&self) -> usize {
        self.chunk_size as usize * self.chunks as usize
    }

    /// Chunks that are in no run.
    pub(super) fn single_chunks(&self) -> u32 {
        self.chunks.saturating_sub(self.runs.saturating_mul(self.run_chunks))
    }

    /// Checks every number, wherever it came from.
    ///
    /// # Errors
    /// [`XskLayoutError`] names the one that is wrong.
    pub(crate) fn validate(&self) -> Result<(), XskLayoutError> {
        if !CHUNK_SIZES.contains(&self.chunk_size) {
            return Err(XskLayoutError::ChunkSize(self.chunk_size));
        }
        if self.chunks < 2 || self.chunks > MAX_CHUNKS {
            return Err(XskLayoutError::Chunks { chunks: self.chunks, most: MAX_CHUNKS });
        }
        let run = self.run_chunks as usize;
        let sound = if self.runs == 0 { run == 0 } else { (2..=MAX_PIECES).contains(&run) };
        if !sound || self.runs > self.chunks || self.single_chunks() < 2 {
            let (runs, run_chunks) = (self.runs, self.run_chunks);
            return Err(XskLayoutError::Runs { runs, run_chunks, chunks: self.chunks });
        }
        for (ring, slots) in [
            ("fill", self.fill),
            ("completion", self.completion),
            ("receive", self.receive),
            ("transmit", self.transmit),
        ] {
            if !slots.is_power_of_two() || slots > MAX_RING {
                return Err(XskLayoutError::Ring { ring, slots, most: MAX_RING });
            }
        }
        Ok(())
    }

    /// Checks that a frame of `mtu` bytes and its Ethernet header fit where the kernel puts a
    /// received frame.
    pub(super) fn fits(&self, mtu: usize) -> Result<(), XskLayoutError> {
        let largest = if self.runs == 0 {
            largest_mtu(self.chunk_size)
        } else {
            let run = self.run_chunks as usize * self.chunk_size as usize;
            run.saturating_sub(ETHERNET_HEADER).min(MAX_MTU)
        };
        if mtu <= largest { Ok(()) } else { Err(XskLayoutError::Mtu { mtu, largest }) }
    }
}

/// The largest IP packet that a chunk holds behind the headroom.
const fn largest_mtu(chunk_size: u32) -> usize {
    (chunk_size as usize).saturating_sub(RECEIVE_HEADROOM + ETHERNET_HEADER)
}

#[cfg(test)]
mod tests {
    use super::XskLayout;

    #[test]
    fn chunks_follow_the_mtu() {
        let chunk = |mtu| XskLayout::for_mtu(1, 0, mtu).map(|layout| layout.chunk_size).ok();
        assert_eq!(chunk(1500), Some(2048));
        assert_eq!(chunk(1778), Some(2048));
        assert_eq!(chunk(1779), Some(4096));
        assert_eq!(chunk(3826), Some(4096));
        assert_eq!(chunk(9000), Some(4096));
        assert_eq!(chunk(65_536), None);
        for (mtu, run_chunks) in [(3826, 0), (3827, 1), (9000, 3), (65_522, 16), (65_535, 17)] {
            let layout = XskLayout::for_mtu(1, 0, mtu).expect("an MTU of IP");
            assert_eq!(layout.run_chunks, run_chunks.max(2 * u32::from(run_chunks > 0)), "{mtu}");
            assert_eq!((layout.validate(), layout.fits(mtu)), (Ok(()), Ok(())), "{mtu}");
            assert!(layout.fits(65_536).is_err());
        }
    }

    #[test]
    fn every_wrong_number_is_named() {
        let good = XskLayout::for_mtu(1, 0, 1500).expect("an ordinary MTU");
        assert_eq!(good.validate(), Ok(()));
        for (wrong, name) in [
            (XskLayout { chunk_size: 3000, ..good }, "chunk"),
            (XskLayout { chunk_size: 0, ..good }, "chunk"),
            (XskLayout { chunks: 0, ..good }, "chunks"),
            (XskLayout { chunks: u32::MAX, ..good }, "chunks"),
            (XskLayout { fill: 0, ..good }, "fill"),
            (XskLayout { completion: 3, ..good }, "completion"),
            (XskLayout { receive: 1 << 31, ..good }, "receive"),
            (XskLayout { transmit: 2049, ..good }, "transmit"),
            (XskLayout { runs: 1, run_chunks: 1, ..good }, "run"),
            (XskLayout { runs: 1, run_chunks: 19, ..good }, "run"),
            (XskLayout { runs: 0, run_chunks: 2, ..good }, "run"),
            (XskLayout { runs: good.chunks / 2, run_chunks: 2, ..good }, "run"),
            (XskLayout { runs: u32::MAX, run_chunks: 2, ..good }, "run"),
        ] {
            let error = wrong.validate().expect_err("a wrong number").to_string();
            assert!(error.contains(name), "{error:?} names {name:?}");
        }
    }
}
