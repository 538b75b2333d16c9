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
        /// What happened.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// The kernel refused something.
    #[error("{action}: {cause}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// The plot could not be drawn.
    #[error("drawing the plot: {0}")]
    Plot(String),
}

impl Error {
    /// What happened, without what to do: for a line of a report that says so once.
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
