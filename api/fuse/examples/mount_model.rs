//! Mounts the oracle's file system, which is in memory, until it is unmounted or interrupted:
//! `mount_model DIRECTORY [keep-milliseconds]`.
//!
//! For programs that test file systems, such as pjdfstest and fsx.

use std::path::Path;
use std::time::Duration;

use sietch_fs_oracle::Model;
use sietch_fuse::{Mount, Options};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: mount_model DIRECTORY [keep-milliseconds]")?;
    let keep = Duration::from_millis(arguments.next().map_or(Ok(0), |text| text.parse())?);
    let options = Options { allow_other: true, trusted: true, keep, ..Options::default() };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let mount = Mount::new(Model::new(), Path::new(&directory), &options)?;
    let unmounter = mount.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = unmounter.unmount().or_else(|_| unmounter.detach()) {
                eprintln!("{error}");
            }
        }
    });
    mount.run()?;
    Ok(())
}
