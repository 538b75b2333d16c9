//! Making a ring: what the kernel and the device can do is tried, not derived from a version, and
//! the outcome is kept for people.

use std::io;
use std::os::fd::BorrowedFd;

use io_uring::{IoUring, Probe, opcode};

use super::mode::Mode;
use crate::OpenError;
use crate::features::{Device, Feature};

/// How long the kernel's thread of [`Mode::KernelThread`] polls for requests before it sleeps, in
/// milliseconds. It covers some requests of a disk, so that a busy queue keeps it awake and an idle
/// one gives the core back.
const IDLE: u32 = 2;

/// A ring in the wanted mode, or in one that the kernel knows; the mode, and why it is not the
/// wanted one.
pub(super) fn make(depth: usize, wanted: Mode) -> Result<(IoUring, Mode, Option<String>), OpenError> {
    // Bounded by MAX_DEPTH, so it fits.
    let entries = depth.next_power_of_two() as u32;
    let mut refused = None;
    for mode in [wanted, Mode::Cooperative, Mode::Plain] {
        match build(entries, mode) {
            Ok(ring) => {
                check(&ring)?;
                return Ok((ring, mode, refused));
            }
            // EINVAL: a flag that this kernel does not know. EPERM: a thread that it does not
            // allow.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) && mode != Mode::Plain => {
                refused.get_or_insert(format!("{} is refused: {e}", mode.flags()));
            }
            Err(e) => return Err(unavailable(&e)),
        }
    }
    Err(OpenError::Unavailable { cause: "every way of setting it up is refused".into() })
}

fn build(entries: u32, mode: Mode) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    match mode {
        Mode::Plain => {}
        Mode::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        Mode::Deferred => {
            // Enabled by the thread that rings first, which is the single issuer from then on.
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_r_disabled();
        }
        Mode::KernelThread => {
            builder.setup_sqpoll(IDLE);
        }
    }
    builder.build(entries)
}

/// Whether the kernel has every operation that the queue is made of.
fn check(ring: &IoUring) -> Result<(), OpenError> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|e| unavailable(&e))?;
    let missing = [
        ("IORING_OP_READ", opcode::Read::CODE),
        ("IORING_OP_WRITE", opcode::Write::CODE),
        ("IORING_OP_FSYNC", opcode::Fsync::CODE),
        ("IORING_OP_READV", opcode::Readv::CODE),
        ("IORING_OP_WRITEV", opcode::Writev::CODE),
        ("IORING_OP_FALLOCATE", opcode::Fallocate::CODE),
    ]
    .into_iter()
    .find(|(_, code)| !probe.is_supported(*code));
    match missing {
        Some((name, _)) => Err(OpenError::Unavailable { cause: format!("the kernel lacks {name}") }),
        None if !ring.params().is_feature_ext_arg() => {
            Err(OpenError::Unavailable { cause: "the kernel lacks IORING_FEAT_EXT_ARG".into() })
        }
        None => Ok(()),
    }
}

pub(super) fn unavailable(error: &io::Error) -> OpenError {
    OpenError::Unavailable { cause: error.to_string() }
}

/// Whether this thread was given an I/O priority of its own (`ionice`): requests then keep it,
/// whatever their class.
pub(super) fn has_own_priority() -> bool {
    const PROCESS: libc::c_int = 1;
    const CLASS: u32 = 13;
    // SAFETY: no pointer is passed; the calling thread is asked about itself.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0) };
    priority > 0 && priority >> CLASS != 0
}

/// What a queue could use beside its mode, and why it does or does not.
pub(super) fn features(fd: BorrowedFd<'_>, mode: Mode, refused: Option<&str>, ranks: bool) -> Vec<Feature> {
    let mut features = vec![match (mode, refused) {
        (Mode::Plain, why) => Feature::unused("COOP_TASKRUN", why.unwrap_or("not wanted")),
        (mode, None) => Feature::used(mode.flags(), ""),
        (mode, Some(why)) => Feature::used(mode.flags(), why),
    }];
    features.push(Feature::used("registered file", ""));
    features.push(Feature::unused(
        "registered buffers",
        "buffers move by value and may be freed while registered",
    ));
    if mode != Mode::Deferred {
        features.push(Feature::unused(
            "DEFER_TASKRUN",
            "no cheaper for a disk, and wakes no thread that sleeps on the ring",
        ));
    }
    if mode != Mode::KernelThread {
        features.push(Feature::unused("SQPOLL", "its thread needs a core of its own"));
    }
    let device = Device::of(fd);
    let polled = device.as_ref().and_then(|device| device.queue("io_poll")).is_some_and(|poll| poll == "1");
    features.push(Feature::unused(
        "IOPOLL",
        match (&device, polled) {
            (None, _) => "no block device is beneath the file",
            (Some(_), false) => "the device has no polled queues",
            (Some(_), true) => "the device has polled queues, but they take no flush and ring no doorbell",
        },
    ));
    features.push(Feature::unused(
        "NVMe passthrough",
        if device.is_some_and(|device| device.is_nvme()) {
            "it would name the whole namespace, and an area must not reach beyond its own file"
        } else {
            "not an NVMe device"
        },
    ));
    if !ranks {
        features
            .push(Feature::unused("a priority for each request", "this thread has one of its own (ionice)"));
    }
    features
}
