//! Why `sietch.toml` cannot be used.

use std::path::PathBuf;

/// Why `sietch.toml` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It cannot be read or written.
    #[error("{}: cannot {action}: {source}; see who owns it, or name another with `--config`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// It is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{}: {source}correct that line; docs/spec/sietch-toml.md explains every key", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Line, column and cause.
        source: Box<toml::de::Error>,
    },
    /// A value breaks a rule.
    #[error("{}:{line}: {what}: {cause}; {fix}", path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As in `VNIC kv`.
        what: String,
        /// What is wrong.
        cause: String,
        /// What to write.
        fix: String,
    },
    /// The store of `[kv]` could not start with it.
    #[error("{}: {what}: {cause}; {fix}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// As in `VSA kv`.
        what: String,
        /// What is wrong.
        cause: String,
        /// What to write.
        fix: String,
    },
}
