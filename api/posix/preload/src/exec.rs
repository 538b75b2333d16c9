//! exec, posix_spawn, children without handlers of a fork, and the calls by which a program gives
//! up rights or system calls.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{gid_t, size_t, uid_t};

use sietch_posix::calls::files;
use sietch_posix::calls::process::{self, List, Run};

use crate::export::export;

export! {
    execve(path: *const c_char, arguments: List, environment: List) -> c_int => process::execve(path, arguments, environment);
    execv(path: *const c_char, arguments: List) -> c_int => process::execv(path, arguments);
    execvp(file: *const c_char, arguments: List) -> c_int => process::execvp(file, arguments);
    execvpe(file: *const c_char, arguments: List, environment: List) -> c_int => process::execvpe(file, arguments, environment);
    execveat(folder: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int) -> c_int => process::execveat(folder, path, arguments, environment, flags);
    fexecve(fd: c_int, arguments: List, environment: List) -> c_int => process::fexecve(fd, arguments, environment);
    posix_spawn(process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int => files::posix_spawn(false, process, path, [actions, attributes], arguments, environment);
    posix_spawnp(process: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int => files::posix_spawn(true, process, file, [actions, attributes], arguments, environment);
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int => process::prctl(option, [a, b, c, d]);
}

export! {
    _Fork() -> c_int => process::bare_fork();
    clone(run: Run, stack: *mut c_void, flags: c_int, argument: *mut c_void, number: *mut c_void, storage: *mut c_void, cleared: *mut c_void) -> c_int => process::clone(run, stack, flags, argument, [number, storage, cleared]);
    __clone(run: Run, stack: *mut c_void, flags: c_int, argument: *mut c_void, number: *mut c_void, storage: *mut c_void, cleared: *mut c_void) -> c_int => process::clone(run, stack, flags, argument, [number, storage, cleared]);
    setuid(uid: uid_t) -> c_int => process::setuid(uid);
    setgid(gid: gid_t) -> c_int => process::setgid(gid);
    setreuid(real: uid_t, effective: uid_t) -> c_int => process::setreuid(real, effective);
    setregid(real: gid_t, effective: gid_t) -> c_int => process::setregid(real, effective);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int => process::setresuid(real, effective, saved);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int => process::setresgid(real, effective, saved);
    seteuid(uid: uid_t) -> c_int => process::seteuid(uid);
    setegid(gid: gid_t) -> c_int => process::setegid(gid);
    setfsuid(uid: uid_t) -> c_int => process::setfsuid(uid);
    setfsgid(gid: gid_t) -> c_int => process::setfsgid(gid);
    setgroups(count: size_t, groups: *const gid_t) -> c_int => process::setgroups(count, groups);
    initgroups(user: *const c_char, group: gid_t) -> c_int => process::initgroups(user, group);
    capset(header: *mut c_void, data: *const c_void) -> c_int => process::capset(header, data);
    chroot(path: *const c_char) -> c_int => process::chroot(path);
    pivot_root(new: *const c_char, old: *const c_char) -> c_int => process::pivot_root(new, old);
    unshare(flags: c_int) -> c_int => process::unshare(flags);
    setns(fd: c_int, kind: c_int) -> c_int => process::setns(fd, kind);
}
