//! An area that an input changes.

/// What a forger writes into a number of eight bytes, or of fewer: the edges at which arithmetic
/// overflows. A fuzzer of bytes seldom finds eight equal ones.
const EDGES: [u64; 8] =
    [u64::MAX, u64::MAX - 1, u64::MAX - 9, 1 << 63, (1 << 63) - 1, 1 << 62, 1 << 32, u32::MAX as u64];

/// `image` with the patches of `data`: each is an offset (four bytes, little-endian, modulo the
/// length), a count, and so many bytes; the last may be cut short. A patch of no bytes writes a
/// number: the next byte says of which width, at a multiple of it, and which of [`EDGES`].
pub(crate) fn patched(image: &[u8], mut data: &[u8]) -> Vec<u8> {
    let mut area = image.to_vec();
    while let [a, b, c, d, count, rest @ ..] = data {
        let at = u32::from_le_bytes([*a, *b, *c, *d]) as usize % area.len();
        if let (0, [choice, after @ ..]) = (*count, rest) {
            let width = 1 << (choice & 3);
            let edge = EDGES[usize::from(choice >> 2) % EDGES.len()].to_le_bytes();
            let number = area[at / width * width..].iter_mut().take(width);
            number.zip(edge).for_each(|(byte, new)| *byte = new);
            data = after;
            continue;
        }
        let count = usize::from(*count).min(rest.len()).min(area.len() - at);
        area[at..at + count].copy_from_slice(&rest[..count]);
        data = &rest[count..];
    }
    area
}

#[test]
fn numbers_and_bytes_are_patched() {
    assert_eq!(patched(&[0; 8], &[1, 0, 0, 0, 2, 7, 8]), [0, 7, 8, 0, 0, 0, 0, 0]);
    assert_eq!(patched(&[0; 8], &[5, 0, 0, 0, 0, 2]), [0, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(patched(&[0; 8], &[13, 0, 0, 0, 0, 3 | 3 << 2]), [0, 0, 0, 0, 0, 0, 0, 128]);
    assert_eq!(patched(&[0; 3], &[2, 0, 0, 0, 0, 1]), [0, 0, 255]);
}
