//! Replies as trees, and which parts of them are compared.
//!
//! Two servers may list the elements of a set in different orders, or choose others at random.
//! [`Comparison`] brings such replies into a normal form first.

use std::fmt;

/// One reply. Equal trees come from equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// `+`.
    Simple(Vec<u8>),
    /// `-`.
    Error(Vec<u8>),
    /// `:`.
    Integer(i64),
    /// `$` with a length.
    Bulk(Vec<u8>),
    /// `$-1`.
    NilBulk,
    /// `*-1`.
    NilArray,
    /// `_`.
    Nil,
    /// `,`, as it is written.
    Double(Vec<u8>),
    /// `#`.
    Boolean(bool),
    /// `=`.
    Verbatim(Vec<u8>),
    /// `*`.
    Array(Vec<Reply>),
    /// `~`.
    Set(Vec<Reply>),
    /// `>`.
    Push(Vec<Reply>),
    /// Keys and values, alternating.
    Map(Vec<Reply>),
}

impl Reply {
    /// The first reply in `bytes` and how many bytes follow it; `None` if it is not complete.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
        let number = || -> i64 { String::from_utf8_lossy(line).parse().expect("a number in a header") };
        let reply = match bytes[0] {
            b'+' => Self::Simple(line.to_vec()),
            b'-' => Self::Error(line.to_vec()),
            b':' => Self::Integer(number()),
            b',' => Self::Double(line.to_vec()),
            b'#' => Self::Boolean(line == b"t"),
            b'_' => Self::Nil,
            kind @ (b'$' | b'=') => {
                let Ok(length) = usize::try_from(number()) else {
                    return Some((Self::NilBulk, rest.len()));
                };
                let text = rest.get(..length)?.to_vec();
                rest = rest.get(length + 2..)?;
                if kind == b'$' { Self::Bulk(text) } else { Self::Verbatim(text) }
            }
            kind @ (b'*' | b'~' | b'>' | b'%') => {
                let Ok(count) = usize::try_from(number()) else {
                    return Some((Self::NilArray, rest.len()));
                };
                let count = if kind == b'%' { 2 * count } else { count };
                let mut elements = Vec::new();
                for _ in 0..count {
                    let (element, left) = Self::parse(rest)?;
                    elements.push(element);
                    rest = &rest[rest.len() - left..];
                }
                match kind {
                    b'*' => Self::Array(elements),
                    b'~' => Self::Set(elements),
                    b'>' => Self::Push(elements),
                    _ => Self::Map(elements),
                }
            }
            other => panic!("a reply starts with byte {other}"),
        };
        Some((reply, rest.len()))
    }

    /// The reply of commands that return no value.
    #[must_use]
    pub fn ok() -> Self {
        Self::Simple(b"OK".to_vec())
    }

    /// The number in an integer or a bulk reply; 0 for a key that does not exist.
    ///
    /// # Panics
    /// If it is not a number, or negative.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Self::Integer(number) => u64::try_from(*number).expect("a count"),
            Self::NilBulk => 0,
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).parse().expect("digits"),
            other => panic!("{other} is no number"),
        }
    }

    /// The text of an error; empty for any other reply.
    #[must_use]
    pub fn error(&self) -> String {
        match self {
            Self::Error(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    }

    fn elements(&mut self) -> Option<&mut Vec<Reply>> {
        match self {
            Self::Array(elements) | Self::Set(elements) | Self::Map(elements) | Self::Push(elements) => {
                Some(elements)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, elements) = match self {
            Self::Simple(text) => return write!(f, "+{}", String::from_utf8_lossy(text)),
            Self::Error(text) => return write!(f, "-{}", String::from_utf8_lossy(text)),
            Self::Bulk(text) => return write!(f, "{:?}", String::from_utf8_lossy(text)),
            Self::Double(text) => return write!(f, ",{}", String::from_utf8_lossy(text)),
            Self::Verbatim(text) => return write!(f, "={:?}", String::from_utf8_lossy(text)),
            Self::Array(elements) => ("array", elements),
            Self::Set(elements) => ("set", elements),
            Self::Push(elements) => ("push", elements),
            Self::Map(elements) => ("map", elements),
            other => return write!(f, "{other:?}"),
        };
        write!(f, "{name}[")?;
        for element in elements {
            write!(f, "{element}, ")?;
        }
        write!(f, "]")
    }
}

/// Which part of a reply must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// All of it.
    Exact,
    /// All but the order of elements.
    Unordered,
    /// All but the order of pairs (of elements in RESP2).
    Pairs,
    /// A reply of the SCAN family: elements in any order.
    Scan,
    /// The same with pairs.
    ScanPairs,
    /// Types and lengths of arrays: elements are chosen at random.
    Shape,
    /// The sign of an integer: a remaining time.
    Sign,
    /// Nothing.
    Ignore,
}

fn sort_pairs(elements: &mut Vec<Reply>) {
    let mut pairs: Vec<Vec<Reply>> = elements.chunks(2).map(<[Reply]>::to_vec).collect();
    pairs.sort();
    *elements = pairs.concat();
}

impl Comparison {
    /// Removes the parts of a reply that may differ.
    pub fn normal(self, mut reply: Reply) -> Reply {
        match self {
            Self::Exact => {}
            Self::Unordered => {
                if let Some(elements) = reply.elements() {
                    elements.sort();
                }
            }
            Self::Pairs => {
                if let Some(elements) = reply.elements() {
                    sort_pairs(elements);
                }
            }
            Self::Scan | Self::ScanPairs => {
                if let Some([_, found]) = reply.elements().map(Vec::as_mut_slice)
                    && let Some(elements) = found.elements()
                {
                    if self == Self::Scan { elements.sort() } else { sort_pairs(elements) }
                }
            }
            Self::Shape => reply = shape(reply),
            Self::Sign => {
                if let Reply::Integer(value) = reply {
                    reply = Reply::Integer(if value > 0 { 1 } else { value });
                }
            }
            Self::Ignore => reply = Reply::Nil,
        }
        reply
    }
}

fn shape(mut reply: Reply) -> Reply {
    match &mut reply {
        Reply::Bulk(text) | Reply::Double(text) => text.clear(),
        Reply::Array(elements) | Reply::Set(elements) => {
            for element in elements {
                *element = shape(element.clone());
            }
        }
        _ => {}
    }
    reply
}
