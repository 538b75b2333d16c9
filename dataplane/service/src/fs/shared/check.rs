//! Checks a file system while a process serves it.
//!
//! 1. The check joins as a client that changes nothing. The service keeps the blocks of what was
//!    committed then, as it does for each client.
//! 2. A thread verifies that state ([`sietch_fs::check::check_at`]), with descriptors of its own.
//!    Meanwhile the service digests, and clients go on.
//! 3. When the service needs the blocks, the check leaves, and says so: others wait for it no
//!    longer than [`LOOK`].
//!
//! Logs are not looked at: what is in them is the next state.
//!
//! What it must never do: call something damaged that was only used again; make a client wait for
//! the whole check.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use sietch_fs::check::{Options, check_at};

use super::SOCKET;
use super::remote::attach_reader;
use crate::fs::check::Checked;
use crate::fs::description::Description;
use crate::fs::error::StoreError;
use crate::fs::media::Medium;

/// How often the check looks whether it must leave.
const LOOK: Duration = Duration::from_millis(20);

/// Checks what the process that serves the file system in `folder` has committed; with `data`, all
/// data are read.
///
/// # Errors
/// See [`StoreError`]. [`StoreError::Service`]: no process serves it, or it needs the blocks that
/// the check reads.
pub fn check(folder: &Path, data: bool) -> Result<Checked, StoreError> {
    let (mut remote, root) = attach_reader(folder)?;
    let media = Description::read(folder)?.media;
    let names: Vec<_> = media.iter().map(|medium| medium.path.display().to_string()).collect();
    let media = media.into_iter().map(Medium::open_to_read).collect::<Result<Vec<_>, _>>()?;
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let (sender, checked) = mpsc::channel();
    // If the check leaves, the thread goes on in vain until the process ends. It only reads.
    let thread = std::thread::Builder::new().name("sietch-fs-check".to_owned());
    let spawned = thread.spawn(move || drop(sender.send(check_at(members, root, Options { data }))));
    spawned.map_err(failed_thread(folder))?;
    loop {
        let result = checked.recv_timeout(LOOK);
        // Also after the last read.
        if let Some(cause) = remote.must_leave() {
            return Err(StoreError::Service { path: folder.join(SOCKET), cause });
        }
        match result {
            Ok(result) => {
                let (pool, usage) = result?;
                return Ok(Checked { pool, media: names.into_iter().zip(usage).collect(), log: None });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed_thread(folder)(std::io::Error::other("it panicked")));
            }
        }
    }
}

fn failed_thread(folder: &Path) -> impl Fn(std::io::Error) -> StoreError {
    let path = folder.to_owned();
    move |source| StoreError::Io { path: path.clone(), action: "check it in a thread", source }
}

#[cfg(test)]
mod tests;
