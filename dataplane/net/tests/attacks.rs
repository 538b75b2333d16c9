//! Peers and strangers who mean harm: what they send costs them something, and the connection of an honest peer lives.

mod harness;

use std::net::SocketAddr;

use harness::{Host, SECOND, SERVER_PORT};
use sietch_net::FlowId;
use sietch_sim::segment::{ACK, Macs, Options, PSH, SYN, Segment};

const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// A peer of bare segments, written and read apart from the engine's own packet code.
struct Wire {
    host: Host,
    now: u64,
    peer: SocketAddr,
    local: SocketAddr,
    /// The engine's initial sequence number, and ours.
    irs: u32,
    iss: u32,
    window: u16,
}

/// A segment that the engine sent, with offsets into the streams instead of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    from: u32,
    ack: u32,
    flags: u8,
    window: u16,
    length: u32,
}

impl Wire {
    /// An engine that listens and has one established connection, without options but a segment size of 1000.
    fn connected() -> (Self, FlowId) {
        let mut host = Host::new(2, |_| {});
        host.engine.listen(SERVER_PORT, 64).expect("the port is free");
        let mut wire = Self {
            host,
            now: SECOND,
            peer: "10.0.0.1:5555".parse().expect("legal"),
            local: SocketAddr::from(([10, 0, 0, 2], SERVER_PORT)),
            irs: 0,
            iss: 1_000_000,
            window: 8000,
        };
        let options = Options { mss: Some(1000), ..Options::default() };
        wire.put(SYN, wire.iss, 0, &options, &[]);
        let frames = wire.frames();
        let answer = Segment::decode(&frames[0]).expect("it answers a SYN");
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, wire.iss + 1));
        wire.irs = answer.seq;
        wire.say(0, 0, ACK, &[]);
        let flow = *wire.host.accepted().first().expect("the handshake is complete");
        (wire, flow)
    }

    fn put(&mut self, flags: u8, seq: u32, ack: u32, options: &Options, payload: &[u8]) {
        let macs = Macs { from: STRANGER, to: self.host.mac };
        let options = options.bytes();
        let window = self.window;
        let segment = Segment {
            window,
            options: &options,
            payload,
            ..Segment::bare(self.peer, self.local, flags, seq, ack)
        };
        assert!(self.host.tap.deliver(&segment.encode(macs)));
        while self.host.poll(self.now) {}
    }

    /// Sends data or control at offset `at` of our stream, acknowledging so many bytes of the engine's.
    fn say(&mut self, at: u32, acknowledged: u32, flags: u8, payload: &[u8]) {
        let (seq, ack) = (self.iss.wrapping_add(1 + at), self.irs.wrapping_add(1 + acknowledged));
        self.put(flags, seq, ack, &Options::default(), payload);
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.host.tap.take_transmitted()).collect()
    }

    fn sent(&mut self) -> Vec<Sent> {
        let frames = self.frames();
        let segments = frames.iter().filter_map(|frame| Segment::decode(frame));
        segments
            .map(|segment| Sent {
                from: segment.seq.wrapping_sub(self.irs + 1),
                ack: segment.ack.wrapping_sub(self.iss + 1),
                flags: segment.flags,
                window: segment.window,
                length: segment.payload.len() as u32,
            })
            .collect()
    }
}

#[test]
fn an_acknowledgement_on_repeated_data_brings_its_window_along() {
    let (mut wire, flow) = Wire::connected();
    wire.host.engine.send(flow, &[1; 50_000]);
    while wire.host.poll(wire.now) {}
    let first = wire.sent();
    assert_eq!(first.last().map(|last| last.from + last.length), Some(8000), "{first:?}");
    wire.say(0, 0, ACK | PSH, &[7; 500]);
    wire.say(500, 0, ACK | PSH, &[7; 500]);
    // The same bytes and more, for our acknowledgement was lost; theirs has come meanwhile, and nobody has read it.
    wire.window = 3000;
    wire.say(0, 5000, ACK | PSH, &[7; 1000 + 200]);
    while wire.host.poll(wire.now) {}
    let beyond: Vec<Sent> = wire.sent().into_iter().filter(|sent| sent.from + sent.length > 8000).collect();
    assert_eq!(beyond, [], "the peer said 5000 + 3000");
}
