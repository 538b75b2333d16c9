//! Single steps: one call on some descriptor.
//!
//! 1. [`Generator::step`] draws the kind of call by weight. The descriptor is mostly one for which
//!    the call is meaningful, and sometimes any other.
//! 2. Lengths, flags and options are drawn from small tables. Bounds are in them, and so are values
//!    that the kernel refuses.
//! 3. The model follows what the step probably does: bytes that wait, shut directions, closed
//!    numbers.
//!
//! A step never sends so much that a buffer fills, because the outcome would then depend on time. A
//! call that would wait for ever is ended by a signal of the executor.

use super::Generator;
use super::model::{Kind, SlotState};
use crate::operation::Operation;
use crate::operation::options::SocketOption;
use crate::operation::words::{
    Address, Control, Events, Family, Faulty, Host, Kind as SocketKind, MessageFlags, Port, Slot,
    SocketFlags, Watched,
};
use crate::program::Actor;

/// Lengths of data.
const LENGTHS: [i64; 9] = [0, 1, 2, 5, 10, 33, 100, 1000, 3000];
/// Kinds from which data can be read.
const READABLE: [Kind; 4] = [Kind::Connected, Kind::Unix, Kind::PipeReader, Kind::Connected];
/// Kinds to which data can be written.
const WRITABLE: [Kind; 4] = [Kind::Connected, Kind::Unix, Kind::PipeWriter, Kind::Connected];
/// Every socket of TCP.
const SOCKETS: [Kind; 4] = [Kind::Connected, Kind::Listening, Kind::Fresh, Kind::Bound];
/// Kinds that can be polled.
const POLLABLE: [Kind; 8] = [
    Kind::Connected,
    Kind::Connected,
    Kind::Listening,
    Kind::Fresh,
    Kind::Epoll,
    Kind::PipeReader,
    Kind::Event,
    Kind::Unix,
];

impl Generator {
    /// One call.
    pub(super) fn step(&mut self) {
        match self.random.below(34) {
            0..=5 => {
                let slot = self.model.likely(&mut self.random, &WRITABLE);
                self.send_from(slot);
            }
            6..=11 => {
                let slot = self.model.likely(&mut self.random, &READABLE);
                self.receive_at(slot);
            }
            12 | 13 => self.closing(),
            14 | 15 => self.shutting(),
            16..=18 => self.option(),
            19 | 20 => self.polling(),
            21 => self.duplicate(),
            22 => self.flags(),
            23 => self.naming(),
            24 | 25 => self.connecting(),
            26 => self.new_descriptor(),
            27 | 28 => self.epoll_step(),
            29 => self.fault(),
            30 => self.queues(),
            31 => self.timed(),
            _ => self.accepting(),
        }
    }

    /// Sends something.
    pub(super) fn send_from(&mut self, fd: Slot) {
        if !self.model.has_room(fd) {
            return;
        }
        let actor = self.actor();
        let length = self.random.one(&LENGTHS);
        let second = self.random.one(&LENGTHS);
        let flags = MessageFlags::of(self.random.one(&[
            "-",
            "-",
            "-",
            "nosignal",
            "dontwait",
            "dontwait+nosignal",
            "eor",
            "confirm",
            "waitall",
            "dontroute",
        ]));
        let (sent, operation) = match self.random.below(16) {
            0..=2 => (length, Operation::Write { fd, length }),
            3..=8 => (length, Operation::Send { fd, length, flags }),
            9 | 10 => (length + second, Operation::Writev { fd, first: length, second }),
            11 | 12 => (length + second, Operation::Sendmsg { fd, first: length, second, flags }),
            // A reader that sleeps may see the first message alone, or all.
            13 if !self.model.thread_sleeps => {
                (3 * length.min(500), Operation::Sendmmsg { fd, count: 3, length: length.min(500), flags })
            }
            14 => {
                let hosts = ["lo4", "lo6", "unspec", "short"];
                let address = Address::new(self.random.one(&hosts), Port::Of(fd));
                (length, Operation::Sendto { fd, length, flags, address })
            }
            _ => (length, Operation::Send { fd, length, flags: MessageFlags(flags.0 | libc::MSG_NOSIGNAL) }),
        };
        self.by(actor, operation);
        self.model.sent(fd, sent);
        self.model.at(fd).total += sent;
    }

    /// Receives something; without waiting, mostly, if nothing is there.
    pub(super) fn receive_at(&mut self, fd: Slot) {
        let actor = self.actor();
        let waiting = self.model.at(fd).waiting;
        let patient = waiting > 0 || self.random.percent(8);
        let length = self.random.one(&LENGTHS);
        let second = self.random.one(&LENGTHS);
        let mut flags = self.random.one(&[
            "-",
            "-",
            "-",
            "peek",
            "trunc",
            "peek+trunc",
            "waitall",
            "peek+waitall",
            "errqueue",
        ]);
        // Waiting for more bytes than there are would never end.
        if flags.contains("waitall") && length > waiting && self.random.percent(85) {
            flags = "-";
        }
        let mut flags = MessageFlags::of(flags);
        // A blocking receive of zero bytes is ended by any wake-up, for example by a late
        // acknowledgement.
        if !patient || length == 0 {
            flags.0 |= libc::MSG_DONTWAIT;
        }
        let taken = if flags.0 & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) != 0 { 0 } else { length };
        let (taken, operation) = match self.random.below(14) {
            0 | 1 if patient => (length, Operation::Read { fd, length }),
            2 if patient => (length + second, Operation::Readv { fd, first: length, second }),
            3 | 4 => (taken, Operation::Recvmsg { fd, first: length, second: 0, flags }),
            5 => (
                taken,
                Operation::Recvfrom { fd, length, flags, room: self.random.one(&[0, 2, 16, 28, 128]) },
            ),
            6 => {
                let flags = MessageFlags(flags.0 | libc::MSG_WAITFORONE);
                (3 * taken, Operation::Recvmmsg { fd, count: 3, length: length.max(1), flags })
            }
            _ => (taken, Operation::Recv { fd, length, flags }),
        };
        self.by(actor, operation);
        let state = self.model.at(fd);
        state.waiting = (state.waiting - taken).max(0);
        if state.kind == Kind::Unix {
            self.notice();
        }
    }

    fn closing(&mut self) {
        let actor = self.actor();
        let fd = self.model.likely(&mut self.random, &[Kind::Connected, Kind::Listening, Kind::Fresh]);
        if self.random.percent(20) {
            let on = self.random.one(&[0, 1, 1]);
            self.by(actor, Operation::Linger { fd, on, seconds: 0 });
        }
        if self.random.percent(8) {
            let to = self.model.any(&mut self.random);
            self.by(actor, Operation::CloseRange { from: fd, to });
            return;
        }
        self.by(actor, Operation::Close { fd });
        if self.model.at(fd).kind == Kind::Unix {
            self.notice();
        }
        if !matches!(actor, Actor::Child(_)) {
            self.model.at(fd).kind = Kind::Closed;
            self.model.at(fd).connections = 0;
        }
    }

    fn shutting(&mut self) {
        let actor = self.actor();
        let fd = self.model.likely(&mut self.random, &[Kind::Connected, Kind::Connected, Kind::Fresh]);
        if self.model.at(fd).kind == Kind::Listening {
            return;
        }
        let how = self.random.one(&[0, 1, 1, 1, 2, 2, 3, -1]);
        self.by(actor, Operation::Shutdown { fd, how });
    }

    fn option(&mut self) {
        let actor = self.actor();
        let fd = self.model.likely(&mut self.random, &SOCKETS);
        let option = SocketOption::at(self.random.below(SocketOption::COUNT));
        if self.random.percent(50) {
            let room = self.random.one(&[4, 4, 4, 4, 8, 16, 3, 2, 1, 0, -1, 200]);
            self.by(actor, Operation::Getsockopt { fd, option, room });
            return;
        }
        let value = self.random.one(option.settings());
        // The rest of a truncated structure or name is read from the following bytes.
        let lengths: &[i64] = match option.name() {
            "linger" | "rcvtimeo" | "sndtimeo" => &[0, 4, 7],
            "info" | "congestion" => &[0, 1],
            _ => &[4, 4, 4, 4, 8, 3, 2, 1, 0, -1],
        };
        let length = self.random.one(lengths);
        if option.name() == "reuseport" {
            self.model.at(fd).shared = true;
        }
        self.by(actor, Operation::Setsockopt { fd, option, value, length });
        if self.random.percent(50) {
            self.by(actor, Operation::Getsockopt { fd, option, room: 4 });
        }
    }

    fn watched(&mut self, names: &[&'static str]) -> Watched {
        let count = self.random.below(4);
        let each = (0..count).map(|_| {
            let slot = self.model.likely(&mut self.random, &POLLABLE);
            (slot, Events::of(self.random.one(names)))
        });
        Watched(each.collect())
    }

    fn polling(&mut self) {
        let actor = self.actor();
        let milliseconds = self.random.one(&[0, 0, 0, 0, 5, 5, -1]);
        if self.random.percent(70) {
            let names =
                ["in", "out", "in+out", "in+out+rdhup", "-", "rdnorm+wrnorm", "in+pri", "rdhup", "hup"];
            let watched = self.watched(&names);
            // Nothing to wait for and no time: only a signal ends it.
            let milliseconds = if watched.0.is_empty() { milliseconds.max(0) } else { milliseconds };
            let operation = if self.random.percent(70) {
                Operation::Poll { watched, milliseconds }
            } else {
                Operation::Ppoll { watched, milliseconds }
            };
            self.by(actor, operation);
        } else {
            let watched = self.watched(&["in", "out", "in+out", "in+out+pri"]);
            let operation = if self.random.percent(70) {
                Operation::Select { watched, milliseconds: milliseconds.max(0) }
            } else {
                Operation::Pselect { watched, milliseconds: milliseconds.max(0) }
            };
            self.by(actor, operation);
        }
    }

    fn duplicate(&mut self) {
        let fd = self.model.likely(&mut self.random, &SOCKETS);
        match self.random.below(6) {
            0 => {
                let onto = self.model.any(&mut self.random);
                self.main(Operation::Dup2 { fd, onto });
                *self.model.at(onto) = *self.model.at(fd);
            }
            1 => {
                let onto = self.model.any(&mut self.random);
                let flags = SocketFlags::of(self.random.one(&["-", "cloexec", "nonblock"]));
                self.main(Operation::Dup3 { fd, onto, flags });
                *self.model.at(onto) = *self.model.at(fd);
            }
            choice => {
                let state = *self.model.at(fd);
                let to = self.model.free(&mut self.random);
                let lowest = self.random.one(&[0, 3, 20, 100, -1]);
                let cloexec = self.random.one(&[0, 1]);
                self.main(match choice {
                    2..=4 => Operation::Dup { fd, to },
                    _ => Operation::DupFrom { fd, lowest, cloexec, to },
                });
                if fd != to {
                    *self.model.at(to) = state;
                }
            }
        }
    }

    fn flags(&mut self) {
        let actor = self.actor();
        let fd = self.model.likely(&mut self.random, &SOCKETS);
        let on = self.random.one(&[0, 1]);
        match self.random.below(5) {
            0 => self.by(actor, Operation::GetStatus { fd }),
            1 => {
                let flags = SocketFlags::of(if on == 1 { "nonblock" } else { "-" });
                self.by(actor, Operation::SetStatus { fd, flags });
                self.by(actor, Operation::GetStatus { fd });
                self.model.at(fd).nonblocking = on == 1;
            }
            2 => self.by(actor, Operation::GetDescriptor { fd }),
            3 => {
                self.by(actor, Operation::SetDescriptor { fd, cloexec: on });
                self.by(actor, Operation::GetDescriptor { fd });
            }
            _ => {
                self.by(actor, Operation::Fionbio { fd, on });
                self.by(actor, Operation::GetStatus { fd });
                self.model.at(fd).nonblocking = on == 1;
            }
        }
    }

    fn naming(&mut self) {
        let actor = self.actor();
        let fd = self.model.likely(&mut self.random, &SOCKETS);
        let room = self.random.one(&[128, 128, 28, 16, 4, 2, 0]);
        let operation = if self.random.percent(50) {
            Operation::Getsockname { fd, room }
        } else {
            Operation::Getpeername { fd, room }
        };
        self.by(actor, operation);
    }

    fn connecting(&mut self) {
        match self.random.below(8) {
            0..=3 => {
                let Some(listener) = self.model.some(&mut self.random, &[Kind::Listening]) else {
                    self.socket("lo4", "-");
                    return;
                };
                let state = *self.model.at(listener);
                if !state.shared && state.connections < 4 {
                    self.client(listener, if state.six { "lo6" } else { "lo4" });
                }
            }
            4 => {
                let fd = self.model.likely(&mut self.random, &[Kind::Connected, Kind::Listening]);
                // A socket that was never bound has no port to be reached at.
                let port = self.model.some(&mut self.random, &[Kind::Bound]).map_or(Port::Any, Port::Of);
                let hosts = ["lo4", "lo6", "short", "long"];
                let address = Address::new(self.random.one(&hosts), port);
                self.main(Operation::Connect { fd, address });
            }
            5 => {
                let fd = self.model.likely(&mut self.random, &[Kind::Fresh, Kind::Connected, Kind::Bound]);
                let host = Host::named(
                    self.random.one(&["lo4", "any4", "lo6", "any6", "away4", "short", "unspec", "two4"]),
                );
                // Never the port of a connection, nor of one that has ended: the service allocates
                // its ports without the kernel, and such a name is not reserved (`docs/posix.md`).
                let named = self.model.some(&mut self.random, &[Kind::Bound, Kind::Listening]);
                let connected = self.model.at(fd).kind == Kind::Connected;
                let port =
                    named.filter(|_| !connected && self.random.percent(50)).map_or(Port::Any, Port::Of);
                self.main(Operation::Bind { fd, address: Address { host, port } });
                if self.model.at(fd).kind == Kind::Fresh {
                    self.model.at(fd).kind = Kind::Bound;
                }
            }
            6 => {
                let fd = self.model.likely(&mut self.random, &[Kind::Fresh, Kind::Bound, Kind::Listening]);
                let backlog = self.random.one(&[5, 16, 128, -1]);
                self.main(Operation::Listen { fd, backlog });
                if matches!(self.model.at(fd).kind, Kind::Fresh | Kind::Bound) {
                    self.model.at(fd).kind = Kind::Listening;
                    self.model.at(fd).shared = true;
                }
            }
            _ => {
                self.listener();
            }
        }
    }

    fn accepting(&mut self) {
        let Some(listener) = self.model.some(&mut self.random, &[Kind::Listening]) else {
            let fd = self.model.any(&mut self.random);
            let to = self.model.free(&mut self.random);
            self.main(Operation::Accept { fd, to, room: 128 });
            return;
        };
        let ready = self.model.at(listener).connections > 0;
        if !ready && !self.model.at(listener).nonblocking && self.random.percent(80) {
            return;
        }
        let to = self.model.free(&mut self.random);
        let actor = self.actor();
        let flags = SocketFlags::of(self.random.one(&["-", "nonblock", "cloexec"]));
        let room = self.random.one(&[128, 16, 4, 0, -1]);
        let operation = if self.random.percent(50) {
            Operation::Accept { fd: listener, to, room }
        } else {
            Operation::Accept4 { fd: listener, to, flags }
        };
        self.by(actor, operation);
        if ready {
            let connections = &mut self.model.at(listener).connections;
            *connections = connections.saturating_sub(1);
            if !matches!(actor, Actor::Child(_)) {
                *self.model.at(to) = SlotState { kind: Kind::Connected, ..SlotState::default() };
            }
        }
    }

    fn new_descriptor(&mut self) {
        let to = self.model.free(&mut self.random);
        match self.random.below(6) {
            0 => {
                let writer = self.model.free(&mut self.random);
                self.main(Operation::Pipe { reader: to, writer, flags: SocketFlags::of("nonblock") });
                *self.model.at(to) =
                    SlotState { kind: Kind::PipeReader, peer: Some(writer), ..SlotState::default() };
                *self.model.at(writer) =
                    SlotState { kind: Kind::PipeWriter, peer: Some(to), ..SlotState::default() };
            }
            1 => {
                let value = self.random.one(&[0, 1]);
                self.main(Operation::Eventfd { to, value, flags: SocketFlags::of("nonblock") });
                self.model.at(to).kind = Kind::Event;
            }
            2 => {
                self.main(Operation::EpollCreate { to, flags: SocketFlags::of("-") });
                self.model.at(to).kind = Kind::Epoll;
            }
            3 => {
                let family = Family::named(self.random.one(Family::NAMES));
                let kind = SocketKind::named(self.random.one(SocketKind::NAMES));
                let protocol = self.random.one(&[0, 6, 17, 132, 999]);
                self.main(Operation::Socket {
                    to,
                    family,
                    kind,
                    flags: SocketFlags::of("nonblock"),
                    protocol,
                });
            }
            4 => {
                self.main(Operation::Memfd { to, length: 100 });
                self.model.at(to).kind = Kind::File;
            }
            _ => {
                let host = self.random.one(&["lo4", "lo6"]);
                self.socket(host, "nonblock");
            }
        }
    }

    fn epoll_step(&mut self) {
        let actor = self.actor();
        let epoll = self.model.likely(&mut self.random, &[Kind::Epoll]);
        match self.random.below(6) {
            0..=2 => {
                let fd = self.model.likely(&mut self.random, &POLLABLE);
                let control = Control::named(self.random.one(&["add", "add", "add", "mod", "del", "none"]));
                let events = self.epoll_events();
                self.by(actor, Operation::EpollControl { epoll, control, fd, events });
            }
            3 => self.by(actor, Operation::EpollPwait { epoll, most: 8, milliseconds: 0 }),
            4 => {
                let most = self.random.one(&[16, 0, -1]);
                self.by(actor, Operation::EpollWait { epoll, most, milliseconds: 0 });
            }
            _ => {
                let milliseconds = self.random.one(&[0, 5, 5, -1]);
                self.by(actor, Operation::EpollWait { epoll, most: 16, milliseconds });
            }
        }
    }

    fn fault(&mut self) {
        let fd = self.model.likely(&mut self.random, &[Kind::Connected, Kind::Fresh]);
        // `accept` needs a listener with an empty queue, or the connection is lost; named programs
        // test the other case.
        let accept = Faulty::NAMES.iter().position(|name| *name == "accept").unwrap_or(0);
        let call = Faulty::named(self.random.one(&Faulty::NAMES[..accept]));
        self.main(Operation::Fault { call, fd });
    }

    fn queues(&mut self) {
        let actor = self.actor();
        let fd = self
            .model
            .likely(&mut self.random, &[Kind::Connected, Kind::Connected, Kind::Listening, Kind::PipeReader]);
        if self.random.percent(80) {
            self.by(actor, Operation::Fionread { fd });
            return;
        }
        if let Some(peer) = self.model.at(fd).peer
            && self.model.at(peer).waiting == 0
            && !self.model.children.contains(&true)
        {
            self.by(actor, Operation::Outq { fd });
        }
    }

    /// A call that times out.
    fn timed(&mut self) {
        let fd = self.model.likely(&mut self.random, &[Kind::Connected, Kind::Connected, Kind::Listening]);
        let milliseconds = self.random.one(&[5, 5, 5, 0, -1]);
        self.main(Operation::ReceiveTimeout { fd, milliseconds });
        let option = SocketOption::named("rcvtimeo");
        let flags = MessageFlags::of(self.random.one(&["-", "waitall", "dontwait"]));
        match self.random.below(3) {
            0 => self.main(Operation::Getsockopt { fd, option, room: 8 }),
            _ if milliseconds == 5 => self.main(Operation::Recv { fd, length: 5000, flags }),
            _ => {}
        }
        self.main(Operation::ReceiveTimeout { fd, milliseconds: 0 });
    }
}
