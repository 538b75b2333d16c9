//! Listeners of a VNIC: how connections reach the listening program, and how a bound name ends.
//!
//! 1. A listener has a *pair*: a socket pair whose other end the program holds. An established
//!    connection is sent through it: addresses, a placeholder, and the two memories of its stream.
//! 2. If the pair is full, the connection waits at the host until the pair has room.
//! 3. If descriptors or memory are exhausted, no event reports the end of that. So the listener
//!    pauses and tries again after [`RETRY_DELAY`].
//! 4. Connections of this VNIC's own applications go through the same pair, before those of the
//!    network.
//! 5. When the last holder of the other end closes it, the name is released and waiting connections
//!    are reset.
//!
//! One listener is delivered at most [`ARRIVALS`] connections in an iteration.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sietch_net::FlowId;
use sietch_protocol::socket_service::{Arrival, ArrivalKind, send_message};
use sietch_structures::Key;
use zerocopy::IntoBytes as _;

use super::device::Device;
use super::state::{Pair, Placeholder, Token, Vnic};
use crate::tcp::host::NewConnection;
use crate::tcp::stream_channel::{Opening, StreamChannel};

/// Connections delivered to one listener in one iteration.
const ARRIVALS: usize = 32;
/// Nanoseconds for which nothing is delivered to a listener when descriptors or memory are
/// exhausted: as long as the socket service pauses.
const RETRY_DELAY: u64 = 50_000_000;

/// Returns whether an error means that a resource is exhausted, which no event reports as free
/// again.
fn is_exhaustion(error: Errno) -> bool {
    matches!(error, Errno::TOOMANYREFS | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

impl<Q: Device> Vnic<Q> {
    /// Delivers to a listener the connections that wait for it.
    pub(super) fn deliver(&mut self, binding: Key) {
        if !self.deliver_local(binding) {
            return;
        }
        for _ in 0..ARRIVALS {
            let Some(pair) = self.pairs.get(&binding).filter(|pair| !pair.full) else { return };
            let application = pair.application;
            let Some(arrival) = self.host.next_arrival(binding) else { return };
            match self.offer(binding, application, &arrival) {
                Ok(()) => self.host.dequeued(binding),
                Err(Errno::AGAIN) => {
                    self.host.put_back(binding, arrival);
                    self.watch_pair(binding, true);
                    return;
                }
                Err(error) if is_exhaustion(error) => {
                    self.host.put_back(binding, arrival);
                    return self.pause_listener(binding);
                }
                Err(_) => {
                    self.host.abandon(arrival.flow);
                    self.host.dequeued(binding);
                }
            }
        }
        // The rest follows with the pair's next event, which is at once.
        self.watch_pair(binding, true);
    }

    /// Delivers connections of this VNIC's own applications. Returns false if the pair is full.
    pub(super) fn deliver_local(&mut self, binding: Key) -> bool {
        let Some(pair) = self.pairs.get_mut(&binding).filter(|pair| !pair.full) else { return false };
        while let Some(local) = pair.local.front() {
            let [common, page] = local.memory.each_ref().map(AsFd::as_fd);
            let descriptors = [local.placeholder.as_fd(), common, page];
            let message = local.arrival.as_bytes();
            match send_message(pair.socket.as_fd(), message, &descriptors, SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {
                    self.watch_pair(binding, true);
                    return false;
                }
                Err(error) if is_exhaustion(error) => {
                    self.pause_listener(binding);
                    return false;
                }
                // After an error the listener is closed, and the client gets a reset.
                Ok(()) | Err(_) => drop(pair.local.pop_front()),
            }
        }
        true
    }

    /// Pauses deliveries to a listener, because descriptors or memory are exhausted while its pair
    /// has room: no event would report when they are free.
    fn pause_listener(&mut self, binding: Key) {
        let Some(pair) = self.pairs.get_mut(&binding) else { return };
        pair.full = true;
        if self.paused.is_empty() {
            self.retry_at = self.now.saturating_add(RETRY_DELAY);
        }
        self.paused.insert(binding);
    }

    fn offer(&mut self, binding: Key, application: Key, arrival: &NewConnection) -> Result<(), Errno> {
        let no = |error: io::Error| error.raw_os_error().map_or(Errno::NOMEM, Errno::from_raw_os_error);
        let uid = self.host.usage_of(application).ok_or(Errno::CONNABORTED)?.uid;
        let of = (Opening::Accepted, uid);
        let made = StreamChannel::make(self.region_sizes, arrival.local, arrival.remote, of).map_err(no)?;
        let message = Arrival::new(ArrivalKind::Stream, arrival.local.into(), arrival.remote.into());
        let [common, page] = made.channel.memory();
        let descriptors = [made.application_end.placeholder.as_fd(), common, page];
        let Some(pair) = self.pairs.get(&binding) else { return Err(Errno::CONNABORTED) };
        send_message(pair.socket.as_fd(), message.as_bytes(), &descriptors, SendFlags::DONTWAIT)?;
        self.attach(arrival.flow, application, made.channel, made.application_end.cookie).map(|_| ())
    }

    /// Attaches a channel to a connection, and watches its doorbell.
    pub(super) fn attach(
        &mut self,
        flow: FlowId,
        application: Key,
        channel: StreamChannel,
        cookie: u64,
    ) -> Result<Key, Errno> {
        let key = self.host.attach(flow, application, channel).map_err(|_| Errno::CONNABORTED)?;
        if let Some(channel) = self.host.channel(key) {
            let data = EventData::new_u64(Token::Connection(key).word());
            if let Err(error) = epoll::add(&self.epoll, channel.doorbell(), data, EventFlags::IN) {
                // No event would report that its application has closed.
                self.host.reset(key, error);
                return Err(Errno::CONNABORTED);
            }
        }
        self.cookies.insert(key, cookie);
        self.placeholders.insert(cookie, Placeholder::Connection(key));
        Ok(key)
    }

    pub(super) fn watch_pair(&mut self, binding: Key, full: bool) {
        let Some(pair) = self.pairs.get_mut(&binding) else { return };
        pair.full = full;
        let flags = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ =
            epoll::modify(&self.epoll, &pair.socket, EventData::new_u64(Token::Pair(binding).word()), flags);
    }

    /// Closes a listener whose last holder has closed it.
    pub(super) fn close(&mut self, binding: Key) {
        if let Some(pair) = self.pairs.remove(&binding) {
            self.placeholders.remove(&pair.cookie);
            let _ = epoll::delete(&self.epoll, &pair.socket);
            hang_up(&pair);
        }
        self.host.release(binding);
    }

    /// Closes a reservation whose last holder has closed it, or that has become a listener.
    pub(super) fn close_reservation(&mut self, binding: Key) {
        if let Some(reservation) = self.reservations.remove(&binding) {
            self.placeholders.remove(&reservation.cookie);
            let _ = epoll::delete(&self.epoll, &reservation.socket);
            if !self.pairs.contains_key(&binding) {
                self.host.release(binding);
            }
        }
    }

    /// Returns this VNIC's own listener for a connection to `remote`.
    pub(super) fn own_listener(&self, remote: SocketAddr) -> Option<Key> {
        self.host.ports().is_ours(remote.ip()).then(|| self.host.ports().listener(remote, self.now))?
    }
}

/// Shuts a pair down: others may hold the service's end too, so closing it would not end it.
pub(super) fn hang_up(pair: &Pair) {
    let _ = rustix::net::shutdown(&pair.socket, rustix::net::Shutdown::Both);
}
