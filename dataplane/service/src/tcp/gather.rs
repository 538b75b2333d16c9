//! What is asked of all VNICs at once: who has what, and the end of it.
//!
//! 1. The socket service has answered for the host's addresses; its answer comes along with the
//!    question.
//! 2. All VNICs are asked at the same time, each over a pair of its own, as a program would ask it.
//!    One that does not answer within [`PATIENCE`] has nothing to say; all of them together take no
//!    longer.
//! 3. The answers are put together, and that is sent.
//! 4. The end of an application is asked for twice. An id is what a program says of itself, and
//!    another user may have taken it: first everybody says whose application it is, and nothing is
//!    ended if those are several users. Then it is ended as that user's alone, on VNICs first; the
//!    socket service ends what it has, and answers. Where whose it is was said with the question,
//!    the socket service has ended its part before.
//! 5. The [`Gate`] refuses what the application asks of VNICs from the first round on. Its requests
//!    may wait behind the revocation already. A VNIC on which it has nothing, or that is acquired
//!    later, does not know of the revocation.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use sietch_protocol::socket_service::{
    Descriptors, REPLY_BYTES, Reply, ReplyKind, RequestKind, receive_message,
};

use super::vnic::Asked;
use crate::sockets::administration::{Cut, Listing, sealed};
use crate::sockets::revoked::{By, Revoked};
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

/// What requests of programs pass on their way to a VNIC. See the module.
#[derive(Debug, Default)]
pub struct Gate(Revoked);

impl Gate {
    /// Returns a request that may go on to its VNIC, and refuses one of a revoked application.
    pub fn admit(&self, asked: Asked) -> Option<Asked> {
        let wants = matches!(asked.kind, RequestKind::Listen | RequestKind::Connect | RequestKind::Bind);
        if wants && self.0.contains(Application { uid: asked.uid, id: asked.request.application }) {
            asked.refuse(Errno::ACCESS);
            return None;
        }
        Some(asked)
    }
}

/// Puts a question to all VNICs and answers it.
pub fn gather<'a>(
    mut asked: Asked,
    lines: impl Iterator<Item = Line<'a>>,
    registrar: Option<&Registrar>,
    gate: &mut Gate,
) {
    let own = asked.sent.first();
    let answer = match asked.kind {
        RequestKind::List => {
            let mut all: Listing = own.and_then(read).unwrap_or_default();
            for found in ask_all::<Listing>(&asked, &lines.collect::<Vec<_>>()) {
                all.applications.extend(found.applications);
                all.listeners.extend(found.listeners);
                all.connections.extend(found.connections);
                all.omitted += found.omitted;
            }
            sealed(&all)
        }
        RequestKind::Revoke => {
            let whose: Cut = own.and_then(read).unwrap_or_default();
            let lines: Vec<_> = lines.collect();
            match revoke(&mut asked, whose.users, &lines, gate) {
                Ok(cut) => match registrar {
                    Some(registrar) => return registrar.tell(Command::Cut(Box::new(asked), cut)),
                    None => sealed(&cut),
                },
                Err(error) => Err(error),
            }
        }
        _ => Err(Errno::OPNOTSUPP),
    };
    match answer {
        Ok(file) => asked.sent.answer(asked.socket, Reply::new(ReplyKind::Listed), vec![file]),
        Err(error) => asked.refuse(error),
    }
}

/// Ends an application on all VNICs, if it is one user's. `users` has it on the host's addresses.
fn revoke(
    asked: &mut Asked,
    mut users: BTreeSet<u32>,
    lines: &[Line<'_>],
    gate: &mut Gate,
) -> Result<Cut, Errno> {
    asked.rehearsal = true;
    users.extend(ask_all::<Cut>(asked, lines).into_iter().flat_map(|found| found.users));
    asked.rehearsal = false;
    let user = *users.first().ok_or(Errno::SRCH)?;
    if users.len() > 1 {
        return Err(Errno::NOTUNIQ);
    }
    // Another that takes the id now is not meant.
    asked.request.set_user(user);
    let by = if asked.administers { By::Administrator } else { By::ItsUser };
    gate.0.insert(Application { uid: user, id: asked.request.application }, by);
    // It is remembered also if it has closed everything since the first round.
    let mut all = Cut { users, ..Cut::default() };
    for found in ask_all::<Cut>(asked, lines) {
        all.listeners += found.listeners;
        all.connections.extend(found.connections);
    }
    Ok(all)
}

/// What a sealed text says.
pub(crate) fn read<T: DeserializeOwned>(file: &OwnedFd) -> Option<T> {
    serde_json::from_slice(&sietch_protocol::sealed::read(file, MOST).ok()?).ok()
}

/// What VNICs say to it, in their order; nothing: it refuses, or has nothing, or is gone.
fn ask_all<T: DeserializeOwned>(asked: &Asked, lines: &[Line<'_>]) -> Vec<T> {
    let waiting: Vec<OwnedFd> = lines.iter().filter_map(|line| ask(asked, *line)).collect();
    let until = Instant::now() + PATIENCE;
    waiting.iter().filter_map(|own| hear(own, until)).collect()
}

/// Asks one VNIC; where the answer comes.
fn ask(asked: &Asked, line: Line<'_>) -> Option<OwnedFd> {
    let (own, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    let &Asked { uid, administers, request, kind, rehearsal, .. } = asked;
    let sent = Sent::default();
    line.orders.send(Asked { uid, administers, request, kind, sent, pair: None, rehearsal, socket }).ok()?;
    let _ = rustix::io::write(line.bell, &1_u64.to_ne_bytes());
    Some(own)
}

/// Waits for one answer.
fn hear<T: DeserializeOwned>(own: &OwnedFd, until: Instant) -> Option<T> {
    // What is there already is taken all the same.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    set_socket_timeout(own, Timeout::Recv, Some(left)).ok()?;
    let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
    let (length, _) = receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).ok()?;
    Reply::parse(bytes.get(..length)?).ok().filter(|reply| reply.kind() == ReplyKind::Listed)?;
    read(received[0].as_ref()?)
}
