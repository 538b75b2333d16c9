//! The parts of a script.

use crate::host::Settings;
use crate::packet::TcpOption;

/// A script.
#[derive(Clone, Debug)]
pub struct Script {
    /// The settings of its machine.
    pub settings: Settings,
    /// Whether it uses IPv6.
    pub ipv6: bool,
    /// Nanoseconds by which the engine may be early or late.
    pub tolerance: u64,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// An action at a time.
#[derive(Clone, Debug)]
pub struct Event {
    /// The line, from 1.
    pub line: usize,
    /// The time.
    pub when: When,
    /// The action.
    pub action: Action,
}

/// When an event happens, in nanoseconds since the script began, or since the event before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    Absolute(u64),
    /// So long after the last event.
    Relative(u64),
    /// Between these times.
    AbsoluteRange(u64, u64),
    /// Between these times after the last event.
    RelativeRange(u64, u64),
    /// At any time.
    Any,
}

/// The action of an event.
#[derive(Clone, Debug)]
pub enum Action {
    /// The application calls.
    Call(Call),
    /// A packet arrives.
    Inject(Packet),
    /// A packet must leave.
    Expect(Packet),
    /// Every assertion must hold.
    Assert(Vec<Assertion>),
}

/// A system call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Value>,
    /// Its result.
    pub result: Value,
    /// The name of the error, where it fails.
    pub errno: Option<String>,
    /// When it returns, if it waits; counted from the same time as its start.
    pub until: Option<u64>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, or names of numbers joined by `|`.
    Integer(i64),
    /// `...`: a value that the runner chooses.
    Ellipsis,
    /// `"text"`.
    Text(String),
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{name=value, ..}`.
    Fields(Vec<(String, Value)>),
}

/// A packet as a script writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The peer's port, where there are several connections.
    pub peer: Option<u16>,
    /// The ECN field: the values that are right, none for any.
    pub ecn: Vec<u8>,
    /// Sent with a wrong checksum.
    pub corrupt: bool,
    /// Its content.
    pub content: Content,
}

/// The content of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A segment.
    Tcp(Segment),
    /// An ICMP error about a segment that the engine sent.
    Icmp(IcmpError),
}

/// A TCP segment, numbers as the script counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Segment {
    pub flags: u8,
    pub seq: u32,
    pub length: u32,
    pub ack: Option<u32>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    /// None for any.
    pub options: Option<Vec<TcpOption>>,
}

/// An ICMP error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// ICMP for IPv4: type and code; where the script runs on IPv6, ICMPv6's.
    pub kind: u8,
    /// See `kind`.
    pub code: u8,
    /// The MTU of the next hop.
    pub mtu: u32,
    /// Sequence number and length of the segment that it quotes.
    pub quoted: (u32, u32),
}

/// `name operator number`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// A field of `tcp_info`, or one of the runner's own.
    pub field: String,
    /// The comparison.
    pub operator: Operator,
    /// The number.
    pub value: i64,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Why a script cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub message: String,
}
