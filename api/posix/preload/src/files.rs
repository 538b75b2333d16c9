//! The calls of files, and how this process becomes a client of a file system.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libc::{iovec, off_t, size_t, ssize_t};
use sietch_posix::calls::files;
use sietch_posix::calls::files::Extent;
use sietch_posix::files::{AttachedStore, set_attach};
use sietch_service::fs::shared;

use crate::export::{check, export, points};

/// For the constructor.
pub(crate) fn begin() {
    set_attach(attach);
    files::begin();
}

fn attach(folder: &Path) -> Result<AttachedStore, String> {
    let attached = shared::attach_within(folder).map_err(|error| error.to_string())?;
    let mut attention = attached.attention;
    Ok(AttachedStore {
        client: Box::new(attached.client),
        wait: Box::new(move || attention.wait()),
        descriptors: attached.descriptors,
        syncs: attached.syncs_each,
    })
}

/// What a function that opens has returned.
fn opened(fd: c_int, flags: c_int) -> c_int {
    files::adopt(fd, flags);
    fd
}

points! {
    open(path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::open(path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::open(path, flags | libc::O_LARGEFILE, mode);
    __open(path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::open(path, flags, mode);
    __open64(path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::open(path, flags | libc::O_LARGEFILE, mode);
    __open_2(path: *const c_char, flags: c_int) -> c_int => files::open(path, flags, 0);
    __open64_2(path: *const c_char, flags: c_int) -> c_int => files::open(path, flags | libc::O_LARGEFILE, 0);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::openat(folder, path, flags, mode);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: size_t) -> c_int => files::openat(folder, path, flags | libc::O_LARGEFILE, mode);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int => files::openat(folder, path, flags, 0);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int => files::openat(folder, path, flags | libc::O_LARGEFILE, 0);
    creat(path: *const c_char, mode: size_t) -> c_int => files::open(path, CREATES, mode);
    creat64(path: *const c_char, mode: size_t) -> c_int => files::open(path, CREATES | libc::O_LARGEFILE, mode);
}

export! {
    mkstemp(template: *mut c_char) -> c_int => opened(files::mkostemps(template, 0, 0), libc::O_RDWR);
    mkstemp64(template: *mut c_char) -> c_int => opened(files::mkostemps(template, 0, 0), libc::O_RDWR);
    mkostemp(template: *mut c_char, flags: c_int) -> c_int => opened(files::mkostemps(template, 0, flags), flags | libc::O_RDWR);
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int => opened(files::mkostemps(template, 0, flags), flags | libc::O_RDWR);
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int => opened(files::mkostemps(template, suffix, 0), libc::O_RDWR);
    mkstemps64(template: *mut c_char, suffix: c_int) -> c_int => opened(files::mkostemps(template, suffix, 0), libc::O_RDWR);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int => opened(files::mkostemps(template, suffix, flags), flags | libc::O_RDWR);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int => opened(files::mkostemps(template, suffix, flags), flags | libc::O_RDWR);
}

/// The flags of `creat(2)`.
const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

points! {
    pread(fd: c_int, to: *mut c_void, length: size_t, offset: off_t) -> ssize_t => files::pread(fd, to, length, offset);
    pread64(fd: c_int, to: *mut c_void, length: size_t, offset: off_t) -> ssize_t => files::pread(fd, to, length, offset);
    __pread64(fd: c_int, to: *mut c_void, length: size_t, offset: off_t) -> ssize_t => files::pread(fd, to, length, offset);
    __pread_chk(fd: c_int, to: *mut c_void, length: size_t, offset: off_t, room: size_t) -> ssize_t => {
        check(length, room);
        files::pread(fd, to, length, offset)
    };
    __pread64_chk(fd: c_int, to: *mut c_void, length: size_t, offset: off_t, room: size_t) -> ssize_t => {
        check(length, room);
        files::pread(fd, to, length, offset)
    };
    pwrite(fd: c_int, from: *const c_void, length: size_t, offset: off_t) -> ssize_t => files::pwrite(fd, from, length, offset);
    pwrite64(fd: c_int, from: *const c_void, length: size_t, offset: off_t) -> ssize_t => files::pwrite(fd, from, length, offset);
    __pwrite64(fd: c_int, from: *const c_void, length: size_t, offset: off_t) -> ssize_t => files::pwrite(fd, from, length, offset);
    preadv(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t => files::preadv(fd, vectors, count, offset);
    preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t => files::preadv(fd, vectors, count, offset);
    pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t => files::pwritev(fd, vectors, count, offset);
    pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t => files::pwritev(fd, vectors, count, offset);
}

points! {
    fsync(fd: c_int) -> c_int => files::fsync(fd, Extent::All);
    fdatasync(fd: c_int) -> c_int => files::fsync(fd, Extent::Data);
    copy_file_range(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t => files::copy_file_range(from, from_offset, to, to_offset, length, flags);
}

export! {
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t => files::lseek(fd, offset, whence);
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t => files::lseek(fd, offset, whence);
    __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t => files::lseek(fd, offset, whence);
    sync() => files::sync();
    syncfs(fd: c_int) -> c_int => files::syncfs(fd);
    ftruncate(fd: c_int, length: off_t) -> c_int => files::ftruncate(fd, length);
    ftruncate64(fd: c_int, length: off_t) -> c_int => files::ftruncate(fd, length);
    fstat(fd: c_int, to: *mut libc::stat) -> c_int => files::fstat(fd, to);
    fstat64(fd: c_int, to: *mut libc::stat) -> c_int => files::fstat(fd, to);
    __fxstat(_version: c_int, fd: c_int, to: *mut libc::stat) -> c_int => files::fstat(fd, to);
    __fxstat64(_version: c_int, fd: c_int, to: *mut libc::stat) -> c_int => files::fstat(fd, to);
    mmap(at: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void => files::mmap(at, length, protection, flags, fd, offset);
    mmap64(at: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void => files::mmap(at, length, protection, flags, fd, offset);
    system(command: *const c_char) -> c_int => files::system(command);
    fclose(stream: *mut c_void) -> c_int => files::fclose(stream);
    popen(command: *const c_char, kind: *const c_char) -> *mut c_void => files::popen(command, kind);
    setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int => files::setrlimit(0, resource, limit, std::ptr::null_mut());
    setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int => files::setrlimit(0, resource, limit, std::ptr::null_mut());
    prlimit(process: libc::pid_t, resource: c_uint, limit: *const libc::rlimit, old: *mut libc::rlimit) -> c_int => files::setrlimit(process, resource, limit, old);
    prlimit64(process: libc::pid_t, resource: c_uint, limit: *const libc::rlimit, old: *mut libc::rlimit) -> c_int => files::setrlimit(process, resource, limit, old);
}
