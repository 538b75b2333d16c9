//! Writing replies.
//!
//! 1. [`Reply`] appends to one byte vector: the client's output buffer, which it has for the time
//!    of a command.
//! 2. The same calls serve RESP2 and RESP3. If the client has not sent HELLO 3, a map is an
//!    array of twice its length, a double is a bulk string, and so on.
//! 3. An array whose length is known only at its end is written with [`Reply::defer`] and
//!    [`Reply::fill`].

use super::fault::Fault;
use crate::foundation::text::number::{print_double, print_integer};

/// Bytes of a header with any count, and of the end of a line.
const LONGEST_HEADER: usize = 32;

/// Writes replies for one client.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// What has been written.
    pub bytes: Vec<u8>,
    /// Whether the client speaks RESP3.
    pub resp3: bool,
}

/// The position of the header of an array.
#[derive(Debug)]
#[must_use = "fill the header in"]
pub(crate) struct Deferred(usize);

impl Reply {
    /// Continues `bytes`.
    pub(crate) fn new(bytes: Vec<u8>, resp3: bool) -> Self {
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
    pub(crate) fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string; it must have no line ends.
    pub(crate) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error; line ends in it become blanks.
    pub(crate) fn error(&mut self, fault: &Fault) {
        self.bytes.push(b'-');
        let blank = |&byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(fault.0.iter().map(blank));
        self.end();
    }

    /// An integer.
    pub(crate) fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A length or count as integer.
    pub(crate) fn count(&mut self, value: usize) {
        self.header(b':', value as i64);
    }

    /// A bulk string.
    pub(crate) fn bulk(&mut self, text: &[u8]) {
        // One check of the capacity for the whole string.
        self.bytes.reserve(text.len() + LONGEST_HEADER);
        self.header(b'$', text.len() as i64);
        self.bytes.extend_from_slice(text);
        self.end();
    }

    /// A bulk string, or nil.
    pub(crate) fn bulk_or_nil(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => self.bulk(text),
            None => self.nil(),
        }
    }

    /// An integer as bulk string.
    pub(crate) fn bulk_integer(&mut self, value: i64) {
        let mut digits = [0; 24];
        let at = print_integer(value, &mut digits);
        self.bulk(&digits[at..]);
    }

    /// The absence of a string.
    pub(crate) fn nil(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The absence of an array.
    pub(crate) fn nil_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The header of an array.
    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count as i64);
    }

    /// The header of a map of `pairs` keys and values.
    pub(crate) fn map(&mut self, pairs: usize) {
        if self.resp3 {
            self.header(b'%', pairs as i64);
        } else {
            self.header(b'*', 2 * pairs as i64);
        }
    }

    /// The header of a set.
    pub(crate) fn set(&mut self, count: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, count as i64);
    }

    /// The header of an out-of-band message.
    pub(crate) fn push(&mut self, count: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, count as i64);
    }

    /// A double: its own type in RESP3, a bulk string in RESP2. 17 significant digits.
    pub(crate) fn double(&mut self, value: f64) {
        let text = print_double(value);
        if self.resp3 {
            self.bytes.push(b',');
            self.bytes.extend_from_slice(&text);
            self.end();
        } else {
            self.bulk(&text);
        }
    }

    /// A text for people: verbatim in RESP3, a bulk string in RESP2.
    pub(crate) fn verbatim(&mut self, text: &[u8]) {
        if self.resp3 {
            self.header(b'=', text.len() as i64 + 4);
            self.bytes.extend_from_slice(b"txt:");
            self.bytes.extend_from_slice(text);
            self.end();
        } else {
            self.bulk(text);
        }
    }

    /// The text of a HELP subcommand, as Redis frames it.
    pub(crate) fn help(&mut self, command: &str, lines: &[&str]) {
        self.array(lines.len() + 3);
        self.simple(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
        lines.iter().for_each(|line| self.simple(line));
        self.simple("HELP");
        self.simple("    Prints this help.");
    }

    /// Notes the position of the header of an array of yet unknown length.
    pub(crate) fn defer(&mut self) -> Deferred {
        Deferred(self.bytes.len())
    }

    /// Puts the header of an array of `count` elements at the deferred position. What follows moves
    /// up.
    pub(crate) fn fill(&mut self, Deferred(at): Deferred, count: usize) {
        let mut header = [0; 32];
        let digits_at = print_integer(count as i64, &mut header[..28]);
        let start = digits_at - 1;
        header[start] = b'*';
        header[28..30].copy_from_slice(b"\r\n");
        self.bytes.splice(at..at, header[start..30].iter().copied());
    }
}
