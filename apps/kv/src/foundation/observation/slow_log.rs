//! The slow log: the last commands that took long.
//!
//! An entry is bounded as in Redis: at most 32 arguments of at most 128 bytes each, with a note of
//! what is missing. The client's name is shortened like an argument; Redis copies it whole. The
//! number of entries is `slowlog-max-len`; a lower limit takes effect with the next entry.

use std::collections::VecDeque;

use crate::foundation::totals::Numbers;

/// Most arguments of an entry; the last one says how many are missing.
const MOST_ARGUMENTS: usize = 32;

/// Most bytes of an argument.
const LONGEST_ARGUMENT: usize = 128;

/// A command that took long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlowCommand {
    /// Its number, which is never used again.
    pub id: u64,
    /// Unix seconds of its execution.
    pub unix_seconds: u64,
    /// How long it took.
    pub microseconds: u64,
    /// The command, shortened.
    pub arguments: Vec<Vec<u8>>,
    /// The address of its client.
    pub address: String,
    /// The name that its client has set, shortened.
    pub name: Vec<u8>,
}

/// The last slow commands, newest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    entries: VecDeque<SlowCommand>,
    /// Those of all shards: a larger one is of a later command.
    pub(crate) numbers: Numbers,
}

impl SlowLog {
    /// Adds an entry, and removes the oldest ones beyond `limit`. Its number is set here.
    pub(crate) fn push(&mut self, mut entry: SlowCommand, limit: usize) {
        entry.id = self.numbers.next();
        self.entries.push_front(entry);
        self.entries.truncate(limit);
    }

    /// The entries, newest first.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &SlowCommand> {
        self.entries.iter()
    }

    /// Removes all entries. Numbers continue.
    pub(crate) fn reset(&mut self) {
        self.entries.clear();
    }
}

/// The arguments of an entry, shortened as Redis does.
pub(crate) fn shorten(arguments: &[&[u8]]) -> Vec<Vec<u8>> {
    let shown = if arguments.len() > MOST_ARGUMENTS { MOST_ARGUMENTS - 1 } else { arguments.len() };
    let mut short: Vec<Vec<u8>> = arguments[..shown].iter().map(|argument| shorten_one(argument)).collect();
    if shown < arguments.len() {
        short.push(format!("... ({} more arguments)", arguments.len() - shown).into_bytes());
    }
    short
}

/// An argument, or a name, of an entry.
pub(crate) fn shorten_one(argument: &[u8]) -> Vec<u8> {
    if argument.len() <= LONGEST_ARGUMENT {
        return argument.to_vec();
    }
    let mut short = argument[..LONGEST_ARGUMENT].to_vec();
    short.extend_from_slice(format!("... ({} more bytes)", argument.len() - LONGEST_ARGUMENT).as_bytes());
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> SlowCommand {
        SlowCommand {
            id: 0,
            unix_seconds: 1,
            microseconds: 2,
            arguments: Vec::new(),
            address: String::new(),
            name: Vec::new(),
        }
    }

    #[test]
    fn the_newest_entries_stay_and_numbers_continue() {
        let mut log = SlowLog::default();
        (0..5).for_each(|_| log.push(entry(), 3));
        assert_eq!(log.entries().map(|entry| entry.id).collect::<Vec<_>>(), [4, 3, 2]);
        log.reset();
        log.push(entry(), 3);
        assert_eq!(log.entries().map(|entry| entry.id).collect::<Vec<_>>(), [5]);
        log.push(entry(), 0);
        assert_eq!(log.entries().len(), 0);
    }

    #[test]
    fn long_arguments_and_many_of_them_are_shortened() {
        let long = [b'x'; 130];
        assert_eq!(shorten(&[&long[..128], &long])[0], long[..128]);
        assert!(shorten(&[&long])[0].ends_with(b"x... (2 more bytes)"));
        let many = [&b"a"[..]; 33];
        assert_eq!(shorten(&many[..32]).len(), 32);
        let short = shorten(&many);
        assert_eq!((short.len(), short[31].as_slice()), (32, &b"... (2 more arguments)"[..]));
    }
}
