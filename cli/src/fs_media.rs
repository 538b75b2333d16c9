//! `sietch fs grow`, `add` and `drain`: other media for a file system that is not open.
//!
//! A command that was cut short has left a file system that opens; run again, it finishes.

use std::path::{Path, PathBuf};

use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::{self, ClassName, Description, StoreError};

use crate::arguments::fs::{FsAddArguments, FsDrainArguments, FsGrowArguments};
use crate::error::Error;
use crate::output;
use crate::style;

/// Makes a medium larger.
///
/// # Errors
/// [`Error::FileSystem`].
pub(crate) fn grow(arguments: &FsGrowArguments) -> Result<(), Error> {
    let (folder, path) = (&arguments.folder, absolute(&arguments.medium)?);
    fs::grow(folder, &path, arguments.size.0).map_err(failed)?;
    print(folder)
}

/// Adds a medium.
///
/// # Errors
/// [`Error::FileSystem`].
pub(crate) fn add(arguments: &FsAddArguments) -> Result<(), Error> {
    let given = [
        (ClassName::Nvm, &arguments.nvm),
        (ClassName::Ssd, &arguments.ssd),
        (ClassName::Hdd, &arguments.hdd),
    ];
    // The arguments require one.
    for (class, medium) in given.into_iter().filter_map(|(class, medium)| Some((class, medium.as_ref()?))) {
        let medium =
            MediumDescription { class, path: absolute(&medium.path)?, bytes: medium.bytes.0, model: None };
        fs::add(&arguments.folder, &medium, &mut |_| {}).map_err(failed)?;
    }
    print(&arguments.folder)
}

/// Takes a medium out.
///
/// # Errors
/// [`Error::FileSystem`].
pub(crate) fn drain(arguments: &FsDrainArguments) -> Result<(), Error> {
    let (folder, path) = (&arguments.folder, absolute(&arguments.medium)?);
    let moved = fs::drain(folder, &path, &mut |_| {}).map_err(failed)?;
    let moved = style::bytes(moved);
    output::print(&format!(
        "{moved} were moved; {} is not used any more, and may be removed\n",
        path.display()
    ))?;
    print(folder)
}

/// Says what the media are now.
fn print(folder: &Path) -> Result<(), Error> {
    let description = Description::read(folder).map_err(failed)?;
    output::print(&format!("{} has these media now:\n{}", folder.display(), lines(&description.media)))
}

/// A line for each medium.
pub(crate) fn lines(media: &[MediumDescription]) -> String {
    let line = |medium: &MediumDescription| {
        format!("  {}  {} bytes  {}\n", medium.class, medium.bytes, medium.path.display())
    };
    media.iter().map(line).collect::<String>() + &models(media)
}

/// A line for each medium that is made slower than it is: what is measured says so.
pub(crate) fn models(media: &[MediumDescription]) -> String {
    let line = |medium: &MediumDescription| {
        medium.model.map(|model| format!("  {} is memory, slowed down ({model})\n", medium.path.display()))
    };
    media.iter().filter_map(line).collect()
}

/// The path of a file from the root, as the description has it.
///
/// # Errors
/// [`Error::file`].
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::file(path, "name a file by its path"))
}

/// The error of a file system as one of the command.
pub(crate) fn failed(error: StoreError) -> Error {
    Error::FileSystem(Box::new(error))
}
