//! A VNIC of shared memory ends with the peer at its other end: another application, or the switch. The store asks for it again, so that
//! the next peer finds somebody there.
//!
//! 1. A thread of its own asks, so that no request waits for the control plane: at once, then after pauses from [`FIRST_PAUSE`] to
//!    [`LONGEST_PAUSE`], for the daemon may not know yet that the former link is over, or may be away itself.
//! 2. What it was given it leaves for the loop, and rings.
//! 3. A refusal that asking again does not change (the name was revoked, or is gone from `sietch.toml`) ends it. That there is no switch
//!    now is none: a service core may come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use sietch::protocol::{CallError, ErrorKind};
use sietch::{Client, Error, Lease, Vnic};

/// The first pause: a daemon notices within milliseconds that a process has ended.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause. An attempt costs about 50 microseconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A link that is being asked for.
#[derive(Debug)]
pub(super) struct Reopening {
    given: Receiver<(Vnic, Lease)>,
    bell: UnixStream,
}

impl Reopening {
    /// Asks the daemon at `path` for the VNIC `name` until it has it.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn start(path: PathBuf, name: String) -> io::Result<Self> {
        let (bell, ringer) = UnixStream::pair()?;
        let (give, given) = sync_channel(1);
        std::thread::Builder::new().name("sietch-reopen".to_owned()).spawn(move || {
            if let Some(link) = ask(&path, &name) {
                // Without a store nobody wants it, and it goes back.
                let _ = give.send(link);
            }
            // The bell rings by being closed.
            drop(ringer);
        })?;
        Ok(Self { given, bell })
    }

    /// Becomes readable when there is something to take, or will never be.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The link, and what holds it.
    pub fn take(self) -> Option<(Vnic, Lease)> {
        self.given.try_recv().ok()
    }
}

fn ask(path: &Path, name: &str) -> Option<(Vnic, Lease)> {
    let mut pause = FIRST_PAUSE;
    loop {
        match acquire(path, name) {
            Ok(link) => return Some(link),
            Err(cause) if is_final(&cause) => {
                tracing::warn!("{cause}; the store goes on without it");
                return None;
            }
            Err(cause) => tracing::debug!("asking for VNIC {name} again: {cause}"),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn acquire(path: &Path, name: &str) -> Result<(Vnic, Lease), Error> {
    let mut client = Client::connect(path, "kv")?;
    let vnic = client.acquire_vnic(name)?;
    Ok((vnic, client.hold()?))
}

fn is_final(cause: &Error) -> bool {
    let Error::Control(CallError::Refused(refusal)) = cause else { return false };
    matches!(
        refusal.kind,
        ErrorKind::Version | ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unknown | ErrorKind::Revoked
    )
}
