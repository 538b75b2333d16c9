//! How a function gets the C library's name.

/// Defines functions with the C library's names, in which no thread is cancelled.
macro_rules! export {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? => $call:expr;)*) => {
        $(
            $crate::export::function! {
                $name($($argument: $type),*) $(-> $answer)? => {
                    let before = sietch_posix::calls::process::hold();
                    let answer = $call;
                    sietch_posix::calls::process::release(before);
                    answer
                };
            }
        )*
    };
}
#[allow(unused_imports, reason = "for the modules of this crate")]
pub(crate) use export;

/// The same for those that are cancellation points.
macro_rules! points {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? => $call:expr;)*) => {
        $(
            $crate::export::function! {
                $name($($argument: $type),*) $(-> $answer)? => {
                    let before = sietch_posix::calls::process::enter();
                    let answer = $call;
                    sietch_posix::calls::process::leave(before);
                    answer
                };
            }
        )*
    };
}
#[allow(unused_imports, reason = "for the modules of this crate")]
pub(crate) use points;

/// The same for those that do not return, or are the C library's alone.
macro_rules! function {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? => $call:expr;)*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "some of them touch no memory")]
            #[allow(clippy::let_unit_value, reason = "some of them return nothing")]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $answer)? {
                // SAFETY: the caller upholds the contract of the C library's function of this name.
                unsafe { $call }
            }
        )*
    };
}
#[allow(unused_imports, reason = "for the modules of this crate")]
pub(crate) use function;
use libc::size_t;

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// As a fortified program requires: ends the process before a buffer overflows.
pub(crate) fn check(length: size_t, room: size_t) {
    if length > room {
        // SAFETY: ends the process.
        unsafe { __chk_fail() };
    }
}
