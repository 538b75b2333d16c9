//! Scenes: sequences of steps that lead to an interesting state.
//!
//! 1. A scene is drawn from a table of weights ([`Generator::scene`]): connections, epolls, forks,
//!    descriptors in messages, sleeping threads, files, full buffers.
//! 2. Each scene updates the model of the slots, so that later steps know which calls are
//!    meaningful.
//! 3. A scene that starts a thread also ends its sleep, or leaves it to the interrupting signals of
//!    the executor.
//!
//! A scene must have one outcome on the kernel, however its processes are scheduled.

use super::Generator;
use super::model::{Kind, SlotState};
use crate::operation::Operation;
use crate::operation::options::SocketOption;
use crate::operation::words::{
    Address, Control, Events, Family, Kind as SocketKind, MessageFlags, Port, Slot, SocketFlags, Watched,
};
use crate::program::{Actor, Step};

impl Generator {
    /// One scene.
    pub(super) fn scene(&mut self) {
        match self.random.below(20) {
            0..=4 => {
                self.connection();
            }
            5 => self.connecting_without_waiting(),
            6 => self.refused(),
            7..=9 => self.epoll_scene(),
            10 | 11 => self.fork_scene(),
            12 => self.rights_scene(),
            13..=16 => self.sleeping_thread(),
            17 => self.file_scene(),
            18 => self.full_scene(),
            _ => self.alone(),
        }
    }

    /// A new socket of a host's family.
    pub(super) fn socket(&mut self, host: &str, flags: &str) -> Slot {
        let six = matches!(host, "lo6" | "map4" | "any6");
        let to = self.model.free(&mut self.random);
        let family = Family::named(if six { "inet6" } else { "inet" });
        let flags = SocketFlags::of(flags);
        self.main(Operation::Socket { to, family, kind: SocketKind::named("stream"), flags, protocol: 0 });
        let nonblocking = flags.0 & libc::SOCK_NONBLOCK != 0;
        *self.model.at(to) = SlotState { kind: Kind::Fresh, six, nonblocking, ..SlotState::default() };
        to
    }

    /// A listener, and the host by which it is reached.
    pub(super) fn listener(&mut self) -> (Slot, &'static str) {
        let (bound, reached) = self.random.one(&[
            ("lo4", "lo4"),
            ("lo4", "lo4"),
            ("any4", "lo4"),
            ("any4", "two4"),
            ("lo6", "lo6"),
            ("any6", "lo6"),
            ("any6", "lo4"),
            ("lo4", "map4"),
            ("any4", "any4"),
        ]);
        let listener = self.socket(bound, "-");
        if self.random.percent(30) {
            let option = SocketOption::named("reuseaddr");
            self.main(Operation::Setsockopt { fd: listener, option, value: 1, length: 4 });
        }
        self.main(Operation::Bind { fd: listener, address: Address::new(bound, Port::Any) });
        let backlog = self.random.one(&[5, 16, 128, 4096]);
        self.main(Operation::Listen { fd: listener, backlog });
        self.model.at(listener).kind = Kind::Listening;
        (listener, reached)
    }

    /// A client of a listener, not yet accepted.
    pub(super) fn client(&mut self, listener: Slot, host: &str) -> Slot {
        let client = self.socket(host, "-");
        self.main(Operation::Connect { fd: client, address: Address::new(host, Port::Of(listener)) });
        self.model.at(client).kind = Kind::Connected;
        self.model.at(listener).connections += 1;
        client
    }

    /// Accepts a connection into a new slot.
    pub(super) fn accept(&mut self, listener: Slot, client: Slot) -> Slot {
        let server = self.model.free(&mut self.random);
        let operation = match self.random.below(4) {
            0 => Operation::Accept4 { fd: listener, to: server, flags: SocketFlags::of("cloexec") },
            1 => Operation::Accept { fd: listener, to: server, room: -1 },
            _ => Operation::Accept { fd: listener, to: server, room: 128 },
        };
        self.main(operation);
        *self.model.at(server) =
            SlotState { kind: Kind::Connected, peer: Some(client), ..*self.model.at(listener) };
        self.model.at(server).nonblocking = false;
        self.model.at(client).peer = Some(server);
        let connections = &mut self.model.at(listener).connections;
        *connections = connections.saturating_sub(1);
        server
    }

    /// A connection: client and server.
    pub(super) fn connection(&mut self) -> (Slot, Slot) {
        let (listener, host) = self.listener();
        let client = self.client(listener, host);
        let server = self.accept(listener, client);
        if self.random.percent(40) {
            self.main(Operation::Close { fd: listener });
            self.model.at(listener).kind = Kind::Closed;
        }
        if self.random.percent(50) { (client, server) } else { (server, client) }
    }

    /// An existing connection, or a new one.
    fn pair(&mut self) -> (Slot, Slot) {
        if self.random.percent(50)
            && let Some(slot) = self.model.some(&mut self.random, &[Kind::Connected])
            && let Some(peer) = self.model.at(slot).peer
        {
            return (slot, peer);
        }
        self.connection()
    }

    fn connecting_without_waiting(&mut self) {
        let (listener, host) = self.listener();
        let client = self.socket(host, "nonblock");
        let address = Address::new(host, Port::Of(listener));
        self.main(Operation::Connect { fd: client, address });
        self.model.at(client).kind = Kind::Connected;
        for _ in 0..self.random.below(3) {
            match self.random.below(4) {
                0 => self.main(Operation::Connect { fd: client, address }),
                1 => self.main(Operation::Getsockopt {
                    fd: client,
                    option: SocketOption::named("error"),
                    room: 4,
                }),
                2 => self.main(Operation::Getpeername { fd: client, room: 128 }),
                _ => {
                    let watched = Watched(vec![(client, Events::of("in+out+rdhup"))]);
                    self.main(Operation::Poll { watched, milliseconds: 1000 });
                }
            }
        }
        self.model.at(listener).connections += 1;
        if self.random.percent(80) {
            self.accept(listener, client);
            self.model.at(client).nonblocking = true;
        }
    }

    fn refused(&mut self) {
        let host = self.random.one(&["lo4", "lo6", "lo4"]);
        let bound = self.socket(host, "-");
        self.main(Operation::Bind { fd: bound, address: Address::new(host, Port::Any) });
        self.model.at(bound).kind = Kind::Bound;
        let flags = self.random.one(&["-", "nonblock"]);
        let client = self.socket(host, flags);
        let address = Address::new(host, Port::Of(bound));
        self.main(Operation::Connect { fd: client, address });
        if self.random.percent(50) {
            let watched = Watched(vec![(client, Events::of("in+out+rdhup"))]);
            self.main(Operation::Poll { watched, milliseconds: 1000 });
        }
        if self.random.percent(70) {
            self.main(Operation::Getsockopt { fd: client, option: SocketOption::named("error"), room: 4 });
        }
        if self.random.percent(40) {
            self.main(Operation::Connect { fd: client, address });
        }
        // After a refused non-blocking connect the socket is the kernel's, and reaches a listener
        // of Sietch's through the service, a moment later.
        if flags == "-" && self.random.percent(40) {
            self.main(Operation::Listen { fd: bound, backlog: 5 });
            self.model.at(bound).kind = Kind::Listening;
            self.main(Operation::Connect { fd: client, address });
            self.model.at(bound).connections += 1;
            self.model.at(client).kind = Kind::Connected;
        }
    }

    /// Calls on a socket that is not connected.
    fn alone(&mut self) {
        let host = self.random.one(&["lo4", "lo6"]);
        let flags = self.random.one(&["-", "nonblock", "cloexec", "nonblock+cloexec"]);
        let slot = self.socket(host, flags);
        for _ in 0..2 + self.random.below(4) {
            self.step();
        }
        if self.random.percent(20) {
            // A socket that connects to itself (RFC 9293 3.5, simultaneous open).
            self.main(Operation::Bind { fd: slot, address: Address::new(host, Port::Any) });
            self.main(Operation::Connect { fd: slot, address: Address::new(host, Port::Of(slot)) });
            let state = self.model.at(slot);
            (state.kind, state.peer) = (Kind::Connected, Some(slot));
        }
    }

    fn epoll_scene(&mut self) {
        let (one, two) = self.pair();
        let epoll = self.model.free(&mut self.random);
        self.main(Operation::EpollCreate { to: epoll, flags: SocketFlags::of("cloexec") });
        self.model.at(epoll).kind = Kind::Epoll;
        let events = self.epoll_events();
        self.main(Operation::EpollControl { epoll, control: Control::named("add"), fd: one, events });
        let outer = self.model.free(&mut self.random);
        if self.random.percent(25) {
            self.main(Operation::EpollCreate { to: outer, flags: SocketFlags::of("-") });
            self.model.at(outer).kind = Kind::Epoll;
            let events = Events::of(self.random.one(&["in", "in+et", "in+oneshot", "in+out"]));
            let fd = if self.random.percent(70) { epoll } else { one };
            self.main(Operation::EpollControl { epoll: outer, control: Control::named("add"), fd, events });
        }
        for _ in 0..2 + self.random.below(5) {
            let waited = if self.random.percent(30) && self.model.at(outer).kind == Kind::Epoll {
                outer
            } else {
                epoll
            };
            match self.random.below(8) {
                0..=2 => self.main(Operation::EpollWait { epoll: waited, most: 8, milliseconds: 0 }),
                3 => self.main(Operation::EpollWait { epoll: waited, most: 8, milliseconds: 5 }),
                4 | 5 => self.send_from(two),
                6 => self.receive_at(one),
                _ => {
                    let events = self.epoll_events();
                    let control = Control::named("mod");
                    self.main(Operation::EpollControl { epoll, control, fd: one, events });
                }
            }
        }
        self.main(Operation::EpollWait { epoll, most: 8, milliseconds: 0 });
    }

    /// Events for `epoll_ctl`.
    pub(super) fn epoll_events(&mut self) -> Events {
        Events::of(self.random.one(&[
            "in",
            "in+out",
            "in+rdhup",
            "in+et",
            "in+out+et",
            "in+out+rdhup+et",
            "in+oneshot",
            "in+out+oneshot",
            "in+et+oneshot",
            "out",
            "out+et",
            "in+exclusive",
            "in+et+exclusive",
            "-",
            "rdhup",
            "pri+in",
            "rdnorm+wrnorm",
        ]))
    }

    fn fork_scene(&mut self) {
        let (one, two) = self.pair();
        let number = if self.model.children[0] { 2 } else { 1 };
        if self.model.children[number - 1] {
            return;
        }
        self.main(Operation::Fork { child: i64::try_from(number).unwrap_or(1) });
        self.model.children[number - 1] = true;
        let child = Actor::Child(u8::try_from(number).unwrap_or(1));
        if self.random.percent(30) {
            self.by(child, Operation::Execute {});
        }
        for _ in 0..2 + self.random.below(6) {
            match self.random.below(8) {
                0 => self.by(child, Operation::Close { fd: one }),
                1 => self.main(Operation::Close { fd: one }),
                2 => self
                    .by(child, Operation::Send { fd: two, length: 20, flags: MessageFlags::of("dontwait") }),
                3 => self
                    .by(child, Operation::Recv { fd: one, length: 9, flags: MessageFlags::of("dontwait") }),
                4 => self.main(Operation::Send { fd: two, length: 30, flags: MessageFlags::of("dontwait") }),
                5 => self.main(Operation::Recv { fd: one, length: 9, flags: MessageFlags::of("dontwait") }),
                _ => self.step(),
            }
        }
        if self.random.percent(60) {
            // A poll of a connection that is shut down both ways reports its end without querying
            // its holder.
            let shut = self
                .steps
                .iter()
                .any(|step| matches!(step, Step::Call { operation: Operation::Shutdown { .. }, .. }));
            let end = if self.random.percent(50) || shut {
                Step::Call { actor: child, start: false, operation: Operation::Exit { status: 3 } }
            } else {
                Step::Kill(child)
            };
            self.steps.push(end);
            self.model.children[number - 1] = false;
            self.notice();
            self.main(Operation::Recv { fd: one, length: 100, flags: MessageFlags::of("dontwait") });
            self.main(Operation::Recv { fd: two, length: 100, flags: MessageFlags::of("dontwait") });
        }
    }

    /// Makes the shim query the kernel about every connection. A killed process leaves no mark in
    /// shared memory, nor does a descriptor that is lost in a message. A call that waits notices
    /// such an end; one that writes, or polls once, does not (`docs/posix.md`).
    pub(super) fn notice(&mut self) {
        for slot in (0..Slot::COUNT).map(Slot) {
            if self.model.at(slot).kind == Kind::Connected {
                // One at a time, and for its end alone: if another event is ready, the kernel is
                // not queried.
                let watched = Watched(vec![(slot, Events::of("-"))]);
                self.main(Operation::Poll { watched, milliseconds: 0 });
            }
        }
    }

    fn rights_scene(&mut self) {
        let (one, two) = self.pair();
        let (first, second) = (self.model.free(&mut self.random), self.model.free(&mut self.random));
        self.main(Operation::Socketpair { first, second, flags: SocketFlags::of("-") });
        for (slot, peer) in [(first, second), (second, first)] {
            *self.model.at(slot) = SlotState { kind: Kind::Unix, peer: Some(peer), ..SlotState::default() };
        }
        let passed = if self.random.percent(20) { self.model.any(&mut self.random) } else { one };
        // A socket in its own queue is garbage, which the kernel collects at an unspecified time.
        // An epoll that was passed on is not recognised again.
        let passed = if passed == second || self.model.at(passed).kind == Kind::Epoll { one } else { passed };
        let fork = self.random.percent(40) && !self.model.children[0];
        if fork && self.random.percent(50) {
            self.main(Operation::Fork { child: 1 });
            self.model.children[0] = true;
        }
        self.main(Operation::SendDescriptor { via: first, fd: passed });
        if self.random.percent(40) {
            self.main(Operation::Close { fd: passed });
        }
        let to = self.model.free(&mut self.random);
        let flags = MessageFlags::of(self.random.one(&["dontwait", "cloexec+dontwait"]));
        let receiver = if self.model.children[0] { Actor::Child(1) } else { Actor::Main };
        self.by(receiver, Operation::ReceiveDescriptor { via: second, to, flags });
        let mut state = *self.model.at(passed);
        if passed == one {
            state.peer = Some(two);
        }
        *self.model.at(to) = state;
        self.by(receiver, Operation::Send { fd: to, length: 50, flags: MessageFlags::of("dontwait") });
        self.main(Operation::Recv { fd: two, length: 100, flags: MessageFlags::of("dontwait") });
        self.main(Operation::Send { fd: two, length: 50, flags: MessageFlags::of("dontwait") });
        self.by(receiver, Operation::Recv { fd: to, length: 100, flags: MessageFlags::of("dontwait") });
    }

    fn sleeping_thread(&mut self) {
        if self.model.thread_sleeps {
            return;
        }
        self.model.thread_sleeps = true;
        let sleeper = Actor::Thread(if self.random.percent(70) { 1 } else { 2 });
        if self.random.percent(20) {
            self.main(Operation::Restart { on: 1 });
        }
        if self.random.percent(25) {
            let (listener, host) = self.listener();
            let to = self.model.free(&mut self.random);
            self.start(sleeper, Operation::Accept { fd: listener, to, room: 128 });
            match self.random.below(5) {
                0 => {
                    self.main(Operation::Shutdown { fd: listener, how: self.how() });
                    self.main(Operation::Close { fd: listener });
                    self.model.at(listener).kind = Kind::Closed;
                }
                1 => {}
                _ => {
                    let client = self.client(listener, host);
                    *self.model.at(to) =
                        SlotState { kind: Kind::Connected, peer: Some(client), ..SlotState::default() };
                    self.model.at(client).peer = Some(to);
                    let connections = &mut self.model.at(listener).connections;
                    *connections = connections.saturating_sub(1);
                }
            }
        } else {
            let (one, two) = self.pair();
            let operation = self.sleeping_operation(one);
            // Later events of the socket wake a poll in the kernel, but not here (`docs/posix.md`).
            let polls = matches!(operation, Operation::Poll { .. } | Operation::Select { .. });
            self.start(sleeper, operation);
            for _ in 0..1 + self.random.below(3) {
                match self.random.below(8) {
                    0..=3 => self.send_from(two),
                    4 => self.main(Operation::Shutdown { fd: two, how: 1 }),
                    5 => self.main(Operation::Close { fd: two }),
                    6 => self.main(Operation::Shutdown { fd: one, how: self.how() }),
                    _ if polls => {}
                    _ => self.main(Operation::Close { fd: one }),
                }
            }
        }
        self.join(sleeper);
        self.model.thread_sleeps = false;
    }

    fn how(&self) -> i64 {
        i64::try_from(self.steps.len() % 3).unwrap_or(0)
    }

    fn sleeping_operation(&mut self, fd: Slot) -> Operation {
        let length = self.random.one(&[1, 10, 100, 1000]);
        match self.random.below(8) {
            0 => Operation::Read { fd, length },
            1 => Operation::Recv { fd, length, flags: MessageFlags::of("waitall") },
            2 => Operation::Recv { fd, length, flags: MessageFlags::of("peek") },
            3 => Operation::Recvmsg { fd, first: length, second: length, flags: MessageFlags::of("-") },
            4 => Operation::Poll { watched: Watched(vec![(fd, Events::of("in+rdhup"))]), milliseconds: -1 },
            5 => Operation::Select { watched: Watched(vec![(fd, Events::of("in"))]), milliseconds: -1 },
            6 => Operation::Readv { fd, first: 3, second: length },
            _ => Operation::Recv { fd, length, flags: MessageFlags::of("-") },
        }
    }

    fn file_scene(&mut self) {
        let (one, two) = self.pair();
        let file = self.model.free(&mut self.random);
        self.main(Operation::Memfd { to: file, length: 3000 });
        self.model.at(file).kind = Kind::File;
        for _ in 0..1 + self.random.below(3) {
            let (offset, count) =
                (self.random.one(&[-1, 0, 10, 2990, 4000]), self.random.one(&[0, 1, 100, 3000, 5000]));
            if self.model.has_room(one) {
                self.main(Operation::Sendfile { out: one, input: file, offset, count });
                self.model.sent(one, count.min(3000));
            }
            self.receive_at(two);
        }
    }

    /// A stream that is filled completely and emptied again.
    fn full_scene(&mut self) {
        let (one, two) = self.connection();
        self.main(Operation::Fill { fd: one });
        let sleeper = Actor::Thread(1);
        let sleeps = self.random.percent(60) && !self.model.thread_sleeps;
        if sleeps {
            self.start(sleeper, Operation::Send { fd: one, length: 10, flags: MessageFlags::of("-") });
        } else {
            let watched = Watched(vec![(one, Events::of("in+out")), (two, Events::of("in"))]);
            self.main(Operation::Poll { watched, milliseconds: 0 });
        }
        self.main(Operation::Drain { fd: two, sender: one });
        if sleeps {
            self.join(sleeper);
            self.main(Operation::Recv { fd: two, length: 10, flags: MessageFlags::of("waitall") });
        }
        self.main(Operation::Fionread { fd: two });
        self.send_from(one);
        self.receive_at(two);
    }
}
