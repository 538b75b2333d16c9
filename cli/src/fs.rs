//! `sietch fs`: file systems of [`sietch_service::fs`].
//!
//! 1. `create` makes the files, and says which medium promises what. An interrupt removes them.
//! 2. `mount` opens the file system in this process and shows it through FUSE. An interrupt
//!    unmounts it, digests what is left of the log, and ends. After SIGKILL, the next mount
//!    recovers it.
//! 3. `serve` opens it for several processes. A `mount` of what is served is a client of that, and
//!    ends with it.
//! 4. `grow`, `add` and `drain` change the media of one that is not open: see [`fs_media`].
//! 5. `pin` sets an attribute of a file in a mount ([`fs_pin`]), which the mover of that mount
//!    follows.
//! 6. A mount that is in use is detached at its end, and says by whom ([`fs_holders`]). One that
//!    ends by a failure stays, as after SIGKILL.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sietch_fs::FileSystem;
use sietch_fs::file_system::Leased;
use sietch_fuse::{Inner, Mount, Options, Unmounter};
use sietch_service::fs::description::{MediumDescription, ModelName};
use sietch_service::fs::{
    self, ClassName, CreateOptions, Description, Durability, Interrupt, MediumUse, Moves, Totals, shared,
};

use crate::arguments::fs::{
    FsCommand, FsCreateArguments, FsMountArguments, FsServeArguments, MediumArgument,
};
use crate::error::Error;
use crate::fs_media::{self, absolute, failed};
use crate::output;
use crate::privilege;
use crate::signals;
use crate::style;
use crate::{fs_holders, fs_pin, fs_quota};

/// How long the kernel keeps names and attributes. The media are locked for this process, and the
/// mount is its only client: nothing changes beside the kernel.
const KEEP: Duration = Duration::from_secs(60);

/// How often a mount makes durable what was done: a loss of power takes two seconds, whatever
/// `sync(2)` has returned.
const FLUSH: Duration = Duration::from_secs(1);

/// The exit status of a creation that a signal has interrupted, as a shell has it for Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Bytes of a block.
const BLOCK: u64 = fs::BLOCK as u64;

/// Runs a command.
///
/// # Errors
/// [`Error::FileSystem`], [`Error::FuseMount`], [`Error::Start`].
pub(crate) fn run(command: &FsCommand) -> Result<(), Error> {
    match command {
        FsCommand::Create(arguments) => create(arguments),
        FsCommand::Mount(arguments) => mount(arguments),
        FsCommand::Serve(arguments) => serve(arguments),
        FsCommand::Grow(arguments) => fs_media::grow(arguments),
        FsCommand::Add(arguments) => fs_media::add(arguments),
        FsCommand::Drain(arguments) => fs_media::drain(arguments),
        FsCommand::Pin(arguments) => fs_pin::pin(arguments),
        FsCommand::Quota(arguments) => fs_quota::run(arguments),
        // It has an exit status of its own: see `main`.
        FsCommand::Check(_) => Ok(()),
    }
}

fn media(
    class: ClassName,
    model: Option<ModelName>,
    given: &[MediumArgument],
) -> Result<Vec<MediumDescription>, Error> {
    let medium = |medium: &MediumArgument| {
        Ok(MediumDescription { class, path: absolute(&medium.path)?, bytes: medium.bytes.0, model })
    };
    given.iter().map(medium).collect()
}

fn create(arguments: &FsCreateArguments) -> Result<(), Error> {
    let media = [
        media(ClassName::Nvm, None, &arguments.nvm)?,
        media(ClassName::Ssd, None, &arguments.ssd)?,
        media(ClassName::Hdd, arguments.hdd_model.map(ModelName::from), &arguments.hdd)?,
    ];
    let options = CreateOptions {
        media: media.concat(),
        log_memory: arguments.log_memory.as_deref().map(absolute).transpose()?,
        log_bytes: arguments.log.map(|log| log.0),
        durability: arguments.durability.map(Durability::from),
    };
    let interrupt = Interrupt::default();
    let _waker = end_at_signals(&arguments.folder, interrupt.clone())?;
    let description = fs::create_interruptibly(&arguments.folder, &options, &interrupt, &mut |_| {});
    let description = description.map_err(failed)?;
    let mut text = format!("{} has a file system now:\n", arguments.folder.display());
    text += &fs_media::lines(&description.media);
    let log = &description.log;
    text += &format!("  log  {} bytes of memory  {}\n", log.bytes, log.memory.display());
    text += &match description.durability() {
        Durability::Operation if description.syncs_each() => {
            "an operation is durable when it returns: it waits for the copy of the log on disk\n".to_owned()
        }
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

/// Has a signal remove what was made, and end the process. The result is to be kept until then.
fn end_at_signals(folder: &Path, interrupt: Interrupt) -> Result<UnixStream, Error> {
    let failed_start = |source| Error::Start { what: "the creation of a file system", source };
    let (woken, waker) = signals::stream().map_err(failed_start)?;
    let said = format!("sietch: interrupted: no file system was made in {}\n", folder.display());
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals::wait(woken);
        if interrupt.interrupt() {
            // If nothing reads it, the process ends all the same.
            drop(std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()));
            std::process::exit(INTERRUPTED);
        }
    });
    drop(waiting.map_err(failed_start)?);
    Ok(waker)
}

fn mount(arguments: &FsMountArguments) -> Result<(), Error> {
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    // Before there is something that a signal would leave behind.
    let signals = signals::stream().map_err(failed_start)?;
    if shared::is_served(&arguments.folder) {
        return mount_served(arguments, signals);
    }
    let running = fs::open(&arguments.folder).map_err(failed)?;
    let sync = running.description.syncs_each();
    let options = Options { sync, ..options(arguments, KEEP) };
    let mount = Mount::new(running.client, &arguments.directory, &options).map_err(Error::FuseMount)?;
    let (inner, mut publications) = (mount.inner(), running.digester.publications());
    let looking = std::thread::Builder::new()
        .name("publications".to_owned())
        .spawn(move || while publications.wait() && advance(&inner) {});
    drop(looking.map_err(failed_start)?);
    let recovered = match running.recovered {
        0 => String::new(),
        records => format!("; {records} records of its log were recovered"),
    };
    let line = format!(
        "{} shows {}; Ctrl-C unmounts it{recovered}\n{}",
        arguments.directory.display(),
        arguments.folder.display(),
        fs_media::models(&running.description.media)
    );
    let shown = show(mount, (&arguments.directory, &line), signals, &|| None)?;
    let totals = moved(&running.digester.totals(), &running.description);
    let folder = arguments.folder.clone();
    running.digester.end().map_err(|cause| Error::Undigested { folder, cause })?;
    if shown.is_ok() && !totals.is_empty() {
        return output::print(&totals);
    }
    shown
}

/// Lets a client take notice of its service, in steps between which operations run; whether its
/// mount is still there.
fn advance<F: Leased>(inner: &Inner<F>) -> bool {
    let mut has_more = true;
    while has_more {
        let is_there = inner.with(|client| has_more = client.take_notice());
        if !is_there {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Mounts what another process serves.
fn mount_served(arguments: &FsMountArguments, signals: Signals) -> Result<(), Error> {
    let attached = shared::attach(&arguments.folder).map_err(failed)?;
    // Other clients change the file system beside the kernel.
    let service = Some(absolute(&arguments.folder)?);
    let sync = attached.syncs_each;
    let options = Options { service, sync, ..options(arguments, Duration::ZERO) };
    let mount = Mount::new(attached.client, &arguments.directory, &options).map_err(Error::FuseMount)?;
    let (inner, waker) = (mount.inner(), signals.1.try_clone().map_err(failed_start)?);
    let mut attention = attached.attention;
    let why = Arc::new(OnceLock::new());
    let ended = Arc::clone(&why);
    let looking = std::thread::Builder::new().name("attention".to_owned()).spawn(move || {
        while attention.wait() {
            advance(&inner);
        }
        drop(ended.set(attention.cause().unwrap_or_default()));
        drop(std::io::Write::write(&mut &waker, b"e"));
    });
    drop(looking.map_err(failed_start)?);
    let line = format!(
        "{} shows {}, which process {} serves; Ctrl-C unmounts it\n{}",
        arguments.directory.display(),
        arguments.folder.display(),
        attached.service,
        fs_media::models(&Description::read(&arguments.folder).map_err(failed)?.media)
    );
    let folder = &arguments.folder;
    let ended = |cause: &String| unserved(folder, cause.clone());
    show(mount, (&arguments.directory, &line), signals, &|| why.get().map(ended))?
}

/// Why a mount of what is served has ended: alone, or with the service.
fn unserved(folder: &Path, cause: String) -> Error {
    let folder = folder.to_owned();
    if shared::is_served(&folder) {
        return Error::EndedMount { folder, cause };
    }
    Error::Unserved { folder, cause }
}

fn options(arguments: &FsMountArguments, keep: Duration) -> Options {
    let (allow_other, trusted) = (arguments.allow_other, arguments.trusted);
    Options { allow_other, trusted, keep, flush: Some(FLUSH), ..Options::default() }
}

/// Two ends: what wakes, and what is woken by it and by signals.
type Signals = (UnixStream, UnixStream);

/// Serves the kernel until a signal, or until the mount or its service has ended. `ended` says why
/// the service has. The inner result is that of the output.
fn show<F: FileSystem + Send + 'static>(
    mount: Mount<F>,
    (directory, line): (&Path, &str),
    (woken, waker): Signals,
    ended: &dyn Fn() -> Option<Error>,
) -> Result<Result<(), Error>, Error> {
    let unmounter = mount.unmounter();
    let serving = std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || {
            let ended = mount.run();
            drop(std::io::Write::write(&mut &waker, b"e"));
            ended
        })
        .map_err(failed_start)?;
    let said = output::print(line);
    if said.is_ok() {
        signals::wait(woken);
    }
    if !serving.is_finished()
        && let Some(cause) = ended()
    {
        // The directory stays mounted, and answers ENOTCONN once this process is gone: what
        // programs write there must not go to the directory below.
        return Err(cause);
    }
    if !serving.is_finished() {
        end_mount(&unmounter, directory)?;
    }
    let ended = serving.join().map_err(|_| failed_start(std::io::Error::other("its thread panicked")))?;
    drop(ended.map_err(Error::FuseMount)?);
    Ok(said)
}

/// Unmounts. What is in use is detached, and the user reads by whom: the process runs until they
/// have left.
fn end_mount(unmounter: &Unmounter, directory: &Path) -> Result<(), Error> {
    if unmounter.unmount().is_ok() {
        return Ok(());
    }
    let holders = fs_holders::of(directory);
    unmounter.detach().map_err(Error::FuseMount)?;
    // If the output is closed, the mount ends all the same.
    drop(output::print(&fs_holders::said(directory, &holders)));
    Ok(())
}

fn serve(arguments: &FsServeArguments) -> Result<(), Error> {
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    let (woken, waker) = signals::stream().map_err(failed_serving)?;
    let ended = move || drop(std::io::Write::write(&mut &waker, b"e"));
    let server = shared::serve(&arguments.folder, ended).map_err(failed)?;
    let recovered = match server.recovered {
        0 => String::new(),
        records => format!("; {records} records of logs were recovered"),
    };
    let folder = arguments.folder.display();
    let said = output::print(&format!(
        "{folder} is served; show it: sietch fs mount {folder} DIR; Ctrl-C ends it{recovered}\n"
    ));
    if said.is_ok() {
        signals::wait(woken);
    }
    let folder = arguments.folder.clone();
    server.end().map_err(|cause| Error::Undigested { folder, cause })?;
    said
}

fn failed_start(source: std::io::Error) -> Error {
    Error::Start { what: "the mount", source }
}

fn failed_serving(source: std::io::Error) -> Error {
    Error::Start { what: "the service of the file system", source }
}

/// How full the media are, and what was moved between them.
pub(crate) fn usage_lines(media: &[(String, MediumUse)]) -> String {
    let line = |(name, medium): &(String, MediumUse)| {
        let class = format!("{:?}", medium.class).to_lowercase();
        let (used, all) = (medium.used() * BLOCK, medium.blocks * BLOCK);
        format!("  {class}  {} of {} in use  {name}\n", style::bytes(used), style::bytes(all))
    };
    media.iter().map(line).collect()
}

/// What the end of a mount says of the media.
fn moved(totals: &Totals, description: &Description) -> String {
    let names = description.media.iter().map(|medium| medium.path.display().to_string());
    let media: Vec<_> = names.zip(totals.media.iter().copied()).collect();
    let Moves { demoted, promoted, runs, .. } = totals.moves;
    if media.len() < 2 {
        return String::new();
    }
    let (demoted, promoted) = (style::bytes(demoted * BLOCK), style::bytes(promoted * BLOCK));
    let lines = usage_lines(&media);
    format!("{lines}  moved to slower media: {demoted}; back to faster ones: {promoted}; in {runs} runs\n")
}
