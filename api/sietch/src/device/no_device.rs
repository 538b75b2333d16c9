//! The queue of a runtime without a VNIC: a program that uses streams and storage alone.
//!
//! Nothing arrives, and what is sent goes nowhere. Its doorbell never becomes readable, so a loop
//! on it sleeps on its other sources.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use sietch_nic::queue::ETHERNET_HEADER;
use sietch_nic::{Frame, NicQueue, TransmitError};

use super::Doorbell;

/// Bytes of a packet: what a VNIC usually has.
const MTU: usize = 1500;

/// See the module.
#[derive(Debug)]
pub struct NoDevice {
    never: OwnedFd,
    frame: Vec<u8>,
}

impl NoDevice {
    /// A queue that leads nowhere.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let never = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { never, frame: vec![0; MTU + ETHERNET_HEADER] })
    }
}

impl NicQueue for NoDevice {
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn receive(&mut self, _: &mut Vec<Frame>, _: usize) -> usize {
        0
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.frame[..frame.head_len()]
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        &mut self.frame[..frame.head_len()]
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        Some(Frame::from_parts(0, 0, length as u32))
    }

    fn release(&mut self, _: Frame) {}

    fn transmit(&mut self, _: Frame) -> Result<(), TransmitError> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn free_buffers(&self) -> usize {
        1
    }
}

impl Doorbell for NoDevice {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never.as_fd())
    }
}
