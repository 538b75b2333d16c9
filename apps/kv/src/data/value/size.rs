//! Bytes that parts of a value take in effects.

/// Bytes that an argument of this length takes in an effect: its length as LEB128 and itself.
pub(crate) fn argument(length: usize) -> usize {
    let bits = (usize::BITS - (length | 1).leading_zeros()) as usize;
    length + bits.div_ceil(7)
}

/// Bytes of an effect beside its key and its elements: database, count, the name of the command.
pub(crate) const EFFECT_HEAD: usize = 12;
