//! The archive that a kernel unpacks into its first file system: cpio in the form `newc`
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTERS: u32 = 0o020_000;

/// An archive under construction.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder, once.
    pub(super) fn folder(&mut self, name: &str) {
        if !name.is_empty() && self.names.insert(name.to_owned()) {
            self.entry(name, FOLDER | 0o755, (0, 0), &[]);
        }
    }

    /// Adds a file, once.
    pub(super) fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        if self.names.insert(name.to_owned()) {
            self.entry(name, FILE | mode, (0, 0), bytes);
        }
    }

    /// Adds a character device by its major and minor number, once.
    pub(super) fn device(&mut self, name: &str, numbers: (usize, usize)) {
        if self.names.insert(name.to_owned()) {
            self.entry(name, CHARACTERS | 0o666, numbers, &[]);
        }
    }

    /// The complete archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    /// A header of fourteen numbers, the name with its NUL and the bytes, each padded to four.
    fn entry(&mut self, name: &str, mode: u32, (major, minor): (usize, usize), bytes: &[u8]) {
        let number = self.names.len();
        let (links, size, length) = (1, bytes.len(), name.len() + 1);
        let fields = [number, mode as usize, 0, 0, links, 0, size, 0, 0, major, minor, length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_begins_at_a_multiple_of_four() {
        let mut archive = Archive::default();
        archive.folder("a");
        archive.folder("a");
        archive.file("a/bc", 0o644, b"12345");
        let bytes = archive.finish();
        let at = |text: &str| bytes.windows(text.len()).position(|part| part == text.as_bytes());
        assert_eq!(at("070701"), Some(0));
        assert_eq!(at("12345").expect("the bytes") % 4, 0);
        assert_eq!(
            bytes.windows(6).filter(|part| part == b"070701").count(),
            3,
            "each name once, and the end"
        );
        assert_eq!(bytes.len() % 4, 0);
    }
}
