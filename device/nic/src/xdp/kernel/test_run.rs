//! Runs a program over one frame without a network (`BPF_PROG_TEST_RUN`), for tests.

use std::os::fd::AsRawFd;

use super::{Program, address, bpf, failed};
use crate::xdp::error::XdpError;

const PROG_TEST_RUN: libc::c_int = 10;

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program_fd: u32,
    verdict: u32,
    data_in_size: u32,
    data_out_size: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_size: u32,
    context_out_size: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// What a test run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestVerdict {
    /// `XDP_*`.
    pub verdict: u32,
    /// Mean time of a run in nanoseconds, as the kernel measured it.
    pub nanoseconds: u32,
}

impl Program {
    /// Runs the program `repeat` times over `frame` (14 bytes at least) without a network, and
    /// gives the last verdict.
    ///
    /// # Errors
    /// The kernel's refusal: `EINVAL` for a frame shorter than an Ethernet header.
    pub(crate) fn test_run(&self, frame: &[u8], repeat: u32) -> Result<TestVerdict, XdpError> {
        let mut attributes = TestRun {
            program_fd: self.fd.as_raw_fd() as u32,
            data_in_size: frame.len() as u32,
            data_in: address(frame),
            repeat,
            ..TestRun::default()
        };
        bpf(PROG_TEST_RUN, &mut attributes).map_err(failed("run a program over a test frame"))?;
        Ok(TestVerdict { verdict: attributes.verdict, nanoseconds: attributes.duration })
    }
}
