//! Copies between a program's memory and a ring that end early.

use super::endpoint::Endpoint;
use crate::guarded::Fault;

/// Why a copy between a program's memory and a ring ended early. None of its bytes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The program's memory is not there.
    Buffer,
    /// A page of the common memory was refused ([`super::refused_pages`]): the connection is reset.
    RefusedPage,
}

impl CopyFault {
    /// Where the fault is, at an end that learns whether the fault was in its memory.
    #[cold]
    pub(super) fn at(fault: Fault, end: &Endpoint) -> Self {
        if !end.contains(fault.0.get()) {
            return Self::Buffer;
        }
        end.distrust();
        Self::RefusedPage
    }
}
