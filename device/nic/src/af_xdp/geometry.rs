//! The sizes that both sides of a grant must agree on.

use super::error::GeometryError;
use crate::queue::ETHERNET_HEADER;

/// Bytes the kernel leaves free before a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const RECEIVE_HEADROOM: usize = 256;

/// Chunk sizes that the kernel takes in aligned mode: a power of two from 2048 to the page size.
const CHUNK_SIZES: [u32; 2] = [2048, 4096];

/// The deepest ring. 2^15 frames of 1500 bytes are 49 MB, more than any receive window in use.
const MAX_RING: u32 = 1 << 15;

/// The most chunks: enough to fill every ring of the greatest depth. 512 MiB of the largest chunks.
const MAX_CHUNKS: u32 = 4 * MAX_RING;

/// The depth of the rings of [`Geometry::for_mtu`]: 2048 full frames are 3 MB, the bandwidth-delay product of
/// 25 Gbit/s at 1 ms.
const DEFAULT_RING: u32 = 2048;

/// What was registered and bound. Plain words, so that any message can carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Index of the interface that the socket is bound to.
    pub ifindex: u32,
    /// Queue of that interface.
    pub queue: u32,
    /// Bytes in a chunk of the UMEM: 2048 or 4096. One chunk holds one frame.
    pub chunk_size: u32,
    /// Chunks in the UMEM.
    pub chunks: u32,
    /// Slots of the fill ring (free chunks for the kernel to receive into). Like all rings, a power of two.
    pub fill: u32,
    /// Slots of the completion ring (chunks that the kernel has sent).
    pub completion: u32,
    /// Slots of the receive ring.
    pub receive: u32,
    /// Slots of the transmit ring.
    pub transmit: u32,
}

impl Geometry {
    /// The usual geometry for an interface of `mtu` bytes: rings of 2048, and chunks for a full receive ring plus a
    /// full transmit ring (8 MiB at an MTU of 1500).
    ///
    /// # Errors
    /// [`GeometryError::Mtu`] if a frame does not fit the largest chunk.
    pub fn for_mtu(ifindex: u32, queue: u32, mtu: usize) -> Result<Self, GeometryError> {
        let chunk_size = CHUNK_SIZES
            .into_iter()
            .find(|&size| largest_mtu(size) >= mtu)
            .ok_or(GeometryError::Mtu { mtu, largest: largest_mtu(CHUNK_SIZES[1]) })?;
        Ok(Self {
            ifindex,
            queue,
            chunk_size,
            chunks: 2 * DEFAULT_RING,
            fill: DEFAULT_RING,
            completion: DEFAULT_RING,
            receive: DEFAULT_RING,
            transmit: DEFAULT_RING,
        })
    }

    /// Bytes in the UMEM.
    pub fn umem_bytes(&self) -> usize {
        self.chunk_size as usize * self.chunks as usize
    }

    /// Checks every number, wherever it came from.
    ///
    /// # Errors
    /// [`GeometryError`] names the one that is wrong.
    pub fn validate(&self) -> Result<(), GeometryError> {
        if !CHUNK_SIZES.contains(&self.chunk_size) {
            return Err(GeometryError::ChunkSize(self.chunk_size));
        }
        if self.chunks < 2 || self.chunks > MAX_CHUNKS {
            return Err(GeometryError::Chunks { chunks: self.chunks, most: MAX_CHUNKS });
        }
        for (ring, slots) in [
            ("fill", self.fill),
            ("completion", self.completion),
            ("receive", self.receive),
            ("transmit", self.transmit),
        ] {
            if !slots.is_power_of_two() || slots > MAX_RING {
                return Err(GeometryError::Ring { ring, slots, most: MAX_RING });
            }
        }
        Ok(())
    }

    /// Checks that a frame of `mtu` bytes and its Ethernet header fit where the kernel puts a received frame.
    pub(super) fn fits(&self, mtu: usize) -> Result<(), GeometryError> {
        let largest = largest_mtu(self.chunk_size);
        if mtu <= largest { Ok(()) } else { Err(GeometryError::Mtu { mtu, largest }) }
    }
}

/// The largest IP packet that a chunk holds behind the headroom.
const fn largest_mtu(chunk_size: u32) -> usize {
    (chunk_size as usize).saturating_sub(RECEIVE_HEADROOM + ETHERNET_HEADER)
}

#[cfg(test)]
mod tests {
    use super::Geometry;

    #[test]
    fn chunks_follow_the_mtu() {
        let chunk = |mtu| Geometry::for_mtu(1, 0, mtu).map(|geometry| geometry.chunk_size).ok();
        assert_eq!(chunk(1500), Some(2048));
        assert_eq!(chunk(1778), Some(2048));
        assert_eq!(chunk(1779), Some(4096));
        assert_eq!(chunk(3826), Some(4096));
        assert_eq!(chunk(9000), None);
    }

    #[test]
    fn every_wrong_number_is_named() {
        let good = Geometry::for_mtu(1, 0, 1500).expect("an ordinary MTU");
        assert_eq!(good.validate(), Ok(()));
        for (wrong, name) in [
            (Geometry { chunk_size: 3000, ..good }, "chunk"),
            (Geometry { chunk_size: 0, ..good }, "chunk"),
            (Geometry { chunks: 0, ..good }, "chunks"),
            (Geometry { chunks: u32::MAX, ..good }, "chunks"),
            (Geometry { fill: 0, ..good }, "fill"),
            (Geometry { completion: 3, ..good }, "completion"),
            (Geometry { receive: 1 << 31, ..good }, "receive"),
            (Geometry { transmit: 2049, ..good }, "transmit"),
        ] {
            let error = wrong.validate().expect_err("a wrong number").to_string();
            assert!(error.contains(name), "{error:?} names {name:?}");
        }
    }
}
