//! Acquires devices again that ended with the process at their other end: a shared-memory VNIC (of
//! another application, or of the software switch), and an area behind a service core. The next
//! peer of a VNIC then finds the store again. An area that is available again is left to the
//! store's next start, because only a recovery shows which of the last writes have landed.
//!
//! 1. A separate thread sends the requests, so that no client waits for the control plane: at once,
//!    then after pauses from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`]. The daemon may not know yet that
//!    the former link has ended, or may be restarting itself.
//! 2. The thread leaves the acquired device for the event loop, and notifies its doorbell.
//! 3. A permanent refusal (the name was revoked, or is no longer in `sietch.toml`) ends the thread.
//!    A missing switch is not permanent: a service core may start later.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
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

/// A device that is being acquired again.
#[derive(Debug)]
pub(super) struct Reacquisition<T> {
    granted: Receiver<T>,
    reader: UnixStream,
}

impl Reacquisition<(Vnic, Lease)> {
    /// Requests the VNIC `name` from the daemon at `path` until it is granted.
    ///
    /// # Errors
    /// No thread can be started, or no descriptor is left.
    pub(super) fn vnic(path: PathBuf, name: String) -> io::Result<Self> {
        let device = format!("VNIC {name}");
        Self::start(device, move || {
            let mut client = Client::connect(&path, "kv")?;
            let vnic = client.acquire_vnic(&name)?;
            Ok((vnic, client.hold()?))
        })
    }
}

impl Reacquisition<()> {
    /// Requests the area `name` from the daemon at `path` until it is granted, and releases it at
    /// once.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub(super) fn area(path: PathBuf, name: String) -> io::Result<Self> {
        let device = format!("storage area {name}");
        Self::start(device, move || Client::connect(&path, "kv")?.acquire_vsa_descriptors(&name).map(drop))
    }
}

impl<T: Send + 'static> Reacquisition<T> {
    fn start(device: String, acquire: impl FnMut() -> Result<T, Error> + Send + 'static) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        let (sender, granted) = sync_channel(1);
        std::thread::Builder::new().name("sietch-reacquire".to_owned()).spawn(move || {
            if let Some(found) = acquire_until_final(&device, acquire) {
                // If the store has ended, the device is dropped, which releases it.
                let _ = sender.send(found);
            }
            // Closing the writer makes the doorbell readable.
            drop(writer);
        })?;
        Ok(Self { granted, reader })
    }

    /// Becomes readable when the device was granted, or refused for good.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Whether the device was granted; drops it.
    pub(super) fn is_granted(&mut self) -> bool {
        self.granted.try_recv().is_ok()
    }

    /// The granted device; `None` if it was refused for good.
    pub(super) fn take(self) -> Option<T> {
        self.granted.try_recv().ok()
    }
}

fn acquire_until_final<T>(device: &str, mut acquire: impl FnMut() -> Result<T, Error>) -> Option<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match acquire() {
            Ok(found) => return Some(found),
            Err(cause) if is_final(&cause) => {
                tracing::warn!("{cause}; the store continues without it");
                return None;
            }
            Err(cause) => tracing::debug!("requesting {device} again: {cause}"),
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
