//! Where the shim may differ from the kernel, each with its reason. The same list is in `docs/posix.md`.

use crate::operation::Operation;
use crate::program::{Program, Step};

/// A difference that is no mistake.
pub struct Difference {
    /// What differs, in a few words.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Whether it is this one: the program, the kernel's answer, the shim's answer. None if no program tries it.
    pub is: Option<fn(&Program, &str, &str) -> bool>,
}

/// Every difference that is allowed.
pub const ALLOWED: &[Difference] = &[
    Difference {
        what: "the numbers of descriptors while a thread sleeps in accept",
        reason: "the kernel sets the number of the next connection aside before it sleeps, Sietch takes one when the connection is there",
        is: Some(|program, kernel, shim| {
            program.steps.iter().any(sleeps_in_accept)
                && without_descriptor(kernel) == without_descriptor(shim)
        }),
    },
    Difference {
        what: "a call that sleeps on a descriptor which another thread closes",
        reason: "if it has to sleep again, there is no descriptor to sleep on: EBADF, where the kernel's call would sleep on",
        is: Some(|_, kernel, shim| {
            shim.contains("-1 EBADF") && !kernel.contains("EBADF") && !kernel.starts_with(char::is_numeric)
        }),
    },
    Difference {
        what: "a buffer of data in memory that is not mapped",
        reason: "the library copies data itself: such a buffer raises SIGSEGV, as with any function of the C library, where the kernel says EFAULT",
        is: None,
    },
    Difference {
        what: "how much a connection takes before it is full, and the values of SO_SNDBUF, SO_RCVBUF, TCP_MAXSEG and TCP_WINDOW_CLAMP",
        reason: "the rings are Sietch's, not the kernel's buffers",
        is: None,
    },
    Difference {
        what: "connections beyond a listener's backlog",
        reason: "the kernel drops the SYN and the client tries again a second later; the service leaves such a client to the kernel",
        is: None,
    },
];

fn sleeps_in_accept(step: &Step) -> bool {
    matches!(
        step,
        Step::Call { start: true, operation: Operation::Accept { .. } | Operation::Accept4 { .. }, .. }
    )
}

fn without_descriptor(text: &str) -> String {
    text.split(' ').filter(|word| !word.starts_with("fd=")).collect::<Vec<_>>().join(" ")
}
