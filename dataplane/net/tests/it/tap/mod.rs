//! A queue on a TAP device in a network namespace of the calling thread, and the damage that a bad
//! wire does.
//!
//! The kernel's TCP is at the other end of the device: it is the oracle.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use sietch_nic::{Frame, NicQueue, TransmitError};

fn name_request(name: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` is plain data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request
}

fn control(descriptor: i32, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: each of these requests reads or writes one `ifreq`, to which the reference points.
    if unsafe { libc::ioctl(descriptor, what as _, std::ptr::from_mut(request)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What a bad wire does, in parts of a thousand each way.
#[derive(Clone, Copy)]
pub(super) struct Damage {
    pub lose: u64,
    pub duplicate: u64,
    pub reorder: u64,
}

pub(super) struct Tap {
    file: File,
    mac: [u8; 6],
    mtu: usize,
    memory: Vec<Vec<u8>>,
    free: Vec<u32>,
    pending: VecDeque<Frame>,
    damage: Damage,
    random: u64,
    held: [Option<(Vec<u8>, u32)>; 2],
    arrived: VecDeque<Vec<u8>>,
}

impl Tap {
    /// A device whose kernel side has `address`/24.
    pub(super) fn new(address: [u8; 4], damage: Damage, seed: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        let mut request = name_request("tap0");
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
        control(file.as_raw_fd(), libc::TUNSETIFF as libc::c_ulong, &mut request)?;
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        for (what, address) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, [255, 255, 255, 0])] {
            let mut request = name_request("tap0");
            let mut bytes = [0u8; 14];
            bytes[2..6].copy_from_slice(&address);
            request.ifr_ifru.ifru_addr = libc::sockaddr {
                sa_family: libc::AF_INET as libc::sa_family_t,
                sa_data: bytes.map(|byte| byte.cast_signed() as libc::c_char),
            };
            control(socket.as_raw_fd(), what as libc::c_ulong, &mut request)?;
        }
        let mut request = name_request("tap0");
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        control(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::c_ulong, &mut request)?;
        // SAFETY: the call has no memory arguments, and the descriptor is ours.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mtu = 1500;
        Ok(Self {
            file,
            mac: [2, 0, 0, 0, 0, 9],
            mtu,
            memory: vec![vec![0; mtu + 14]; 512],
            free: (0..512).collect(),
            pending: VecDeque::new(),
            damage,
            random: seed | 1,
            held: [None, None],
            arrived: VecDeque::new(),
        })
    }

    /// Waits for a frame, at most this many milliseconds.
    pub(super) fn wait(&self, milliseconds: i32) {
        let mut entry = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and the count says one.
        unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    }

    fn chance(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % 1000
    }

    /// Applies the damage to a frame in direction `side`: appends it to `out` never, once, twice,
    /// or some frames later.
    fn damage(&mut self, side: usize, frame: Vec<u8>, out: &mut VecDeque<Vec<u8>>) {
        let chance = self.chance();
        let Damage { lose, duplicate, reorder } = self.damage;
        if chance >= lose {
            if chance < lose + duplicate {
                out.push_back(frame.clone());
            }
            if chance >= lose + duplicate && chance < lose + duplicate + reorder && self.held[side].is_none()
            {
                self.held[side] = Some((frame, 3));
                return;
            }
            out.push_back(frame);
        }
        if let Some((held, left)) = self.held[side].take() {
            if left == 0 {
                out.push_back(held);
            } else {
                self.held[side] = Some((held, left - 1));
            }
        }
    }
}

impl NicQueue for Tap {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut buffer = [0u8; 2048];
        while arrived.len() < limit {
            let Ok(length) = self.file.read(&mut buffer) else { break };
            self.damage(0, buffer[..length].to_vec(), &mut arrived);
        }
        let mut count = 0;
        while count < limit && !arrived.is_empty() && !self.free.is_empty() {
            if let (Some(bytes), Some(chunk)) = (arrived.pop_front(), self.free.pop()) {
                let length = bytes.len().min(self.mtu + 14);
                self.memory[chunk as usize][..length].copy_from_slice(&bytes[..length]);
                out.push(Frame::from_parts(chunk, 0, length as u32));
                count += 1;
            }
        }
        self.arrived = arrived;
        count
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.memory[frame.parts().0 as usize][..frame.len()]
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        &mut self.memory[frame.parts().0 as usize][..frame.len()]
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.free.pop().map(|chunk| Frame::from_parts(chunk, 0, length as u32))
    }

    fn release(&mut self, frame: Frame) {
        self.free.push(frame.parts().0);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        if self.pending.len() >= 256 {
            return Err(TransmitError::RingFull(frame));
        }
        self.pending.push_back(frame);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut leaving = VecDeque::new();
        while let Some(frame) = self.pending.pop_front() {
            let bytes = self.bytes(&frame).to_vec();
            self.free.push(frame.parts().0);
            self.damage(1, bytes, &mut leaving);
        }
        for frame in leaving {
            // A full device loses the frame, as a wire may.
            let _ = self.file.write(&frame);
        }
        Ok(())
    }

    fn free_buffers(&self) -> usize {
        self.free.len()
    }
}
