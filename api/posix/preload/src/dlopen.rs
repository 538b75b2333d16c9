//! `dlopen` and `dlmopen`: jumps, because the C library checks its caller (see
//! `api/posix/src/calls/process/dlopen.rs`).

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_long, c_void};

use sietch_posix::calls::process;

/// The C library's function of this name.
///
/// # Safety
/// As `dlopen(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // The stack is aligned for the call; the answer is in rax and rdx.
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {target}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, edx",
        "jmp rax",
        target = sym process::target_of_dlopen,
    )
}

/// The C library's function of this name.
///
/// # Safety
/// As `dlmopen(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
    // Only in the program's own namespace (LM_ID_BASE, 0) is there anything to come before.
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {target}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rdi, rdi",
        "jnz 2f",
        "and edx, ecx",
        "2: jmp rax",
        target = sym process::target_of_dlmopen,
    )
}

/// The C library's function of this name.
///
/// # Safety
/// As `dlopen(3)`.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // The answer is in x0 and x1.
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {target}",
        "mov x16, x0",
        "mov x9, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "and w1, w1, w9",
        "br x16",
        target = sym process::target_of_dlopen,
    )
}

/// The C library's function of this name.
///
/// # Safety
/// As `dlmopen(3)`.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
    // Only in the program's own namespace (LM_ID_BASE, 0) is there anything to come before.
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {target}",
        "mov x16, x0",
        "mov x9, x1",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbnz x0, 2f",
        "and w2, w2, w9",
        "2: br x16",
        target = sym process::target_of_dlmopen,
    )
}
