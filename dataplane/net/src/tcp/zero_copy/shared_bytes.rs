//! Bytes that an application shares with the engine for sending.

use std::fmt;
use std::sync::Arc;

/// Bytes that an application shares with the engine instead of having them copied. Clones and
/// slices share the same bytes.
///
/// The bytes must not change as long as the engine has a share: a retransmission has to be
/// identical.
#[derive(Clone)]
pub struct SharedBytes {
    memory: Memory,
    start: usize,
    length: usize,
}

#[derive(Clone)]
enum Memory {
    Constant(&'static [u8]),
    Slice(Arc<[u8]>),
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl SharedBytes {
    /// All bytes of an owner: a vector, a mapped file, a buffer of a pool whose `Drop` puts it
    /// back.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::shared(Arc::new(owner))
    }

    /// The same for an owner that is shared already. A caller that keeps a clone sees by its count
    /// when the engine has dropped its share.
    pub fn shared(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let length = (*owner).as_ref().len();
        Self { memory: Memory::Owner(owner), start: 0, length }
    }

    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes from `start` on, at most `length` of them: a share of its own.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        Self {
            memory: self.memory.clone(),
            start: self.start + start,
            length: length.min(self.length - start),
        }
    }

    /// `length` bytes from `offset` on. Fewer only if their owner now has fewer.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let all = match &self.memory {
            Memory::Constant(bytes) => bytes,
            Memory::Slice(bytes) => &**bytes,
            Memory::Owner(owner) => (**owner).as_ref(),
        };
        let begin = (self.start + offset).min(all.len());
        &all[begin..(begin + length).min(all.len())]
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes(0, self.length)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedBytes({} bytes)", self.length)
    }
}

impl From<&'static [u8]> for SharedBytes {
    fn from(bytes: &'static [u8]) -> Self {
        Self { memory: Memory::Constant(bytes), start: 0, length: bytes.len() }
    }
}

impl From<Arc<[u8]>> for SharedBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self { start: 0, length: bytes.len(), memory: Memory::Slice(bytes) }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}
