//! Writing pcapng (draft-ietf-opsawg-pcapng), as Wireshark and tcpdump read it.
//!
//! 1. One section with one interface: a section header and an interface description (Ethernet, time
//!    in nanoseconds). Then each frame is an enhanced packet block with its direction. The
//!    interface's statistics, with the count of dropped frames, come last.
//! 2. Blocks are little-endian, whole multiples of four bytes, and carry their length at both ends:
//!    a file that was cut off is readable up to its last whole block.

use std::io::{self, Write};

use sietch::nic::capture::{Captured, Direction};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The length of a section whose length is not known beforehand.
const UNKNOWN_LENGTH: u64 = u64::MAX;
const ETHERNET: u16 = 1;

/// A block under construction.
struct Block(Vec<u8>);

impl Block {
    fn new(kind: u32) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        Self(bytes)
    }

    fn word(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A time or a count of 64 bits, as pcapng has times: the upper half first.
    fn halves(self, value: u64) -> Self {
        // Each half fits by construction.
        self.word((value >> 32) as u32).word(value as u32)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn option(mut self, code: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.0.extend(code.to_le_bytes());
        self.0.extend(length.to_le_bytes());
        self.bytes(&value[..usize::from(length)])
    }

    /// Ends the options and the block.
    fn write(self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = self.word(0).0;
        let length = u32::try_from(bytes.len() + 4).map_err(io::Error::other)?.to_le_bytes();
        bytes[4..8].copy_from_slice(&length);
        bytes.extend(length);
        out.write_all(&bytes)
    }
}

/// Begins the file: what program wrote it, and the interface.
pub(super) fn begin(
    out: &mut impl Write,
    interface: &str,
    about: &str,
    mac: [u8; 6],
    snap: u32,
) -> io::Result<()> {
    let application = concat!("sietch ", env!("CARGO_PKG_VERSION"));
    Block::new(SECTION)
        .word(BYTE_ORDER)
        .word(1) // version 1.0
        .bytes(&UNKNOWN_LENGTH.to_le_bytes())
        .option(4, application.as_bytes())
        .write(out)?;
    Block::new(INTERFACE)
        .word(ETHERNET.into())
        .word(snap)
        .option(2, interface.as_bytes())
        .option(3, about.as_bytes())
        .option(6, &mac)
        .option(9, &[9]) // nanoseconds
        .write(out)
}

/// One frame, of which `stored` was captured.
pub(super) fn packet(out: &mut impl Write, captured: &Captured, stored: &[u8]) -> io::Result<()> {
    let direction: u32 = match captured.direction {
        Direction::Received => 1,
        Direction::Sent => 2,
    };
    Block::new(PACKET)
        .word(0)
        .halves(captured.time)
        .word(u32::try_from(stored.len()).map_err(io::Error::other)?)
        .word(captured.original)
        .bytes(stored)
        .option(2, &direction.to_le_bytes())
        .write(out)
}

/// The statistics of the interface's frames since `began`, at `now` (nanoseconds since 1970).
pub(super) fn statistics(
    out: &mut impl Write,
    began: u64,
    now: u64,
    seen: u64,
    dropped: u64,
) -> io::Result<()> {
    let time = |value: u64| [((value >> 32) as u32).to_le_bytes(), (value as u32).to_le_bytes()].concat();
    Block::new(STATISTICS)
        .word(0)
        .halves(now)
        .option(2, &time(began))
        .option(3, &time(now))
        .option(4, &seen.to_le_bytes())
        .option(5, &dropped.to_le_bytes())
        .write(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a file: kind and body.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (kind, length) = (word(file), word(&file[4..]) as usize);
            assert!(length.is_multiple_of(4) && word(&file[length - 4..]) as usize == length);
            blocks.push((kind, file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        blocks
    }

    #[test]
    fn a_file_is_a_section_an_interface_its_frames_and_its_drop_count() {
        let mut file = Vec::new();
        begin(&mut file, "kv", "VNIC kv", [2, 0, 0, 0, 0, 1], 65_549).expect("memory");
        let captured = Captured { direction: Direction::Sent, time: 0x0123_4567_89ab_cdef, original: 1500 };
        packet(&mut file, &captured, &[0xaa; 61]).expect("memory");
        statistics(&mut file, 1, 2, 3, 4).expect("memory");
        let blocks = blocks(&file);
        assert_eq!(
            blocks.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [SECTION, INTERFACE, PACKET, STATISTICS]
        );
        let packet = &blocks[2].1;
        assert_eq!(packet[4..12], [0x67, 0x45, 0x23, 0x01, 0xef, 0xcd, 0xab, 0x89]);
        assert_eq!(packet[12..20], [61, 0, 0, 0, 0xdc, 5, 0, 0]);
        assert_eq!(packet[20..81], [0xaa; 61]);
        assert_eq!(packet[84..], [2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0], "outbound, then the end");
        assert!(blocks[3].1.windows(12).any(|option| option == [5, 0, 8, 0, 4, 0, 0, 0, 0, 0, 0, 0]));
    }
}
