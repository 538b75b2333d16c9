//! `sietch mount`: the namespace of storage areas as a file system (`docs/spec/namespace.md`).
//!
//! 1. `DIR/VOLUME/NAME` is a file with the bytes of an area ([`filesystem`]). The kernel's FUSE
//!    sends requests to this program, which forwards them to the daemon as the user who mounted:
//!    the mount shows what that user may read. `DIR/VOLUME/NAME.view/` is the view that the area's
//!    holder shows of it ([`views`]).
//! 2. The mount stays until this program is interrupted or `DIR` is unmounted. It survives a
//!    restart of the daemon.
//! 3. An interrupt detaches the mount: open files become unreadable, and no process is kept
//!    waiting.
//! 4. After SIGKILL the mount stays and returns ENOTCONN for everything. The next `sietch mount` of
//!    that directory removes it, if it was Sietch's.

mod areas;
mod error;
mod filesystem;
mod nodes;
mod views;
mod workers;

use std::io;
use std::path::Path;

use sietch_fuse::{Options, Session};

use crate::administration;
use crate::arguments::mount::MountArguments;
use crate::error::Error;
use crate::output;
use crate::signals;
use filesystem::Names;

/// The source in the mount table.
const SOURCE: &str = "sietch";
/// Threads that read the kernel's requests: others answer them ([`workers`]).
const THREADS: usize = 1;

/// Serves the mount until a signal or an unmount ends it.
///
/// # Errors
/// [`Error::Control`]: no daemon; [`Error::Mount`]: it cannot be mounted here.
pub(crate) fn run(socket: &Path, arguments: &MountArguments) -> Result<(), Error> {
    // Without a daemon the mount would be empty, so this fails at once.
    drop(administration::connect(socket)?);
    let failed = |source| Error::Start { what: "a thread of the mount", source };
    let names = Names::new(socket, arguments.allow_other).map_err(failed)?;
    let options = Options {
        source: SOURCE.to_owned(),
        allow_other: arguments.allow_other,
        read_only: true,
        executable: false,
        threads: THREADS,
        ..Options::default()
    };
    // Before there is something that a signal would leave behind.
    let (woken, waker) = signals::stream().map_err(failed)?;
    let session = Session::new(names, &arguments.directory, &options).map_err(Error::Mount)?;
    let (unmounter, directory) = (session.unmounter(), session.directory().to_owned());
    // The end of the session closes its end, which wakes as a signal does.
    let serving = std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || {
            let ended = session.run();
            drop(io::Write::write(&mut &waker, b"e"));
            ended
        })
        .map_err(failed)?;
    let said =
        output::print(&format!("{} shows the storage areas; Ctrl-C unmounts it\n", directory.display()));
    if said.is_ok() {
        signals::wait(woken);
    }
    if !serving.is_finished() {
        unmounter.detach().map_err(Error::Mount)?;
        // While a process has a file open, the kernel keeps the session: it ends with this process.
        return said;
    }
    match serving.join() {
        Ok(ended) => ended.map_err(Error::Mount).and(said),
        Err(_) => Err(failed(io::Error::other("it panicked"))),
    }
}
