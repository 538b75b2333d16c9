//! From a change to the front of a record.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::change::{Change, NewAttributes, Place};
use crate::log::record::check::inode_of;
use crate::log::record::layout::{
    AttributeFields, CreateFields, Header, LINE, LogIdentity, RenameFields, Stamp, begin_checksum, flag, kind,
};

/// Writes the fields behind the header and the names, one after the other.
struct Front<'b> {
    out: &'b mut [u8],
    length: usize,
}

impl Front<'_> {
    fn push(&mut self, bytes: &[u8]) {
        self.out[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// Bytes of the front of a record with this change.
pub(crate) fn front_bytes(change: &Change<'_>) -> usize {
    let (fields, names) = match change {
        Change::Create { place, .. } => {
            (size_of::<CreateFields>(), place.as_ref().map_or(0, |place| place.name.len()))
        }
        Change::Link { place, .. } | Change::Unlink { place, .. } => (size_of::<U64>(), place.name.len()),
        Change::Rename { from, to, .. } => (size_of::<RenameFields>(), from.name.len() + to.name.len()),
        Change::Reserve { .. } => (2 * size_of::<U64>(), 0),
        Change::Punch { .. } => (size_of::<U64>(), 0),
        Change::SetAttributes { .. } => (size_of::<AttributeFields>(), 0),
        Change::SetXattr { name, .. } | Change::RemoveXattr { name, .. } => (0, name.len()),
        Change::Write { .. } | Change::Truncate { .. } | Change::Free { .. } => (0, 0),
    };
    (LINE + fields + names).next_multiple_of(LINE)
}

/// Writes the front of a record to `out`, which is as long as [`front_bytes`] says, with the magic
/// and the checksum replaced as [`begin_checksum`] does it. [`super::check()`] holds for the
/// change.
pub(crate) fn encode_front(
    identity: &LogIdentity,
    position: u64,
    stamp: Stamp,
    change: &Change<'_>,
    payload: usize,
    out: &mut [u8],
) {
    let lines = out.len() / LINE;
    out.fill(0);
    let mut header = Header::new_zeroed();
    // The lengths were checked: see the assertions beside `MAX_RECORD`.
    header.payload = U32::new(payload as u32);
    header.front = lines as u8;
    header.log = U32::new(identity.log);
    header.epoch = U32::new(identity.epoch);
    header.sequence = U64::new(stamp.sequence);
    header.seconds = I64::new(stamp.time.seconds);
    header.nanoseconds = U32::new(stamp.time.nanoseconds);
    header.unproven = U16::new(stamp.unproven);
    header.inode = U64::new(inode_of(change).0);
    encode_fields(change, &mut header, &mut Front { out, length: LINE });
    out[..LINE].copy_from_slice(header.as_bytes());
    begin_checksum(identity, position, out);
}

fn encode_fields(change: &Change<'_>, header: &mut Header, front: &mut Front<'_>) {
    match *change {
        Change::Create { .. } => encode_create(change, header, front),
        Change::Link { place, .. } => encode_entry(kind::LINK, &place, header, front),
        Change::Unlink { place, .. } => encode_entry(kind::UNLINK, &place, header, front),
        Change::Rename { from, to, replaced, exchange, .. } => {
            header.kind = kind::RENAME;
            header.flags |= if replaced.is_some() { flag::REPLACES } else { 0 };
            header.flags |= if exchange { flag::EXCHANGE } else { 0 };
            header.names = [from.name.len() as u8, to.name.len() as u8];
            header.word = U64::new(from.directory.0);
            let fields = RenameFields {
                from_cookie: U64::new(from.cookie.0),
                to_directory: U64::new(to.directory.0),
                to_cookie: U64::new(to.cookie.0),
                replaced: U64::new(replaced.map_or(0, |inode| inode.0)),
            };
            front.push(fields.as_bytes());
            front.push(from.name);
            front.push(to.name);
        }
        Change::Write { offset, .. } => {
            header.kind = kind::WRITE;
            header.word = U64::new(offset);
        }
        Change::Truncate { size, .. } => {
            header.kind = kind::TRUNCATE;
            header.word = U64::new(size);
        }
        Change::Reserve { offset, length, size, zero, .. } => {
            header.kind = kind::RESERVE;
            header.flags = if zero { flag::ZERO } else { 0 };
            header.word = U64::new(offset);
            front.push(&length.to_le_bytes());
            front.push(&size.to_le_bytes());
        }
        Change::Punch { offset, length, .. } => {
            header.kind = kind::PUNCH;
            header.word = U64::new(offset);
            front.push(&length.to_le_bytes());
        }
        Change::SetAttributes { attributes, .. } => {
            header.kind = kind::SET_ATTRIBUTES;
            encode_attributes(&attributes, header, front);
        }
        Change::SetXattr { name, .. } => encode_name(kind::SET_XATTR, name, header, front),
        Change::RemoveXattr { name, .. } => encode_name(kind::REMOVE_XATTR, name, header, front),
        Change::Free { .. } => header.kind = kind::FREE,
    }
}

fn encode_create(change: &Change<'_>, header: &mut Header, front: &mut Front<'_>) {
    let Change::Create { place, kind, mode, uid, gid, device, .. } = *change else { return };
    header.kind = kind::CREATE;
    let mut fields = CreateFields {
        cookie: U64::ZERO,
        device: U64::new(device),
        uid: U32::new(uid),
        gid: U32::new(gid),
        mode: U16::new(mode),
        kind: kind as u8,
        reserved: [0; 5],
    };
    let mut name: &[u8] = &[];
    if let Some(place) = place {
        header.flags = flag::NAMED;
        header.word = U64::new(place.directory.0);
        fields.cookie = U64::new(place.cookie.0);
        name = place.name;
    }
    header.names[0] = name.len() as u8;
    front.push(fields.as_bytes());
    front.push(name);
}

fn encode_entry(kind: u8, place: &Place<'_>, header: &mut Header, front: &mut Front<'_>) {
    header.word = U64::new(place.directory.0);
    front.push(&place.cookie.0.to_le_bytes());
    encode_name(kind, place.name, header, front);
}

fn encode_name(kind: u8, name: &[u8], header: &mut Header, front: &mut Front<'_>) {
    header.kind = kind;
    header.names[0] = name.len() as u8;
    front.push(name);
}

fn encode_attributes(attributes: &NewAttributes, header: &mut Header, front: &mut Front<'_>) {
    let present = [
        (flag::MODE, attributes.mode.is_some()),
        (flag::UID, attributes.uid.is_some()),
        (flag::GID, attributes.gid.is_some()),
        (flag::ATIME, attributes.atime.is_some()),
        (flag::MTIME, attributes.mtime.is_some()),
    ];
    header.flags = present.iter().map(|(flag, is_present)| flag * u8::from(*is_present)).sum();
    let (atime, mtime) = (attributes.atime.unwrap_or_default(), attributes.mtime.unwrap_or_default());
    let fields = AttributeFields {
        atime_seconds: I64::new(atime.seconds),
        mtime_seconds: I64::new(mtime.seconds),
        atime_nanoseconds: U32::new(atime.nanoseconds),
        mtime_nanoseconds: U32::new(mtime.nanoseconds),
        uid: U32::new(attributes.uid.unwrap_or(0)),
        gid: U32::new(attributes.gid.unwrap_or(0)),
        mode: U16::new(attributes.mode.unwrap_or(0)),
        reserved: [0; 6],
    };
    front.push(fields.as_bytes());
}

/// A pad, whose checksum is still to be computed over this line.
pub(crate) fn encode_pad(identity: &LogIdentity, position: u64, stamp: Stamp, skipped: u32) -> [u8; LINE] {
    let mut header = Header::new_zeroed();
    header.kind = kind::PAD;
    header.payload = U32::new(skipped);
    header.front = 1;
    header.log = U32::new(identity.log);
    header.epoch = U32::new(identity.epoch);
    header.sequence = U64::new(stamp.sequence);
    header.unproven = U16::new(stamp.unproven);
    let mut line = [0; LINE];
    line.copy_from_slice(header.as_bytes());
    begin_checksum(identity, position, &mut line);
    line
}
