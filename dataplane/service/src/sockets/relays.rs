//! Connections whose accepting program cannot map their memory.
//!
//! 1. The program returns the placeholder of its end. A thread of this service takes the program's
//!    part: it maps the memory, and connects a kernel's socket to the listener, where the program
//!    accepts that. The socket has the client's name if the kernel still has it.
//! 2. Bytes are relayed between the two ([`sietch_stream::relay`]). The listener's later clients go
//!    to the kernel, so only what waited at the listener is ever relayed.
//! 3. Each relay is a thread, because the close of a placeholder can hang: its peer may have sent
//!    descriptors over it. Their number is bounded, and they yield to the loop of this service.
//!
//! A relay ends with this service, and resets its connection.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::setpriority_process;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sietch_ring::stream::{Endpoint, Memory};
use sietch_socket::kernel::namespace_cookie;

use super::limits::{RELAYS, RELAYS_PER_USER};
use crate::requests::application::Names;

/// Bytes of a relay's stack.
const STACK: usize = 256 << 10;

/// The lowest priority: requests to this service come first.
const NICE: i32 = 19;

/// Where the kernel's connection of a relay is made.
#[derive(Debug)]
pub(super) struct Destination {
    /// The names of the accepting end.
    pub names: Names,
    /// The cookie of the connection's network namespace.
    pub namespace: u64,
    /// The namespace of the kernel's socket that listens there, if this process may enter it.
    pub entrance: Option<OwnedFd>,
}

/// The relays that run, by user: one reference each.
#[derive(Debug, Default)]
pub(super) struct Relays(BTreeMap<u32, Arc<()>>);

impl Relays {
    /// Begins to relay a connection for a user.
    ///
    /// # Errors
    /// The placeholder, with `ENOBUFS`: there are too many relays, or no thread is left; `ENOMEM`:
    /// this process cannot map the memory either.
    pub(super) fn begin(
        &mut self,
        uid: u32,
        placeholder: OwnedFd,
        memory: &Memory,
        to: Destination,
    ) -> Result<(), (Errno, OwnedFd)> {
        self.0.retain(|_, running| Arc::strong_count(running) > 1);
        let all: usize = self.0.values().map(|running| Arc::strong_count(running) - 1).sum();
        let running = self.0.entry(uid).or_default();
        if all >= RELAYS || Arc::strong_count(running) > RELAYS_PER_USER {
            return Err((Errno::NOBUFS, placeholder));
        }
        let running = Arc::clone(running);
        let Ok(end) = Endpoint::attach(memory.common.as_fd(), memory.private[1].as_fd()) else {
            return Err((Errno::NOMEM, placeholder));
        };
        // The placeholder follows when there is a thread that can close it.
        let (sender, receiver) = sync_channel::<OwnedFd>(1);
        let relay = move || {
            let _running = running;
            let _ = setpriority_process(None, NICE);
            let Ok(placeholder) = receiver.recv() else { return };
            let relayed = connect(&to).and_then(|socket| sietch_stream::relay(placeholder, end, socket));
            if let Err(error) = relayed {
                tracing::debug!("a relayed connection was reset: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("sietch-relay".to_owned()).stack_size(STACK);
        if thread.spawn(relay).is_err() {
            return Err((Errno::NOBUFS, placeholder));
        }
        sender.send(placeholder).map_err(|lost| (Errno::NOBUFS, lost.0))
    }
}

/// Begins to connect a kernel's socket to the listener.
fn connect(to: &Destination) -> io::Result<OwnedFd> {
    let Names { local, peer } = to.names;
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = || rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let mut socket = open()?;
    if namespace_cookie(&socket)? != to.namespace {
        let entrance = to.entrance.as_ref().ok_or(io::ErrorKind::PermissionDenied)?;
        move_into_link_name_space(entrance.as_fd(), Some(LinkNameSpaceType::Network))?;
        socket = open()?;
        if namespace_cookie(&socket)? != to.namespace {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    // A name that the client has bound is in use: then the kernel gives another port.
    set_socket_reuseaddr(&socket, true)?;
    let _ = rustix::net::bind(&socket, &peer);
    match rustix::net::connect(&socket, &local) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}
