//! RESP: reading requests, writing replies.
//!
//! Requests (`resp/request.rs`): see there. Replies:
//! 1. [`Reply`] appends to one byte vector, which is the client's output buffer, lent for the time
//!    of a command.
//! 2. The same calls serve RESP2 and RESP3: a map is an array of twice its length, a double is a
//!    bulk string and so on where the client has not said HELLO 3.
//! 3. An array whose length is known only at its end is written with [`Reply::defer`] and
//!    [`Reply::fill`].

use crate::commands::Fault;

mod request;

pub use request::{Ahead, Arguments, Limits, Parser, Progress, ProtocolError};

/// Bytes of a header with any count, and of the end of a line.
const LONGEST_HEADER: usize = 32;

/// Writes replies for one client.
#[derive(Debug, Default)]
pub struct Reply {
    /// What has been written.
    pub bytes: Vec<u8>,
    /// Whether the client speaks RESP3.
    pub resp3: bool,
}

/// A place where the header of an aggregate will stand.
#[derive(Debug)]
#[must_use = "fill the header in"]
pub struct Deferred(usize);

impl Reply {
    /// Continues `bytes`.
    pub fn new(bytes: Vec<u8>, resp3: bool) -> Self {
        Self { bytes, resp3 }
    }

    #[inline]
    fn header(&mut self, kind: u8, count: i64) {
        // Small counts are most of them.
        match count {
            0..=9 => self.bytes.extend_from_slice(&[kind, b'0' + count as u8, b'\r', b'\n']),
            10..=99 => {
                let (tens, ones) = (b'0' + count as u8 / 10, b'0' + count as u8 % 10);
                self.bytes.extend_from_slice(&[kind, tens, ones, b'\r', b'\n']);
            }
            _ => self.long_header(kind, count),
        }
    }

    fn long_header(&mut self, kind: u8, count: i64) {
        let mut digits = [0; 24];
        let at = print_integer(count, &mut digits);
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&digits[at..]);
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string; it must have no line ends.
    pub fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error; line ends in it become blanks.
    pub fn error(&mut self, fault: &Fault) {
        self.bytes.push(b'-');
        let blank = |&byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(fault.0.iter().map(blank));
        self.end();
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A length or count as integer.
    pub fn count(&mut self, value: usize) {
        self.header(b':', value as i64);
    }

    /// A bulk string.
    pub fn bulk(&mut self, text: &[u8]) {
        // One look at the room for all of it.
        self.bytes.reserve(text.len() + LONGEST_HEADER);
        self.header(b'$', text.len() as i64);
        self.bytes.extend_from_slice(text);
        self.end();
    }

    /// A bulk string, or nil.
    pub fn bulk_or_nil(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => self.bulk(text),
            None => self.nil(),
        }
    }

    /// An integer as bulk string.
    pub fn bulk_integer(&mut self, value: i64) {
        let mut digits = [0; 24];
        let at = print_integer(value, &mut digits);
        self.bulk(&digits[at..]);
    }

    /// The absence of a string.
    pub fn nil(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The absence of an array.
    pub fn nil_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The header of an array.
    pub fn array(&mut self, count: usize) {
        self.header(b'*', count as i64);
    }

    /// The header of a map of `pairs` keys and values.
    pub fn map(&mut self, pairs: usize) {
        if self.resp3 {
            self.header(b'%', pairs as i64);
        } else {
            self.header(b'*', 2 * pairs as i64);
        }
    }

    /// The header of a set.
    pub fn set(&mut self, count: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, count as i64);
    }

    /// The header of a message that nobody asked for.
    pub fn push(&mut self, count: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, count as i64);
    }

    /// A double: its own type in RESP3, a bulk string in RESP2. 17 significant digits.
    pub fn double(&mut self, value: f64) {
        let text = crate::number::print_double(value);
        if self.resp3 {
            self.bytes.push(b',');
            self.bytes.extend_from_slice(&text);
            self.end();
        } else {
            self.bulk(&text);
        }
    }

    /// A truth: its own type in RESP3, 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        if self.resp3 {
            self.bytes.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" });
        } else {
            self.integer(i64::from(value));
        }
    }

    /// A text for people: verbatim in RESP3, a bulk string in RESP2.
    pub fn verbatim(&mut self, text: &[u8]) {
        if self.resp3 {
            self.header(b'=', text.len() as i64 + 4);
            self.bytes.extend_from_slice(b"txt:");
            self.bytes.extend_from_slice(text);
            self.end();
        } else {
            self.bulk(text);
        }
    }

    /// Leaves room for the header of an aggregate of yet unknown length.
    pub fn defer(&mut self) -> Deferred {
        Deferred(self.bytes.len())
    }

    /// Puts the header of an array of `count` elements where `place` says. What follows moves up.
    pub fn fill(&mut self, place: Deferred, count: usize) {
        self.fill_as(place, b'*', count);
    }

    /// The same for a set.
    pub fn fill_set(&mut self, place: Deferred, count: usize) {
        self.fill_as(place, if self.resp3 { b'~' } else { b'*' }, count);
    }

    fn fill_as(&mut self, Deferred(at): Deferred, kind: u8, count: usize) {
        let mut header = [0; 32];
        let digits_at = print_integer(count as i64, &mut header[..28]);
        let start = digits_at - 1;
        header[start] = kind;
        header[28..30].copy_from_slice(b"\r\n");
        self.bytes.splice(at..at, header[start..30].iter().copied());
    }
}

/// Prints `value` at the end of `into` (24 bytes at least) and returns where it starts.
pub fn print_integer(value: i64, into: &mut [u8]) -> usize {
    let mut rest = value.unsigned_abs();
    let mut at = into.len();
    loop {
        at -= 1;
        into[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        into[at] = b'-';
    }
    at
}

#[cfg(test)]
mod tests;
