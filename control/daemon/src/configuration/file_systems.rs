//! `[[fs]]`: a file system that `sietch up` shows in a directory.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::error::ConfigurationError;
use super::rules::Rules;

/// A file system, and where programs find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name in messages and logs.
    pub name: String,
    /// The folder with its description.
    pub folder: PathBuf,
    /// The directory that shows it.
    pub directory: PathBuf,
    /// Users other than the one that mounts may use it.
    pub allow_other: bool,
    /// Set-user-ID bits, file capabilities and device files take effect.
    pub trusted: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSystemText {
    name: Spanned<String>,
    folder: Spanned<PathBuf>,
    directory: Spanned<PathBuf>,
    #[serde(default)]
    allow_other: bool,
    #[serde(default)]
    trusted: bool,
}

impl Rules<'_> {
    /// Checks one file system. `others` are those so far.
    pub(super) fn file_system(
        &self,
        text: FileSystemText,
        others: &[FileSystem],
    ) -> Result<FileSystem, ConfigurationError> {
        let is_taken = others.iter().any(|other| other.name == *text.name.get_ref());
        let name = self.name("file system", &text.name, is_taken)?;
        let absolute = |key: &str, path: &Spanned<PathBuf>| {
            let cause = format!("{key} is no absolute path");
            match path.get_ref().is_absolute() {
                true => Ok(path.get_ref().clone()),
                false => Err(self.refuse(
                    path.span().start,
                    format!("file system {name}"),
                    cause,
                    "write it from `/` on",
                )),
            }
        };
        let folder = absolute("folder", &text.folder)?;
        let directory = absolute("directory", &text.directory)?;
        let refuse = |at: &Spanned<PathBuf>, cause: &str, fix: &str| {
            Err(self.refuse(at.span().start, format!("file system {name}"), cause, fix))
        };
        if others.iter().any(|other| other.folder == folder) {
            return refuse(&text.folder, "its folder is there twice", "show a file system in one directory");
        }
        if others.iter().any(|other| other.directory == directory) {
            return refuse(&text.directory, "its directory is there twice", "name another directory");
        }
        Ok(FileSystem { name, folder, directory, allow_other: text.allow_other, trusted: text.trusted })
    }
}
