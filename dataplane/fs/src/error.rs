//! What can go wrong below an operation.

/// A medium, or what is on it, is not as it must be. Who called gets `EIO`; this says why.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A request failed.
    #[error("{medium}: {action} {length} bytes at {offset}: {source}")]
    Medium {
        /// Which one.
        medium: String,
        /// "read" or "write" or "flush".
        action: &'static str,
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        length: usize,
        /// What the device says.
        source: std::io::Error,
    },
    /// Bytes do not have their checksum, or cannot be what they should be.
    #[error(
        "{medium}: {what} at {offset} is damaged: {cause}; run `sietch fs check` and restore what it names"
    )]
    Damaged {
        /// Which one.
        medium: String,
        /// A node of the tree, data of a file, a superblock.
        what: String,
        /// First byte on the medium.
        offset: u64,
        /// What does not fit.
        cause: String,
    },
    /// No room for data or metadata.
    #[error("no room on {medium}: {wanted} blocks wanted; remove files or add a medium")]
    Full {
        /// Which one.
        medium: String,
        /// Blocks.
        wanted: u64,
    },
    /// An earlier fault left the change half made. What was committed is safe.
    #[error("{medium}: no more changes after an earlier fault ({cause}); open the pool again")]
    Stopped {
        /// The home of the pool.
        medium: String,
        /// The earlier fault.
        cause: String,
    },
    /// The caller asked for what cannot be. Nothing has changed.
    #[error("{medium}: refused: {cause}")]
    Refused {
        /// Which one.
        medium: String,
        /// Why it cannot be.
        cause: String,
    },
}

impl Fault {
    /// Whether something could not be read, and everything else goes on.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Medium { action: "read", .. })
    }
}
