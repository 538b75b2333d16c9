//! The mounts that `sietch run --fs` named, by the number of their device.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use sietch_fs::direct::{MAP, MAX_WAY, WAY, Way};

use crate::context;
use crate::system::sys::{self, Errno, address, address_mut, signed};
use crate::system::{kernel, seccomp};

/// Mounts at most.
const MAX_MOUNTS: usize = 8;

/// The variable that names them, with colons between them.
pub(crate) use sietch_protocol::socket_service::FILES_VARIABLE as VARIABLE;

/// Calls of the kernel's before a lease is worth its cost, at least and at most: a lease takes some
/// hundred microseconds to pass, or as long as a disk takes to flush, and saves about
/// [`CALL_NANOS`] with each call.
const CALLS: u32 = 8;
pub(crate) const MOST_CALLS: u32 = 256;
const CALL_NANOS: u64 = 30_000;

/// The variable that says another number, for tests.
const CALLS_VARIABLE: &str = "SIETCH_FILES_CALLS";

static IS_REPORTING: AtomicBool = AtomicBool::new(false);

static CALLS_NOW: AtomicU32 = AtomicU32::new(CALLS);

static DEVICES: [AtomicU64; MAX_MOUNTS] = [const { AtomicU64::new(0) }; MAX_MOUNTS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether the size of files is limited (`RLIMIT_FSIZE`): then all writes are the kernel's.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

static FOLDERS: OnceLock<&[u8]> = OnceLock::new();

/// Calls `work` with the path of each folder, and a zero behind it.
fn each_folder(list: &[u8], work: impl Fn(&CStr)) {
    for folder in list.split(|byte| *byte == b':') {
        let mut path = [0_u8; libc::PATH_MAX as usize];
        let Some(to) = path.get_mut(..folder.len()) else { continue };
        to.copy_from_slice(folder);
        if let Ok(path) = CStr::from_bytes_until_nul(&path) {
            work(path);
        }
    }
}

/// Takes a list of folders, each of a mount.
pub(crate) fn begin(list: &'static [u8]) {
    let _ = FOLDERS.set(list);
    each_folder(list, |path| {
        if let Some((found, _)) = status(libc::AT_FDCWD, address(path.as_ptr()), 0) {
            add(found.device);
        }
    });
    let calls = context::variable(CALLS_VARIABLE).and_then(|value| std::str::from_utf8(value).ok());
    if let Some(calls) = calls.and_then(|calls| calls.parse().ok()) {
        CALLS_NOW.store(calls, Release);
    }
    IS_REPORTING.store(context::variable("SIETCH_DEBUG").is_some(), Release);
    note_limit();
}

/// Calls on one description that the kernel does before this process asks for a lease.
pub(crate) fn calls() -> u32 {
    CALLS_NOW.load(Acquire)
}

/// The same, where a lease took so many nanoseconds lately.
pub(crate) fn calls_worth(lease: u64) -> u32 {
    let calls = calls();
    let worth = u32::try_from(lease / CALL_NANOS).unwrap_or(MOST_CALLS);
    if calls == CALLS { worth.clamp(CALLS, MOST_CALLS) } else { calls }
}

/// Takes the device of a mount.
pub(crate) fn add(device: u64) {
    let at = COUNT.load(Acquire);
    if let Some(slot) = DEVICES.get(at) {
        slot.store(device, Release);
        COUNT.store(at + 1, Release);
    }
}

/// No file is taken from the kernel from now on.
pub(crate) fn forget_all() {
    COUNT.store(0, Release);
}

/// Whether there is any mount.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Acquire) != 0
}

/// The file behind a descriptor, if it is a regular one of a mount.
pub(crate) fn identify(fd: c_int) -> Option<Identity> {
    // `statx(2)` may be forbidden.
    if !are_any() || seccomp::is_restricted() {
        return None;
    }
    let (found, mode) = status(fd, address(c"".as_ptr()), libc::AT_EMPTY_PATH)?;
    (is_mount(found.device) && mode & libc::S_IFMT == libc::S_IFREG).then_some(found)
}

/// The file behind a descriptor, whatever it is of.
pub(crate) fn identity(fd: c_int) -> Option<Identity> {
    status(fd, address(c"".as_ptr()), libc::AT_EMPTY_PATH).map(|(found, _)| found)
}

/// Asks the mount which inode a descriptor is of, and where its service is.
///
/// # Errors
/// `ENOTTY`: the descriptor is not of a mount whose file system is served.
pub(crate) fn ask(fd: c_int) -> Result<Way, Errno> {
    let mut answer = vec![0_u8; MAX_WAY];
    let to = address_mut(answer.as_mut_ptr());
    // SAFETY: the kernel writes at most as many bytes as the request says, which is what there is.
    let length = unsafe { sys::syscall(libc::SYS_ioctl, [signed(fd), WAY as usize, to, 0, 0, 0]) }?;
    answer.get(..length).and_then(Way::from_bytes).ok_or(libc::ENOTTY)
}

/// Has the mounts make durable what they have, of which `sync(2)` does not tell them.
pub(crate) fn sync_all() {
    if !are_any() || seccomp::is_restricted() {
        return;
    }
    each_folder(FOLDERS.get().copied().unwrap_or_default(), |path| {
        let flags = signed(libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
        let arguments = [signed(libc::AT_FDCWD), address(path.as_ptr()), flags, 0, 0, 0];
        // SAFETY: the kernel reads a text that ends with a zero.
        let Ok(fd) = (unsafe { sys::syscall(libc::SYS_openat, arguments) }) else { return };
        // It may be another folder's path by now.
        let _ = sync_one(fd as c_int);
        let _ = kernel::close(fd as c_int);
    });
}

/// The same, for the mount that a descriptor is of, if it is of one.
///
/// # Errors
/// As `fsync(2)`.
pub(crate) fn sync_one(fd: c_int) -> Result<(), Errno> {
    if !are_any() || seccomp::is_restricted() {
        return Ok(());
    }
    match status(fd, address(c"".as_ptr()), libc::AT_EMPTY_PATH) {
        // SAFETY: touches no memory.
        Some((found, _)) if is_mount(found.device) => unsafe {
            sys::syscall(libc::SYS_fsync, [signed(fd), 0, 0, 0, 0, 0]).map(drop)
        },
        _ => Ok(()),
    }
}

fn is_mount(device: u64) -> bool {
    DEVICES.iter().take(COUNT.load(Acquire)).any(|mount| mount.load(Acquire) == device)
}

/// Says to the mount that a file will be mapped. One that is not served does not need to know.
pub(crate) fn say_mapped(fd: c_int) {
    // SAFETY: the request has no argument.
    let _ = unsafe { sys::syscall(libc::SYS_ioctl, [signed(fd), MAP as usize, 0, 0, 0, 0]) };
}

/// Has the kernel ask the mount for the attributes of a file, so that it knows the size.
pub(crate) fn refresh(fd: c_int) {
    if seccomp::is_restricted() {
        return;
    }
    // SAFETY: zeros are a value of it.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = signed(libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC);
    let (path, wanted) = (address(c"".as_ptr()), libc::STATX_SIZE as usize);
    let arguments = [signed(fd), path, flags, wanted, address_mut(&raw mut found), 0];
    // SAFETY: the kernel reads a text that ends with a zero, and writes the answer.
    let _ = unsafe { sys::syscall(libc::SYS_statx, arguments) };
}

/// Writes to standard error why the kernel does what this process could, if `SIETCH_DEBUG` is set.
pub(crate) fn report(cause: &str) {
    if !IS_REPORTING.load(Acquire) {
        return;
    }
    let line = format!("sietch: files stay the kernel's: {cause}\n");
    // SAFETY: the kernel reads the line.
    let _ = unsafe { sys::syscall(libc::SYS_write, [2, address(line.as_ptr()), line.len(), 0, 0, 0]) };
}

/// What the kernel knows without asking the mount, and the mode.
fn status(fd: c_int, path: usize, flags: c_int) -> Option<(Identity, u32)> {
    // SAFETY: zeros are a value of it.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    let wanted = (libc::STATX_TYPE | libc::STATX_INO) as usize;
    let arguments = [signed(fd), path, signed(flags), wanted, address_mut(&raw mut found), 0];
    // SAFETY: the kernel reads a text that ends with a zero, and writes the answer.
    unsafe { sys::syscall(libc::SYS_statx, arguments) }.ok()?;
    let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
    Some((Identity { device, inode: found.stx_ino }, u32::from(found.stx_mode)))
}

/// Whether the size of files is limited (`RLIMIT_FSIZE`): the kernel then sends a signal.
#[inline]
pub(crate) fn is_limited() -> bool {
    IS_LIMITED.load(Acquire)
}

/// Reads the limit.
pub(crate) fn note_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, libc::RLIMIT_FSIZE as usize, 0, address_mut(&raw mut limit), 0, 0];
    // SAFETY: the kernel writes the limit.
    let read = unsafe { sys::syscall(libc::SYS_prlimit64, arguments) };
    IS_LIMITED.store(read.is_err() || limit.rlim_cur != libc::RLIM_INFINITY, Release);
}
