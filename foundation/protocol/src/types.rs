//! The values that messages and `sietch.toml` share, each with one text form.
//!
//! 1. Every type parses from and prints to the form a person writes: `02:00:00:00:00:01`,
//!    `10.0.0.0/8`, `6000-6010`, `10Gbit/s`. Serde uses the same form, so a frame can be read with
//!    the eyes.
//! 2. Parsing what was printed gives the same value.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What counts as the user where a message of an earlier version names none: no user has this
/// number.
pub(crate) const fn unnamed_user() -> u32 {
    u32::MAX
}

/// A text that does not have the form that its type requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {fix}")]
pub struct ParseError {
    /// What was written.
    pub text: String,
    /// What it should have been.
    pub what: &'static str,
    /// How to write it.
    pub fix: &'static str,
}

impl ParseError {
    fn new(text: &str, what: &'static str, fix: &'static str) -> Self {
        // A hostile text is repeated in an error and a log line: keep it short.
        Self { text: text.chars().take(64).collect(), what, fix }
    }
}

macro_rules! text_form {
    ($type:ty) => {
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
        impl TryFrom<String> for $type {
            type Error = ParseError;
            fn try_from(text: String) -> Result<Self, ParseError> {
                text.parse()
            }
        }
    };
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

text_form!(Mac);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::new(text, "an Ethernet address", "write six bytes, `02:00:00:00:00:01`");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

impl Mac {
    /// Whether one station may have this address: not multicast, not all zero.
    pub fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

/// An IPv4 network, or an address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// The address as written: host bits are kept.
    pub address: Ipv4Addr,
    /// Bits of the prefix, 0 to 32.
    pub prefix: u8,
}

text_form!(Network);

impl Network {
    /// All of IPv4.
    pub const EVERYONE: Self = Self { address: Ipv4Addr::UNSPECIFIED, prefix: 0 };

    /// The prefix as a mask.
    pub fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0)
    }

    /// Whether `address` is in the network.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ u32::from(self.address)) & self.mask() == 0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::new(text, "an IPv4 network", "write `10.0.0.0/8` or `10.0.0.1`");
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address = address.parse().map_err(|_| wrong())?;
        if prefix.is_empty() || prefix.len() > 2 || !prefix.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let prefix = prefix.parse().ok().filter(|&prefix| prefix <= 32).ok_or_else(wrong)?;
        Ok(Self { address, prefix })
    }
}

/// An IPv6 network, or an address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network6 {
    /// The address as written: host bits are kept.
    pub address: Ipv6Addr,
    /// Bits of the prefix, 0 to 128.
    pub prefix: u8,
}

text_form!(Network6);

impl Network6 {
    /// Whether `address` is in the network.
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
        (u128::from(address) ^ u128::from(self.address)) & mask == 0
    }
}

impl fmt::Display for Network6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network6 {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::new(text, "an IPv6 network", "write `fd00::2/64`");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let prefix = prefix.parse().ok().filter(|&prefix| prefix <= 128).ok_or_else(wrong)?;
        Ok(Self { address, prefix })
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port; not below `first`.
    pub last: u16,
}

text_form!(PortRange);

impl PortRange {
    /// A single port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether `port` is in the range.
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for PortRange {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::new(text, "a range of ports", "write `6379` or `6000-6010`");
        let port = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
            text.parse::<u16>().ok().filter(|&port| digits && port > 0).ok_or_else(wrong)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: port(first)?, last: port(last)? };
        if range.first > range.last { Err(wrong()) } else { Ok(range) }
    }
}

/// A bound on what a VNIC may send, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    /// Bytes a second, at least 1.
    pub bytes_per_second: u64,
}

text_form!(Rate);

/// Units of a rate, largest first, in bits a second.
const RATE_UNITS: [(&str, u64); 4] =
    [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from(self.bytes_per_second) * 8;
        for (unit, scale) in RATE_UNITS {
            if bits.is_multiple_of(u128::from(scale)) && bits > 0 {
                return write!(f, "{}{unit}", bits / u128::from(scale));
            }
        }
        write!(f, "{bits}bit/s")
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || {
            ParseError::new(
                text,
                "a rate",
                "write a whole number of `Gbit/s`, `Mbit/s`, `kbit/s` or `bit/s`, at least 8bit/s",
            )
        };
        let compact: String = text.chars().filter(|c| *c != ' ').collect();
        let (digits, scale) = RATE_UNITS
            .iter()
            .find_map(|(unit, scale)| compact.strip_suffix(unit).map(|digits| (digits, *scale)))
            .ok_or_else(wrong)?;
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let bits = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(scale));
        let bytes_per_second = bits.map(|bits| bits / 8).filter(|&bytes| bytes > 0).ok_or_else(wrong)?;
        Ok(Self { bytes_per_second })
    }
}

/// A number of bytes, as in `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

text_form!(Size);

/// Units of a size, largest first, in bytes.
const SIZE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, scale) in SIZE_UNITS {
            if self.bytes.is_multiple_of(scale) && self.bytes > 0 {
                return write!(f, "{}{unit}", self.bytes / scale);
            }
        }
        write!(f, "{}B", self.bytes)
    }
}

impl FromStr for Size {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong =
            || ParseError::new(text, "a size", "write a whole number of `TiB`, `GiB`, `MiB`, `KiB` or `B`");
        let compact: String = text.chars().filter(|c| *c != ' ').collect();
        let (digits, scale) = SIZE_UNITS
            .iter()
            .find_map(|(unit, scale)| compact.strip_suffix(unit).map(|digits| (digits, *scale)))
            .ok_or_else(wrong)?;
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(scale));
        Ok(Self { bytes: bytes.ok_or_else(wrong)? })
    }
}

/// The shape of an AF_XDP socket's memory and rings, as the daemon registered them. Counts are
/// entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct XskLayout {
    /// Index of the interface that the socket is bound to.
    pub ifindex: u32,
    /// Queue of that interface.
    pub queue: u32,
    /// Bytes a buffer of the pool has.
    pub chunk_size: u32,
    /// Buffers in the pool.
    pub chunks: u32,
    /// Entries of the fill ring.
    pub fill: u32,
    /// Entries of the completion ring.
    pub completion: u32,
    /// Entries of the receive ring.
    pub receive: u32,
    /// Entries of the transmit ring.
    pub transmit: u32,
    /// Runs of neighbouring buffers at the end of the pool. A sent frame that exceeds one buffer
    /// takes one run. Without any, the socket accepts no such frames.
    pub runs: u32,
    /// Buffers in each run.
    pub run_chunks: u32,
    /// The host's end leaves the checksums of TCP and UDP unfinished: the sum of the pseudo-header
    /// is in their place.
    pub unfinished_checksums: bool,
}

/// The shape of both regions of a shared-memory VNIC (`docs/spec/shm-link.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLayout {
    /// Frames in flight each way.
    pub slots: u32,
    /// Bytes for frames in flight each way.
    pub data: u32,
}

/// The memory of a VNIC's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueLayout {
    /// An AF_XDP socket and its UMEM.
    AfXdp(XskLayout),
    /// Two regions of memory, each written by one side, and a doorbell.
    Shared(SharedLayout),
}

/// What is at the other end of a VNIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VnicKind {
    /// The kernel: a veth pair with filters on both ends.
    #[default]
    Veth,
    /// The software switch of this host, on a service core.
    Switch,
    /// One other application, and nothing in between.
    Link,
}

impl fmt::Display for VnicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Veth => "veth",
            Self::Switch => "switch",
            Self::Link => "link",
        })
    }
}

/// How to read a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
}

/// A named value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// As in `tcp.segments_received`.
    pub name: String,
    /// How to read the value.
    pub kind: Kind,
    /// The value.
    pub value: u64,
}

/// The component that stops an application beyond its grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// The device.
    HardwareEnforced,
    /// The kernel: programs, file descriptors, page tables.
    KernelEnforced,
    /// A broker behind the application's rings.
    BrokerMediated,
    /// No component between the two ends of a link. The kernel prevents each from writing the
    /// other's memory. Filters do not apply, because only the peer can be reached.
    PointToPoint,
    /// No component, with the reason.
    None(String),
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HardwareEnforced => f.write_str("hardware-enforced"),
            Self::KernelEnforced => f.write_str("kernel-enforced"),
            Self::BrokerMediated => f.write_str("broker-mediated"),
            Self::PointToPoint => f.write_str("point-to-point"),
            Self::None(why) => write!(f, "none: {why}"),
        }
    }
}

/// The process that holds a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantStatus {
    /// The grant.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
    /// The holder's process.
    pub pid: u32,
    /// The holder's user.
    pub uid: u32,
    /// The name the holder gave itself.
    pub client: String,
    /// Whether the holder is connected now (not so just after the daemon was restarted).
    pub connected: bool,
}

#[cfg(test)]
mod tests;
