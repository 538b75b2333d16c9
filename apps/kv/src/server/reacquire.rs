//! What ends with the process at its other end: a VNIC of shared memory (another application, or
//! the switch), and an area behind a service core. The store asks for it again. The next peer of a
//! VNIC finds somebody there. An area that can be had again is left to the store's next start: what
//! of its last writes has landed only a recovery tells.
//!
//! 1. A thread of its own asks, so that no request waits for the control plane: at once, then after
//!    pauses from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`], for the daemon may not know yet that the
//!    former link is over, or may be away itself.
//! 2. What it was given it leaves for the loop, and rings.
//! 3. A refusal that asking again does not change (the name was revoked, or is gone from
//!    `sietch.toml`) ends it. That there is no switch now is none: a service core may come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use sietch::protocol::{CallError, ErrorKind};
use sietch::{Client, Error, Lease, Vnic};

/// The first pause: a daemon notices within milliseconds that a process has ended.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause. An attempt costs about 50 microseconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Something that is being asked for.
#[derive(Debug)]
pub(super) struct Reacquisition<T> {
    given: Receiver<T>,
    bell: UnixStream,
}

impl Reacquisition<(Vnic, Lease)> {
    /// Asks the daemon at `path` for the VNIC `name` until it has it.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn vnic(path: PathBuf, name: String) -> io::Result<Self> {
        let what = format!("VNIC {name}");
        Self::start(what, move || {
            let mut client = Client::connect(&path, "kv")?;
            let vnic = client.acquire_vnic(&name)?;
            Ok((vnic, client.hold()?))
        })
    }
}

impl Reacquisition<()> {
    /// Asks the daemon at `path` for the area `name` until it could have it, and gives it back at
    /// once.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn area(path: PathBuf, name: String) -> io::Result<Self> {
        let what = format!("storage area {name}");
        Self::start(what, move || Client::connect(&path, "kv")?.acquire_vsa_descriptors(&name).map(drop))
    }
}

impl<T: Send + 'static> Reacquisition<T> {
    fn start(what: String, acquire: impl FnMut() -> Result<T, Error> + Send + 'static) -> io::Result<Self> {
        let (bell, ringer) = UnixStream::pair()?;
        let (give, given) = sync_channel(1);
        std::thread::Builder::new().name("sietch-reacquire".to_owned()).spawn(move || {
            if let Some(found) = ask(&what, acquire) {
                // Without a store nobody wants it, and it goes back.
                let _ = give.send(found);
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

    /// Whether something was given. It is let go of.
    pub fn is_given(&mut self) -> bool {
        self.given.try_recv().is_ok()
    }

    /// What was given; `None`: it was refused for good.
    pub fn take(self) -> Option<T> {
        self.given.try_recv().ok()
    }
}

fn ask<T>(what: &str, mut acquire: impl FnMut() -> Result<T, Error>) -> Option<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match acquire() {
            Ok(found) => return Some(found),
            Err(cause) if is_final(&cause) => {
                tracing::warn!("{cause}; the store goes on without it");
                return None;
            }
            Err(cause) => tracing::debug!("asking for {what} again: {cause}"),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_final(cause: &Error) -> bool {
    let Error::Control(CallError::Refused(refusal)) = cause else { return false };
    matches!(
        refusal.kind,
        ErrorKind::Version | ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unknown | ErrorKind::Revoked
    )
}
