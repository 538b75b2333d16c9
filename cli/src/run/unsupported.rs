//! Why Sietch cannot serve a program.

/// Why Sietch cannot serve a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsupported {
    /// No `PT_INTERP`.
    #[error("is linked statically, so that no library can be loaded into it")]
    Static,
    /// It does not call the C library.
    #[error("is a Go program, which makes its system calls itself, past every library")]
    Go,
    /// The loader ignores the environment.
    #[error(
        "gains privileges when it starts (set-user-ID, set-group-ID or file capabilities), so that the loader ignores LD_PRELOAD"
    )]
    Privileged,
    /// musl, bionic, ...
    #[error("is made for another C library (its loader is {0}), and Sietch's library for glibc")]
    OtherLibrary(String),
    /// A glibc that lacks what Sietch's library needs of it.
    #[error("is made for a glibc before 2.34 (its loader is {0}), and Sietch's library for a newer one")]
    OldLibrary(String),
    /// ELFCLASS32.
    #[error("is a 32-bit program, and Sietch's library is of 64 bits")]
    Narrow,
    /// Another `e_machine`.
    #[error("is made for another kind of processor than Sietch's library")]
    OtherMachine,
}

impl Unsupported {
    /// Whether `--anyway` leaves the library out: the program's loader would print an error or
    /// fail. In the other cases, programs that the program starts may use the library.
    pub(crate) fn rejects_the_library(&self) -> bool {
        matches!(self, Self::OtherLibrary(_) | Self::OldLibrary(_) | Self::Narrow | Self::OtherMachine)
    }
}
