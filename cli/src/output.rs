//! Printing, where a reader that goes away is no failure.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::Error;

/// Writes `text` to standard output.
///
/// # Errors
/// [`Error::OutputClosed`] if the reader has closed the pipe, else [`Error::Output`].
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failed)
}

/// The error of a failed write to standard output.
pub(crate) fn failed(cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::Output(cause),
    }
}

/// `value` as indented JSON with a line end.
///
/// # Errors
/// [`Error::Output`]: the value has no JSON form, which would be a defect of this program.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    let mut text = serde_json::to_string_pretty(value).map_err(|cause| Error::Output(cause.into()))?;
    text.push('\n');
    Ok(text)
}
