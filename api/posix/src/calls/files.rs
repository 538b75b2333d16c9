//! The calls that may concern files of a mount ([`crate::files`]). Each of them passes on what is
//! not such a file: to the socket calls, and these to the C library.

pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod mapping;
pub(crate) mod open;
pub(crate) mod sharing;
pub(crate) mod status;
pub(crate) mod transfer;

pub use data::{pread, preadv, preadv2, pwrite, pwritev, pwritev2, read, readv, write, writev};
pub use descriptors::{
    begin, close, close_range, closefrom, dup, dup2, dup3, fclose, fcntl, fdopen, posix_spawn,
};
pub use mapping::mmap;
pub use open::{adopt, mkostemps, open, openat};
pub use sharing::{popen, sendmmsg, sendmsg, system};
pub use status::{Extent, fstat, fsync, ftruncate, lseek, setrlimit, sync, syncfs};
pub use transfer::{copy_file_range, sendfile, splice};
