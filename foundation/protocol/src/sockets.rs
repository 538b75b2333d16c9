//! Reports of an application's sockets, for `sietch ss`.
//!
//! 1. A report is one socket with the numbers that `ss -ti` prints. Times are in nanoseconds,
//!    windows and queues in bytes.
//! 2. Reports travel as JSON, one a line, in a memfd that the application seals against every
//!    change before it sends it. The daemon passes the memfd on unread; the command line reads it
//!    with `pread`.
//! 3. At most [`MAX_REPORTS`] reports and `MAX_BYTES` bytes. Further reports are counted, not
//!    sent.
//! 4. A reader trusts nothing: it checks seals, size, count and every line. Text of an application
//!    is bounded; the program that prints it escapes it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

/// The most sockets in one answer.
pub const MAX_REPORTS: usize = 100_000;
/// The most bytes of an answer: [`MAX_REPORTS`] of the longest lines.
pub(crate) const MAX_BYTES: u64 = 128 << 20;
/// The longest name of an algorithm that is read.
const MAX_WORD: usize = 24;

/// Why an answer is refused.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// A system call failed.
    #[error("socket reports: {0}; see whether memory is free")]
    Io(#[source] io::Error),
    /// Its owner could still change it.
    #[error("socket reports: not a memfd that is sealed against every change; make it with sockets::write")]
    NotSealed,
    /// Beyond the bounds.
    #[error(
        "socket reports: more than {MAX_REPORTS} sockets or {MAX_BYTES} bytes; make them with sockets::write"
    )]
    TooLong,
    /// A line that is no report.
    #[error("socket reports: line {line}: {source}; use programs of one version")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The name of an algorithm or state is too long.
    #[error("socket reports: line {line}: a name of more than {MAX_WORD} bytes; use programs of one version")]
    Word {
        /// Which, from 1.
        line: usize,
    },
}

/// Which protocol a socket speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// The state of a socket (RFC 9293 section 3.3.2), by the names that `ss` has for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the RFC's names")]
pub enum SocketState {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
    /// UDP, or a socket of no connection.
    #[default]
    Unconnected,
}

impl fmt::Display for SocketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "CLOSED",
            Self::Unconnected => "UNCONN",
        })
    }
}

/// One socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReport {
    /// Its protocol.
    pub transport: Transport,
    /// Its state.
    pub state: SocketState,
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's, unless it has none.
    pub peer: Option<SocketAddr>,
    /// Bytes received and not yet read; of a listener: connections not yet taken.
    pub receive_queue: u64,
    /// Bytes to be sent or acknowledged; of a listener: connections that may wait.
    pub send_queue: u64,
    /// The state of the TCP connection.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tcp: Option<Box<TcpReport>>,
}

/// The state of a TCP connection. A field that is 0 is unknown or has not happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TcpReport {
    /// Of congestion control, as in `cubic`.
    pub algorithm: String,
    /// What loss recovery is doing: `open`, `disorder`, `recovery` or `loss`.
    pub recovery: String,
    /// Whether the application has closed it.
    pub orphaned: bool,
    pub timestamps: bool,
    pub selective_acknowledgement: bool,
    /// Shifts of the peer's and our window (RFC 7323).
    pub window_scale: (u8, u8),
    pub segment_size: u32,
    pub congestion_window: u64,
    /// `None` while it is infinite: slow start.
    pub slow_start_threshold: Option<u64>,
    pub peer_window: u64,
    pub receive_window: u64,
    /// Smoothed round-trip time (RFC 6298).
    pub srtt: u64,
    /// Variation of the round-trip time (RFC 6298).
    pub rttvar: u64,
    pub min_rtt: u64,
    pub retransmission_timeout: u64,
    /// Times the timeout has been doubled.
    pub backoff: u32,
    /// Bytes a second.
    pub pacing_rate: u64,
    pub in_flight: u64,
    /// Bytes that the peer has reported beyond the acknowledgement.
    pub selectively_acknowledged: u64,
    /// Bytes that count as lost now.
    pub lost: u64,
    pub retransmits: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u64,
    pub recoveries: u64,
    /// Reductions of the window that were taken back.
    pub undone: u64,
    pub tail_probes: u64,
    /// Reports of the peer that it received bytes twice.
    pub duplicates: u64,
    pub reordered: u64,
    pub acknowledged_bytes: u64,
    pub received_bytes: u64,
    /// Bytes received that wait for earlier ones.
    pub out_of_order: u64,
    /// Since data was last sent.
    pub last_send: u64,
    /// Since anything was last received.
    pub last_receive: u64,
}

/// Puts reports into a sealed memfd. Returns it and how many did not fit.
///
/// # Errors
/// [`SocketsError::Io`].
pub fn write(reports: &[SocketReport]) -> Result<(OwnedFd, u64), SocketsError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sietch-sockets", flags).map_err(io)?;
    let mut written = 0;
    let mut sent = 0_usize;
    let mut bytes = Vec::with_capacity(PIECE * 2);
    for report in reports.iter().take(MAX_REPORTS) {
        let before = bytes.len();
        serde_json::to_writer(&mut bytes, report)
            .map_err(|source| SocketsError::Line { line: sent + 1, source })?;
        bytes.push(b'\n');
        if written + bytes.len() as u64 > MAX_BYTES {
            bytes.truncate(before);
            break;
        }
        sent += 1;
        if bytes.len() >= PIECE {
            written += write_all(&file, &bytes)?;
            bytes.clear();
        }
    }
    write_all(&file, &bytes)?;
    rustix::fs::fcntl_add_seals(&file, SEALS).map_err(io)?;
    Ok((file, (reports.len() - sent) as u64))
}

/// Bytes that are written at once.
const PIECE: usize = 256 * 1024;
/// The seals that forbid every change.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// The number of bytes in `file`, if it is a sealed memfd that is not too long.
///
/// # Errors
/// [`SocketsError::NotSealed`], [`SocketsError::TooLong`].
pub fn check(file: impl AsFd) -> Result<u64, SocketsError> {
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| SocketsError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(SocketsError::NotSealed);
    }
    let size = u64::try_from(rustix::fs::fstat(&file).map_err(io)?.st_size).unwrap_or(u64::MAX);
    if size > MAX_BYTES { Err(SocketsError::TooLong) } else { Ok(size) }
}

/// Reads the reports of an application.
///
/// # Errors
/// See [`SocketsError`].
pub fn read(file: impl AsFd) -> Result<Vec<SocketReport>, SocketsError> {
    let size = check(&file)?;
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| SocketsError::TooLong)?];
    let mut done = 0;
    while done < bytes.len() {
        let count = rustix::io::pread(&file, &mut bytes[done..], done as u64).map_err(io)?;
        if count == 0 {
            return Err(SocketsError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        done += count;
    }
    let mut reports = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let line_number = index + 1;
        if reports.len() == MAX_REPORTS {
            return Err(SocketsError::TooLong);
        }
        let report: SocketReport = serde_json::from_slice(line)
            .map_err(|source| SocketsError::Line { line: line_number, source })?;
        let long = |tcp: &TcpReport| tcp.algorithm.len().max(tcp.recovery.len()) > MAX_WORD;
        if report.tcp.as_deref().is_some_and(long) {
            return Err(SocketsError::Word { line: line_number });
        }
        reports.push(report);
    }
    Ok(reports)
}

fn io(error: rustix::io::Errno) -> SocketsError {
    SocketsError::Io(error.into())
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<u64, SocketsError> {
    let length = bytes.len() as u64;
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(SocketsError::Io(io::ErrorKind::WriteZero.into())),
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io(error)),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests;
