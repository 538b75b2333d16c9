//! Where the shim may differ from the kernel, each with its reason. The same list is in `docs/posix.md`.

use crate::operation::Operation;
use crate::program::Step;

/// A difference that is no mistake.
pub struct Difference {
    /// What differs, in a few words.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Whether it is this one: the step, the kernel's answer, the shim's answer.
    pub is: fn(&Step, &str, &str) -> bool,
}

/// Every difference that is allowed.
pub const ALLOWED: &[Difference] = &[Difference {
    what: "the order in which descriptors are given to threads that run at the same time",
    reason: "the call of a thread that wakes and the next call of another take numbers as they come; the kernel promises no order",
    is: |step, kernel, shim| {
        matches!(step, Step::Join(_)) && without_descriptor(kernel) == without_descriptor(shim)
    },
}];

/// The call of a step.
pub fn call(step: &Step) -> Option<&Operation> {
    match step {
        Step::Call { operation, .. } => Some(operation),
        _ => None,
    }
}

fn without_descriptor(text: &str) -> String {
    text.split(' ').filter(|word| !word.starts_with("fd=")).collect::<Vec<_>>().join(" ")
}
