//! exec, posix_spawn, and the call by which a program restricts its system calls.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use sietch_posix::calls::files;
use sietch_posix::calls::process::{self, List};

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
