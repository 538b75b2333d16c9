//! Where the shim may differ from the kernel, each with its reason. The same list is in
//! `docs/posix.md`.

use crate::program::Program;

/// A difference that is no mistake.
pub struct Difference {
    /// What differs, in a few words.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Whether it is this one: the program, the kernel's answer, the shim's answer. None if no
    /// program tries it.
    pub is: Option<fn(&Program, &str, &str) -> bool>,
}

/// Every difference that is allowed.
pub const ALLOWED: &[Difference] = &[
    Difference {
        what: "a buffer of data in memory that is not mapped",
        reason: "the library copies data itself: what can be no address is EFAULT, but a page that is not mapped raises SIGSEGV, as with any function of the C library",
        is: None,
    },
    Difference {
        what: "how much a connection takes before it is full, and the values of SO_SNDBUF, SO_RCVBUF, TCP_MAXSEG and TCP_WINDOW_CLAMP",
        reason: "the rings are Sietch's, not the kernel's buffers",
        is: None,
    },
    Difference {
        what: "using a connection to who was killed, before anybody has waited for it",
        reason: "a process that is killed leaves no word in memory; who only writes, or looks once, does not ask the kernel",
        is: None,
    },
    Difference {
        what: "a connection of which both ends have shut down reading",
        reason: "both placeholders are then shut down for both directions, which the kernel reports as it does the end of the other",
        is: None,
    },
    Difference {
        what: "ECONNRESET that is pending after connect(AF_UNSPEC)",
        reason: "what takes the connection's place is a fresh socket, of which the kernel knows no error",
        is: None,
    },
    Difference {
        what: "when a poll wakes whose descriptor another thread has closed",
        reason: "Linux keeps the socket until the poll ends, and wakes it with whatever becomes of it; here the descriptor is gone at once",
        is: None,
    },
    Difference {
        what: "binding a socket to the port of a connection",
        reason: "ports of connecting sockets are the service's, and not taken in the kernel",
        is: None,
    },
    Difference {
        what: "connections beyond a listener's backlog",
        reason: "the kernel drops the SYN and the client tries again a second later; the service leaves such a client to the kernel",
        is: None,
    },
];
