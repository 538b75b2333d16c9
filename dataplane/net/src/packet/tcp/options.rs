//! TCP options, read and written.
//!
//! ```text
//! 2 4 mss            segment size          3 3 shift   window scale (RFC 7323)
//! 4 2                SACK permitted        5 n blocks  SACK, n = 2 + 8 * blocks (RFC 2018)
//! 8 10 value echo    timestamps (RFC 7323) 1           padding
//! ```
//!
//! 1. Data segments carry timestamps or nothing; one comparison detects both. All other options go
//!    through a loop that skips unknown options and ends at one that it cannot read.
//! 2. The blocks of a SACK option stay where they are: [`Received`] says where, and they are parsed
//!    only when they are needed.

use crate::packet::sequence::Seq;

/// Bytes of the timestamp option, aligned as all common stacks send it (RFC 7323 appendix A).
pub(crate) const TIMESTAMP_OPTION: usize = 12;
/// Bytes of options that fit a header.
pub const ROOM: usize = 40;
/// Blocks that fit in those, after the option's own four bytes with padding (RFC 2018 section 3).
pub(super) const SACK_BLOCKS: usize = 4;

/// Ranges of a SACK option: first byte, and byte after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); SACK_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// Appends a range, if there is a place for it.
    pub fn push(&mut self, range: (Seq, Seq)) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = range;
            self.count += 1;
        }
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Bytes of the option with its padding.
    pub(crate) const fn option_length(&self) -> usize {
        if self.count == 0 { 0 } else { 4 + 8 * self.count as usize }
    }

    /// How many ranges an option of at most `room` bytes holds.
    pub(crate) const fn that_fit(room: usize) -> usize {
        let blocks = room.saturating_sub(4) / 8;
        if blocks < SACK_BLOCKS { blocks } else { SACK_BLOCKS }
    }

    fn emit(&self, out: &mut [u8]) {
        if self.count == 0 {
            return;
        }
        out[..4].copy_from_slice(&[1, 1, 5, 2 + 8 * self.count]);
        for (place, (first, last)) in out[4..].chunks_exact_mut(8).zip(self.as_slice()) {
            place[..4].copy_from_slice(&first.0.to_be_bytes());
            place[4..].copy_from_slice(&last.0.to_be_bytes());
        }
    }
}

/// Options of a received segment that the engine understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Largest segment that the sender takes.
    pub mss: Option<u16>,
    /// Window scale, at most 14 (RFC 7323 section 2.3).
    pub shift: Option<u8>,
    /// Whether selective acknowledgements may be sent.
    pub sack_permitted: bool,
    /// Ranges in the SACK option; zero if there is none.
    pub sack_count: u8,
    /// Where in the options they begin.
    sack_at: u8,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
}

impl Received {
    /// Reads the options of a header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // The one layout that data segments of every common sender have.
        if let &[1, 1, 8, 10, a, b, c, d, e, f, g, h] = bytes {
            let timestamps = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
            return Self { timestamps, ..Self::default() };
        }
        if bytes.is_empty() { Self::default() } else { Self::parse_any(bytes) }
    }

    fn parse_any(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        let mut rest = bytes;
        loop {
            match rest {
                [] | [0, ..] => return options,
                [1, after @ ..] => rest = after,
                [kind, length, ..] if *length >= 2 && usize::from(*length) <= rest.len() => {
                    let at = bytes.len() - rest.len() + 2;
                    let (option, after) = rest.split_at(usize::from(*length));
                    match (kind, &option[2..]) {
                        (2, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                        (3, &[shift]) => options.shift = Some(shift.min(14)),
                        (4, []) => options.sack_permitted = true,
                        (5, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
                            // At most 38 bytes: the whole of the options is 40.
                            options.sack_count = (blocks.len() / 8) as u8;
                            options.sack_at = at as u8;
                        }
                        (8, &[a, b, c, d, e, f, g, h]) => {
                            options.timestamps =
                                Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                        }
                        _ => {}
                    }
                    rest = after;
                }
                _ => return options,
            }
        }
    }

    /// The ranges of the SACK option among `bytes`, the options that this was parsed from.
    pub fn sack_blocks(&self, bytes: &[u8]) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let from = usize::from(self.sack_at);
        let to = from + 8 * usize::from(self.sack_count);
        for block in bytes.get(from..to).unwrap_or_default().chunks_exact(8) {
            if let &[a, b, c, d, e, f, g, h] = block {
                blocks.push((Seq(u32::from_be_bytes([a, b, c, d])), Seq(u32::from_be_bytes([e, f, g, h]))));
            }
        }
        blocks
    }
}

/// Options of a segment that we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// None.
    None,
    /// Timestamp value and echo reply.
    Timestamps(u32, u32),
    /// What arrived beyond the acknowledgement, with timestamps if they are in use.
    Sack {
        /// Timestamp value and echo reply.
        timestamps: Option<(u32, u32)>,
        /// The ranges.
        blocks: SackBlocks,
    },
    /// What a SYN offers.
    Syn {
        /// Largest segment that we take.
        mss: u16,
        /// Our window scale, unless the peer spoke first and offered none.
        shift: Option<u8>,
        /// Whether the peer may send us selective acknowledgements, unless it spoke first and did
        /// not say so.
        sack: bool,
        /// Timestamps, unless the peer spoke first and offered none.
        timestamps: Option<(u32, u32)>,
    },
}

impl Options {
    /// Bytes of options, padded to whole words.
    #[inline]
    pub const fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Timestamps(..) => TIMESTAMP_OPTION,
            Self::Sack { timestamps, blocks } => {
                blocks.option_length() + if timestamps.is_some() { TIMESTAMP_OPTION } else { 0 }
            }
            Self::Syn { shift, sack, timestamps, .. } => {
                4 + if shift.is_some() { 4 } else { 0 }
                    + if timestamps.is_some() {
                        TIMESTAMP_OPTION
                    } else if *sack {
                        4
                    } else {
                        0
                    }
            }
        }
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Timestamps(value, echo) => emit_timestamps(out, *value, *echo),
            Self::Sack { .. } | Self::Syn { .. } => self.emit_rare(out),
        }
    }

    fn emit_rare(&self, out: &mut [u8]) {
        let mut at = 0;
        if let Self::Syn { mss, shift, .. } = *self {
            let [high, low] = mss.to_be_bytes();
            out[..4].copy_from_slice(&[2, 4, high, low]);
            at = 4;
            if let Some(shift) = shift {
                out[4..8].copy_from_slice(&[1, 3, 3, shift]);
                at = 8;
            }
        }
        let stamps = match *self {
            Self::Syn { timestamps, .. } | Self::Sack { timestamps, .. } => timestamps,
            _ => None,
        };
        let permitted = matches!(*self, Self::Syn { sack: true, .. });
        if let Some((value, echo)) = stamps {
            emit_timestamps(&mut out[at..], value, echo);
            if permitted {
                // In place of the padding, as common stacks send it.
                out[at..at + 2].copy_from_slice(&[4, 2]);
            }
            at += TIMESTAMP_OPTION;
        } else if permitted {
            out[at..at + 4].copy_from_slice(&[1, 1, 4, 2]);
        }
        if let Self::Sack { blocks, .. } = self {
            blocks.emit(&mut out[at..]);
        }
    }
}

#[inline]
fn emit_timestamps(out: &mut [u8], value: u32, echo: u32) {
    out[..4].copy_from_slice(&[1, 1, 8, 10]);
    out[4..8].copy_from_slice(&value.to_be_bytes());
    out[8..12].copy_from_slice(&echo.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(options: &Options) -> Vec<u8> {
        let mut bytes = vec![0xee; options.length()];
        options.emit(&mut bytes);
        assert!(bytes.len() <= ROOM && bytes.len().is_multiple_of(4));
        bytes
    }

    proptest! {
        #[test]
        fn options_read_as_they_were_written(
            ranges in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..6),
            stamps in proptest::option::of((any::<u32>(), any::<u32>())),
            mss in any::<u16>(), shift in proptest::option::of(0u8..15), sack in any::<bool>(),
        ) {
            let mut blocks = SackBlocks::default();
            let fit = SackBlocks::that_fit(ROOM - if stamps.is_some() { TIMESTAMP_OPTION } else { 0 });
            prop_assert_eq!(fit, if stamps.is_some() { 3 } else { 4 });
            for &(first, last) in ranges.iter().take(fit) {
                blocks.push((Seq(first), Seq(last)));
            }
            let bytes = written(&Options::Sack { timestamps: stamps, blocks });
            let read = Received::parse(&bytes);
            prop_assert_eq!(read.timestamps, stamps);
            prop_assert_eq!(read.sack_blocks(&bytes), blocks);
            let bytes = written(&Options::Syn { mss, shift, sack, timestamps: stamps });
            let read = Received::parse(&bytes);
            prop_assert_eq!((read.mss, read.shift, read.timestamps), (Some(mss), shift, stamps));
            prop_assert_eq!((read.sack_permitted, read.sack_count), (sack, 0));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..=ROOM)) {
            let read = Received::parse(&bytes);
            prop_assert_eq!(read.sack_blocks(&bytes).as_slice().len(), usize::from(read.sack_count));
        }
    }
}
