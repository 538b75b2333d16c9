//! A small eBPF assembler: instructions and labels in, bytecode for `bpf(BPF_PROG_LOAD)` out.
//!
//! Encodings follow RFC 9669 (BPF Instruction Set Architecture). One instruction is eight bytes:
//!
//! ```text
//!  byte 0    byte 1           bytes 2-3        bytes 4-7
//! +--------+----------------+----------------+--------------------------------+
//! | opcode | src:4 | dst:4  | offset (i16)   | immediate (i32)                | host byte order
//! +--------+----------------+----------------+--------------------------------+
//! ```
//!
//! 1. Every method appends one instruction (a 64-bit immediate: two slots). Nothing is checked yet.
//! 2. A [`Label`] is made by [`Assembler::label`], named by jumps, and bound to a place by
//!    [`Assembler::bind`] before or after those jumps.
//! 3. [`Assembler::assemble`] writes each jump's distance, counted in slots from the slot after the
//!    jump (RFC 9669, section 4.3). It refuses unbound labels and jumps that an i16 cannot reach.
//!
//! Only instructions that Linux 5.12 and later know are offered, so that a program which this
//! assembler can express loads on every kernel that Sietch supports.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use thiserror::Error;

#[cfg(test)]
mod tests;

/// A register. `R0` holds results, `R1`-`R5` arguments, `R6`-`R9` survive calls, `R10` is the frame
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the whole meaning.
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// How many bytes a load or a store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Size {
    /// One byte.
    Byte = 0x10,
    /// Two bytes.
    Half = 0x08,
    /// Four bytes.
    Word = 0x00,
    /// Eight bytes.
    Double = 0x18,
}

/// How much of a register an operation works on. A 32-bit operation clears the upper half of its
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// The lower half.
    Bits32,
    /// All of it.
    Bits64,
}

/// The arithmetic that the programs use (RFC 9669, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the whole meaning.
pub(crate) enum Alu {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// When a conditional jump is taken (RFC 9669, section 4.3): the conditions that the programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the whole meaning.
pub(crate) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    /// Some bit is set in both.
    AnyBit = 0x40,
    NotEqual = 0x50,
    SignedGreater = 0x60,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// The atomic operation on memory that the programs use (RFC 9669, section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Atomic {
    /// Stores the source if `*p == R0`; `R0` becomes what `*p` was.
    CompareExchange = 0xf1,
}

/// The right-hand side of an operation: a register, or a constant that is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A register's value.
    Register(Register),
    /// A constant.
    Immediate(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Immediate(value)
    }
}

/// A place in the program that jumps can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Why a program cannot be assembled. Each is a mistake in the code that builds the program.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AssembleError {
    /// A jump names a label that was never bound.
    #[error("instruction {instruction} jumps to a label that is bound nowhere: bind it")]
    Unbound {
        /// Slot of the jump.
        instruction: usize,
    },
    /// A label was bound a second time.
    #[error("a label is bound to slot {first} and again to slot {second}: use one label a place")]
    BoundTwice {
        /// Where it was bound first.
        first: usize,
        /// Where it was bound again.
        second: usize,
    },
    /// The target is further away than an i16 can say.
    #[error("instruction {instruction} jumps {distance} slots, more than 32767: place the target nearer")]
    TooFar {
        /// Slot of the jump.
        instruction: usize,
        /// The distance in slots.
        distance: i64,
    },
}

/// One encoded instruction slot.
pub(crate) type Instruction = [u8; 8];

const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU32: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;
const MODE_IMM: u8 = 0x00;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SOURCE_REGISTER: u8 = 0x08;
const ALU_END: u8 = 0xd0;
const JUMP_ALWAYS: u8 = 0x00;
const JUMP_CALL: u8 = 0x80;
const JUMP_EXIT: u8 = 0x90;
/// Source field of a 64-bit immediate that names a map by fd (RFC 9669, section 5.4).
const PSEUDO_MAP_FD: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    slots: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    bound_twice: Option<(usize, usize)>,
}

fn encode(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    let registers =
        if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
    let offset = offset.to_ne_bytes();
    let immediate = immediate.to_ne_bytes();
    [opcode, registers, offset[0], offset[1], immediate[0], immediate[1], immediate[2], immediate[3]]
}

impl Assembler {
    /// An empty program.
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.slots.push(encode(opcode, destination, source, offset, immediate));
    }

    fn push_operand(&mut self, opcode: u8, destination: Register, operand: Operand, offset: i16) {
        match operand {
            Operand::Register(source) => {
                self.push(opcode | SOURCE_REGISTER, destination as u8, source as u8, offset, 0)
            }
            Operand::Immediate(value) => self.push(opcode, destination as u8, 0, offset, value),
        }
    }

    /// A new label, bound nowhere yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the next instruction.
    pub(super) fn bind(&mut self, label: Label) {
        let here = self.slots.len();
        if let Some(first) = self.labels[label.0] {
            self.bound_twice.get_or_insert((first, here));
        }
        self.labels[label.0] = Some(here);
    }

    /// `destination = destination (operation) operand`.
    pub(crate) fn alu(
        &mut self,
        width: Width,
        operation: Alu,
        destination: Register,
        operand: impl Into<Operand>,
    ) {
        let class = match width {
            Width::Bits32 => CLASS_ALU32,
            Width::Bits64 => CLASS_ALU64,
        };
        self.push_operand(operation as u8 | class, destination, operand.into(), 0);
    }

    /// 64-bit [`Assembler::alu`].
    pub(crate) fn alu64(&mut self, operation: Alu, destination: Register, operand: impl Into<Operand>) {
        self.alu(Width::Bits64, operation, destination, operand);
    }

    /// `destination = operand`, all 64 bits.
    pub(super) fn set(&mut self, destination: Register, operand: impl Into<Operand>) {
        self.alu64(Alu::Move, destination, operand);
    }

    /// Converts the lower `bits` (16, 32 or 64) between host and big-endian order and clears those
    /// above.
    pub(crate) fn big_endian(&mut self, register: Register, bits: i32) {
        self.push(ALU_END | SOURCE_REGISTER | CLASS_ALU32, register as u8, 0, 0, bits);
    }

    /// `destination = value`, in two slots.
    pub(crate) fn set_wide(&mut self, destination: Register, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.push(
            CLASS_LD | MODE_IMM | Size::Double as u8,
            destination as u8,
            0,
            0,
            i32::from_le_bytes([a, b, c, d]),
        );
        self.push(0, 0, 0, 0, i32::from_le_bytes([e, f, g, h]));
    }

    /// `destination = ` the map behind `fd`, in two slots. The kernel resolves the fd while it
    /// loads the program.
    pub(crate) fn set_map(&mut self, destination: Register, map: MapReference) {
        self.push(CLASS_LD | MODE_IMM | Size::Double as u8, destination as u8, PSEUDO_MAP_FD, 0, map.0);
        self.push(0, 0, 0, 0, 0);
    }

    /// `destination = *(base + offset)`, zero-extended.
    pub(super) fn load(&mut self, size: Size, destination: Register, base: Register, offset: i16) {
        self.push(CLASS_LDX | MODE_MEM | size as u8, destination as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = operand`.
    pub(super) fn store(&mut self, size: Size, base: Register, offset: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Register(source) => {
                self.push(CLASS_STX | MODE_MEM | size as u8, base as u8, source as u8, offset, 0)
            }
            Operand::Immediate(value) => {
                self.push(CLASS_ST | MODE_MEM | size as u8, base as u8, 0, offset, value)
            }
        }
    }

    /// An atomic operation on `*(base + offset)`. Only [`Width`]s of 32 and 64 bits exist.
    pub(super) fn atomic(
        &mut self,
        width: Width,
        operation: Atomic,
        base: Register,
        offset: i16,
        source: Register,
    ) {
        let size = match width {
            Width::Bits32 => Size::Word,
            Width::Bits64 => Size::Double,
        };
        self.push(CLASS_STX | MODE_ATOMIC | size as u8, base as u8, source as u8, offset, operation as i32);
    }

    /// Jumps to `label`.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.slots.len(), label));
        self.push(JUMP_ALWAYS | CLASS_JMP, 0, 0, 0, 0);
    }

    /// Jumps to `label` if `left (condition) right`.
    pub(crate) fn jump_if(
        &mut self,
        width: Width,
        condition: Condition,
        left: Register,
        right: impl Into<Operand>,
        label: Label,
    ) {
        let class = match width {
            Width::Bits32 => CLASS_JMP32,
            Width::Bits64 => CLASS_JMP,
        };
        self.jumps.push((self.slots.len(), label));
        self.push_operand(condition as u8 | class, left, right.into(), 0);
    }

    /// Calls the kernel's helper function `number`; `R1`-`R5` are lost, `R0` has the result.
    pub(super) fn call(&mut self, number: i32) {
        self.push(JUMP_CALL | CLASS_JMP, 0, 0, 0, number);
    }

    /// Ends the program; its verdict is `R0`.
    pub(super) fn exit(&mut self) {
        self.push(JUMP_EXIT | CLASS_JMP, 0, 0, 0, 0);
    }

    /// The finished bytecode.
    ///
    /// # Errors
    /// A label that is unbound, bound twice, or out of a jump's reach.
    pub(crate) fn assemble(mut self) -> Result<Vec<Instruction>, AssembleError> {
        if let Some((first, second)) = self.bound_twice {
            return Err(AssembleError::BoundTwice { first, second });
        }
        for (instruction, label) in self.jumps {
            let target = self.labels[label.0].ok_or(AssembleError::Unbound { instruction })?;
            // Programs are bounded by the kernel at a million slots: both casts are exact.
            let distance = target as i64 - instruction as i64 - 1;
            let offset =
                i16::try_from(distance).map_err(|_| AssembleError::TooFar { instruction, distance })?;
            self.slots[instruction][2..4].copy_from_slice(&offset.to_ne_bytes());
        }
        Ok(self.slots)
    }
}

/// A map named in a program by its fd, which must be open when the program is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapReference(RawFd);

impl MapReference {
    /// The map behind `fd`.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Self {
        Self(fd.as_raw_fd())
    }

    /// A map that only a test's interpreter knows.
    #[cfg(test)]
    pub(super) const fn pretend(number: RawFd) -> Self {
        Self(number)
    }
}
