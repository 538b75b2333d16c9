//! SCAN, and the options that HSCAN, SSCAN and ZSCAN share with it.

use super::context::{Command, Context, Outcome};
use crate::data::index::Keyed as _;
use crate::foundation::command::{Keys, flag, integer, is};
use crate::foundation::protocol::Fault;
use crate::foundation::text::glob;

/// The commands of this family.
pub(super) const COMMANDS: &[Command] =
    &[Command::new("scan", -2, flag::READONLY, Keys::None, "generic", scan)];

/// Elements visited by one call unless COUNT says otherwise.
const DEFAULT_COUNT: usize = 10;
/// Most elements that one call visits: a bound on its delay, whatever COUNT says.
const MOST_COUNT: usize = 1 << 20;

/// Options of the SCAN family.
#[derive(Debug)]
pub(super) struct Options<'a> {
    /// MATCH.
    pub pattern: Option<&'a [u8]>,
    /// COUNT.
    pub count: usize,
    /// TYPE, of SCAN alone.
    pub kind: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    /// Reads the options after the cursor. `keys` allows TYPE.
    ///
    /// # Errors
    /// Unknown options, a COUNT below 1.
    pub(super) fn parse(arguments: &[&'a [u8]], keys: bool) -> Result<Self, Fault> {
        let mut options = Self { pattern: None, count: DEFAULT_COUNT, kind: None };
        let mut rest = arguments;
        while let [name, value, tail @ ..] = rest {
            if is(name, "count") {
                let count = integer(value)?;
                if count < 1 {
                    return Err(Fault::SYNTAX);
                }
                options.count = usize::try_from(count).unwrap_or(MOST_COUNT).min(MOST_COUNT);
            } else if is(name, "match") {
                options.pattern = Some(value).copied();
            } else if keys && is(name, "type") {
                options.kind = Some(value).copied();
            } else {
                return Err(Fault::SYNTAX);
            }
            rest = tail;
        }
        if rest.is_empty() { Ok(options) } else { Err(Fault::SYNTAX) }
    }

    /// Whether MATCH accepts this text.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        // A lone star is no pattern: it accepts an empty text, too.
        self.pattern.is_none_or(|pattern| pattern == b"*" || glob::matches(pattern, text))
    }
}

/// The cursor argument of the SCAN family.
///
/// # Errors
/// [`Fault::BAD_CURSOR`].
pub(super) fn cursor(argument: &[u8]) -> Result<u64, Fault> {
    std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok()).ok_or(Fault::BAD_CURSOR)
}

fn scan(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let from = cursor(arguments[1])?;
    let options = Options::parse(&arguments[2..], true)?;
    let mut keys: Vec<Box<[u8]>> = Vec::new();
    let next = context.data.scan(from, options.count, &mut |entry| {
        let right_kind = options.kind.is_none_or(|kind| is(kind, entry.value().type_name()));
        if right_kind && options.matches(entry.key()) {
            keys.push(entry.key().into());
        }
    });
    context.reply.array(2);
    context.reply.bulk(next.to_string().as_bytes());
    context.reply.array(keys.len());
    keys.iter().for_each(|key| context.reply.bulk(key));
    Ok(())
}
