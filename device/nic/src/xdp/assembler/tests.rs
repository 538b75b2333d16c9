//! Encodings against RFC 9669 by hand, and behaviour against an independent interpreter.

use proptest::prelude::*;

use super::Register::{R0, R1, R2, R10};
use super::*;

fn bytes(program: Vec<Instruction>) -> Vec<u8> {
    program.into_iter().flatten().collect()
}

fn interpret(program: Assembler) -> u64 {
    let code = bytes(program.assemble().unwrap());
    rbpf::EbpfVmNoData::new(Some(&code)).unwrap().execute_program().unwrap()
}

#[test]
#[cfg(target_endian = "little")]
fn encodings_are_those_of_the_standard() {
    let mut a = Assembler::new();
    let end = a.label();
    a.set(R1, 7);
    a.set(R2, R1);
    a.alu(Width::Bits32, Alu::Add, R2, -1);
    a.load(Size::Half, R1, R10, -8);
    a.store(Size::Double, R10, -16, R1);
    a.store(Size::Word, R10, -4, 9);
    a.set_wide(R1, 0x1122_3344_5566_7788);
    a.set_map(R1, MapReference::pretend(5));
    a.jump_if(Width::Bits64, Condition::Greater, R1, R2, end);
    a.jump_if(Width::Bits32, Condition::NotEqual, R1, 3, end);
    a.atomic(Width::Bits64, Atomic::CompareExchange, R1, 8, R2);
    a.big_endian(R1, 16);
    a.call(1);
    a.jump(end);
    a.bind(end);
    a.exit();
    let expected: [[u8; 8]; 17] = [
        [0xb7, 0x01, 0, 0, 7, 0, 0, 0],
        [0xbf, 0x12, 0, 0, 0, 0, 0, 0],
        [0x04, 0x02, 0, 0, 0xff, 0xff, 0xff, 0xff],
        [0x69, 0xa1, 0xf8, 0xff, 0, 0, 0, 0],
        [0x7b, 0x1a, 0xf0, 0xff, 0, 0, 0, 0],
        [0x62, 0x0a, 0xfc, 0xff, 9, 0, 0, 0],
        [0x18, 0x01, 0, 0, 0x88, 0x77, 0x66, 0x55],
        [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11],
        [0x18, 0x11, 0, 0, 5, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0x2d, 0x21, 5, 0, 0, 0, 0, 0],
        [0x56, 0x01, 4, 0, 3, 0, 0, 0],
        [0xdb, 0x21, 8, 0, 0xf1, 0, 0, 0],
        [0xdc, 0x01, 0, 0, 16, 0, 0, 0],
        [0x85, 0, 0, 0, 1, 0, 0, 0],
        [0x05, 0, 0, 0, 0, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(a.assemble().unwrap(), expected);
}

#[test]
fn mistakes_in_labels_are_refused() {
    let mut unbound = Assembler::new();
    let nowhere = unbound.label();
    unbound.jump(nowhere);
    assert_eq!(unbound.assemble(), Err(AssembleError::Unbound { instruction: 0 }));

    let mut twice = Assembler::new();
    let label = twice.label();
    twice.bind(label);
    twice.exit();
    twice.bind(label);
    assert_eq!(twice.assemble(), Err(AssembleError::BoundTwice { first: 0, second: 1 }));

    let mut far = Assembler::new();
    let end = far.label();
    far.jump(end);
    for _ in 0..32_768 {
        far.set(R0, 0);
    }
    far.bind(end);
    far.exit();
    assert_eq!(far.assemble(), Err(AssembleError::TooFar { instruction: 0, distance: 32_768 }));
}

#[test]
fn a_backward_jump_counts_down() {
    let mut a = Assembler::new();
    a.set(R0, 0);
    a.set(R1, 10);
    let again = a.label();
    a.bind(again);
    a.alu64(Alu::Add, R0, R1);
    a.alu64(Alu::Subtract, R1, 1);
    a.jump_if(Width::Bits64, Condition::NotEqual, R1, 0, again);
    a.exit();
    assert_eq!(interpret(a), 55);
}

fn expected_alu(width: Width, operation: Alu, left: u64, right: u64) -> u64 {
    let mask = match width {
        Width::Bits32 => u64::from(u32::MAX),
        Width::Bits64 => u64::MAX,
    };
    let bits = mask.count_ones();
    let (a, b) = (left & mask, right & mask);
    let shift = (b % u64::from(bits)) as u32;
    let result = match operation {
        Alu::Add => a.wrapping_add(b),
        Alu::Subtract => a.wrapping_sub(b),
        Alu::Multiply => a.wrapping_mul(b),
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::ShiftLeft => a << shift,
        Alu::ShiftRight => a >> shift,
        Alu::Move => b,
    };
    result & mask
}

fn expected_jump(width: Width, condition: Condition, left: u64, right: u64) -> bool {
    let (a, b, sa, sb) = match width {
        Width::Bits32 => {
            (left & 0xffff_ffff, right & 0xffff_ffff, i64::from(left as i32), i64::from(right as i32))
        }
        Width::Bits64 => (left, right, left as i64, right as i64),
    };
    match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::GreaterOrEqual => a >= b,
        Condition::AnyBit => a & b != 0,
        Condition::NotEqual => a != b,
        Condition::SignedGreater => sa > sb,
        Condition::Less => a < b,
        Condition::LessOrEqual => a <= b,
    }
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::Bits32), Just(Width::Bits64)]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..80_u64, Just(u64::from(u32::MAX)), Just(1 << 31)]
}

proptest! {
    #[test]
    fn arithmetic_agrees_with_the_interpreter(
        width in width(),
        operation in prop::sample::select(vec![
            Alu::Add, Alu::Subtract, Alu::Multiply, Alu::Or, Alu::And, Alu::ShiftLeft, Alu::ShiftRight,
            Alu::Move,
        ]),
        left in value(),
        right in value(),
    ) {
        let mut a = Assembler::new();
        a.set_wide(R0, left);
        a.set_wide(R1, right);
        a.alu(width, operation, R0, R1);
        a.exit();
        prop_assert_eq!(interpret(a), expected_alu(width, operation, left, right));
    }

    #[test]
    fn jumps_are_taken_when_their_condition_holds(
        width in width(),
        condition in prop::sample::select(vec![
            Condition::Equal, Condition::Greater, Condition::GreaterOrEqual, Condition::AnyBit,
            Condition::NotEqual, Condition::SignedGreater, Condition::Less, Condition::LessOrEqual,
        ]),
        left in value(),
        right in value(),
    ) {
        let mut a = Assembler::new();
        let taken = a.label();
        a.set_wide(R1, left);
        a.set_wide(R2, right);
        a.set(R0, 1);
        a.jump_if(width, condition, R1, R2, taken);
        a.set(R0, 0);
        a.bind(taken);
        a.exit();
        prop_assert_eq!(interpret(a) == 1, expected_jump(width, condition, left, right));
    }

    #[test]
    fn memory_keeps_stored_values_and_swaps_bytes(value in any::<u64>()) {
        for (size, kept) in [
            (Size::Byte, value & 0xff),
            (Size::Half, value & 0xffff),
            (Size::Word, value & 0xffff_ffff),
            (Size::Double, value),
        ] {
            let mut a = Assembler::new();
            a.set_wide(R1, value);
            a.store(size, R10, -8, R1);
            a.load(size, R0, R10, -8);
            a.exit();
            prop_assert_eq!(interpret(a), kept);
        }
        for (bits, expected) in [
            (16, u64::from((value as u16).to_be())),
            (32, u64::from((value as u32).to_be())),
            (64, value.to_be()),
        ] {
            let mut a = Assembler::new();
            a.set_wide(R0, value);
            a.big_endian(R0, bits);
            a.exit();
            prop_assert_eq!(interpret(a), expected);
        }
    }
}
