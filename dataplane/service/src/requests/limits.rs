//! Bounds of a listener's queue, and of what is remembered about revocations.
//! `docs/spec/budgets.md` is the table of all bounds of the socket service.

/// Connections that wait at one listener, for any backlog that the program requests: the kernel's
/// own bound (`net.core.somaxconn`).
pub(crate) const MOST_BACKLOG: u32 = 4096;

/// Revoked applications that are remembered of one user, the latest ones. Each is a program that
/// was started once, and its id is never used again. Each takes 16 bytes.
pub(crate) const REVOKED: usize = 1024;

/// Users whose own revocations are remembered: 64 MiB in all. An administrator's revocations do not
/// count.
pub(crate) const REVOKING_USERS: usize = 4096;
