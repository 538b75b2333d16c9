//! The memory of a connection, as the service reads and writes it from outside. These are a reset
//! of both ends, and the counts of bytes that they claim.

use rustix::io::Errno;
use sietch_ring::stream::{Memory, STATE_OFFSET, layout, state};

/// Resets a connection: writes values that both ends take for a reset.
///
/// # Errors
/// Those of `pwrite(2)`.
pub(in crate::sockets) fn reset(memory: &Memory) -> rustix::io::Result<()> {
    let mut verdict = [0; 8];
    verdict[..4].copy_from_slice(&state::FAILED.to_ne_bytes());
    verdict[4..].copy_from_slice(&Errno::CONNRESET.raw_os_error().to_ne_bytes());
    for page in &memory.private {
        rustix::io::pwrite(page, &verdict, STATE_OFFSET as u64)?;
    }
    for direction in 0..2 {
        rustix::io::pwrite(&memory.common, &u64::MAX.to_ne_bytes(), tail_of(direction))?;
    }
    Ok(())
}

/// Returns how many bytes each end of a connection claims to have sent. The two programs write
/// these words, so they are used only for display.
pub(in crate::sockets) fn positions(memory: &Memory) -> [u64; 2] {
    std::array::from_fn(|direction| {
        let mut word = [0; 8];
        match rustix::io::pread(&memory.common, &mut word, tail_of(direction)) {
            Ok(8) => layout::tail::position(u64::from_ne_bytes(word)),
            _ => 0,
        }
    })
}

/// Returns the offset of the tail that a direction's producer publishes in the common memory.
const fn tail_of(direction: usize) -> u64 {
    (std::mem::offset_of!(layout::Common, directions)
        + direction * size_of::<layout::Direction>()
        + std::mem::offset_of!(layout::Direction, producer)
        + std::mem::offset_of!(layout::Producer, tail)) as u64
}
