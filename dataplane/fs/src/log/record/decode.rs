//! From the bytes of a record to the change.

use zerocopy::FromBytes;
use zerocopy::little_endian::{I64, U32, U64};

use crate::change::{Change, NewAttributes, Place};
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::log::record::check::check;
use crate::log::record::layout::{
    AttributeFields, CreateFields, Header, Invalid, LINE, RenameFields, ensure, flag, kind,
};
use crate::name::Cookie;

/// The fields and names of a front, to be taken one after the other.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Invalid("a front that is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<T: FromBytes>(&mut self) -> Result<T, Invalid> {
        T::read_from_bytes(self.bytes(size_of::<T>())?).map_err(|_| Invalid("a front that is too short"))
    }

    fn word(&mut self) -> Result<u64, Invalid> {
        Ok(self.take::<U64>()?.get())
    }

    fn place(&mut self, directory: u64, cookie: u64, name: u8) -> Result<Place<'a>, Invalid> {
        let name = self.bytes(usize::from(name))?;
        Ok(Place { directory: InodeNumber(directory), cookie: Cookie(cookie), name })
    }
}

/// What the record says whose header this is and whose bytes these are, and its payload. The
/// checksum was verified, but its maker is not trusted.
pub(crate) fn decode<'a>(header: &Header, bytes: &'a [u8]) -> Result<(Change<'a>, &'a [u8]), Invalid> {
    let too_short = Invalid("a record that is too short");
    let (front, behind) = bytes.split_at_checked(header.front()).ok_or(too_short)?;
    let (payload, padding) = behind.split_at_checked(header.payload()).ok_or(too_short)?;
    ensure(header.reserved == 0, "a reserved field that says something")?;
    ensure(padding.iter().all(|byte| *byte == 0), "padding that says something")?;
    let mut fields = Fields { rest: front.get(LINE..).ok_or(too_short)? };
    let change = decode_fields(header, &mut fields, payload)?;
    let rest = fields.rest;
    ensure(rest.len() < LINE && rest.iter().all(|byte| *byte == 0), "a front that says more")?;
    check(header.time(), &change, payload.len())?;
    Ok((change, payload))
}

fn decode_fields<'a>(
    header: &Header,
    fields: &mut Fields<'a>,
    payload: &'a [u8],
) -> Result<Change<'a>, Invalid> {
    let inode = InodeNumber(header.inode.get());
    let word = header.word.get();
    let length = header.payload.get();
    let (names, flags) = (header.names, header.flags);
    // Names, flags and the word that a kind does not have are 0.
    let expect = |first: bool, second: bool, mask: u8, has_word: bool| {
        ensure(
            (first || names[0] == 0)
                && (second || names[1] == 0)
                && flags & !mask == 0
                && (has_word || word == 0),
            "a field that the kind does not have",
        )
    };
    Ok(match header.kind {
        kind::CREATE => {
            expect(true, false, flag::NAMED, true)?;
            decode_create(header, fields, payload)?
        }
        kind::LINK | kind::UNLINK => {
            expect(true, false, 0, true)?;
            let cookie = fields.word()?;
            let place = fields.place(word, cookie, names[0])?;
            if header.kind == kind::LINK {
                Change::Link { inode, place }
            } else {
                Change::Unlink { inode, place }
            }
        }
        kind::RENAME => {
            expect(true, true, flag::REPLACES | flag::EXCHANGE, true)?;
            decode_rename(header, fields)?
        }
        kind::WRITE => {
            expect(false, false, 0, true)?;
            Change::Write { inode, offset: word, length }
        }
        kind::TRUNCATE => {
            expect(false, false, 0, true)?;
            Change::Truncate { inode, size: word }
        }
        kind::RESERVE => {
            expect(false, false, flag::ZERO, true)?;
            let (length, size) = (fields.word()?, fields.word()?);
            Change::Reserve { inode, offset: word, length, size, zero: flags & flag::ZERO != 0 }
        }
        kind::PUNCH => {
            expect(false, false, 0, true)?;
            Change::Punch { inode, offset: word, length: fields.word()? }
        }
        kind::SET_ATTRIBUTES => {
            expect(false, false, flag::MODE | flag::UID | flag::GID | flag::ATIME | flag::MTIME, false)?;
            Change::SetAttributes { inode, attributes: decode_attributes(flags, fields)? }
        }
        kind::SET_XATTR => {
            expect(true, false, 0, false)?;
            Change::SetXattr { inode, name: fields.bytes(usize::from(names[0]))?, length }
        }
        kind::REMOVE_XATTR => {
            expect(true, false, 0, false)?;
            Change::RemoveXattr { inode, name: fields.bytes(usize::from(names[0]))? }
        }
        kind::FREE => {
            expect(false, false, 0, false)?;
            Change::Free { inode }
        }
        _ => return Err(Invalid("a kind that does not exist")),
    })
}

fn decode_create<'a>(
    header: &Header,
    fields: &mut Fields<'a>,
    target: &'a [u8],
) -> Result<Change<'a>, Invalid> {
    let raw: CreateFields = fields.take()?;
    ensure(raw.reserved == [0; 5], "a reserved field that says something")?;
    let (directory, cookie) = (header.word.get(), raw.cookie.get());
    let place = if header.flags & flag::NAMED != 0 {
        Some(fields.place(directory, cookie, header.names[0])?)
    } else {
        ensure((directory, cookie, header.names[0]) == (0, 0, 0), "a place of what has no name")?;
        None
    };
    Ok(Change::Create {
        inode: InodeNumber(header.inode.get()),
        place,
        kind: Kind::from_value(raw.kind).ok_or(Invalid("a kind of inode that does not exist"))?,
        mode: raw.mode.get(),
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        device: raw.device.get(),
        target,
    })
}

fn decode_rename<'a>(header: &Header, fields: &mut Fields<'a>) -> Result<Change<'a>, Invalid> {
    let raw: RenameFields = fields.take()?;
    let from = fields.place(header.word.get(), raw.from_cookie.get(), header.names[0])?;
    let to = fields.place(raw.to_directory.get(), raw.to_cookie.get(), header.names[1])?;
    let has_replaced = header.flags & flag::REPLACES != 0;
    ensure(has_replaced || raw.replaced.get() == 0, "a replaced inode without its flag")?;
    Ok(Change::Rename {
        inode: InodeNumber(header.inode.get()),
        from,
        to,
        replaced: has_replaced.then_some(InodeNumber(raw.replaced.get())),
        exchange: header.flags & flag::EXCHANGE != 0,
    })
}

fn decode_attributes(flags: u8, fields: &mut Fields<'_>) -> Result<NewAttributes, Invalid> {
    let raw: AttributeFields = fields.take()?;
    ensure(raw.reserved == [0; 6], "a reserved field that says something")?;
    let time =
        |seconds: I64, nanoseconds: U32| Timestamp { seconds: seconds.get(), nanoseconds: nanoseconds.get() };
    let (atime, mtime) =
        (time(raw.atime_seconds, raw.atime_nanoseconds), time(raw.mtime_seconds, raw.mtime_nanoseconds));
    let attributes = NewAttributes {
        mode: (flags & flag::MODE != 0).then_some(raw.mode.get()),
        uid: (flags & flag::UID != 0).then_some(raw.uid.get()),
        gid: (flags & flag::GID != 0).then_some(raw.gid.get()),
        atime: (flags & flag::ATIME != 0).then_some(atime),
        mtime: (flags & flag::MTIME != 0).then_some(mtime),
    };
    let absent = attributes.mode.map_or(raw.mode.get(), |_| 0) == 0
        && attributes.uid.map_or(raw.uid.get(), |_| 0) == 0
        && attributes.gid.map_or(raw.gid.get(), |_| 0) == 0
        && attributes.atime.map_or(atime, |_| Timestamp::default()) == Timestamp::default()
        && attributes.mtime.map_or(mtime, |_| Timestamp::default()) == Timestamp::default();
    ensure(absent, "an attribute without its flag")?;
    Ok(attributes)
}
