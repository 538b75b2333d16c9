//! What can go wrong when a queue is made or opened. Each error names its fix.

use std::io;

use sietch_ring::mapped::LayoutError;
use sietch_ring::spsc::Inconsistent;

/// A number of a [`super::XskLayout`] is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XskLayoutError {
    /// The chunk size.
    #[error("UMEM chunk of {0} bytes: must be 2048 or 4096")]
    ChunkSize(u32),
    /// The number of chunks.
    #[error("UMEM of {chunks} chunks: must be between 2 and {most}")]
    Chunks {
        /// The requested value.
        chunks: u32,
        /// The limit.
        most: u32,
    },
    /// The runs for large frames.
    #[error(
        "{runs} runs of {run_chunks} UMEM chunks, of {chunks} in all: a run has 2 to 18 chunks, and two must be left over"
    )]
    Runs {
        /// The requested value.
        runs: u32,
        /// Chunks in each.
        run_chunks: u32,
        /// Chunks in all.
        chunks: u32,
    },
    /// The depth of a ring.
    #[error("{ring} ring of {slots} slots: must be a power of two and at most {most}")]
    Ring {
        /// Which.
        ring: &'static str,
        /// The requested value.
        slots: u32,
        /// The limit.
        most: u32,
    },
    /// The MTU.
    #[error("MTU of {mtu} bytes: a UMEM chunk holds packets of at most {largest}; lower the interface's MTU")]
    Mtu {
        /// The requested value.
        mtu: usize,
        /// The limit.
        largest: usize,
    },
}

/// Why the control plane could not make a queue.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The numbers are wrong.
    #[error(transparent)]
    Layout(#[from] XskLayoutError),
    /// The kernel refuses AF_XDP sockets to this process.
    #[error("AF_XDP socket: needs CAP_NET_RAW ({0}); run as root, or use `--net linux`")]
    Privilege(#[source] io::Error),
    /// The kernel has no AF_XDP.
    #[error("AF_XDP socket: this kernel is built without CONFIG_XDP_SOCKETS ({0}); use `--net linux`")]
    Unsupported(#[source] io::Error),
    /// The kernel does not know frames in several buffers.
    #[error(
        "AF_XDP socket: this kernel takes no frames in several buffers ({0}); use Linux 6.6 or later, or an MTU up to 3498"
    )]
    SeveralBuffers(#[source] io::Error),
    /// The memory cannot be pinned.
    #[error(
        "UMEM of {needed} bytes: exceeds the memory that this process may lock (RLIMIT_MEMLOCK is {limit}; {source}); \
         raise it (`ulimit -l`, LimitMEMLOCK=), or run with CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// Bytes in the UMEM.
        needed: usize,
        /// The limit in bytes, or "unlimited".
        limit: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another process holds the queue.
    #[error(
        "queue {queue} of interface {ifindex}: held by another AF_XDP socket, or this one is bound already ({source}); \
         end the process that has it mapped, or choose another queue"
    )]
    Busy {
        /// The interface.
        ifindex: u32,
        /// Its queue.
        queue: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The interface or its queue cannot be bound.
    #[error(
        "queue {queue} of interface {ifindex}: cannot be bound ({source}); check that the interface exists, is up, and has \
         that many queues"
    )]
    Bind {
        /// The interface.
        ifindex: u32,
        /// Its queue.
        queue: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Any other step.
    #[error("AF_XDP socket: {step} failed: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Why an application could not use the queue it was given.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The numbers are wrong.
    #[error("grant: {0}")]
    Layout(#[from] XskLayoutError),
    /// The first descriptor is something else.
    #[error("grant: the first descriptor is no AF_XDP socket; ask the control plane for a new grant")]
    NotAfXdp(#[source] Option<io::Error>),
    /// The memfd is not what the layout says.
    #[error("grant: the UMEM has {actual} bytes and should have {expected}; ask for a new grant")]
    UmemSize {
        /// By the layout.
        expected: u64,
        /// By `fstat(2)`.
        actual: u64,
    },
    /// Another process could shrink the memory while it is mapped.
    #[error("grant: the UMEM is not sealed against shrinking; ask for a new grant")]
    NotSealed,
    /// A ring is not where the kernel says.
    #[error("grant: {ring} ring: {source}")]
    RingLayout {
        /// Which.
        ring: &'static str,
        /// Why.
        #[source]
        source: LayoutError,
    },
    /// A ring's words contradict each other.
    #[error("grant: {ring} ring: {source}")]
    Inconsistent {
        /// Which.
        ring: &'static str,
        /// Why.
        #[source]
        source: Inconsistent,
    },
    /// It was used before: the owners of its chunks are not known any more.
    #[error("grant: the queue has been used before, and a grant opens once; ask for a new grant")]
    AlreadyUsed,
    /// A system call.
    #[error("grant: {step} failed: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Puts the name of the step to a kernel's answer.
pub(super) trait Named<T> {
    /// For the control plane's side.
    fn creating(self, step: &'static str) -> Result<T, CreateError>;
    /// For the application's side.
    fn opening(self, step: &'static str) -> Result<T, OpenError>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn creating(self, step: &'static str) -> Result<T, CreateError> {
        self.map_err(|error| CreateError::Step { step, source: error.into() })
    }

    fn opening(self, step: &'static str) -> Result<T, OpenError> {
        self.map_err(|error| OpenError::Step { step, source: error.into() })
    }
}
