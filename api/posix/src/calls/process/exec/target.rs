//! Whether the library can be loaded into what exec starts.
//!
//! 1. The file is found as exec finds it. A script leads to its interpreter, at most [`SCRIPTS`]
//!    times. The ELF header and the program headers name the loader, which decides which C library
//!    the program has.
//! 2. glibc's loader from 2.34 on loads the library. An older loader, another C library's (musl),
//!    and one of another word size or machine would refuse the program because of it.
//! 3. A static program ignores the library, and passes the environment on to what it starts. gosu,
//!    tini and a static shell mostly start programs of this C library, so a static program keeps
//!    the environment. What it starts is not checked: a program of another C library ends there
//!    with status 127 and a message, unless the launcher's environment has no `LD_PRELOAD`.
//! 4. The file is untrusted: each read has a bound, and each number is checked before it is used. A
//!    file that cannot be read or that makes no sense is left to the kernel: the environment stays
//!    as it would be.
//! 5. Nothing is allocated and no lock is taken, because this runs between fork and exec.

use std::ffi::{CStr, c_char, c_int};

use crate::system::sys::{self, address, address_mut, signed};
use crate::system::{kernel, seccomp};

/// Interpreters of interpreters: the kernel gives up after as many.
const SCRIPTS: usize = 5;

/// Bytes of a file that the kernel reads first (`BINPRM_BUF_SIZE`).
const FIRST: usize = 256;

/// Bytes of a program header, and how many are read at once. Linux refuses more than fit in 64 KiB.
const PROGRAM_HEADER: usize = 56;

const AT_ONCE: usize = 8;

const MOST_HEADERS: usize = (1 << 16) / PROGRAM_HEADER;

/// Bytes of a loader's name that are read; longer names are left to the kernel.
const LOADER_NAME: usize = 512;

/// Where glibc's loader has the names of its versions: in the string table near its start.
const LOADER_START: usize = 1 << 14;

/// In the loader of a glibc that this library can use: the version that its calls need.
const VERSION: &[u8] = b"\0GLIBC_2.34\0";

/// `PT_INTERP`, `PT_DYNAMIC`.
const INTERPRETER: u32 = 3;

const DYNAMIC: u32 = 2;

/// `ET_EXEC`.
const FIXED: u16 = 2;

/// `DT_FLAGS_1`, and of its bits `DF_1_PIE`.
const FLAGS: u64 = 0x6fff_fffb;

const PROGRAM: u64 = 0x0800_0000;

/// Entries of `PT_DYNAMIC` that are read: a static program has about 25.
const MOST_ENTRIES: usize = 64;

/// `EM_X86_64`, `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

/// Where execvp(3) searches without `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// How a call names the program to start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// A path from a folder, or from the current one (`AT_FDCWD`).
    Path(c_int, *const c_char),
    /// A name that is searched in the folders of `PATH`, unless it has a slash.
    Search(*const c_char),
    /// An open file.
    Open(c_int),
}

/// A file that is closed when this is dropped, if it was opened here.
struct File {
    fd: c_int,
    own: bool,
}

impl File {
    /// Opens a regular file; a device or a pipe could do something by being opened.
    fn open(folder: c_int, path: *const c_char) -> Option<Self> {
        is_regular(folder, path)?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let arguments = [signed(folder), address(path), signed(flags), 0, 0, 0];
        // SAFETY: the kernel reads the path, and checks the address itself.
        let fd = unsafe { sys::syscall(libc::SYS_openat, arguments) }.ok()?;
        Some(Self { fd: fd as c_int, own: true })
    }

    /// Fills `to` from `offset` on; how many bytes there were.
    fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let Some(at) = offset.checked_add(filled as u64) else { break };
            let arguments = [signed(self.fd), address_mut(rest.as_mut_ptr()), rest.len(), at as usize, 0, 0];
            // SAFETY: the kernel writes at most so many bytes there.
            match unsafe { sys::syscall(libc::SYS_pread64, arguments) } {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(libc::EINTR) => {}
                Err(_) => break,
            }
        }
        filled
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.own {
            let _ = kernel::close(self.fd);
        }
    }
}

/// The mode of what a path leads to, if that is a regular file.
fn is_regular(folder: c_int, path: *const c_char) -> Option<u32> {
    // SAFETY: zeros are a value of it.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let arguments = [signed(folder), address(path), address_mut(&raw mut found), 0, 0, 0];
    // SAFETY: the kernel reads the path and writes what it finds.
    unsafe { sys::syscall(libc::SYS_newfstatat, arguments) }.ok()?;
    (found.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(found.st_mode)
}

/// Whether the library can be loaded into it. Where that cannot be known: yes, as for most
/// programs.
///
/// # Safety
/// Names are texts, or addresses for the kernel to refuse where it is a path.
pub(crate) unsafe fn takes_the_library(named: Named) -> bool {
    // A filter might kill the process for opening a file.
    if seccomp::is_restricted() {
        return true;
    }
    let before = sys::errno();
    let file = match named {
        Named::Path(folder, path) => File::open(folder, path),
        // SAFETY: the caller upholds this function's contract.
        Named::Search(name) => unsafe { search(name) },
        Named::Open(fd) => Some(File { fd, own: false }),
    };
    let takes = file.is_none_or(file_takes_library);
    sys::set_errno(before);
    takes
}

/// # Safety
/// `name` is null or a text.
unsafe fn search(name: *const c_char) -> Option<File> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller upholds this function's contract.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    if text.contains(&b'/') {
        return File::open(libc::AT_FDCWD, name);
    }
    // SAFETY: a text; the answer is one of the environment, as the C library's own search has it.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: as above.
    let path = if path.is_null() { DEFAULT_PATH } else { unsafe { CStr::from_ptr(path) }.to_bytes() };
    path.split(|byte| *byte == b':').find_map(|folder| {
        let mut whole = [0_u8; libc::PATH_MAX as usize];
        // An empty entry is the current folder.
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let length = folder.len() + slash.len() + text.len();
        let to = whole.get_mut(..length).filter(|_| length < libc::PATH_MAX as usize)?;
        to.iter_mut().zip(folder.iter().chain(slash).chain(text)).for_each(|(to, from)| *to = *from);
        let whole = whole.as_ptr().cast();
        is_regular(libc::AT_FDCWD, whole).filter(|mode| mode & 0o111 != 0)?;
        File::open(libc::AT_FDCWD, whole)
    })
}

fn file_takes_library(mut file: File) -> bool {
    for _ in 0..SCRIPTS {
        let mut first = [0_u8; FIRST];
        let there = file.read(0, &mut first);
        let first = first.get(..there).unwrap_or_default();
        let Some(line) = first.strip_prefix(b"#!") else { return program_takes_library(&file, first) };
        let mut path = [0_u8; FIRST];
        let name = line.iter().copied().skip_while(|byte| matches!(byte, b' ' | b'\t'));
        let name = name.take_while(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0));
        // One zero stays behind it: the line is shorter than the buffer.
        path.iter_mut().zip(name).for_each(|(to, from)| *to = from);
        match File::open(libc::AT_FDCWD, path.as_ptr().cast()) {
            Some(interpreter) => file = interpreter,
            None => return true,
        }
    }
    true
}

/// A program, by its first bytes. The kernel refuses a file that is not ELF, or gives it to an
/// interpreter that is not known here.
fn program_takes_library(file: &File, first: &[u8]) -> bool {
    if !first.starts_with(b"\x7fELF") || first.len() < 64 {
        return true;
    }
    // 64-bit words, the lowest byte first, this machine.
    if first[4] != 2 || first[5] != 1 || u16_at(first, 18) != Some(MACHINE) {
        return false;
    }
    let (at, bytes) = match segment(file, first, INTERPRETER) {
        Segment::At(at, bytes) => (at, bytes),
        // Static, or glibc's loader itself, which is given the program as an argument.
        Segment::None => return is_static(file, first) || has_version(file),
        Segment::Unknown => return true,
    };
    let mut name = [0_u8; LOADER_NAME];
    let Ok(bytes) = usize::try_from(bytes) else { return true };
    let Some(to) = name.get_mut(..bytes).filter(|to| (2..LOADER_NAME).contains(&to.len())) else {
        return true;
    };
    if file.read(at, to) != bytes {
        return true;
    }
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let base = text.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    base.starts_with(b"ld-linux")
        && File::open(libc::AT_FDCWD, name.as_ptr().cast()).is_none_or(|loader| has_version(&loader))
}

/// Where a segment is in its file.
enum Segment {
    /// Offset and bytes.
    At(u64, u64),
    None,
    Unknown,
}

/// The first segment of a kind.
fn segment(file: &File, header: &[u8], kind: u32) -> Segment {
    let (offset, size, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
    let (Some(offset), Some(size), Some(count)) = (offset, size, count) else { return Segment::Unknown };
    let count = usize::from(count);
    if usize::from(size) != PROGRAM_HEADER || count > MOST_HEADERS {
        return Segment::Unknown;
    }
    let mut block = [0_u8; AT_ONCE * PROGRAM_HEADER];
    let mut done = 0;
    while done < count {
        let now = (count - done).min(AT_ONCE);
        let wanted = block.get_mut(..now * PROGRAM_HEADER).unwrap_or_default();
        let Some(at) = offset.checked_add((done * PROGRAM_HEADER) as u64) else { return Segment::Unknown };
        if file.read(at, wanted) != wanted.len() {
            return Segment::Unknown;
        }
        let found = wanted.chunks_exact(PROGRAM_HEADER).find(|entry| u32_at(entry, 0) == Some(kind));
        if let Some(entry) = found {
            let place = u64_at(entry, 8).zip(u64_at(entry, 32));
            return place.map_or(Segment::Unknown, |(at, bytes)| Segment::At(at, bytes));
        }
        done += now;
    }
    Segment::None
}

/// Whether a file without an interpreter is a program and not a loader: it has a fixed address, or
/// is marked as a program that runs at any.
fn is_static(file: &File, header: &[u8]) -> bool {
    if u16_at(header, 16) == Some(FIXED) {
        return true;
    }
    let Segment::At(at, bytes) = segment(file, header, DYNAMIC) else { return false };
    let mut entries = [0_u8; MOST_ENTRIES * 16];
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(entries.len());
    let there = file.read(at, entries.get_mut(..bytes).unwrap_or_default());
    entries.get(..there).unwrap_or_default().chunks_exact(16).any(|entry| {
        u64_at(entry, 0) == Some(FLAGS) && u64_at(entry, 8).is_some_and(|flags| flags & PROGRAM != 0)
    })
}

/// Whether a loader is one of a glibc that has what this library needs.
fn has_version(loader: &File) -> bool {
    let mut block = [0_u8; 1024 + VERSION.len()];
    let mut at = 0;
    while at < LOADER_START {
        let there = loader.read(at as u64, &mut block);
        let found = block.get(..there).unwrap_or_default().windows(VERSION.len());
        if found.into_iter().any(|window| window == VERSION) {
            return true;
        }
        if there < block.len() {
            return false;
        }
        at += 1024;
    }
    false
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests;
