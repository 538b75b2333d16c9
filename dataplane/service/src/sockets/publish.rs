//! Ports of the host that lead to a listener elsewhere: `sietch run --publish`.
//!
//! 1. They come with LISTEN, behind its own descriptor: listening sockets of the kernel. Whoever
//!    could make them may have them, in the network namespace in which they were made; nothing here
//!    needs a right.
//! 2. Each is entered as a listener by its own name and has the *pair* of the listener to which it
//!    leads. So what comes there is taken by the same `accept`: clients of the kernel as the
//!    kernel's socket, which nobody copies through, programs under Sietch as memory.
//! 3. The program speaks to the other listener alone. Here it is seen that the pair hangs up, and
//!    the port is free at once.
//! 4. For a VNIC the pair is made here and goes to the VNIC with the request. If that refuses, the
//!    pair hangs up as well.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sietch_protocol::socket_service::{Action, Descriptors, Request};

use super::closer::ListenerPair;
use super::kernel::{self, Tcp};
use super::listeners::Open;
use super::requests::Caller;
use super::run::Service;
use super::table::{Application, Listener, ListenerId};

/// Where a published port leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeadsTo {
    /// The VNIC; none: another name of the host.
    pub vnic: Option<String>,
    /// The listener's name.
    pub name: String,
}

impl std::fmt::Display for LeadsTo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.vnic {
            Some(vnic) => write!(formatter, "{vnic} {}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

impl Service {
    /// Enters all of them for the listener with this pair, or none.
    ///
    /// # Errors
    /// What is none of the kernel's listening TCP sockets (`EINVAL`); rules (`EACCES`); limits
    /// (`ENOBUFS`).
    pub(super) fn publish(
        &mut self,
        caller: Caller,
        request: &Request,
        pair: &OwnedFd,
        leads_to: &LeadsTo,
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
        leads_to: &LeadsTo,
        socket: OwnedFd,
    ) -> Result<ListenerId, Errno> {
        match self.enter_published(caller, request, &socket) {
            Ok(id) => {
                let pair = match pair.try_clone() {
                    Ok(pair) => pair,
                    Err(_) => {
                        self.table.close(id);
                        self.closer.close(caller.uid, socket);
                        return Err(Errno::NOBUFS);
                    }
                };
                let open = Open::new(pair, 0, Some(socket), Some(leads_to.clone()));
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

    fn enter_published(
        &mut self,
        caller: Caller,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<ListenerId, Errno> {
        kernel::check_socket(socket).map_err(|_| Errno::INVAL)?;
        let asked = self.expendable.ask(caller.uid, socket, Tcp::of);
        let tcp = asked.map_err(|_| Errno::NOBUFS)?.map_err(|_| Errno::INVAL)?;
        if !tcp.listens || tcp.of_interface {
            return Err(Errno::INVAL);
        }
        if !self.rules.allow(Action::Listen, caller.uid, tcp.name) {
            self.counters.denied += 1;
            return Err(Errno::ACCESS);
        }
        if !self.has_descriptors(caller.uid, super::limits::DESCRIPTORS_PER_LISTENER) {
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

    /// The published ports of a request to listen on a VNIC; the pair that is to go with it, if
    /// there are any.
    ///
    /// # Errors
    /// As [`Service::publish`].
    pub(super) fn publish_for_vnic(
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
        let leads_to = LeadsTo { vnic: request.vnic().map(str::to_owned), name };
        self.publish(caller, request, &pair, &leads_to, sockets)?;
        Ok(Some(ListenerPair::new(caller.uid, [pair, placeholder], self.closer.clone())))
    }
}
