//! Parsers of foreign bytes as targets of a coverage-guided fuzzer: each takes raw bytes, and must
//! neither panic, nor loop, nor touch memory that is not its own.
//!
//! 1. `cargo xtask fuzz` builds the program of this crate with AddressSanitizer and the counters of
//!    libFuzzer, and gives each target some seconds; `cargo xtask soak fuzz` gives it hours.
//! 2. Every input that reached new code is kept in the file `corpus/TARGET` (for each input its
//!    length, four bytes, little-endian, and its bytes), and is where the next run begins. The
//!    tests of this crate replay the corpus without a fuzzer.
//! 3. Checksums stand in the way of a fuzzer. With `--cfg fuzzing` all CRCs are 0
//!    (`foundation/structures/src/crc32c.rs`). Those of frames are fixed before the engine gets
//!    them.
//! 4. Areas are large and mostly empty. An input is a list of patches ([`patched`]) to an area that
//!    the code at hand wrote.
#![forbid(unsafe_code)]

mod frames;
mod messages;
mod patched;
mod storage;
mod store;
mod streams;

/// A target: takes raw bytes.
pub type Run = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Run); 10] = [
    ("commands", store::commands),
    ("control", messages::control),
    ("frames", frames::frames),
    ("journal", store::journal),
    ("log", storage::log),
    ("oplog", storage::operation_log),
    ("pool", storage::pool),
    ("sockets", messages::sockets),
    ("streams", streams::streams),
    ("volume", storage::volume),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Run> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What once reached new code, or failed, does no harm.
    #[test]
    fn the_corpus_does_no_harm() {
        for (name, run) in TARGETS {
            run(&[]);
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let kept = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let mut left = &kept[..];
            while let Some((length, rest)) = left.split_first_chunk() {
                let (input, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
                println!("{name}, byte {}", kept.len() - left.len());
                run(input);
                left = rest;
            }
        }
    }
}
