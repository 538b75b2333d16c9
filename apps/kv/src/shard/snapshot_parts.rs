//! Snapshot records that were too large for the log, and are stored in parts.

use std::borrow::Cow;

use crate::data::journal::{LAST_PART, PART, ReplayError};

/// Puts the records of a snapshot together, which arrive in order.
#[derive(Debug, Default)]
pub(super) struct SnapshotParts(Vec<u8>);

impl SnapshotParts {
    /// Takes a record as it is stored. Returns the record that it completes; none while parts
    /// follow.
    ///
    /// # Errors
    /// A record that is no part follows one whose last part is missing.
    pub(super) fn take<'a>(&mut self, record: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, ReplayError> {
        match record {
            [PART, part @ ..] => {
                self.0.extend_from_slice(part);
                Ok(None)
            }
            [LAST_PART, part @ ..] => {
                let mut whole = std::mem::take(&mut self.0);
                whole.extend_from_slice(part);
                Ok(Some(whole.into()))
            }
            _ => self.end().map(|()| Some(record.into())),
        }
    }

    /// Checks that nothing is missing.
    ///
    /// # Errors
    /// The last part of a record is missing.
    pub(super) fn end(&self) -> Result<(), ReplayError> {
        if self.0.is_empty() { Ok(()) } else { Err(ReplayError::Truncated { sequence: 0, at: self.0.len() }) }
    }
}
