//! A VNIC as an application gets it: an AF_XDP socket on a veth pair behind its filters, with a bad cable in between.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_nic::af_xdp::{self, Geometry};
use sietch_nic::xdp::{Reason, VnicPrograms, VnicSpec, offload};
use sietch_nic::{Frame, NicQueue, TransmitError};
use sietch_sim::lossy::{Done, Rates};
use sietch_sim::{Lossy, Random};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
const MTU: usize = 1500;

pub struct Veth {
    queue: Lossy<af_xdp::Queue>,
    /// The filters stay attached as long as the pair lives.
    programs: VnicPrograms,
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("an interface name has no zero byte");
    // SAFETY: a string that ends in a zero byte and outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

impl Veth {
    /// A pair in the calling thread's namespace whose host end has `host`/24, and a VNIC with `address` that may
    /// serve `port`.
    pub fn new(host: [u8; 4], address: [u8; 4], port: u16, rates: Rates, seed: u64) -> io::Result<Self> {
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        ip("link set lo up")?;
        ip(&format!(
            "link add vn0 mtu {MTU} address {} numtxqueues 1 numrxqueues 1 type veth peer name vh0 mtu {MTU} address {} \
             numtxqueues 1 numrxqueues 1",
            text(MAC),
            text(HOST_MAC)
        ))?;
        // Without addresses of its own the kernel adds no frames to the VNIC's.
        ip("link set vn0 addrgenmode none up")?;
        ip("link set vh0 addrgenmode none up")?;
        let [a, b, c, d] = host;
        ip(&format!("addr add {a}.{b}.{c}.{d}/24 dev vh0"))?;
        let (own, peer) = (index("vn0"), index("vh0"));
        let other = |cause: &dyn std::fmt::Display| io::Error::other(cause.to_string());
        offload::disable_transmit_checksum(peer).map_err(|e| other(&e))?;
        let geometry = Geometry::for_mtu(own, 0, MTU).map_err(|e| other(&e))?;
        let granted = af_xdp::create(geometry).map_err(|e| other(&e))?;
        let spec = VnicSpec {
            mac: MAC,
            address: address.into(),
            tcp_ports: vec![port..=port],
            udp_ports: Vec::new(),
            peers: Vec::new(),
            rate: None,
            burst: 1 << 20,
            uplink: None,
            host_mac: HOST_MAC,
            generation: 1,
        };
        let programs =
            VnicPrograms::install(&spec, own, peer, granted.socket.as_fd(), 0).map_err(|e| other(&e))?;
        let queue = af_xdp::Queue::open(granted, MAC, MTU).map_err(|e| other(&e))?;
        Ok(Self { queue: Lossy::new(queue, rates, Random::new(seed)), programs })
    }

    /// What the cable has done.
    pub fn done(&self) -> Done {
        self.queue.done
    }

    /// What the filter dropped of what was sent, by reason.
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        let sent = self.programs.counters().expect("the maps are ours").transmitted;
        Reason::ALL
            .into_iter()
            .map(|reason| (reason.name(), sent.dropped(reason).frames))
            .filter(|(_, frames)| *frames > 0)
            .collect()
    }

    /// Waits for a frame, at most so many milliseconds.
    pub fn wait(&self, milliseconds: i32) {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(milliseconds.clamp(0, 999)) * 1_000_000 };
        let mut entries = [PollFd::new(self.queue.inner(), PollFlags::IN)];
        // A signal ends the wait as well.
        let _ = poll(&mut entries, Some(&limit));
    }
}

impl NicQueue for Veth {
    fn mac(&self) -> [u8; 6] {
        self.queue.mac()
    }

    fn mtu(&self) -> usize {
        self.queue.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.queue.receive(out, limit)
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queue.bytes(frame)
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.queue.bytes_mut(frame)
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.queue.allocate(length)
    }

    fn release(&mut self, frame: Frame) {
        self.queue.release(frame);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.queue.transmit(frame)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }

    fn free_buffers(&self) -> usize {
        self.queue.free_buffers()
    }
}
