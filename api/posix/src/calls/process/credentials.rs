//! Calls by which a process gives up rights: another user, fewer capabilities, another root.
//!
//! 1. A client of a file system has media and log open, by the rights of when it began: no file's
//!    owner and mode hold against it. A server that begins as root and goes on as another user
//!    gives those rights up, and with them this.
//! 2. So clients end before such a call, and the kernel serves the files from then on, by the
//!    descriptors that the program has. A call that fails takes nothing: clients may begin again.
//! 3. The same before a thread, or a child in the same memory, gets a table of descriptors of its
//!    own: it keeps what the client closes in the other table. And before a child with memory of
//!    its own shares the table or the root folder ([`shares_in_part`]).
//! 4. A child for which its parent waits gets memory of its own, as that of `vfork` does
//!    ([`apart`]): what it closes says nothing about the parent.
//! 5. A process may have children that the library does not see. So a client's descriptors are
//!    compared with the table before such a call, whatever its memory says.
//! 6. Nothing else is kept by an earlier right. A request to the service of sockets has a
//!    connection of its own, which it judges by the credentials of that moment. Connections through
//!    memory, like the kernel's sockets, stay with those who have them.
//! 7. Not such calls: what decides only about a later exec (`PR_SET_NO_NEW_PRIVS`, ambient
//!    capabilities), which closes everything; namespaces that hide no file (networks, processes).

use std::ffi::{c_char, c_int, c_long, c_void};

use libc::{gid_t, size_t, uid_t};

use crate::files::state;
use crate::signal::user_memory;
use crate::system::originals;
use crate::system::sys;

/// A number that changes nothing, where an id is given.
const NONE: u32 = u32::MAX;

/// What `unshare` takes from this process: namespaces in which other files are reached or other
/// users meant, and the table of descriptors that the threads share.
const TAKING: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_FILES;

/// Makes a call that takes rights from this process, if it succeeds.
pub(crate) fn giving_up<T: Default + PartialOrd>(call: impl FnOnce() -> T) -> T {
    let before = sys::errno();
    state::retire();
    sys::set_errno(before);
    let answer = call();
    if answer < T::default() {
        state::resume();
    }
    answer
}

/// Whether `clone` with these flags lets two processes, or threads, share some of their memory,
/// descriptors and root folder, but not both memory and descriptors: what the client in one of them
/// closes stays open in the other, or one gives up rights for both.
pub(crate) fn shares_in_part(flags: c_int) -> bool {
    const BOTH: c_int = libc::CLONE_VM | libc::CLONE_FILES;
    flags & (BOTH | libc::CLONE_FS) != 0 && flags & BOTH != BOTH
}

/// The flags with which `clone` makes a child for which its parent waits, and which has descriptors
/// of its own: with memory of its own, too. What it writes for the parent is lost, as in a child of
/// `vfork`. Its storage of a thread is a copy, as all of its memory.
pub(crate) fn apart(flags: c_int) -> c_int {
    const NEED_MEMORY: c_int = libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    const WAITS: c_int = libc::CLONE_VM | libc::CLONE_VFORK;
    const SHARED: c_int = libc::CLONE_VM | libc::CLONE_SETTLS;
    if flags & (WAITS | NEED_MEMORY) == WAITS { flags & !SHARED } else { flags }
}

/// The flags with which a system call makes a thread or a child; none for another call.
fn flags_of_clone(number: c_long, arguments: [usize; 6]) -> Option<c_int> {
    match number {
        libc::SYS_clone => Some(arguments[0] as c_int),
        // `struct clone_args` begins with the flags. The kernel refuses a shorter one.
        libc::SYS_clone3 if arguments[1] >= size_of::<u64>() => {
            // SAFETY: the program has given the address for the kernel to read.
            let flags = unsafe { user_memory::read(sys::pointer(arguments[0]).cast::<u64>()) };
            flags.ok().map(|flags| flags as c_int)
        }
        _ => None,
    }
}

/// Makes a call that returns what was so before, whether it succeeds or not.
fn giving_up_in_any_case(call: impl FnOnce() -> c_int) -> c_int {
    let before = sys::errno();
    state::retire();
    sys::set_errno(before);
    call()
}

/// `setuid(2)`.
pub fn setuid(uid: uid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setuid(uid) })
}

/// `setgid(2)`.
pub fn setgid(gid: gid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setgid(gid) })
}

/// `setreuid(2)`.
pub fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setreuid(real, effective) })
}

/// `setregid(2)`.
pub fn setregid(real: gid_t, effective: gid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setregid(real, effective) })
}

/// `setresuid(2)`.
pub fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setresuid(real, effective, saved) })
}

/// `setresgid(2)`.
pub fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setresgid(real, effective, saved) })
}

/// `seteuid(3)`: no system call of its own.
pub fn seteuid(uid: uid_t) -> c_int {
    if uid == NONE { sys::to_c_int(Err(libc::EINVAL)) } else { setresuid(NONE, uid, NONE) }
}

/// `setegid(3)`.
pub fn setegid(gid: gid_t) -> c_int {
    if gid == NONE { sys::to_c_int(Err(libc::EINVAL)) } else { setresgid(NONE, gid, NONE) }
}

/// `setfsuid(2)`.
pub fn setfsuid(uid: uid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up_in_any_case(|| unsafe { originals::setfsuid(uid) })
}

/// `setfsgid(2)`.
pub fn setfsgid(gid: gid_t) -> c_int {
    // SAFETY: touches no memory.
    giving_up_in_any_case(|| unsafe { originals::setfsgid(gid) })
}

/// `setgroups(2)`.
///
/// # Safety
/// As `setgroups(2)`.
pub unsafe fn setgroups(count: size_t, groups: *const gid_t) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    giving_up(|| unsafe { originals::setgroups(count, groups) })
}

/// `initgroups(3)`.
///
/// # Safety
/// As `initgroups(3)`.
pub unsafe fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    giving_up(|| unsafe { originals::initgroups(user, group) })
}

/// `capset(2)`.
///
/// # Safety
/// As `capset(2)`.
pub unsafe fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    giving_up(|| unsafe { originals::capset(header, data) })
}

/// `chroot(2)`.
///
/// # Safety
/// As `chroot(2)`.
pub unsafe fn chroot(path: *const c_char) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    giving_up(|| unsafe { originals::chroot(path) })
}

/// `pivot_root(2)`.
///
/// # Safety
/// As `pivot_root(2)`.
pub unsafe fn pivot_root(new: *const c_char, old: *const c_char) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    giving_up(|| unsafe { originals::pivot_root(new, old) })
}

/// `unshare(2)`.
pub fn unshare(flags: c_int) -> c_int {
    // SAFETY: touches no memory.
    let call = || unsafe { originals::unshare(flags) };
    if flags & TAKING == 0 { call() } else { giving_up(call) }
}

/// `setns(2)`.
pub fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: touches no memory.
    giving_up(|| unsafe { originals::setns(fd, kind) })
}

/// The system calls of all of these, as `syscall(2)` makes them: for one thread, whose memory is
/// that of all. `None`: another one.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller upholds this function's contract.
    let call = || sys::to_c(unsafe { sys::syscall(number, arguments) }) as c_long;
    match number {
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_setns
        | libc::SYS_landlock_restrict_self => Some(giving_up(call)),
        libc::SYS_unshare if arguments[0] as c_int & TAKING != 0 => Some(giving_up(call)),
        libc::SYS_clone | libc::SYS_clone3
            if flags_of_clone(number, arguments).is_some_and(shares_in_part) =>
        {
            Some(giving_up(call))
        }
        libc::SYS_setfsuid | libc::SYS_setfsgid => Some(giving_up_in_any_case(|| call() as c_int).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use libc::{
        CLONE_FILES, CLONE_FS, CLONE_SETTLS, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK, CLONE_VM, SIGCHLD,
    };

    use super::*;

    #[test]
    fn a_child_shares_memory_and_descriptors_or_the_client_ends() {
        let thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SETTLS;
        for whole in
            [SIGCHLD, CLONE_VFORK, CLONE_VM | CLONE_FILES, CLONE_VM | CLONE_FILES | CLONE_VFORK, thread]
        {
            assert!(!shares_in_part(whole), "{whole:x}");
        }
        for part in [CLONE_VM, CLONE_VM | CLONE_VFORK, CLONE_VM | CLONE_FS, CLONE_FILES, CLONE_FS] {
            assert!(shares_in_part(part | SIGCHLD), "{part:x}");
        }
    }

    #[test]
    fn a_child_for_which_its_parent_waits_has_memory_of_its_own() {
        let waits = CLONE_VM | CLONE_VFORK | SIGCHLD;
        assert_eq!(apart(waits), CLONE_VFORK | SIGCHLD);
        assert_eq!(apart(waits | CLONE_FS | CLONE_SETTLS), CLONE_VFORK | CLONE_FS | SIGCHLD);
        for same in [waits | CLONE_FILES, waits | CLONE_SIGHAND, CLONE_VM, CLONE_VFORK, 0] {
            assert_eq!(apart(same), same, "{same:x}");
        }
    }

    #[test]
    fn either_clone_by_number_with_a_part_of_its_parent_is_found() {
        let cases = [
            (CLONE_VM, true),
            (CLONE_VM | CLONE_THREAD | CLONE_SIGHAND, true),
            (CLONE_VM | CLONE_FILES, false),
            (CLONE_VM | CLONE_VFORK, true),
            (0, false),
        ];
        for (flags, shares) in cases {
            // Flags beyond 32 bits are those of `clone3` alone.
            let structure = [flags as u64 | 1 << 33, 0, 0, 0, 0, 0, 0, 0];
            let address = structure.as_ptr().expose_provenance();
            let found = |number, arguments| flags_of_clone(number, arguments).is_some_and(shares_in_part);
            assert_eq!(found(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0]), shares, "{flags:x}");
            let three = [address, size_of_val(&structure), 0, 0, 0, 0];
            assert_eq!(found(libc::SYS_clone3, three), shares, "{flags:x}");
        }
        assert_eq!(flags_of_clone(libc::SYS_clone3, [0, 64, 0, 0, 0, 0]), None, "the kernel refuses it");
        assert_eq!(flags_of_clone(libc::SYS_clone3, [8, 4, 0, 0, 0, 0]), None, "it is too short");
    }
}
