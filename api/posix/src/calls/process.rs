//! The life of a process: its beginning and end, fork, exec, libraries that it loads, and the
//! system calls that it gives up.

pub(crate) mod dlopen;
pub(crate) mod exec;
pub(crate) mod lifetime;
pub(crate) mod seccomp;

pub use dlopen::{Target, target_of_dlmopen, target_of_dlopen};
pub use exec::{List, execl, execle, execlp, execv, execve, execveat, execvp, execvpe, fexecve, posix_spawn};
pub use lifetime::{begin, end, exit, fork};
pub use seccomp::prctl;
