//! Lists the Unix sockets of this network namespace, by `sock_diag(7)`.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Bytes of a netlink header, of the request after it, and of the answer for each socket.
const HEADER: usize = 16;
const REQUEST: usize = 24;
const SOCKET: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`; `NLM_F_REQUEST | NLM_F_DUMP`; `NLMSG_ERROR`, `NLMSG_DONE`.
const BY_FAMILY: u16 = 20;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Most bytes of one message of the kernel.
const ANSWER: usize = 32 * 1024;

/// Calls `visit` with the cookie of every Unix socket of this network namespace (`sock_diag(7)`,
/// `unix_diag_req`).
pub(super) fn visit_all(mut visit: impl FnMut(u64)) -> io::Result<()> {
    let diag = Some(netlink::SOCK_DIAG);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, diag)?;
    let mut request = [0_u8; HEADER + REQUEST];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &40_u32.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &DUMP.to_ne_bytes());
    // The family, and all states.
    put(HEADER, &[1]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0_u8; ANSWER];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let mut rest = answer.get(..length).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while rest.len() >= HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(io::Error::other("sock_diag refuses to list Unix sockets")),
                _ => {}
            }
            if let Some(body) = rest.get(HEADER..HEADER + SOCKET) {
                let mut cookie = [0; 8];
                // Two words at the end, the low one first.
                cookie.copy_from_slice(&body[8..16]);
                visit(u64::from_le_bytes(cookie));
            }
            let next = length.max(HEADER).next_multiple_of(4);
            rest = rest.get(next..).unwrap_or_default();
        }
    }
}
