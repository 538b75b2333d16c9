//! Completions and man pages, generated from the definition of the command line.

use clap::CommandFactory as _;

use crate::arguments::{Arguments, CompletionsArguments, ManArguments};
use crate::error::Error;
use crate::output;

/// Prints the completions of a shell.
///
/// # Errors
/// See [`output::print`].
pub(crate) fn completions(arguments: CompletionsArguments) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "sietch", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Writes one man page a command into a folder, which is made if need be.
///
/// # Errors
/// [`Error::File`]: the folder cannot be written.
pub(crate) fn man(arguments: &ManArguments) -> Result<(), Error> {
    let folder = &arguments.directory;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), folder))
        .map_err(Error::file(folder, "name a folder that you may write to"))
}
