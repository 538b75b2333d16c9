//! How a function gets the C library's name.

/// Defines functions with the C library's names.
macro_rules! export {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? => $call:expr;)*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "some of them touch no memory")]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $answer)? {
                // SAFETY: the caller upholds the contract of the C library's function of this name.
                unsafe { $call }
            }
        )*
    };
}
#[allow(unused_imports, reason = "for the modules of this crate")]
pub(crate) use export;
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
