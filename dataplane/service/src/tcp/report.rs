//! What the threads of a pool and their VNICs do, as other threads see it.

use std::collections::BTreeMap;

use super::host::ApplicationUsage;
use super::metrics::Counters;

/// A thread, as other threads see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// The share of the time in which it had something to do, in thousandths.
    pub busy: u32,
    /// Its VNICs.
    pub vnics: Vec<VnicReport>,
}

/// A VNIC, as other threads see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicReport {
    /// Its name.
    pub name: String,
    /// The share of a core that it took, in thousandths.
    pub busy: u32,
    /// Nanoseconds of iterations that had something to do, in all.
    pub worked: u64,
    /// Its counters.
    pub counters: Counters,
    /// The usage of each application.
    pub usages: Vec<ApplicationUsage>,
}

/// The threads of a pool by number, as other threads see them.
pub type PoolReport = BTreeMap<usize, ThreadReport>;
