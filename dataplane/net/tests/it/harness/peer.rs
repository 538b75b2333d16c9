//! A peer without a stack: the test writes each segment and reads each answer.

use sietch_net::packet::tcp::{self, ACK, Fields, Options, SYN};
use sietch_net::packet::{Address, Path, Template, ethernet, ipv4};
use sietch_net::{Config, FlowId, Seq};

use super::{Host, SECOND, SERVER_PORT};

pub(crate) const PEER: u32 = 0x0a00_0001;
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_PORT: u16 = 5555;
pub(crate) const PEER_ISS: Seq = Seq(1_000_000);

/// A segment that the engine sent.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub at: u64,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    pub window: u16,
    pub options: tcp::Received,
    /// Ranges of its SACK option.
    pub sack: Vec<(Seq, Seq)>,
    pub payload: Vec<u8>,
    pub port: u16,
}

pub(crate) struct Peer {
    pub host: Host,
    pub now: u64,
    pub port: u16,
    pub engine_port: u16,
    /// The engine's initial sequence number.
    pub irs: Seq,
    pub flow: FlowId,
    pub window: u16,
}

impl Peer {
    /// An engine that listens, without connections.
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut host = Host::new(2, change);
        host.engine.listen(SERVER_PORT, 64).expect("the port is free");
        let (irs, flow) = (Seq(0), FlowId::NONE);
        Self { host, now: SECOND, port: PEER_PORT, engine_port: SERVER_PORT, irs, flow, window: 60_000 }
    }

    /// An engine with one connection from this peer, without options.
    pub(crate) fn connected(change: impl FnOnce(&mut Config)) -> Self {
        let mut peer = Self::new(change);
        peer.handshake(Options::Syn { mss: 1000, shift: None, sack: false, timestamps: None });
        peer
    }

    pub(crate) fn handshake(&mut self, options: Options) {
        self.put(PEER_ISS, Seq(0), SYN, options, b"");
        let answer = self.one();
        assert_eq!(answer.flags, SYN | ACK);
        assert_eq!(answer.ack, PEER_ISS.plus(1));
        self.irs = answer.seq;
        let stamps = match options {
            Options::Syn { timestamps: Some((value, _)), .. } => {
                Options::Timestamps(value, answer.options.timestamps.expect("timestamps are answered").0)
            }
            _ => Options::None,
        };
        self.put(PEER_ISS.plus(1), self.irs.plus(1), ACK, stamps, b"");
        assert!(self.take().is_empty());
        self.flow = *self.host.accepted().last().expect("the handshake is complete");
    }

    pub(crate) fn put(&mut self, seq: Seq, ack: Seq, flags: u8, options: Options, payload: &[u8]) {
        let path = Path {
            mac: PEER_MAC,
            next_hop: self.host.mac,
            local: Address::v4(PEER),
            remote: self.host.address.into(),
            local_port: self.port,
            remote_port: self.engine_port,
        };
        let fields = Fields { seq, ack, flags, window: self.window, options };
        let template = Template::new(&path, ipv4::TCP);
        let mut frame = vec![0; tcp::frame_length(&template, &options, payload.len())];
        tcp::emit(&mut frame, &template, &fields, (payload, b""), true);
        assert!(self.host.tap.deliver(&frame));
        self.poll();
    }

    /// Sends data or control `offset` bytes into our stream, acknowledging `acknowledged` bytes of
    /// theirs.
    pub(crate) fn say(&mut self, offset: u32, acknowledged: u32, flags: u8, payload: &[u8]) {
        self.put(PEER_ISS.plus(1 + offset), self.irs.plus(1 + acknowledged), flags, Options::None, payload);
    }

    /// Polls the engine until it has nothing to do.
    pub(crate) fn poll(&mut self) {
        while self.host.poll(self.now) {}
    }

    /// Takes what the engine has sent.
    pub(crate) fn take(&mut self) -> Vec<Got> {
        let mut all = Vec::new();
        while let Some(frame) = self.host.tap.take_transmitted() {
            let (link, packet) = ethernet::Header::parse(&frame).expect("what we send is legal");
            if link.ethertype != ethernet::IPV4 {
                continue;
            }
            let (header, bytes) = ipv4::Header::parse(packet).expect("what we send is legal");
            if header.protocol != ipv4::TCP {
                // An incomplete packet causes an ICMP error.
                continue;
            }
            let ends = (Address::v4(header.source), Address::v4(header.destination));
            let segment = tcp::Segment::parse(bytes, &ends.0, &ends.1, false).expect("what we send is legal");
            all.push(Got {
                at: self.now,
                seq: segment.seq,
                ack: segment.ack,
                flags: segment.flags,
                window: segment.window,
                options: segment.options,
                sack: segment.sack_blocks().as_slice().to_vec(),
                payload: segment.payload.to_vec(),
                port: segment.source,
            });
        }
        all
    }

    pub(crate) fn one(&mut self) -> Got {
        let mut all = self.take();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub(crate) fn nothing(&mut self) {
        let all = self.take();
        assert!(all.is_empty(), "{all:?}");
    }

    /// Moves time to `at`, running every deadline on the way, and returns what was sent and when.
    pub(crate) fn until(&mut self, at: u64) -> Vec<Got> {
        let mut all = self.take();
        while let Some(next) = self.host.engine.next_deadline().filter(|next| *next <= at) {
            self.now = self.now.max(next);
            self.poll();
            all.extend(self.take());
        }
        self.now = at;
        self.poll();
        all.extend(self.take());
        all
    }
}
