//! Common memory of a connection into which the other end writes what it likes.

use std::os::fd::AsFd as _;

use rustix::io::pwrite;
use sietch_ring::stream::layout::HEADER;
use sietch_ring::stream::{Endpoint, Memory, Names, RegionSizes, Want};

/// Operations of an honest end, each of a byte; between them the other end scribbles: an offset in
/// the header (two bytes, little-endian) and eight bytes.
pub(crate) fn streams(mut data: &[u8]) {
    let sizes = RegionSizes { smallest: 12, largest: 14 };
    let memory = Memory::create(sizes, [Names::default(); 2]).expect("memfds");
    let end = Endpoint::attach(memory.common.as_fd(), memory.private[0].as_fd()).expect("its own memory");
    let mut bytes = [0; 20_000];
    while let [operation, rest @ ..] = data {
        data = rest;
        match operation % 8 {
            0 => {
                if let Some(mut send) = end.send() {
                    let _ = send.write(&bytes[..usize::from(*operation) * 60]);
                }
            }
            1 => {
                if let Some(mut receive) = end.receive() {
                    let _ = receive.read(&mut bytes[..usize::from(*operation) * 60]);
                }
            }
            2 => {
                let (_, _, _) = (end.readable(), end.writable(), end.unread_by_peer());
                let (_, _) = (end.is_writable(), end.hung_up());
            }
            3 => {
                let _ = end.arm(Want::Data);
            }
            4 => end.finish(),
            5 => {
                let _ = end.notify_with([end.data_notification(), end.room_notification()], || true);
            }
            _ => {
                let [low, high, word @ ..] = data else { return };
                let Some((word, rest)) = word.split_at_checked(8) else { return };
                let at = usize::from(u16::from_le_bytes([*low, *high])) % (HEADER - 8);
                pwrite(&memory.common, word, at as u64).expect("inside the memory");
                data = rest;
            }
        }
    }
}
