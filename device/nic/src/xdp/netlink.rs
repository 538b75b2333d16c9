//! Attaching XDP programs to interfaces through rtnetlink.
//!
//! An attachment made here (`IFLA_XDP`) belongs to the interface, not to a process: it outlives the
//! daemon and goes with the interface. A BPF link would be dropped with its last fd.
//!
//! 1. A request is one `RTM_SETLINK` or `RTM_GETLINK` message over a socket made for it; the answer
//!    is awaited.
//! 2. Attaching never replaces a program blindly: `UPDATE_IF_NOEXIST` when there must be none,
//!    `REPLACE` with the expected program's fd when there must be a certain one. The kernel
//!    compares and swaps.
//! 3. The kernel's own words (extended acknowledgement) end up in the error.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::error::XdpError;

const IFLA_XDP: u16 = 43;
const IFLA_TARGET_NETNSID: u16 = 46;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
/// Set on attributes that hold attributes.
const NESTED: u16 = 1 << 15;
/// The upper two bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
const IFINFO: usize = 16;
/// One RTM_NEWLINK is a few KiB; the kernel's own tools read with 32.
const ANSWER_BYTES: usize = 32 << 10;
/// rtnetlink answers at once. Waiting longer than this means that it never will.
const ANSWER_SECONDS: i64 = 5;

/// What must be on the interface for an attachment to go through.
#[derive(Clone, Copy, Debug)]
pub enum Expect<'a> {
    /// No program.
    Nothing,
    /// This program.
    Program(BorrowedFd<'a>),
}

/// Attaches `program` in driver (native) mode if the interface carries what is expected.
///
/// # Errors
/// [`XdpError::Occupied`] if something else is there; [`XdpError::Netlink`] for the rest (no such
/// interface, a driver without native XDP, a greater MTU than it takes).
pub(crate) fn attach(ifindex: u32, program: BorrowedFd<'_>, expect: Expect<'_>) -> Result<(), XdpError> {
    change(ifindex, program.as_raw_fd(), expect, "attach an XDP program")
}

/// Removes `program` from the interface, if it is what the interface carries.
///
/// # Errors
/// As [`attach`].
pub(crate) fn detach(ifindex: u32, program: BorrowedFd<'_>) -> Result<(), XdpError> {
    change(ifindex, -1, Expect::Program(program), "detach an XDP program")
}

/// The kernel's id of the program on the interface, if it carries one.
///
/// # Errors
/// [`XdpError::Netlink`], above all for an interface that does not exist.
pub(crate) fn attached(ifindex: u32) -> Result<Option<u32>, XdpError> {
    attached_in(ifindex, None)
}

/// The same of an interface in another namespace: `namespace` is the number by which this one knows
/// it.
///
/// # Errors
/// As [`attached`].
pub(crate) fn attached_in(ifindex: u32, namespace: Option<i32>) -> Result<Option<u32>, XdpError> {
    let what = || format!("ask which XDP program interface {ifindex} carries");
    let mut body = interface_info(ifindex);
    if let Some(number) = namespace {
        attribute(&mut body, IFLA_TARGET_NETNSID, &number.to_ne_bytes());
    }
    let answer = request(libc::RTM_GETLINK, libc::NLM_F_REQUEST as u16, &body, &what)?;
    let attributes = answer.get(IFINFO..).unwrap_or(&[]);
    let Some((_, xdp)) = Attributes(attributes).find(|(kind, _)| *kind == IFLA_XDP) else {
        return Ok(None);
    };
    Ok(Attributes(xdp)
        .find(|(kind, _)| *kind == IFLA_XDP_PROG_ID)
        .and_then(|(_, value)| Some(u32::from_ne_bytes(value.try_into().ok()?)))
        .filter(|&id| id != 0))
}

/// Brings the interface up, without ARP.
///
/// # Errors
/// [`XdpError::Netlink`].
pub fn bring_up_quietly(ifindex: u32) -> Result<(), XdpError> {
    let what = || format!("bring interface {ifindex} up");
    let up = (libc::IFF_UP | libc::IFF_NOARP) as u32;
    let mut body = interface_info(ifindex);
    body[8..12].copy_from_slice(&up.to_ne_bytes());
    body[12..16].copy_from_slice(&up.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    request(libc::RTM_SETLINK, flags, &body, &what).map(|_| ())
}

fn interface_info(ifindex: u32) -> Vec<u8> {
    let mut body = vec![0; IFINFO];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body
}

/// Appends one attribute, padded to four bytes.
pub(super) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values here are a few dozen bytes.
    body.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn change(ifindex: u32, program: i32, expect: Expect<'_>, verb: &str) -> Result<(), XdpError> {
    let mut nested = Vec::new();
    attribute(&mut nested, IFLA_XDP_FD, &program.to_ne_bytes());
    let flags = match expect {
        Expect::Nothing => XDP_FLAGS_DRV_MODE | XDP_FLAGS_UPDATE_IF_NOEXIST,
        Expect::Program(expected) => {
            let expected = expected.as_raw_fd().to_ne_bytes();
            attribute(&mut nested, IFLA_XDP_EXPECTED_FD, &expected);
            XDP_FLAGS_DRV_MODE | XDP_FLAGS_REPLACE
        }
    };
    attribute(&mut nested, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut body = interface_info(ifindex);
    attribute(&mut body, IFLA_XDP | NESTED, &nested);
    let what = || format!("{verb} on interface {ifindex}");
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    match request(libc::RTM_SETLINK, flags, &body, &what) {
        Ok(_) => Ok(()),
        Err(XdpError::Netlink { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) =>
        {
            Err(XdpError::Occupied { ifindex, program: attached(ifindex)?.unwrap_or(0) })
        }
        Err(error) => Err(error),
    }
}

/// Sends one message and returns the body of the answer (empty for a bare acknowledgement).
pub(super) fn request(
    kind: u16,
    flags: u16,
    body: &[u8],
    what: &dyn Fn() -> String,
) -> Result<Vec<u8>, XdpError> {
    let failed = |source| XdpError::Netlink { what: what(), message: String::new(), source };
    let socket = open().map_err(failed)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[0; 8]); // Sequence and port: one request a socket.
    message.extend_from_slice(body);
    // SAFETY: reads `message`, which outlives the call, to its length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let mut answer = vec![0_u8; ANSWER_BYTES];
    // SAFETY: writes at most the length of `answer`, to which nothing else points.
    let length = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if length < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    answer.truncate(length as usize);
    read_answer(&answer).map_err(|(source, message)| XdpError::Netlink { what: what(), message, source })
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this fd, and no other code has its number.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    // Both only make errors more readable: an older kernel without them is no failure.
    let _ = set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, &on);
    let _ = set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &on);
    let limit = libc::timeval { tv_sec: ANSWER_SECONDS, tv_usec: 0 };
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
    Ok(socket)
}

fn set_option<T>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: reads `value`, a plain C value that outlives the call, to its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn read_answer(answer: &[u8]) -> Result<Vec<u8>, (io::Error, String)> {
    let short = || (io::Error::other("the answer is cut off"), String::new());
    let length = field(answer, 0).map(u32::from_ne_bytes).ok_or_else(short)? as usize;
    let kind = field(answer, 4).map(u16::from_ne_bytes).ok_or_else(short)?;
    let flags = field(answer, 6).map(u16::from_ne_bytes).ok_or_else(short)?;
    let body = answer.get(HEADER..length).ok_or_else(short)?;
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Ok(body.to_vec());
    }
    let code = field(body, 0).map(i32::from_ne_bytes).ok_or_else(short)?;
    if code == 0 {
        return Ok(Vec::new());
    }
    let mut message = String::new();
    if flags & NLM_F_ACK_TLVS != 0 && flags & NLM_F_CAPPED != 0 {
        // The error code and the header of the request come first.
        let attributes = body.get(4 + HEADER..).unwrap_or(&[]);
        if let Some((_, text)) = Attributes(attributes).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG) {
            message = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
        }
    }
    Err((io::Error::from_raw_os_error(code.saturating_neg()), message))
}

/// Walks attributes; stops at the first that does not fit.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(field(self.0, 0)?));
        let kind = u16::from_ne_bytes(field(self.0, 2)?) & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_walked_and_a_cut_one_ends_the_walk() {
        let mut body = Vec::new();
        attribute(&mut body, 3, b"abcde");
        attribute(&mut body, 4 | NESTED, &7_u32.to_ne_bytes());
        let all: Vec<_> = Attributes(&body).collect();
        assert_eq!(all, [(3, &b"abcde"[..]), (4, &7_u32.to_ne_bytes()[..])]);
        for end in 0..body.len() {
            assert!(Attributes(&body[..end]).count() < 2);
        }
        assert_eq!(Attributes(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn an_answer_of_any_length_is_read_without_harm() {
        let mut answer = vec![0; 64];
        answer[0..4].copy_from_slice(&64_u32.to_ne_bytes());
        answer[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        answer[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        for end in 0..answer.len() {
            assert!(read_answer(&answer[..end]).is_err());
        }
        let (error, _) = read_answer(&answer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
