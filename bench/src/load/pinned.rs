//! Pins the load generator to its core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, system};

/// Keeps this thread on one core until it is dropped.
pub(super) struct Pinned(CpuSet);

impl Pinned {
    pub(super) fn to(core: usize) -> Result<Self, Error> {
        let before = sched_getaffinity(None).map_err(system("reading the CPU affinity"))?;
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).map_err(system("setting the CPU affinity"))?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The former set was allowed before.
        let _ = sched_setaffinity(None, &self.0);
    }
}
