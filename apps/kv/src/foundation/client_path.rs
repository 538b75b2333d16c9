//! The way on which a client reaches the store.

/// The way on which a client reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ClientPath {
    /// Through a socket of the kernel.
    #[default]
    Kernel,
    /// Through memory that both programs share.
    Memory,
    /// Through the store's VNIC.
    Vnic,
}

impl ClientPath {
    /// Its name, as CLIENT LIST shows it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Vnic => "vnic",
        }
    }
}
