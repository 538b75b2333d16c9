//! A packet socket over all interfaces of the namespace, read by a thread of its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};

use super::frames;
use crate::client::Stop;

/// Every protocol, in network order.
const EVERYTHING: NonZeroU32 = NonZeroU32::new((3_u16).to_be() as u32).expect("3 is not 0");

/// The frames of the attacker that were seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub honest: u64,
    /// Of them, those of IPv6.
    pub honest6: u64,
    pub forged: Vec<Vec<u8>>,
}

/// A running watch.
pub(super) struct Capture {
    stop: Arc<Stop>,
    thread: JoinHandle<Seen>,
}

impl Capture {
    pub(super) fn start() -> Self {
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            Some(Protocol::from_raw(EVERYTHING)),
        )
        .expect("root may watch its namespace");
        let _ = set_socket_recv_buffer_size(&socket, 8 << 20);
        let stop = Arc::new(Stop::default());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let mut buffer = vec![0; 1 << 16];
            loop {
                // Read first: frames from before the stop are still counted.
                let last = stopped.is_set();
                while let Ok((_, length)) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()) {
                    let frame = &buffer[..length];
                    if frames::is_forged(frame) {
                        seen.forged.push(frame.to_vec());
                    } else if frames::is_honest(frame) {
                        seen.honest += 1;
                        seen.honest6 += u64::from(frame[12..14] == [0x86, 0xdd]);
                    }
                }
                if last {
                    return seen;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        Self { stop, thread }
    }

    /// Ends the watch.
    pub(super) fn stop(self) -> Seen {
        self.stop.set();
        self.thread.join().expect("the watch has not failed")
    }
}
