//! Arguments that many commands read: words, integers, timeouts.

use crate::foundation::protocol::Fault;
use crate::foundation::text::number;

/// Whether two words are the same but for the case of their letters.
pub(crate) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// An integer argument.
///
/// # Errors
/// [`Fault::NOT_INTEGER`].
pub(crate) fn integer(argument: &[u8]) -> Result<i64, Fault> {
    number::parse_integer(argument).ok_or(Fault::NOT_INTEGER)
}

/// The timeout argument of a blocking command (seconds, may have a fraction) in milliseconds.
///
/// # Errors
/// [`Fault::TIMEOUT_NOT_FLOAT`] and [`Fault::TIMEOUT_NEGATIVE`].
pub(crate) fn timeout_milliseconds(argument: &[u8]) -> Result<u64, Fault> {
    let seconds = number::Extended::parse(argument).ok_or(Fault::TIMEOUT_NOT_FLOAT)?;
    let milliseconds = seconds.to_f64() * 1000.0;
    // Redis converts to 64 bits, and what does not fit becomes negative.
    if milliseconds < 0.0 || milliseconds > i64::MAX as f64 {
        return Err(Fault::TIMEOUT_NEGATIVE);
    }
    Ok(milliseconds.ceil() as u64)
}
