//! Areas as readable files: `sietch mount`, `sietch vsa cat`.
//!
//! 1. Only its user and administrators may read an area. The uid that the kernel reports for the
//!    connection decides.
//! 2. Where an area is a file of its own, the reader gets a descriptor that was opened read-only.
//!    So the daemon copies no bytes. The descriptor has no lock, so it does not prevent acquiring
//!    the area. Mode and owner of the file prevent the reader from opening it again for writing.
//! 3. Elsewhere the daemon reads pieces of at most [`MAX_PIECE`] bytes on a blocking thread, and
//!    passes them as sealed memory. A connection has one request in flight at a time, so this costs
//!    a bounded amount of memory.

use std::sync::Arc;

use sietch_protocol::message::MAX_PIECE;
use sietch_protocol::{ErrorKind, ErrorReply, Reply, sealed};
use tokio::sync::oneshot;

use super::unknown;
use crate::control::controller::{Control, refuse};
use crate::control::event::Answer;
use crate::volume::{AreaInfo, AreaPath, Volume};

impl Control {
    /// An area that is there and that this client may read.
    pub(in crate::control) fn readable(
        &self,
        connection: u64,
        name: &str,
    ) -> Result<(AreaPath, Arc<Volume>, AreaInfo), ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let path = self.resolve(name)?;
        let volume = Arc::clone(self.volumes.of(&path)?);
        let found = volume.find(&path.name).ok_or_else(|| unknown(&path))?;
        if found.uid != Some(uid) && self.check_administrator(connection).is_err() {
            let what = format!("VSA {}", path.full());
            let cause = format!("it is not for uid {uid}");
            return Err(refuse(ErrorKind::Denied, what, cause, "run as its user, or as an administrator"));
        }
        Ok((path, volume, found))
    }

    /// What an area is, with a descriptor that reads it, if there can be one.
    pub(in crate::control) fn open_for_reading(
        &self,
        connection: u64,
        name: &str,
    ) -> Result<Answer, ErrorReply> {
        let (path, volume, found) = self.readable(connection, name)?;
        let file = volume.reader(&path.name)?;
        let area = self.area_status(&volume, &path, &found);
        Ok(Answer {
            body: Reply::Reading(Box::new(area)),
            descriptors: file.into_iter().map(Into::into).collect(),
        })
    }

    /// A piece of an area that cannot be opened.
    pub(in crate::control) fn read_piece(
        &mut self,
        connection: u64,
        name: &str,
        offset: u64,
        length: u32,
        answer: oneshot::Sender<Answer>,
    ) {
        let (path, volume) = match self.readable(connection, name) {
            Ok((path, volume, _)) if length <= MAX_PIECE => (path, volume),
            Ok((path, ..)) => {
                let cause = format!("{length} bytes at once are over the limit of {MAX_PIECE}");
                let what = format!("VSA {}", path.full());
                self.respond(answer, Err(refuse(ErrorKind::Limit, what, cause, "read it in pieces")));
                return;
            }
            Err(error) => {
                self.respond(answer, Err(error));
                return;
            }
        };
        tokio::task::spawn_local(async move {
            let name = path.name.clone();
            let work = move || -> Result<Answer, ErrorReply> {
                let bytes = volume.read(&name, offset, length)?;
                let file = sealed::make("sietch-piece", &bytes).map_err(|error| {
                    let fix = "see whether memory or descriptors are short";
                    refuse(ErrorKind::Failed, format!("VSA {name}"), error.to_string(), fix)
                })?;
                Ok(Answer { body: Reply::Piece, descriptors: vec![file.into()] })
            };
            let done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
                let what = format!("VSA {}", path.full());
                Err(refuse(ErrorKind::Failed, what, "the work was interrupted", "try again"))
            });
            // The send fails only when the client has disconnected.
            let _ = answer.send(done.unwrap_or_else(|error| Reply::Error(error).into()));
        });
    }
}
