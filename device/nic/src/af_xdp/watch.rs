//! The control plane's eye on the rings that the kernel reads.
//!
//! 1. The kernel walks over invalid entries of the fill ring, in softirq context, as far as the
//!    producer word says. Kernels before 6.6 do so in the transmit ring as well. A holder that puts
//!    the word far ahead costs the host up to 2^32 entries of time.
//! 2. An honest producer word is never more than the ring's slots ahead of the consumer word.
//!    [`RingWatch::overrun`] compares the two. The consumer word is read before and after the
//!    producer word: if it did not move, the distance is the true one.
//! 3. [`RingWatch::repair`] puts a valid entry into every slot, which ends the walk at the next
//!    entry that the kernel reads, and takes the producer word back. A holder that still runs can
//!    undo that: it is stopped first.
//!
//! The mapping lives as long as the grant. It must be made before the socket is bound where kernels
//! before 6.4 are to work.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::net::sockopt;
use rustix::net::xdp::{XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset};
use sietch_ring::Mapping;

use super::XskLayout;

/// How often a moving consumer word is read again before the next check: it moves once a batch of
/// frames.
const TRIES: usize = 4;

/// One ring that the holder produces into.
#[derive(Debug)]
struct Watched {
    name: &'static str,
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    /// Offset of slot 0.
    slots: usize,
    /// Bytes in a slot.
    width: usize,
    count: u32,
}

/// The fill and the transmit ring of a socket that another process holds.
#[derive(Debug)]
pub struct RingWatch {
    rings: [Watched; 2],
    chunk_size: u32,
    chunks: u32,
}

impl RingWatch {
    /// Maps both rings of `socket`, which was made of `layout`.
    ///
    /// # Errors
    /// Those of `getsockopt(2)` and `mmap(2)`: EBUSY for a bound socket before Linux 6.4.
    pub fn over(socket: impl AsFd, layout: &XskLayout) -> io::Result<Self> {
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let map = |name, offset: &XdpRingOffset, page, width, count: u32| {
            let place =
                |at: u64| usize::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
            let slots = place(offset.desc)?;
            let mapping = Mapping::of_file(&socket, page, slots + count as usize * width)?;
            let (producer, consumer) = (place(offset.producer)?, place(offset.consumer)?);
            Ok::<_, io::Error>(Watched { name, mapping, producer, consumer, slots, width, count })
        };
        Ok(Self {
            rings: [
                map("fill", &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, 8, layout.fill)?,
                map("transmit", &offsets.tx, XDP_PGOFF_TX_RING, 16, layout.transmit)?,
            ],
            chunk_size: layout.chunk_size,
            chunks: layout.chunks,
        })
    }

    /// The ring that claims more entries than it has slots, and how many, if one does.
    pub fn overrun(&self) -> Option<(&'static str, u32)> {
        self.rings.iter().find_map(|ring| Some((ring.name, ring.overrun()?)))
    }

    /// Ends a walk of the kernel: every entry is valid, and none is claimed.
    pub fn repair(&self) {
        for ring in &self.rings {
            ring.fill_with_valid(self.chunk_size, self.chunks);
            let (Some(producer), Some(consumer)) = (ring.word(ring.producer), ring.word(ring.consumer))
            else {
                continue;
            };
            producer.store(consumer.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

impl Watched {
    fn word(&self, offset: usize) -> Option<&std::sync::atomic::AtomicU32> {
        self.mapping.word(offset)
    }

    fn overrun(&self) -> Option<u32> {
        let (producer, consumer) = (self.word(self.producer)?, self.word(self.consumer)?);
        for _ in 0..TRIES {
            let before = consumer.load(Ordering::Acquire);
            let claimed = producer.load(Ordering::Acquire).wrapping_sub(before);
            if claimed <= self.count {
                return None;
            }
            if consumer.load(Ordering::Acquire) == before {
                return Some(claimed);
            }
        }
        None
    }

    /// Entry after entry names a whole chunk of the UMEM; those of the transmit ring the shortest
    /// frame at its start.
    fn fill_with_valid(&self, chunk_size: u32, chunks: u32) {
        /// An Ethernet header: what the kernel sends at least.
        const SHORTEST: u32 = 14;
        for slot in 0..self.count {
            let address = u64::from(slot % chunks) * u64::from(chunk_size);
            let at = self.slots + slot as usize * self.width;
            // The halves of the address, as the machine orders them; then length and options.
            let halves: [u32; 2] = [0, 4].map(|half| {
                let bytes = address.to_ne_bytes();
                u32::from_ne_bytes([bytes[half], bytes[half + 1], bytes[half + 2], bytes[half + 3]])
            });
            for (index, value) in
                [halves[0], halves[1], SHORTEST, 0].into_iter().take(self.width / 4).enumerate()
            {
                if let Some(word) = self.word(at + index * 4) {
                    word.store(value, Ordering::Release);
                }
            }
        }
    }
}
