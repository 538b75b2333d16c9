//! exec: the library is passed on, also into a newly made environment.
//!
//! Some programs start their workers with an environment of their own making (dovecot, Postfix,
//! many supervisors). That would cut the workers off from the sockets that they inherit: those are
//! placeholders, which carry nothing without this library.
//!
//! 1. [`begin`] keeps, as texts, the variables by which this process runs under Sietch.
//! 2. An environment in which `SIETCH_SOCKETS` or `SIETCH_FILES` has another value stays as it is,
//!    empty value included: its author decided (`sietch run` in a program under Sietch, or a
//!    program that opts out). An environment without them was made anew: it gets the variables, and
//!    the library before whatever its `LD_PRELOAD` names. In one that has them as they are here, a
//!    launcher may have set `LD_PRELOAD` for a library of its own: the library is put before that.
//!    Without `LD_PRELOAD` it stays as it is, too.
//! 3. The target may need another C library, which would refuse to start with this one: musl's
//!    loader ends it with status 127. So the target's loader decides ([`target`]). Where it cannot
//!    load the library, the environment goes there without it; other libraries stay.
//! 4. The new list is in pages of its own, so no allocator lock is taken between fork and exec. If
//!    exec fails, they are unmapped.
//!
//! `execl`, `execle` and `execlp` have their arguments where a caller puts those of a variadic
//! function; the exported functions make lists of them (`api/posix/preload/src/variadic.rs`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use sietch_protocol::socket_service::{
    APPLICATION_VARIABLE, FILES_VARIABLE, PUBLISH_VARIABLE, SHORT_LIVED_VARIABLE, SOCKET_VARIABLE,
    VNIC_VARIABLE,
};

use crate::calls::process::exec::target::Named;
use crate::context;
use crate::system::originals;
use crate::system::sys::{self, Errno};

pub(crate) mod target;

/// A list of texts that ends with a null pointer: what exec takes.
pub type List = *const *const c_char;

/// The list of libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";

/// Bytes of `NAME=value` of one variable: a path, its name, and a zero.
const TEXT: usize = libc::PATH_MAX as usize + 32;

/// Variables that are carried along beside the library.
const CARRIED: [&str; 6] = [
    SOCKET_VARIABLE,
    FILES_VARIABLE,
    APPLICATION_VARIABLE,
    VNIC_VARIABLE,
    PUBLISH_VARIABLE,
    SHORT_LIVED_VARIABLE,
];

/// How many of them say that a process runs under Sietch: the first ones.
const DECIDING: usize = 2;

/// `NAME=value` and a zero; empty if the variable is not set.
#[derive(Debug)]
struct Text {
    bytes: [u8; TEXT],
    length: usize,
}

impl Text {
    const fn new() -> Self {
        Self { bytes: [0; TEXT], length: 0 }
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        let whole = name.len() + 1 + value.len();
        if let Some(to) = self.bytes.get_mut(..whole)
            && whole < TEXT
        {
            to[..name.len()].copy_from_slice(name.as_bytes());
            to[name.len()] = b'=';
            to[name.len() + 1..].copy_from_slice(value);
            self.length = whole;
        }
    }

    fn get(&self) -> Option<&[u8]> {
        (self.length > 0).then(|| &self.bytes[..=self.length])
    }
}

#[derive(Debug)]
struct Kept {
    carried: [Text; CARRIED.len()],
    /// The library alone, as `LD_PRELOAD` names it.
    library: Text,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

static EXECVPE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static SPAWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static SPAWN_BY_NAME: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    static environ: List;
}

/// Looks up the C library's functions, and keeps the variables. To be called once, before `main`.
pub(crate) fn begin() {
    EXECVPE.store(originals::look_up("execvpe\0"), Release);
    SPAWN.store(originals::look_up("posix_spawn\0"), Release);
    SPAWN_BY_NAME.store(originals::look_up("posix_spawnp\0"), Release);
    let Some(library) = own_file() else { return };
    let _ = KEPT.get_or_init(|| {
        let mut kept = Kept { carried: [const { Text::new() }; CARRIED.len()], library: Text::new() };
        // Without a service and files the library does nothing, but it would still prevent other C
        // libraries from starting.
        if context::get().is_some() || context::variable(FILES_VARIABLE).is_some() {
            for (text, name) in kept.carried.iter_mut().zip(CARRIED) {
                if let Some(value) = context::variable(name) {
                    text.set(name, value);
                }
            }
        }
        kept.library.set(PRELOAD, library);
        kept
    });
}

/// The entry of `LD_PRELOAD` that is this library: the file that this function was loaded from.
fn own_file() -> Option<&'static [u8]> {
    // SAFETY: an information of zeros and null pointers is a value of it.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_file as fn() -> Option<&'static [u8]>;
    // SAFETY: looks up an address, and writes the result.
    let known = unsafe { libc::dladdr(here as *const c_void, &raw mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a file that stays loaded.
    let file = unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes();
    entries(context::variable(PRELOAD)?).find(|entry| *entry == file)
}

/// The entries of a value of `LD_PRELOAD`.
fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

/// A list of texts, or a null pointer, that stays as it is for `'texts`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Texts<'texts>(List, PhantomData<&'texts [&'texts CStr]>);

impl<'texts> Texts<'texts> {
    /// The list at an address that a program has passed.
    ///
    /// # Safety
    /// `list` is null, or ends with a null pointer, and each pointer before that is to a text. Both
    /// list and texts stay for `'texts`.
    pub(crate) const unsafe fn at(list: List) -> Self {
        Self(list, PhantomData)
    }

    /// Each text.
    fn iter(self) -> impl Iterator<Item = &'texts CStr> {
        let mut at = self.0;
        std::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: within the list (`at`), whose end was not yet seen.
            let text = unsafe { *at };
            if text.is_null() {
                return None;
            }
            // SAFETY: the one behind is at most the null pointer; a text ends with a zero, and
            // stays for `'texts`.
            unsafe {
                at = at.add(1);
                Some(CStr::from_ptr(text))
            }
        })
    }
}

/// An environment for exec: the program's own, or a longer one in pages that are unmapped when this
/// is dropped. Its pointers are to texts of `'texts`, and to the pages.
#[derive(Debug)]
pub(crate) struct Environment<'texts> {
    list: List,
    pages: usize,
    bytes: usize,
    texts: PhantomData<&'texts CStr>,
}

impl<'texts> Environment<'texts> {
    /// The environment that the program at `named` gets in place of `given`.
    ///
    /// # Safety
    /// `named` as for [`target::takes_the_library`].
    pub(crate) unsafe fn of(given: Texts<'texts>, named: Named) -> Self {
        let Some(kept) = KEPT.get() else { return Self::same(given) };
        // SAFETY: the caller upholds this function's contract.
        if !unsafe { target::takes_the_library(named) } {
            return Self::without(kept, given);
        }
        let is_under = kept.carried.iter().take(DECIDING).any(|text| text.get().is_some());
        if is_under { Self::with(kept, given) } else { Self::same(given) }
    }

    const fn same(given: Texts<'texts>) -> Self {
        Self { list: given.0, pages: 0, bytes: 0, texts: PhantomData }
    }

    fn with(kept: &'texts Kept, given: Texts<'texts>) -> Self {
        let mut count = 0;
        let mut inherited = false;
        let mut preload: Option<(usize, &[u8])> = None;
        for text in given.iter().map(CStr::to_bytes) {
            if CARRIED.iter().take(DECIDING).any(|name| value(text, name).is_some()) {
                let is_ours = |own: &Text| own.get().is_some_and(|own| own.strip_suffix(b"\0") == Some(text));
                if !kept.carried.iter().take(DECIDING).any(is_ours) {
                    return Self::same(given);
                }
                inherited = true;
            }
            if let Some(value) = value(text, PRELOAD) {
                preload = Some((count, value));
            }
            count += 1;
        }
        let Some(library) = kept.library.get() else { return Self::same(given) };
        // `LD_PRELOAD=library` and a zero: the zero becomes a colon where more comes.
        let (own, _) = library.split_at(library.len() - 1);
        let others = preload.map_or(&b""[..], |(_, value)| value);
        let names_it =
            entries(others).any(|entry| PRELOAD.len() + 1 + entry.len() == own.len() && own.ends_with(entry));
        if inherited && (preload.is_none() || names_it) {
            return Self::same(given);
        }
        let room = count + CARRIED.len() + 2;
        let bytes = room * size_of::<*const c_char>() + own.len() + 1 + others.len() + 1;
        let Ok(pages) = map(bytes) else { return Self::same(given) };
        let list = ptr::with_exposed_provenance_mut::<*const c_char>(pages);
        // SAFETY: both are in the pages, which hold `bytes` bytes, are this function's alone, and
        // begin at a page.
        let (list, text) = unsafe {
            let text = list.add(room).cast::<u8>();
            (
                std::slice::from_raw_parts_mut(list, room),
                std::slice::from_raw_parts_mut(text, bytes - room * size_of::<usize>()),
            )
        };
        text[..own.len()].copy_from_slice(own);
        if !others.is_empty() && !names_it {
            text[own.len()] = b':';
            text[own.len() + 1..own.len() + 1 + others.len()].copy_from_slice(others);
        }
        let mut next = 0;
        for (index, text) in given.iter().enumerate().take(count) {
            if preload.is_none_or(|(at, _)| at != index) {
                list[next] = text.as_ptr();
                next += 1;
            }
        }
        let missing = if inherited { &[][..] } else { &kept.carried[..] };
        let carried = missing.iter().filter_map(|text| text.get().map(<[u8]>::as_ptr));
        for pointer in carried.chain([text.as_ptr()]) {
            list[next] = pointer.cast();
            next += 1;
        }
        Self { list: list.as_ptr(), pages, bytes, texts: PhantomData }
    }

    /// `given` without the library.
    fn without(kept: &'texts Kept, given: Texts<'texts>) -> Self {
        let Some(own) = kept.library.get().and_then(|text| text.get(PRELOAD.len() + 1..text.len() - 1))
        else {
            return Self::same(given);
        };
        let names_it =
            |text: &[u8]| value(text, PRELOAD).is_some_and(|list| entries(list).any(|it| it == own));
        let (mut count, mut bytes, mut named) = (0, 0, false);
        for text in given.iter().map(CStr::to_bytes) {
            count += 1;
            if names_it(text) {
                named = true;
                bytes += text.len() + 1;
            }
        }
        if !named {
            return Self::same(given);
        }
        let room = count + 1;
        let bytes = bytes + room * size_of::<*const c_char>();
        let Ok(pages) = map(bytes) else { return Self::same(given) };
        let list = ptr::with_exposed_provenance_mut::<*const c_char>(pages);
        // SAFETY: both are in the pages, which hold `bytes` bytes, are this function's alone, and
        // begin at a page.
        let (list, mut left) = unsafe {
            let text = list.add(room).cast::<u8>();
            (
                std::slice::from_raw_parts_mut(list, room),
                std::slice::from_raw_parts_mut(text, bytes - room * size_of::<*const c_char>()),
            )
        };
        let mut next = 0;
        for given in given.iter().take(count) {
            let (mut pointer, text) = (given.as_ptr(), given.to_bytes());
            if names_it(text) {
                let (to, rest) = std::mem::take(&mut left).split_at_mut(text.len() + 1);
                left = rest;
                if !write_others(to, text, own) {
                    continue;
                }
                pointer = to.as_ptr().cast();
            }
            list[next] = pointer;
            next += 1;
        }
        Self { list: list.as_ptr(), pages, bytes, texts: PhantomData }
    }

    /// The list.
    pub(crate) fn list(&self) -> List {
        self.list
    }
}

/// Writes `LD_PRELOAD=` and what a list names beside `own` into zeros that are one longer than
/// `text`. False: nothing else is in it.
fn write_others(to: &mut [u8], text: &[u8], own: &[u8]) -> bool {
    let name = PRELOAD.len() + 1;
    to[..name].copy_from_slice(&text[..name]);
    let mut length = name;
    for entry in entries(&text[name..]).filter(|entry| *entry != own) {
        if length > name {
            to[length] = b':';
            length += 1;
        }
        to[length..length + entry.len()].copy_from_slice(entry);
        length += entry.len();
    }
    length > name
}

impl Drop for Environment<'_> {
    fn drop(&mut self) {
        if self.pages != 0 {
            // SAFETY: these pages were mapped here, and nothing refers to them any more.
            let _ = unsafe { sys::syscall(libc::SYS_munmap, [self.pages, self.bytes, 0, 0, 0, 0]) };
        }
    }
}

/// Fresh pages of zeros.
fn map(bytes: usize) -> Result<usize, Errno> {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new pages at a place that the kernel chooses.
    unsafe {
        sys::syscall(libc::SYS_mmap, [0, bytes, sys::signed(rights), sys::signed(kind), sys::signed(-1), 0])
    }
}

/// The value, if a text is that variable.
fn value<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// `execve(2)`.
///
/// # Safety
/// As `execve(2)`.
pub unsafe fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    // SAFETY: the caller upholds this function's contract; the list outlives the call.
    unsafe {
        let environment = Environment::of(Texts::at(environment), Named::Path(libc::AT_FDCWD, path));
        let list = environment.list();
        let registers = [sys::address(path), sys::address(arguments), sys::address(list), 0, 0, 0];
        sys::to_c_int(sys::syscall(libc::SYS_execve, registers))
    }
}

/// `execv(3)`.
///
/// # Safety
/// As `execv(3)`.
pub unsafe fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller upholds this function's contract; the C library's own list.
    unsafe { execve(path, arguments, environ) }
}

/// `execl(3)`, whose arguments are a list by now.
///
/// # Safety
/// As `execl(3)`.
pub unsafe extern "C" fn execl(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { execv(path, arguments) }
}

/// `execlp(3)`, whose arguments are a list by now.
///
/// # Safety
/// As `execlp(3)`.
pub unsafe extern "C" fn execlp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { execvp(file, arguments) }
}

/// `execle(3)`, whose arguments are a list by now: the environment follows its end.
///
/// # Safety
/// As `execle(3)`.
pub unsafe extern "C" fn execle(path: *const c_char, arguments: List) -> c_int {
    let mut end = arguments;
    // SAFETY: the caller upholds this function's contract: the arguments end with a null pointer,
    // and one more follows.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, (*end.add(1)).cast())
    }
}

/// `execveat(2)`, and with `AT_EMPTY_PATH` and an empty path `fexecve(3)`.
///
/// # Safety
/// As `execveat(2)`.
pub unsafe fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds this function's contract; the list outlives the call.
    unsafe {
        let empty = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0;
        let named = if empty { Named::Open(folder) } else { Named::Path(folder, path) };
        let environment = Environment::of(Texts::at(environment), named);
        let lists = [sys::address(arguments), sys::address(environment.list())];
        let registers = [sys::signed(folder), sys::address(path), lists[0], lists[1], sys::signed(flags), 0];
        sys::to_c_int(sys::syscall(libc::SYS_execveat, registers))
    }
}

/// `fexecve(3)`.
///
/// # Safety
/// As `fexecve(3)`.
pub unsafe fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { execveat(fd, c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) }
}

/// `execvpe(3)`: the C library searches the folders.
///
/// # Safety
/// As `execvpe(3)`.
pub unsafe fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int {
    let pointer = EXECVPE.load(Acquire);
    if pointer.is_null() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the C library's `execvpe` has this type; the rest is the caller's.
    unsafe {
        let environment = Environment::of(Texts::at(environment), Named::Search(file));
        let function = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, List, List) -> c_int,
        >(pointer);
        function(file, arguments, environment.list())
    }
}

/// `execvp(3)`.
///
/// # Safety
/// As `execvp(3)`.
pub unsafe fn execvp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller upholds this function's contract; the C library's own list.
    unsafe { execvpe(file, arguments, environ) }
}

/// `posix_spawn(3)`, and `posix_spawnp(3)` if `by_name`.
///
/// # Safety
/// As `posix_spawn(3)`.
pub unsafe fn posix_spawn(
    by_name: bool,
    process: *mut libc::pid_t,
    path: *const c_char,
    [actions, attributes]: [*const c_void; 2],
    arguments: List,
    environment: List,
) -> c_int {
    let pointer = if by_name { &SPAWN_BY_NAME } else { &SPAWN }.load(Acquire);
    if pointer.is_null() {
        return libc::ENOSYS;
    }
    type Spawn = unsafe extern "C" fn(
        *mut libc::pid_t,
        *const c_char,
        *const c_void,
        *const c_void,
        List,
        List,
    ) -> c_int;
    // SAFETY: the C library's function of that name has this type; the child has read the list when
    // it returns.
    unsafe {
        let named = if by_name { Named::Search(path) } else { Named::Path(libc::AT_FDCWD, path) };
        let environment = Environment::of(Texts::at(environment), named);
        let function = std::mem::transmute::<*mut c_void, Spawn>(pointer);
        function(process, path, actions, attributes, arguments, environment.list())
    }
}

#[cfg(test)]
mod tests;
