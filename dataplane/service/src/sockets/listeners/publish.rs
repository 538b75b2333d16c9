//! Ports of the host that lead to another listener: `sietch run --publish`.
//!
//! 1. They come with LISTEN, behind its own descriptor, as listening sockets of the kernel. A
//!    program that could make them may publish them, in the network namespace in which they were
//!    made. No right is needed here.
//! 2. Each becomes a listener under its own name, and has the *pair* of the listener to which it
//!    leads. So one `accept` takes connections of both: clients of the kernel as the kernel's
//!    socket, without a copy, and programs under Sietch as memory.
//! 3. The program sends messages only to the other listener. The published port closes when the
//!    pair hangs up, and is free at once.
//! 4. For a VNIC the pair is made here and goes to the VNIC with the request. If the VNIC refuses,
//!    the pair hangs up as well.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sietch_protocol::socket_service::{Action, Descriptors, Request};

use super::entry::{OpenListener, PublishTarget};
use crate::requests::application::Application;
use crate::requests::descriptors::ListenerPair;
use crate::sockets::answer::Caller;
use crate::sockets::kernel::{self, TcpSocket};
use crate::sockets::limits;
use crate::sockets::state::SocketService;
use crate::sockets::table::{Listener, ListenerId};

impl SocketService {
    /// Publishes all of these sockets for the listener with this pair, or none.
    ///
    /// # Errors
    /// `EINVAL`: one is no listening TCP socket of the kernel. `EACCES`: the rules forbid it.
    /// `ENOBUFS`: a limit.
    pub(in crate::sockets) fn publish(
        &mut self,
        caller: Caller,
        request: &Request,
        pair: &OwnedFd,
        leads_to: &PublishTarget,
        sockets: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let mut done = Vec::new();
        let mut failed = None;
        for socket in sockets {
            match failed {
                None => match self.publish_one(caller, request, pair, leads_to, socket) {
                    Ok(id) => done.push(id),
                    Err(error) => failed = Some(error),
                },
                Some(_) => self.closer.close(caller.uid, socket),
            }
        }
        match failed {
            None => {
                self.counters.published += done.len() as u64;
                Ok(())
            }
            Some(error) => {
                done.into_iter().for_each(|id| self.close_listener(id));
                Err(error)
            }
        }
    }

    fn publish_one(
        &mut self,
        caller: Caller,
        request: &Request,
        pair: &OwnedFd,
        leads_to: &PublishTarget,
        socket: OwnedFd,
    ) -> Result<ListenerId, Errno> {
        match self.add_published(caller, request, &socket) {
            Ok(id) => {
                let pair = match pair.try_clone() {
                    Ok(pair) => pair,
                    Err(_) => {
                        self.table.close(id);
                        self.closer.close(caller.uid, socket);
                        return Err(Errno::NOBUFS);
                    }
                };
                let open = OpenListener::new(pair, 0, Some(socket), Some(leads_to.clone()));
                self.open_listener(id, open).map(|()| id).map_err(|_| {
                    self.table.close(id);
                    Errno::NOBUFS
                })
            }
            Err(error) => {
                self.closer.close(caller.uid, socket);
                Err(error)
            }
        }
    }

    fn add_published(
        &mut self,
        caller: Caller,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<ListenerId, Errno> {
        kernel::check_socket(socket).map_err(|_| Errno::INVAL)?;
        let examined = self.calls.call(caller.uid, socket, TcpSocket::of);
        let tcp = examined.map_err(|_| Errno::NOBUFS)?.map_err(|_| Errno::INVAL)?;
        if !tcp.listens || tcp.is_bound_to_interface {
            return Err(Errno::INVAL);
        }
        if !self.rules.allow(Action::Listen, caller.uid, tcp.name) {
            self.counters.denied += 1;
            return Err(Errno::ACCESS);
        }
        if !self.has_descriptors(caller.uid, limits::DESCRIPTORS_PER_LISTENER) {
            self.counters.limited += 1;
            return Err(Errno::NOBUFS);
        }
        let listener = Listener {
            application: Application { uid: caller.uid, id: request.application },
            namespace: tcp.namespace,
            name: tcp.name,
            only_ipv6: tcp.only_ipv6,
            backlog: self.give_backlog(caller.uid, socket, request.backlog),
            pid: caller.pid,
        };
        self.table.listen(listener).map_err(|_| {
            self.counters.limited += 1;
            Errno::NOBUFS
        })
    }

    /// Publishes the ports of a request to listen on a VNIC. Returns the pair that goes with the
    /// request, if there are any.
    ///
    /// # Errors
    /// Like [`SocketService::publish`].
    pub(in crate::sockets) fn publish_for_vnic(
        &mut self,
        caller: Caller,
        request: &Request,
        sent: &mut Descriptors,
    ) -> Result<Option<ListenerPair>, Errno> {
        let sockets: Vec<OwnedFd> = sent.iter_mut().skip(1).filter_map(Option::take).collect();
        if sockets.is_empty() {
            return Ok(None);
        }
        if self.revoked.contains(Application { uid: caller.uid, id: request.application }) {
            sockets.into_iter().for_each(|socket| self.closer.close(caller.uid, socket));
            self.counters.denied += 1;
            return Err(Errno::ACCESS);
        }
        let (pair, placeholder) = match self.pair(request.backlog) {
            Ok(made) => made,
            Err(error) => {
                sockets.into_iter().for_each(|socket| self.closer.close(caller.uid, socket));
                return Err(error);
            }
        };
        let name = request.local.address().map_or_else(|| "?".to_owned(), |name| name.to_string());
        let leads_to = PublishTarget { vnic: request.vnic().map(str::to_owned), name };
        self.publish(caller, request, &pair, &leads_to, sockets)?;
        Ok(Some(ListenerPair::new(caller.uid, [pair, placeholder], self.closer.clone())))
    }
}
