//! `sietch fs`: file systems of [`sietch_service::fs`].
//!
//! 1. `create` makes the files, and says which medium promises what.
//! 2. `mount` opens the file system in this process and shows it through FUSE. An interrupt
//!    unmounts it, digests what is left of the log, and ends. After SIGKILL, the next mount
//!    recovers it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sietch_fuse::{Mount, Options};
use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::{self, ClassName, CreateOptions, Durability, StoreError};

use crate::arguments::fs::{FsCommand, FsCreateArguments, FsMountArguments, MediumArgument};
use crate::error::Error;
use crate::output;
use crate::privilege;
use crate::signals;

/// How long the kernel keeps names and attributes. The media are locked for this process, and the
/// mount is its only client: nothing changes beside the kernel.
const KEEP: Duration = Duration::from_secs(60);

/// Runs a command.
///
/// # Errors
/// [`Error::FileSystem`], [`Error::FuseMount`], [`Error::Start`].
pub(crate) fn run(command: &FsCommand) -> Result<(), Error> {
    match command {
        FsCommand::Create(arguments) => create(arguments),
        FsCommand::Mount(arguments) => mount(arguments),
        // It has an exit status of its own: see `main`.
        FsCommand::Check(_) => Ok(()),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::file(path, "name a file by its path"))
}

fn media(class: ClassName, given: &[MediumArgument]) -> Result<Vec<MediumDescription>, Error> {
    let medium = |medium: &MediumArgument| {
        Ok(MediumDescription { class, path: absolute(&medium.path)?, bytes: medium.bytes.0 })
    };
    given.iter().map(medium).collect()
}

fn create(arguments: &FsCreateArguments) -> Result<(), Error> {
    let media = [
        media(ClassName::Nvm, &arguments.nvm)?,
        media(ClassName::Ssd, &arguments.ssd)?,
        media(ClassName::Hdd, &arguments.hdd)?,
    ];
    let options = CreateOptions {
        media: media.concat(),
        log_memory: arguments.log_memory.as_deref().map(absolute).transpose()?,
        log_bytes: arguments.log.0,
    };
    let description = fs::create(&arguments.folder, &options, &mut |_| {}).map_err(failed)?;
    let mut text = format!("{} has a file system now:\n", arguments.folder.display());
    for medium in &description.media {
        text += &format!("  {}  {} bytes  {}\n", medium.class, medium.bytes, medium.path.display());
    }
    text += &match description.durability() {
        Durability::Operation => {
            format!(
                "an operation is durable when it returns, as far as {} is\n",
                description.log.memory.display()
            )
        }
        Durability::Fsync => {
            "what an operation did survives the process when it returns, and a loss of power \
                              after fsync\n"
                .to_owned()
        }
    };
    text += &format!("show it: sietch fs mount {} DIR\n", arguments.folder.display());
    output::print(&text)
}

fn mount(arguments: &FsMountArguments) -> Result<(), Error> {
    let failed_start = |source| Error::Start { what: "the mount", source };
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    // Before there is something that a signal would leave behind.
    let (woken, waker) = signals::stream().map_err(failed_start)?;
    let running = fs::open(&arguments.folder).map_err(failed)?;
    let options = Options {
        allow_other: arguments.allow_other,
        trusted: arguments.trusted,
        keep: KEEP,
        ..Options::default()
    };
    let mount = Mount::new(running.client, &arguments.directory, &options).map_err(Error::FuseMount)?;
    let unmounter = mount.unmounter();
    let serving = std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || {
            let ended = mount.run();
            drop(std::io::Write::write(&mut &waker, b"e"));
            ended
        })
        .map_err(failed_start)?;
    let recovered = match running.recovered {
        0 => String::new(),
        records => format!("; {records} records of its log were recovered"),
    };
    let said = output::print(&format!(
        "{} shows {}; Ctrl-C unmounts it{recovered}\n",
        arguments.directory.display(),
        arguments.folder.display()
    ));
    if said.is_ok() {
        signals::wait(woken);
    }
    if !serving.is_finished() {
        unmounter.unmount().or_else(|_| unmounter.detach()).map_err(Error::FuseMount)?;
    }
    let ended = serving.join().map_err(|_| failed_start(std::io::Error::other("its thread panicked")))?;
    drop(ended.map_err(Error::FuseMount)?);
    running.digester.end().map_err(|cause| {
        failed_start(std::io::Error::other(format!("the log could not be digested: {cause}")))
    })?;
    said
}

fn failed(error: StoreError) -> Error {
    Error::FileSystem(Box::new(error))
}
