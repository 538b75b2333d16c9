//! Work that needs more descriptors than the limit allows, done in a child that has a copy of the
//! descriptor table.
//!
//! 1. The child shares this process's memory but has its own copy of the descriptor table
//!    (`clone(2)`: CLONE_VM without CLONE_FILES). CLONE_VFORK makes the caller wait for the child's
//!    end.
//! 2. The child closes a few of its copies and does the work ([`in_child`]). Its descriptors end
//!    with it.
//! 3. The child runs with all signals blocked. It uses nothing of the library but what it is given,
//!    because the descriptor numbers in the library's tables are not those of the child.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::signal::handlers;
use crate::system::sys::{self, Errno, signed};
use crate::system::{kernel, originals, seccomp};

/// Bytes of the child's stack: it receives one message and makes two mappings.
const STACK: usize = 256 << 10;

/// Descriptors that the child closes of its copies: what an arrival needs.
const NEEDED: usize = 3;

/// Work for a child, and its result.
struct Task<F, T> {
    /// A descriptor that it needs, or -1.
    needs: c_int,
    act: Option<F>,
    done: Option<T>,
}

/// Runs `act` with room for three more descriptors, in a copy of the process's. Of those that are
/// open it may use `needs`.
///
/// # Errors
/// `EMFILE`: no child could be made.
pub(crate) fn in_child<T>(needs: c_int, act: impl FnOnce() -> T) -> Result<T, Errno> {
    // Filters may allow no child.
    if seccomp::is_restricted() {
        return Err(libc::EMFILE);
    }
    let mut task = Task { needs, act: Some(act), done: None };
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, STACK, signed(access), signed(kind | libc::MAP_STACK), signed(-1), 0];
    // SAFETY: a new mapping of its own.
    let stack = unsafe { sys::syscall(libc::SYS_mmap, arguments) }.map_err(|_| libc::EMFILE)?;
    let before = handlers::block_all();
    run(stack, &mut task);
    handlers::restore(before);
    // SAFETY: the mapping of above; no thread runs on it any more.
    let _ = unsafe { sys::syscall(libc::SYS_munmap, [stack, STACK, 0, 0, 0, 0]) };
    task.done.ok_or(libc::EMFILE)
}

fn run<F: FnOnce() -> T, T>(stack: usize, task: &mut Task<F, T>) {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let top = sys::pointer(stack + STACK);
    let argument = std::ptr::from_mut(task).cast::<c_void>();
    // SAFETY: the stack grows down from there. The caller's thread is suspended until the child has
    // ended. So the child may use the references here, and thread-local variables.
    let process = unsafe { originals::clone(child::<F, T>, top, flags, argument, [ptr::null_mut(); 3]) };
    if process >= 0 {
        let arguments = [signed(process), 0, signed(libc::__WALL), 0, 0, 0];
        // Only its number finds a child that sends no signal.
        // SAFETY: the kernel writes nothing.
        let _ = unsafe { sys::syscall(libc::SYS_wait4, arguments) };
    }
}

/// The work of the child.
extern "C" fn child<F: FnOnce() -> T, T>(argument: *mut c_void) -> c_int {
    // SAFETY: `run`'s, which waits.
    let task = unsafe { &mut *argument.cast::<Task<F, T>>() };
    for other in (0..).filter(|other| *other != task.needs).take(NEEDED) {
        let _ = kernel::close(other);
    }
    task.done = task.act.take().map(|act| act());
    0
}
