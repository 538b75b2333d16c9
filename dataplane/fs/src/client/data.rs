//! Operations on the data of files.

use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::quota::Need;
use super::{Client, Open, Service};
use crate::access::{Caller, READ, WRITE};
use crate::base::{Base as _, Data};
use crate::change::Change;
use crate::change::blocks::covered;
use crate::error::Fault;
use crate::file_system::{Allocation, Handle, OpenMode, Seek, Sought, WriteAt};
use crate::inode::{InodeNumber, Kind};
use crate::lease::Mode;
use crate::limits::{BLOCK, MAX_FILE, MAX_RECORD_DATA};
use crate::overlay::ranges::Source;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Extents and pieces that a step of a search looks at: others have the file system between steps.
const SEEK_STEP: u64 = 256;

impl<S: Service<M>, M: Medium> Client<S, M> {
    pub(super) fn open_inode(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        mode: OpenMode,
    ) -> Result<Handle, Errno> {
        if mode.truncate {
            self.need(inode, Mode::Exclusive)?;
        }
        let found = self.stat(inode)?;
        match found.kind {
            Kind::Symlink => return Err(Errno::LOOP),
            Kind::Directory if mode.write || mode.truncate => return Err(Errno::ISDIR),
            _ => {}
        }
        let mut wanted = 0;
        if mode.read {
            wanted |= READ;
        }
        if mode.write || mode.truncate {
            wanted |= WRITE;
        }
        caller.credentials.check(&found, wanted)?;
        check_kind(found.kind, mode)?;
        if mode.truncate {
            self.drop_privileges(caller, inode)?;
            self.truncate(caller, inode, 0)?;
        }
        Ok(self.open_handle(inode, mode))
    }

    pub(super) fn open_unchecked(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        check_kind(self.inode(inode)?.kind, mode)?;
        Ok(self.open_handle(inode, mode))
    }

    /// A handle on a file.
    fn file(&mut self, handle: Handle, may: impl Fn(&OpenMode) -> bool) -> Result<Open, Errno> {
        let open = self.handle(handle)?;
        if may(&open.mode) { Ok(open) } else { Err(Errno::BADF) }
    }

    pub(super) fn read_at(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let open = self.file(handle, |mode| mode.read)?;
        let found = self.inode(open.inode)?;
        match found.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        let count = found.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let bytes = &mut bytes[..count];
        let end = offset.saturating_add(count as u64);
        let Some(state) = self.overlay.state(open.inode) else {
            let read = self.service.base().read(open.inode, offset, bytes);
            return read.map(|()| count).map_err(|fault| self.failed(&fault));
        };
        let mut fault: Option<Fault> = None;
        for stretch in state.ranges.stretches(offset..end) {
            let part = (stretch.range.start - offset) as usize..(stretch.range.end - offset) as usize;
            let part = &mut bytes[part];
            match stretch.source {
                Some(Source::Log(position)) => {
                    // The overlay drops what it has of the log before the log writes there again.
                    self.log.read(position, part).map_err(|_| Errno::IO)?;
                }
                None if !state.is_new => {
                    if let Err(found) = self.service.base().read(open.inode, stretch.range.start, part) {
                        fault = Some(found);
                        break;
                    }
                }
                Some(Source::Zeros | Source::Hole) | None => part.fill(0),
            }
        }
        match fault {
            Some(fault) => Err(self.failed(&fault)),
            None => Ok(count),
        }
    }

    pub(super) fn write_at(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, Errno> {
        let open = self.file(handle, |mode| mode.write)?;
        self.need(open.inode, Mode::Exclusive)?;
        let found = self.inode(open.inode)?;
        if found.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => found.size,
        };
        if bytes.is_empty() {
            return Ok(offset);
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= MAX_FILE);
        let end = end.ok_or(Errno::FBIG)?;
        if bytes.len() > MAX_RECORD_DATA {
            self.reserve(covered(offset, end - offset))?;
        }
        let mut charge = self.charge(caller.credentials, found.uid, &Need::Data(open.inode, offset..end))?;
        self.drop_privileges(caller, open.inode)?;
        let mut at = offset;
        for piece in bytes.chunks(MAX_RECORD_DATA) {
            let length = piece.len() as u32;
            let change = Change::Write { inode: open.inode, offset: at, length };
            let part = charge.as_mut().map(|charge| charge.split(covered(at, u64::from(length))));
            self.commit_charged(caller.now, change, piece, part)?;
            at += u64::from(length);
        }
        Ok(offset)
    }

    pub(super) fn allocate_range(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        self.handle(handle)?;
        if range.is_empty() {
            return Err(Errno::INVAL);
        }
        let open = self.file(handle, |mode| mode.write)?;
        self.need(open.inode, Mode::Exclusive)?;
        let found = self.inode(open.inode)?;
        if found.kind != Kind::File {
            return Err(Errno::NODEV);
        }
        if range.end > MAX_FILE {
            return Err(Errno::FBIG);
        }
        let charge = match allocation {
            Allocation::Punch => None,
            _ => self.charge(caller.credentials, found.uid, &Need::Room(open.inode, range.clone()))?,
        };
        self.drop_privileges(caller, open.inode)?;
        let (inode, offset, length) = (open.inode, range.start, range.end - range.start);
        let (size, zero) = match allocation {
            Allocation::Punch => {
                return self.commit_with(caller.now, Change::Punch { inode, offset, length }, &[]);
            }
            Allocation::Reserve => (found.size.max(range.end), false),
            Allocation::ReserveKeepSize => (found.size, false),
            Allocation::Zero => (found.size.max(range.end), true),
            Allocation::ZeroKeepSize => (found.size, true),
        };
        let change = Change::Reserve { inode, offset, length, size, zero };
        self.commit_charged(caller.now, change, &[], charge)
    }

    /// A step of a search: some hundred extents.
    pub(super) fn seek_some(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<Sought, Errno> {
        let open = self.handle(handle)?;
        let found = self.inode(open.inode)?;
        if found.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        if offset >= found.size {
            return Err(Errno::NXIO);
        }
        let (mut at, mut left) = (offset, SEEK_STEP);
        while at < found.size {
            if left == 0 {
                return Ok(Sought::From(at));
            }
            match (what, self.data_blocks(open.inode, at..found.size, &mut left)?) {
                (Seek::Data, Data::Found(data)) => return Ok(Sought::Found(data.start.max(offset))),
                (Seek::Data, Data::NotBefore(next)) => at = at.max(next),
                (Seek::Data, Data::None) => return Err(Errno::NXIO),
                (Seek::Hole, Data::Found(data)) if data.start <= at => at = data.end,
                (Seek::Hole, _) => return Ok(Sought::Found(at)),
            }
            left = left.saturating_sub(1);
        }
        // Data up to the end.
        if what == Seek::Data { Err(Errno::NXIO) } else { Ok(Sought::Found(found.size)) }
    }

    /// The first blocks with data in a range. It looks at about `most` extents and pieces at most,
    /// of which it takes those away; at all that begin in the first block.
    pub(super) fn data_blocks(
        &mut self,
        inode: InodeNumber,
        range: Range<u64>,
        most: &mut u64,
    ) -> Result<Data, Errno> {
        let from = range.start - range.start % BLOCK_BYTES;
        let whole = |range: Range<u64>| {
            Data::Found(range.start - range.start % BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES))
        };
        self.see(|overlay, base| {
            let Some(state) = overlay.state(inode) else {
                return Ok(match base.data_in(inode, from..range.end, most)? {
                    Data::Found(data) => whole(data),
                    other => other,
                });
            };
            // The end of the file may be inside a block.
            for stretch in state.ranges.stretches(from..range.end.next_multiple_of(BLOCK_BYTES)) {
                let part = stretch.range;
                if *most == 0 && part.start >= from + BLOCK_BYTES {
                    return Ok(Data::NotBefore(part.start));
                }
                *most = most.saturating_sub(1);
                match stretch.source {
                    Some(Source::Log(_) | Source::Zeros) => return Ok(whole(part)),
                    None if !state.is_new => match base.data_in(inode, part.clone(), most)? {
                        Data::Found(data) => return Ok(whole(data.start..data.end.min(part.end))),
                        Data::NotBefore(next) if next < part.end => return Ok(Data::NotBefore(next)),
                        Data::NotBefore(_) | Data::None => {}
                    },
                    Some(Source::Hole) | None => {}
                }
            }
            Ok(Data::None)
        })
    }
}

/// Whether an inode of this kind can be opened. A front end opens pipes, sockets and devices
/// itself.
fn check_kind(kind: Kind, mode: OpenMode) -> Result<(), Errno> {
    match kind {
        Kind::File => Ok(()),
        Kind::Directory if mode.write || mode.truncate => Err(Errno::ISDIR),
        Kind::Directory => Ok(()),
        Kind::Symlink => Err(Errno::LOOP),
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => Err(Errno::NXIO),
    }
}
