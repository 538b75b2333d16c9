//! The life of a process: its beginning and end, fork, exec, libraries that it loads, and the
//! system calls that it gives up.

pub(crate) mod credentials;
pub(crate) mod dlopen;
pub(crate) mod exec;
pub(crate) mod lifetime;
pub(crate) mod seccomp;

pub use credentials::{
    capset, chroot, initgroups, pivot_root, setegid, seteuid, setfsgid, setfsuid, setgid, setgroups, setns,
    setregid, setresgid, setresuid, setreuid, setuid, unshare,
};
pub use dlopen::{Target, target_of_dlmopen, target_of_dlopen};
pub use exec::{List, execl, execle, execlp, execv, execve, execveat, execvp, execvpe, fexecve, posix_spawn};
pub use lifetime::{Run, bare_fork, begin, clone, end, exit, fork};
pub use seccomp::prctl;

pub use crate::system::cancellation::{Before, cancel, enter, hold, leave, release, set_type};
