//! Error replies, in the words of Redis 7.0.

use std::borrow::Cow;

/// An error reply: its code and text as Redis 7.0 words them, without the leading `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault(pub Cow<'static, [u8]>);

impl Fault {
    /// The value at a key is of another type.
    pub(crate) const WRONG_TYPE: Self =
        Self::of("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Options that do not fit together or are unknown.
    pub(crate) const SYNTAX: Self = Self::of("ERR syntax error");
    /// Not a 64-bit integer.
    pub(crate) const NOT_INTEGER: Self = Self::of("ERR value is not an integer or out of range");
    /// Not a double.
    pub(crate) const NOT_FLOAT: Self = Self::of("ERR value is not a valid float");
    /// An index that is out of bounds.
    pub(crate) const OUT_OF_RANGE: Self = Self::of("ERR index out of range");
    /// The key must exist.
    pub(crate) const NO_SUCH_KEY: Self = Self::of("ERR no such key");
    /// A sum left the range of 64 bits.
    pub(crate) const OVERFLOW: Self = Self::of("ERR increment or decrement would overflow");
    /// A sum of floats is no number any more.
    pub(crate) const NOT_A_NUMBER: Self = Self::of("ERR increment would produce NaN or Infinity");
    /// A string would exceed `proto-max-bulk-len`.
    pub(crate) const TOO_LONG: Self =
        Self::of("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    /// The memory limit is reached and nothing can be evicted.
    pub(crate) const OUT_OF_MEMORY: Self =
        Self::of("OOM command not allowed when used memory > 'maxmemory'.");
    /// A blocking timeout that is no number.
    pub(crate) const TIMEOUT_NOT_FLOAT: Self = Self::of("ERR timeout is not a float or out of range");
    /// A blocking timeout below zero.
    pub(crate) const TIMEOUT_NEGATIVE: Self = Self::of("ERR timeout is negative");
    /// A cursor of the SCAN family that is no number.
    pub(crate) const BAD_CURSOR: Self = Self::of("ERR invalid cursor");

    /// The client must authenticate first.
    pub(crate) const NOT_AUTHENTICATED: Self = Self::of("NOAUTH Authentication required.");

    /// A constant error.
    pub(crate) const fn of(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }

    /// An error made at run time; line ends in it become blanks when it is written.
    pub(crate) fn new(text: impl Into<Vec<u8>>) -> Self {
        Self(Cow::Owned(text.into()))
    }

    /// `ERR wrong number of arguments for 'name' command`.
    pub(crate) fn arity(name: &str) -> Self {
        Self::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// `ERR unknown subcommand 'x'. Try NAME HELP.`
    pub(crate) fn unknown_subcommand(name: &str, subcommand: &[u8]) -> Self {
        let shown = text_before_zero(subcommand, 128);
        let mut text = b"ERR unknown subcommand '".to_vec();
        text.extend_from_slice(shown);
        text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
        Self::new(text)
    }

    /// `ERR unknown subcommand or wrong number of arguments for 'x'. Try NAME HELP.`
    pub(crate) fn subcommand_syntax(name: &str, subcommand: &[u8]) -> Self {
        let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
        text.extend_from_slice(text_before_zero(subcommand, 128));
        text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
        Self::new(text)
    }

    /// The first word, as counted by INFO errorstats.
    pub(crate) fn code(&self) -> &[u8] {
        self.0.split(|&byte| byte == b' ').next().unwrap_or_default()
    }
}

/// The first bytes of an argument as errors show it: up to a zero byte, and not more than `most`.
pub(crate) fn text_before_zero(argument: &[u8], most: usize) -> &[u8] {
    let end = argument.iter().position(|&byte| byte == 0).unwrap_or(argument.len());
    &argument[..end.min(most)]
}
