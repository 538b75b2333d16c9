//! A frame that arrives in several descriptors, each but the last with `XDP_PKT_CONTD`.
//!
//! 1. A descriptor belongs to the same frame as the one before it if that one said so. Descriptors
//!    of one frame may come with several calls of `receive`; the pieces that have arrived are kept
//!    meanwhile.
//! 2. Each chunk is validated by itself, as that of a frame alone. A chain is refused as a whole,
//!    and all its chunks are freed, in four cases. A chunk is not the kernel's (thus also if one
//!    comes twice). A piece is not in its chunk. The frame becomes longer than the MTU
//!    allows, or has more pieces than a socket buffer. Or its first piece does not hold the
//!    headers. Later pieces of such a frame are dropped too. It is counted once. A chain without an
//!    end therefore costs no more than a few chunks.
//! 3. A sound chain is recorded at its first chunk until the frame is released.

use sietch_ring::{Piece, Pieces};

use super::counters::QueueCounters;
use crate::queue::LEAST_HEAD;

/// Why a frame in several pieces is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The socket was not made for such frames.
    Unwanted,
    /// It is longer than the MTU allows, or has too many pieces.
    Oversize,
    /// A descriptor is wrong.
    Invalid,
}

impl Fault {
    /// Counts the frame that has it.
    pub(super) const fn count(self, counters: &mut QueueCounters) {
        match self {
            Self::Unwanted => counters.rx_multi_buffer += 1,
            Self::Oversize => counters.rx_oversize += 1,
            Self::Invalid => counters.invalid_descriptors += 1,
        }
    }
}

/// The frame that is arriving, and the frames that have arrived.
#[derive(Debug)]
pub(super) struct Chains {
    /// Whether the last descriptor announced another of its frame.
    open: bool,
    fault: Option<Fault>,
    gathered: Pieces,
    /// By first chunk. Empty if the socket was not made for such frames.
    arrived: Box<[Pieces]>,
}

impl Chains {
    /// Room for chains that begin at any of `chunks`.
    pub(super) fn new(chunks: u32) -> Self {
        Self {
            open: false,
            fault: None,
            gathered: Pieces::default(),
            arrived: vec![Pieces::default(); chunks as usize].into_boxed_slice(),
        }
    }

    /// Notes whether the descriptor at hand `continues`, and returns whether it is a piece of a
    /// larger frame.
    #[inline]
    pub(super) const fn joins(&mut self, continues: bool) -> bool {
        let joined = self.open;
        self.open = continues;
        joined || continues
    }

    /// Adds a piece, or refuses the frame that it belongs to. `None`: its chunk is not the kernel's
    /// to give. The caller must free what this returns: the pieces of a refused frame so far, and
    /// whether the current piece too.
    pub(super) fn gather(&mut self, piece: Option<Piece>, limit: usize) -> (Pieces, bool) {
        let fault = match piece {
            _ if self.fault.is_some() => self.fault,
            _ if self.arrived.is_empty() => Some(Fault::Unwanted),
            None | Some(Piece { length: 0, .. }) => Some(Fault::Invalid),
            Some(piece) => {
                let first = self.gathered.as_slice().is_empty();
                if self.gathered.total() + piece.length as usize > limit {
                    Some(Fault::Oversize)
                } else if first && (piece.length as usize) < LEAST_HEAD {
                    Some(Fault::Invalid)
                } else if self.gathered.push(piece) {
                    None
                } else {
                    Some(Fault::Oversize)
                }
            }
        };
        self.fault = fault;
        match fault {
            None => (Pieces::default(), false),
            Some(_) => (std::mem::take(&mut self.gathered), piece.is_some()),
        }
    }

    /// The frame is complete: its pieces, noted at the first one's chunk, or why it is refused.
    /// `bits`: of a chunk's size.
    pub(super) fn finish(&mut self, bits: u32) -> Result<(u32, &Pieces), Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let first = self.gathered.as_slice().first().map(|piece| piece.offset >> bits);
        let Some((chunk, place)) =
            first.and_then(|chunk| Some((chunk, self.arrived.get_mut(chunk as usize)?)))
        else {
            self.gathered.clear();
            return Err(Fault::Invalid);
        };
        place.clone_from(&self.gathered);
        self.gathered.clear();
        Ok((chunk, place))
    }

    /// Where the frame that begins at `chunk` is.
    pub(super) fn pieces(&self, chunk: u32) -> Option<&Pieces> {
        self.arrived.get(chunk as usize)
    }

    /// The same, and forgets it.
    pub(super) fn take(&mut self, chunk: u32) -> Pieces {
        self.arrived.get_mut(chunk as usize).map(std::mem::take).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sietch_ring::MAX_PIECES;

    use super::*;

    const BITS: u32 = 12;
    const LIMIT: usize = 65_549;

    /// A piece in `chunk` behind the headroom.
    fn piece(chunk: u32, length: u32) -> Option<Piece> {
        Some(Piece { offset: (chunk << BITS) + 256, length })
    }

    /// What a frame of these pieces becomes, and the chunks that are freed.
    fn frame(chains: &mut Chains, pieces: &[Option<Piece>]) -> (Result<(u32, usize), Fault>, Vec<u32>) {
        let mut freed = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            assert!(chains.joins(index + 1 < pieces.len()));
            let (refused, this_too) = chains.gather(*piece, LIMIT);
            freed.extend(refused.as_slice().iter().map(|piece| piece.offset >> BITS));
            freed.extend(piece.filter(|_| this_too).map(|piece| piece.offset >> BITS));
        }
        (chains.finish(BITS).map(|(chunk, pieces)| (chunk, pieces.total())), freed)
    }

    fn sound(chains: &mut Chains) {
        let (result, freed) = frame(chains, &[piece(7, 3840), piece(3, 3840), piece(5, 1)]);
        assert_eq!((result, freed), (Ok((7, 7681)), Vec::new()));
        assert_eq!(chains.pieces(7).map(|pieces| pieces.as_slice().len()), Some(3));
        assert_eq!(chains.take(7).total(), 7681);
        assert_eq!(chains.take(7).total(), 0, "it is forgotten");
    }

    #[test]
    fn descriptors_that_continue_make_one_frame() {
        let mut chains = Chains::new(64);
        assert!(!chains.joins(false), "alone");
        sound(&mut chains);
        assert!(!chains.joins(false), "alone again");
    }

    #[test]
    fn a_chain_without_an_end_holds_a_few_chunks() {
        let mut chains = Chains::new(1000);
        let mut held: i64 = 0;
        for chunk in 0..1000 {
            assert!(chains.joins(true));
            let (refused, this_too) = chains.gather(piece(chunk, 300), LIMIT);
            held += 1 - refused.as_slice().len() as i64 - i64::from(this_too);
            assert!((0..=MAX_PIECES as i64).contains(&held), "{held} chunks");
        }
        assert_eq!(held, 0);
        // It ends after all, and is counted once; the next frame is sound.
        assert!(chains.joins(false));
        chains.gather(piece(1000, 1), LIMIT);
        assert_eq!(chains.finish(BITS).map(|_| ()), Err(Fault::Oversize));
        sound(&mut chains);
    }

    #[test]
    fn a_wrong_piece_drops_the_whole_frame() {
        let good = piece(1, 3840);
        let too_long: Vec<_> = (0..18).map(|chunk| piece(chunk, 3840)).collect();
        let too_many: Vec<_> = (0..19).map(|chunk| piece(chunk, 300)).collect();
        let cases: [(&[Option<Piece>], Fault, usize); 7] = [
            // Not the kernel's, or repeated: there is nothing to free.
            (&[good, None, piece(2, 5)], Fault::Invalid, 2),
            (&[None, good], Fault::Invalid, 1),
            (&[good, None], Fault::Invalid, 1),
            (&[good, piece(2, 0)], Fault::Invalid, 2),
            // The headers are not in the first piece.
            (&[piece(1, 255), piece(2, 3840)], Fault::Invalid, 2),
            (&too_long, Fault::Oversize, 18),
            (&too_many, Fault::Oversize, 19),
        ];
        for (pieces, fault, freed) in cases {
            let mut chains = Chains::new(64);
            let (result, chunks) = frame(&mut chains, pieces);
            assert_eq!((result, chunks.len()), (Err(fault), freed), "{pieces:?}");
            let mut counters = QueueCounters::default();
            fault.count(&mut counters);
            assert_eq!(counters.rx_oversize + counters.invalid_descriptors, 1);
            sound(&mut chains);
        }
    }

    #[test]
    fn a_queue_that_was_not_made_for_them_drops_them() {
        let mut chains = Chains::new(0);
        let (result, freed) = frame(&mut chains, &[piece(1, 3840), piece(2, 3840)]);
        assert_eq!((result, freed), (Err(Fault::Unwanted), vec![1, 2]));
    }
}
