//! `execl`, `execlp` and `execle`: what a caller passes to a variadic function is put in a row,
//! which is the list that the others take.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int};

use sietch_posix::calls::process;

/// Defines a function that passes its arguments from the second on to another function, as a list.
macro_rules! listed {
    ($($name:ident => $taker:path;)*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                // Five arguments are in registers, the others on the stack, behind the return
                // address: with that out of the way the five are pushed before them. It goes below
                // the list, and the stack is aligned for the call.
                naked_asm!(
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "call {taker}",
                    "pop rcx",
                    "add rsp, 40",
                    "jmp rcx",
                    taker = sym $taker,
                )
            }

            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                // Seven arguments are in registers, the others on the stack: the seven are put
                // before them.
                naked_asm!(
                    "stp x29, x30, [sp, #-80]!",
                    "stp x1, x2, [sp, #24]",
                    "stp x3, x4, [sp, #40]",
                    "stp x5, x6, [sp, #56]",
                    "str x7, [sp, #72]",
                    "add x1, sp, #24",
                    "bl {taker}",
                    "ldp x29, x30, [sp], #80",
                    "ret",
                    taker = sym $taker,
                )
            }
        )*
    };
}

listed! {
    execl => process::execl;
    execlp => process::execlp;
    execle => process::execle;
}
