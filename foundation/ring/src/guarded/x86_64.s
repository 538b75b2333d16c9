# The routines of guarded.rs. System V calls: rdi, rsi, rdx; the answer in rax. No stack, no calls.
    .data
    .globl sietch_guarded_has_wide
    .hidden sietch_guarded_has_wide
    .type sietch_guarded_has_wide, @object
    .size sietch_guarded_has_wide, 1
sietch_guarded_has_wide:
    .byte 0
    .text
    .p2align 6
    .globl sietch_guarded_begin, sietch_guarded_end, sietch_guarded_landing
    .hidden sietch_guarded_begin, sietch_guarded_end, sietch_guarded_landing
    .globl sietch_guarded_copy, sietch_guarded_copy_narrow, sietch_guarded_copy_wide, sietch_guarded_read, sietch_guarded_write, sietch_guarded_load_event, sietch_guarded_store_event
    .hidden sietch_guarded_copy, sietch_guarded_copy_narrow, sietch_guarded_copy_wide, sietch_guarded_read, sietch_guarded_write, sietch_guarded_load_event, sietch_guarded_store_event
    .type sietch_guarded_copy, @function
    .type sietch_guarded_copy_wide, @function
    .type sietch_guarded_read, @function
    .type sietch_guarded_write, @function
    .type sietch_guarded_load_event, @function
    .type sietch_guarded_store_event, @function
sietch_guarded_begin:

# Moves from both ends, which overlap in the middle.
sietch_guarded_copy:
    .cfi_startproc
    cmp rdx, 32
    ja 5f
    cmp edx, 16
    jb 2f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    xor eax, eax
    ret
2:
    cmp edx, 8
    jb 3f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    ret
3:
    cmp edx, 4
    jb 4f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    ret
4:
    xor eax, eax
    test edx, edx
    jz 9f
    movzx ecx, byte ptr [rsi]
    cmp edx, 2
    jb 8f
    movzx r8d, word ptr [rsi + rdx - 2]
    mov [rdi + rdx - 2], r8w
8:
    mov [rdi], cl
9:
    ret
5:
    cmp rdx, 64
    ja 6f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    xor eax, eax
    ret
6:
    cmp rdx, 128
    ja 7f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    xor eax, eax
    ret
7:
    cmp byte ptr [rip + sietch_guarded_has_wide], 0
    jne sietch_guarded_copy_wide
# Blocks of 64 bytes, and the last 64 bytes, which overlap the block before.
sietch_guarded_copy_narrow:
    lea r8, [rsi + rdx - 64]
    lea r9, [rdi + rdx - 64]
    .p2align 4
8:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rsi, r8
    jb 8b
    movups xmm0, [r8]
    movups xmm1, [r8 + 16]
    movups xmm2, [r8 + 32]
    movups xmm3, [r8 + 48]
    movups [r9], xmm0
    movups [r9 + 16], xmm1
    movups [r9 + 32], xmm2
    movups [r9 + 48], xmm3
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_copy, . - sietch_guarded_copy

# The first 32 bytes; blocks of 128 bytes to aligned addresses; the last 128 bytes.
    .p2align 6
sietch_guarded_copy_wide:
    .cfi_startproc
    vmovdqu ymm0, [rsi]
    lea r8, [rsi + rdx - 128]
    lea r9, [rdi + rdx - 128]
    vmovdqu [rdi], ymm0
    mov eax, edi
    and eax, 31
    mov ecx, 32
    sub rcx, rax
    add rsi, rcx
    add rdi, rcx
    cmp rsi, r8
    jae 2f
    .p2align 5
1:
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    cmp rsi, r8
    jb 1b
2:
    vmovdqu ymm0, [r8]
    vmovdqu ymm1, [r8 + 32]
    vmovdqu ymm2, [r8 + 64]
    vmovdqu ymm3, [r8 + 96]
    vmovdqu [r9], ymm0
    vmovdqu [r9 + 32], ymm1
    vmovdqu [r9 + 64], ymm2
    vmovdqu [r9 + 96], ymm3
    vzeroupper
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_copy_wide, . - sietch_guarded_copy_wide

sietch_guarded_read:
    .cfi_startproc
    movzx eax, byte ptr [rdi]
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_read, . - sietch_guarded_read

sietch_guarded_write:
    .cfi_startproc
    lock or byte ptr [rdi], 0
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_write, . - sietch_guarded_write

# struct epoll_event of x86-64: four bytes, then eight, without a gap. To two words of eight bytes.
sietch_guarded_load_event:
    .cfi_startproc
    mov ecx, [rdi]
    mov rdx, [rdi + 4]
    mov [rsi], ecx
    mov [rsi + 8], rdx
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_load_event, . - sietch_guarded_load_event

sietch_guarded_store_event:
    .cfi_startproc
    mov [rdi], esi
    mov [rdi + 4], rdx
    xor eax, eax
    ret
    .cfi_endproc
    .size sietch_guarded_store_event, . - sietch_guarded_store_event

sietch_guarded_end:

# Where a fault goes on, with its address in rax. The upper halves of the vector registers may be in use, which costs time alone.
sietch_guarded_landing:
    .cfi_startproc
    ret
    .cfi_endproc
