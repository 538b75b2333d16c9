//! One entry of a packed form: a string or an integer that can be read from both of its ends.
//!
//! | first byte | meaning | bytes after it |
//! | --- | --- | --- |
//! | `00..=7f` | this integer | none |
//! | `80..=bf` | string of 0 to 63 bytes | the string |
//! | `c1..=c8` | integer of 1 to 8 bytes | the integer: little-endian, signed |
//! | `d0` | longer string | its length (2 bytes), the string |
//! | `d1` | still longer string | its length (8 bytes), the string |
//!
//! 1. The number of all these bytes follows them in groups of seven bits, the lowest group last.
//!    Every group but the first has its top bit set, so the length is read backwards.
//! 2. A string that is exactly how an integer is written becomes that integer, in as few bytes as
//!    hold it. An entry therefore has one spelling only, and equal bytes mean equal entries.
//! 3. A string of 8 bytes takes 10, and so does any integer of 64 bits.

use crate::foundation::text::number::{Digits, WrittenDigits, parse_integer};

const SHORT: u8 = 0x80;
/// Longest string whose length is in the first byte.
const SHORT_LIMIT: usize = 0x3f;
const WIDE: u8 = 0xc0;
const MEDIUM: u8 = 0xd0;
const LONG: u8 = 0xd1;

/// The bytes of an element: where they are stored, or written out of an integer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Text<'a> {
    /// As stored.
    Bytes(&'a [u8]),
    /// The digits of an integer.
    Digits(WrittenDigits),
}

impl std::ops::Deref for Text<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Digits(digits) => digits,
        }
    }
}

impl PartialEq<[u8]> for Text<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data::value) enum Content<'a> {
    /// A string.
    Bytes(&'a [u8]),
    /// An integer.
    Integer(i64),
}

impl<'a> Content<'a> {
    /// Its bytes.
    #[inline]
    pub(in crate::data::value) fn text(self) -> Text<'a> {
        match self {
            Self::Bytes(bytes) => Text::Bytes(bytes),
            Self::Integer(integer) => Text::Digits(Digits::default().written(integer)),
        }
    }
}

/// An entry that is to be written or to be found.
#[derive(Clone, Copy, Debug)]
pub(in crate::data::value) struct Encoded<'a> {
    head: [u8; 9],
    head_length: u8,
    body: &'a [u8],
}

impl<'a> Encoded<'a> {
    /// The entry of these bytes.
    #[inline]
    pub(in crate::data::value) fn new(bytes: &'a [u8]) -> Self {
        // The first byte shows of most strings that they are no integers.
        match bytes.first() {
            Some(b'0'..=b'9' | b'-') => {
                parse_integer(bytes).map_or_else(|| Self::string(bytes), Self::integer)
            }
            _ => Self::string(bytes),
        }
    }

    /// The entry of an integer.
    pub(in crate::data::value) fn integer(integer: i64) -> Self {
        let mut head = [0; 9];
        if let Ok(small @ 0..SHORT) = u8::try_from(integer) {
            head[0] = small;
            return Self { head, head_length: 1, body: &[] };
        }
        let magnitude = if integer < 0 { !integer } else { integer };
        let width = (65 - magnitude.leading_zeros()).div_ceil(8) as u8;
        head[0] = WIDE + width;
        head[1..].copy_from_slice(&integer.to_le_bytes());
        Self { head, head_length: 1 + width, body: &[] }
    }

    /// The entry of bytes that stay bytes, whatever they look like.
    #[inline]
    pub(in crate::data::value) fn string(bytes: &'a [u8]) -> Self {
        let mut head = [0; 9];
        let head_length = if bytes.len() <= SHORT_LIMIT {
            head[0] = SHORT | bytes.len() as u8;
            1
        } else if let Ok(length) = u16::try_from(bytes.len()) {
            head[0] = MEDIUM;
            head[1..3].copy_from_slice(&length.to_le_bytes());
            3
        } else {
            head[0] = LONG;
            head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            9
        };
        Self { head, head_length, body: bytes }
    }

    fn content_length(&self) -> usize {
        usize::from(self.head_length) + self.body.len()
    }

    /// Bytes that it takes.
    #[inline]
    pub(in crate::data::value) fn size(&self) -> usize {
        let content = self.content_length();
        content + back_length(content)
    }

    /// Writes it at `at`, and returns where it ends.
    pub(in crate::data::value) fn write(&self, into: &mut [u8], at: usize) -> usize {
        let body = at + usize::from(self.head_length);
        into[at..body].copy_from_slice(&self.head[..usize::from(self.head_length)]);
        let back = body + self.body.len();
        into[body..back].copy_from_slice(self.body);
        let content = back - at;
        let end = back + back_length(content);
        let (mut rest, mut place) = (content, end - 1);
        loop {
            into[place] = (rest & 0x7f) as u8;
            rest >>= 7;
            if rest == 0 {
                return end;
            }
            into[place] |= 0x80;
            place -= 1;
        }
    }

    /// Whether it is the entry at `at`.
    #[inline]
    pub(in crate::data::value) fn is_at(&self, bytes: &[u8], at: usize) -> bool {
        // The first byte decides nearly always, and of a short string it is the whole head.
        if bytes[at] != self.head[0] {
            return false;
        }
        let (head, found) = (&self.head[1..usize::from(self.head_length)], &bytes[at + 1..]);
        (head.is_empty() || found.starts_with(head)) && found[head.len()..].starts_with(self.body)
    }
}

/// Bytes of the length behind `content` bytes.
#[inline]
fn back_length(content: usize) -> usize {
    if content < 0x80 { 1 } else { ((usize::BITS - content.leading_zeros()) as usize).div_ceil(7) }
}

/// Bytes of the content of the entry at `at`.
#[inline]
fn content_length(bytes: &[u8], at: usize) -> usize {
    let first = bytes[at];
    match first {
        0..SHORT => 1,
        SHORT..WIDE => 1 + usize::from(first - SHORT),
        WIDE..MEDIUM => 1 + usize::from(first - WIDE),
        MEDIUM => 3 + usize::from(u16::from_le_bytes([bytes[at + 1], bytes[at + 2]])),
        _ => 9 + word(&bytes[at + 1..at + 9]) as usize,
    }
}

/// Up to eight bytes as a little-endian number.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Where the entry at `at` ends.
#[inline]
pub(in crate::data::value) fn after(bytes: &[u8], at: usize) -> usize {
    let content = content_length(bytes, at);
    at + content + back_length(content)
}

/// Where the entry that ends at `end` starts.
#[inline]
pub(in crate::data::value) fn before(bytes: &[u8], end: usize) -> usize {
    let (mut content, mut shift, mut at) = (0, 0, end);
    loop {
        at -= 1;
        content |= usize::from(bytes[at] & 0x7f) << shift;
        shift += 7;
        if bytes[at] & 0x80 == 0 {
            return at - content;
        }
    }
}

/// The content of the entry at `at`, and where the entry ends.
#[inline]
pub(in crate::data::value) fn read(bytes: &[u8], at: usize) -> (Content<'_>, usize) {
    let first = bytes[at];
    let content = content_length(bytes, at);
    let end = at + content;
    let found = match first {
        0..SHORT => Content::Integer(i64::from(first)),
        SHORT..WIDE => Content::Bytes(&bytes[at + 1..end]),
        WIDE..MEDIUM => {
            let unused = 64 - 8 * (content - 1) as u32;
            Content::Integer(((word(&bytes[at + 1..end]) << unused) as i64) >> unused)
        }
        MEDIUM => Content::Bytes(&bytes[at + 3..end]),
        _ => Content::Bytes(&bytes[at + 9..end]),
    };
    (found, end + back_length(content))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(entries: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        for entry in entries {
            let encoded = Encoded::new(entry);
            let at = bytes.len();
            bytes.resize(at + encoded.size(), 0xee);
            assert_eq!(encoded.write(&mut bytes, at), bytes.len());
            assert!(encoded.is_at(&bytes, at));
        }
        let mut at = 0;
        let mut starts = Vec::new();
        for entry in entries {
            starts.push(at);
            let (content, end) = read(&bytes, at);
            assert_eq!(*content.text(), **entry);
            assert_eq!(end, after(&bytes, at));
            at = end;
        }
        assert_eq!(at, bytes.len());
        for &start in starts.iter().rev() {
            at = before(&bytes, at);
            assert_eq!(at, start);
        }
    }

    #[test]
    fn integers_of_every_width_and_strings_of_every_border_are_read_from_both_ends() {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        for bits in 0..63 {
            for near in -1..=1i64 {
                let power = (1i64 << bits) + near;
                entries.push(power.to_string().into_bytes());
                entries.push((-power).to_string().into_bytes());
            }
        }
        entries.extend([i64::MIN, i64::MAX].map(|end| end.to_string().into_bytes()));
        for length in [0, 1, 62, 63, 64, 126, 127, 128, 16_380, 16_384, 65_535, 65_536, 3_000_000] {
            entries.push(vec![b'x'; length]);
        }
        entries.extend([&b"-"[..], b"-0", b"00", b"+1", b"9223372036854775808"].map(Vec::from));
        round_trip(&entries);
    }

    #[test]
    fn eight_bytes_take_ten() {
        assert_eq!(Encoded::new(b"abcdefgh").size(), 10);
        assert_eq!(Encoded::new(b"127").size(), 2);
        assert_eq!(Encoded::new(b"-32768").size(), 4);
        assert_eq!(Encoded::new(b"1234567").size(), 5);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_back(entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
            round_trip(&entries);
        }
    }
}
