//! The messages of the RPC examples: four bytes of length (little-endian, of what follows), eight
//! bytes of a number that the caller chose, then the body. Answers carry the number of their call,
//! so calls can be pipelined and answered in any order.

use std::io;

use sietch::ReadHalf;

/// The longest body that is taken.
pub(crate) const LONGEST: usize = 64 << 10;

/// Appends a message to `out`.
pub(crate) fn put(out: &mut Vec<u8>, number: u64, body: &[u8]) {
    out.extend_from_slice(&(8 + body.len() as u32).to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(body);
}

/// Waits for bytes and passes every whole message in them to `each`, in place. False at the end of
/// the stream.
///
/// # Errors
/// The connection broke, or a message is invalid.
pub(crate) async fn take(reader: &mut ReadHalf, mut each: impl FnMut(u64, &[u8])) -> io::Result<bool> {
    let mut needed = 1;
    loop {
        let waiting = reader.peek(|first, second| first.len() + second.len());
        if waiting < needed {
            if !reader.more_than(waiting).await? {
                return Ok(false);
            }
            continue;
        }
        let (used, next) = reader.peek(|first, second| {
            if second.is_empty() {
                messages(first, &mut each)
            } else {
                messages(&[first, second].concat(), &mut each)
            }
        })?;
        reader.consume(used);
        if used > 0 {
            return Ok(true);
        }
        needed = next;
    }
}

/// The whole messages at the beginning of `bytes`: how many bytes they are, and how many the next
/// one needs.
fn messages(bytes: &[u8], each: &mut impl FnMut(u64, &[u8])) -> io::Result<(usize, usize)> {
    let mut used = 0;
    while let Some((length, rest)) = bytes[used..].split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        if !(8..=8 + LONGEST).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of an impossible length"));
        }
        let Some((number, body)) = rest.get(..length).and_then(|message| message.split_first_chunk::<8>())
        else {
            return Ok((used, 4 + length));
        };
        each(u64::from_le_bytes(*number), body);
        used += 4 + length;
    }
    Ok((used, 4))
}
