//! Areas as files for whoever wants to read them: `sietch mount`, `sietch vsa cat`.
//!
//! 1. Only its user and administrators may read an area. The kernel's word on the connection's uid
//!    decides.
//! 2. Where an area is a file of its own, the reader gets a descriptor of it that was opened
//!    read-only: the daemon is not on the way of a byte. It takes no lock, so nobody is kept from
//!    acquiring the area; mode and owner of the file keep the reader from opening it anew for
//!    writing.
//! 3. Where it is not, the daemon reads pieces of at most [`MAX_PIECE`] bytes on a blocking thread
//!    and passes them as sealed memory. One request of a connection is handled at a time, so that
//!    costs a bounded amount of memory.

use std::sync::Arc;

use sietch_protocol::message::MAX_PIECE;
use sietch_protocol::{ErrorKind, ErrorReply, Reply, sealed};
use tokio::sync::oneshot;

use super::storage::unknown;
use super::{Answer, Control, refuse};
use crate::device::VnicDevices;
use crate::volume::{Found, Place, Volume};

impl<D: VnicDevices> Control<D> {
    /// An area that is there and that this client may read.
    pub(super) fn readable(
        &self,
        connection: u64,
        name: &str,
    ) -> Result<(Place, Arc<Volume>, Found), ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let place = self.place(name)?;
        let volume = Arc::clone(self.volumes.of(&place)?);
        let found = volume.find(&place.name).ok_or_else(|| unknown(&place))?;
        if found.uid != Some(uid) && self.check_administrator(connection).is_err() {
            let what = format!("VSA {}", place.path());
            let cause = format!("it is not for uid {uid}");
            return Err(refuse(ErrorKind::Denied, what, cause, "run as its user, or as an administrator"));
        }
        Ok((place, volume, found))
    }

    /// What an area is, with a descriptor that reads it, if there can be one.
    pub(super) fn open_for_reading(&self, connection: u64, name: &str) -> Result<Answer, ErrorReply> {
        let (place, volume, found) = self.readable(connection, name)?;
        let file = volume.reader(&place.name)?;
        let area = self.area_status(&volume, &place, &found);
        Ok(Answer { body: Reply::Reading(Box::new(area)), descriptors: file.into_iter().collect() })
    }

    /// A piece of an area that cannot be opened.
    pub(super) fn read_piece(
        &mut self,
        connection: u64,
        name: &str,
        offset: u64,
        length: u32,
        answer: oneshot::Sender<Answer>,
    ) {
        let (place, volume) = match self.readable(connection, name) {
            Ok((place, volume, _)) if length <= MAX_PIECE => (place, volume),
            Ok((place, ..)) => {
                let cause = format!("{length} bytes at once are over the limit of {MAX_PIECE}");
                let what = format!("VSA {}", place.path());
                self.respond(answer, Err(refuse(ErrorKind::Limit, what, cause, "read it in pieces")));
                return;
            }
            Err(error) => {
                self.respond(answer, Err(error));
                return;
            }
        };
        tokio::task::spawn_local(async move {
            let name = place.name.clone();
            let work = move || -> Result<Answer, ErrorReply> {
                let bytes = volume.read(&name, offset, length)?;
                let file = sealed::make("sietch-piece", &bytes).map_err(|error| {
                    let fix = "see whether memory or descriptors are short";
                    refuse(ErrorKind::Failed, format!("VSA {name}"), error.to_string(), fix)
                })?;
                Ok(Answer { body: Reply::Piece, descriptors: vec![file] })
            };
            let done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
                let what = format!("VSA {}", place.path());
                Err(refuse(ErrorKind::Failed, what, "the work was interrupted", "try again"))
            });
            // Whoever has gone takes no answer.
            let _ = answer.send(done.unwrap_or_else(|error| Reply::Error(error).into()));
        });
    }
}
