//! Why a measurement could not be made.

use std::io;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A program is missing or failed.
    #[error("{program}: {what}; {fix}")]
    Program {
        /// Its name.
        program: String,
        /// The failure.
        what: String,
        /// The fix.
        fix: &'static str,
    },
    /// The kernel refused something.
    #[error("{action}: {cause}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// The plot could not be drawn.
    #[error("drawing the plot: {0}")]
    Plot(String),
}

impl Error {
    /// The failure without its fix, for a line of a report.
    pub(crate) fn cause(&self) -> String {
        match self {
            Error::Program { program, what, .. } => format!("{program}: {what}"),
            other => other.to_string(),
        }
    }
}

/// Names the action that failed.
pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |cause| Error::System { action, cause: cause.into() }
}
