//! What is asked of all VNICs at once: who has what, and the end of it.
//!
//! 1. The socket service has answered for the host's addresses; its answer comes along with the question.
//! 2. Each VNIC is asked in turn, over a pair of its own, as a program would ask it. One that does not answer in time has nothing to say.
//! 3. The answers are put together, and that is sent. An application of which something was taken away gets nothing any more, here and there.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use sietch_protocol::socket_service::{
    Descriptors, REPLY_BYTES, Reply, ReplyKind, RequestKind, receive_message, send_message,
};
use zerocopy::IntoBytes as _;

use super::vnic::Asked;
use crate::sockets::administration::{Cut, Listing, sealed};
use crate::sockets::table::Application;
use crate::sockets::{Command, Registrar, Sent};

/// How long a VNIC may take to answer: a turn of it takes a millisecond at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of an answer at most.
const MOST: u64 = 64 << 20;

/// Where a VNIC hears requests.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Its requests.
    pub orders: &'a Sender<Asked>,
    /// What wakes it.
    pub bell: &'a OwnedFd,
}

/// Puts a question to all VNICs and answers it.
pub fn gather<'a>(asked: Asked, lines: impl Iterator<Item = Line<'a>>, registrar: Option<&Registrar>) {
    let own = asked.sent.first();
    let answer = match asked.kind {
        RequestKind::List => {
            let mut all: Listing = own.and_then(read).unwrap_or_default();
            for found in lines.filter_map(|line| ask::<Listing>(&asked, line)) {
                all.applications.extend(found.applications);
                all.listeners.extend(found.listeners);
                all.connections.extend(found.connections);
                all.omitted += found.omitted;
            }
            sealed(&all)
        }
        RequestKind::Revoke => {
            let mut all: Option<Cut> = own.and_then(read);
            for found in lines.filter_map(|line| ask::<Cut>(&asked, line)) {
                let all = all.get_or_insert_default();
                all.listeners += found.listeners;
                all.connections.extend(found.connections);
                all.users.extend(found.users);
            }
            if let (Some(all), Some(registrar)) = (&all, registrar) {
                for &uid in &all.users {
                    let id = asked.request.application;
                    registrar.tell(Command::Revoked(Application { uid, id }));
                }
            }
            all.ok_or(Errno::SRCH).and_then(|all| sealed(&all))
        }
        _ => Err(Errno::OPNOTSUPP),
    };
    match answer {
        Ok(file) => {
            let reply = Reply::new(ReplyKind::Listed);
            // Who does not wait for it has hung up.
            let _ =
                send_message(asked.socket.as_fd(), reply.as_bytes(), &[file.as_fd()], SendFlags::DONTWAIT);
        }
        Err(error) => asked.refuse(error),
    }
}

fn read<T: DeserializeOwned>(file: &OwnedFd) -> Option<T> {
    serde_json::from_slice(&sietch_protocol::sealed::read(file, MOST).ok()?).ok()
}

/// What one VNIC says to it; nothing: it refuses, or has nothing, or is gone.
fn ask<T: DeserializeOwned>(asked: &Asked, line: Line<'_>) -> Option<T> {
    let (own, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    set_socket_timeout(&own, Timeout::Recv, Some(PATIENCE)).ok()?;
    let &Asked { uid, administers, request, kind, .. } = asked;
    let sent = Sent::default();
    line.orders.send(Asked { uid, administers, request, kind, sent, pair: None, socket }).ok()?;
    let _ = rustix::io::write(line.bell, &1_u64.to_ne_bytes());
    let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
    let (length, _) = receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).ok()?;
    Reply::parse(bytes.get(..length)?).ok().filter(|reply| reply.kind() == ReplyKind::Listed)?;
    read(received[0].as_ref()?)
}
