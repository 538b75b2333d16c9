//! What a change of a value needs to know beside the value.

use crate::data::index::Seed;
#[cfg(test)]
use crate::data::index::Seeds;
use crate::foundation::settings::EncodingLimits;

/// The thresholds of representations, and a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Where representations change.
    pub limits: EncodingLimits,
    /// Of the index that a small collection may become; see
    /// [`Index::new`](crate::data::index::Index::new).
    pub seed: Seed,
}

#[cfg(test)]
impl Rules {
    /// Redis' defaults.
    pub(crate) fn with_seed(seed: u64) -> Self {
        Self { limits: EncodingLimits::default(), seed: Seeds::new(seed).reserve() }
    }
}
