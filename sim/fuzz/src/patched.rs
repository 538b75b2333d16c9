//! An area that an input changes.

/// `image` with the patches of `data`: each is an offset (four bytes, little-endian, modulo the
/// length), a count, and so many bytes; the last may be cut short.
pub(crate) fn patched(image: &[u8], mut data: &[u8]) -> Vec<u8> {
    let mut area = image.to_vec();
    while let [a, b, c, d, count, rest @ ..] = data {
        let at = u32::from_le_bytes([*a, *b, *c, *d]) as usize % area.len();
        let count = usize::from(*count).min(rest.len()).min(area.len() - at);
        area[at..at + count].copy_from_slice(&rest[..count]);
        data = &rest[count..];
    }
    area
}
