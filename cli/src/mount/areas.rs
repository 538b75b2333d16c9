//! A short-lived cache of the daemon's listing of volumes and areas.
//!
//! The kernel looks up every component of every path. The daemon is queried at most once in
//! [`FRESH`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sietch_protocol::AreaStatus;

use super::error::RequestError;
use super::workers::ReconnectingClient;

/// How long an answer of the daemon counts: what is made or deleted is seen after so long.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// Volumes and areas at one moment.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Names of volumes, in order.
    pub volumes: Vec<String>,
    /// In the order of their paths.
    pub areas: Vec<AreaStatus>,
}

impl Listing {
    /// The area at `path`.
    pub(super) fn area(&self, path: &str) -> Option<&AreaStatus> {
        self.areas.binary_search_by(|area| area.path.as_str().cmp(path)).ok().map(|at| &self.areas[at])
    }

    /// The areas of a volume.
    pub(super) fn of(&self, volume: &str) -> impl Iterator<Item = (&str, &AreaStatus)> {
        self.areas.iter().filter_map(move |area| {
            let (of, name) = area.path.strip_prefix('/')?.split_once('/')?;
            (of == volume).then_some((name, area))
        })
    }
}

/// The newest listing.
#[derive(Default)]
pub(super) struct Areas {
    kept: Mutex<Option<(Instant, Arc<Listing>)>>,
}

impl Areas {
    fn kept(&self) -> MutexGuard<'_, Option<(Instant, Arc<Listing>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The listing, if it was fetched recently.
    pub(super) fn fresh(&self) -> Option<Arc<Listing>> {
        self.kept().as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, listing)| Arc::clone(listing))
    }

    /// The listing.
    ///
    /// # Errors
    /// The daemon has ended.
    pub(super) fn get(&self, client: &mut ReconnectingClient) -> Result<Arc<Listing>, RequestError> {
        if let Some(listing) = self.fresh() {
            return Ok(listing);
        }
        let (volumes, mut areas) =
            client.request(|connection| Ok((connection.volumes()?, connection.vsas()?)))?;
        let mut volumes: Vec<String> = volumes.into_iter().map(|volume| volume.name).collect();
        volumes.sort();
        areas.sort_by(|a, b| a.path.cmp(&b.path));
        let listing = Arc::new(Listing { volumes, areas });
        *self.kept() = Some((Instant::now(), Arc::clone(&listing)));
        Ok(listing)
    }
}
