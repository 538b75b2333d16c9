//! Giving up every privilege, for good, before the store touches anything from outside.
//!
//! 1. Only in a process with one thread: credentials belong to threads, and a second one would keep
//!    its own.
//! 2. First what needs privilege: the largest file offset (RLIMIT_FSIZE: the store's area, so that
//!    a compromised store cannot fill the disk), no core files, the capability bounding set,
//!    supplementary groups.
//! 3. Then group and user, all three ids of each, and what could bring anything back: ambient and
//!    inheritable capabilities, set-uid programs (no_new_privs).
//! 4. Last it is checked that nothing is left. The process stays non-dumpable, as the kernel makes
//!    it: others of the same user cannot trace it and take its descriptors.

use std::io;

use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::arguments::Account;
use crate::error::Error;

/// Limits file offsets to `limit` bytes and forbids core files.
///
/// # Errors
/// [`Error::Privilege`].
pub(crate) fn limit_files(limit: u64) -> Result<(), Error> {
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Fsize, both(limit)).map_err(at("limiting the size of files"))?;
    setrlimit(Resource::Core, both(0)).map_err(at("forbidding core files"))
}

/// Becomes `account`, irrevocably.
///
/// # Errors
/// [`Error::Privilege`]: the process is half-way and must end.
pub(crate) fn give_up(account: Account) -> Result<(), Error> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        let source = io::Error::other(format!("{threads} threads run; it must be the first thing done"));
        return Err(Error::Privilege { step: "counting threads", source });
    }
    needs_root()?;
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    for capability in CapabilitySet::all().iter() {
        match thread::remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not have.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(cause) => return Err(at("emptying the capability bounding set")(cause)),
        }
    }
    thread::set_thread_groups(&[]).map_err(at("leaving all groups"))?;
    thread::set_thread_res_gid(gid, gid, gid).map_err(at("changing the group"))?;
    thread::set_thread_res_uid(uid, uid, uid).map_err(at("changing the user"))?;
    thread::clear_ambient_capability_set().map_err(at("clearing ambient capabilities"))?;
    let empty = CapabilitySet::empty();
    let none = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    thread::set_capabilities(None, none).map_err(at("clearing capabilities"))?;
    thread::set_no_new_privs(true).map_err(at("refusing new privileges"))?;
    verify(uid, gid)
}

/// Says it by name, before anything is half done, where the kernel would only say that something is
/// not permitted.
fn needs_root() -> Result<(), Error> {
    const WANTED: [(CapabilitySet, &str); 3] = [
        (CapabilitySet::SETPCAP, "CAP_SETPCAP"),
        (CapabilitySet::SETUID, "CAP_SETUID"),
        (CapabilitySet::SETGID, "CAP_SETGID"),
    ];
    let held = thread::capabilities(None).map_err(at("reading capabilities"))?.effective;
    let lacking: Vec<&str> =
        WANTED.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| *name).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let cause =
        format!("it needs root ({} missing); start it as root, or leave `--run-as` out", lacking.join(", "));
    let source = io::Error::new(io::ErrorKind::PermissionDenied, cause);
    Err(Error::Privilege { step: "becoming another user", source })
}

fn verify(uid: Uid, gid: Gid) -> Result<(), Error> {
    let left = thread::capabilities(None).map_err(at("reading capabilities"))?;
    let clean = (left.effective | left.permitted | left.inheritable).is_empty()
        && rustix::process::geteuid() == uid
        && rustix::process::getuid() == uid
        && rustix::process::getegid() == gid
        && rustix::process::getgid() == gid;
    if clean {
        return Ok(());
    }
    let source = io::Error::other("the kernel left some");
    Err(Error::Privilege { step: "checking that no privilege is left", source })
}

/// Has the kernel stop this process when its supervisor `parent` ends, however that ends.
///
/// # Errors
/// [`Error::Privilege`]: refused, or the supervisor has ended already.
pub(crate) fn follow(parent: i32) -> Result<(), Error> {
    let signal = Some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(signal).map_err(at("following the supervisor"))?;
    // It may have ended before the request; then its child has another parent by now.
    if is_parent(parent) {
        return Ok(());
    }
    let source = io::Error::other(format!("process {parent} has ended"));
    Err(Error::Privilege { step: "following the supervisor", source })
}

/// Whether the supervisor still runs: an orphan has another parent.
pub(crate) fn is_parent(parent: i32) -> bool {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()) == parent
}

fn at(step: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |cause| Error::Privilege { step, source: cause.into() }
}
