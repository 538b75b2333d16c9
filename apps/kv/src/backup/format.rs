//! The framing of a backup: a header, records, an end.
//!
//! ```text
//! 0        8         12         16           24     32
//! |--------|---------|----------|------------|------|
//! | magic  | version | checksum | created_ms | keys |  then frames
//! |SIETCHBK|         |          |            |      |
//!
//! 0        4          8
//! |--------|----------|---------- ... ---|
//! | length | checksum | payload          |     length 0: the end, nothing follows
//! ```
//!
//! 1. A checksum includes the one before it. So a frame that is missing, twice there or at another
//!    place is found as a damaged one is.
//! 2. A length is checked before that many bytes are read into memory.

use std::io::{ErrorKind, Read, Write};

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::BackupError;

/// First bytes of a backup.
const MAGIC: [u8; 8] = *b"SIETCHBK";
/// Most bytes of a frame: a hostile length takes no more memory than that. A larger record is
/// written in parts.
pub(super) const MOST: usize = 1 << 20;
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// What a backup says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// When it was written, in milliseconds since 1970.
    pub created_ms: u64,
    /// Keys in it.
    pub keys: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the other bytes, in their order.
    checksum: U32,
    created_ms: U64,
    keys: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Frame {
    length: U32,
    /// CRC32C of the checksum before, the length, and the payload.
    checksum: U32,
}

const _: () = assert!(size_of::<Head>() == 32 && std::mem::offset_of!(Head, checksum) == 12);
const _: () = assert!(size_of::<Frame>() == 8 && MOST <= u32::MAX as usize);

fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

impl Head {
    fn expected(&self) -> u32 {
        crc(&[&self.magic, self.version.as_bytes(), self.created_ms.as_bytes(), self.keys.as_bytes()])
    }
}

impl Frame {
    fn expected(&self, before: u32, payload: &[u8]) -> u32 {
        crc(&[&before.to_le_bytes(), self.length.as_bytes(), payload])
    }
}

/// Writes a backup.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    checksum: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn begin(out: &'a mut dyn Write, header: Header) -> Result<Self, BackupError> {
        let mut head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            created_ms: header.created_ms.into(),
            keys: header.keys.into(),
        };
        let checksum = head.expected();
        head.checksum = checksum.into();
        out.write_all(head.as_bytes()).map_err(BackupError::Write)?;
        Ok(Self { out, checksum })
    }

    pub(super) fn record(&mut self, payload: &[u8]) -> Result<(), BackupError> {
        let mut frame = Frame { length: (payload.len() as u32).into(), checksum: 0.into() };
        self.checksum = frame.expected(self.checksum, payload);
        frame.checksum = self.checksum.into();
        self.out.write_all(frame.as_bytes()).map_err(BackupError::Write)?;
        self.out.write_all(payload).map_err(BackupError::Write)
    }

    pub(super) fn end(mut self) -> Result<(), BackupError> {
        self.record(&[])?;
        self.out.flush().map_err(BackupError::Write)
    }
}

/// Reads a backup.
pub(super) struct Reader<'a> {
    input: &'a mut dyn Read,
    header: Header,
    checksum: u32,
    /// Bytes read.
    offset: u64,
    payload: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn begin(input: &'a mut dyn Read) -> Result<Self, BackupError> {
        let mut head = Head::new_zeroed();
        input.read_exact(head.as_mut_bytes()).map_err(|cause| match cause.kind() {
            ErrorKind::UnexpectedEof => BackupError::NoBackup,
            _ => BackupError::Read(cause),
        })?;
        if head.magic != MAGIC {
            return Err(BackupError::NoBackup);
        }
        if head.version.get() != VERSION {
            return Err(BackupError::Version { found: head.version.get(), known: VERSION });
        }
        let checksum = head.checksum.get();
        if checksum != head.expected() {
            return Err(BackupError::Checksum { offset: 0 });
        }
        let header = Header { created_ms: head.created_ms.get(), keys: head.keys.get() };
        Ok(Self { input, header, checksum, offset: size_of::<Head>() as u64, payload: Vec::new() })
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// The next record and its offset; none at the end, behind which nothing may follow.
    pub(super) fn record(&mut self) -> Result<Option<(u64, &[u8])>, BackupError> {
        let offset = self.offset;
        let mut frame = Frame::new_zeroed();
        self.fill(frame.as_mut_bytes())?;
        let length = frame.length.get() as usize;
        if length > MOST {
            return Err(BackupError::Checksum { offset });
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length, 0);
        self.fill(&mut payload)?;
        self.payload = payload;
        if frame.checksum.get() != frame.expected(self.checksum, &self.payload) {
            return Err(BackupError::Checksum { offset });
        }
        self.checksum = frame.checksum.get();
        if length > 0 {
            return Ok(Some((offset, &self.payload)));
        }
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(None),
            Ok(_) => Err(BackupError::Trailing { offset: self.offset }),
            Err(cause) => Err(BackupError::Read(cause)),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        let offset = self.offset;
        self.input.read_exact(bytes).map_err(|cause| match cause.kind() {
            ErrorKind::UnexpectedEof => BackupError::Truncated { offset },
            _ => BackupError::Read(cause),
        })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}
