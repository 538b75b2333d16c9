//! Effects and how they are written to the log.
//!
//! 1. An effect is a command of one key (or FLUSHALL, FLUSHDB, SWAPDB) that changes the data set in
//!    the same way whenever it is replayed. It is encoded as: database, number of arguments, then
//!    length and bytes of each argument; all numbers are LEB128.
//! 2. [`Journal`] gathers effects. [`Journal::take`] returns one log record: [`EFFECTS`] and the
//!    effects since the last take. Commands are never split between records, so a record is atomic
//!    and so is each command and transaction in it.
//! 3. A snapshot record is [`SNAPSHOT`], the sequence of the log as of which its keys were dumped,
//!    and the effects that build them.
//! 4. [`Reader`] decodes either. Every length is checked against the bytes of the record.
//!
//! The format is described in `docs/spec/kv-journal.md`.

/// First byte of a record of effects.
pub const EFFECTS: u8 = 1;
/// First byte of a record of a snapshot.
pub const SNAPSHOT: u8 = 2;
/// First byte of a record of a snapshot that is a part of one that would be too large, and is
/// continued by the next.
pub const PART: u8 = 4;
/// First byte of the last part.
pub(crate) const LAST_PART: u8 = 5;

/// Most arguments that are written in one effect: a limit of older readers, and of the memory for
/// decoding one. It is even, so that pairs of arguments stay together. [`Reader`] accepts any
/// number.
pub(crate) const MOST_ARGUMENTS: usize = 1 << 20;
/// Arguments in front of the elements of an effect that is split: the command and its key.
const HEAD: usize = 2;
/// Commands that apply one element or pair after the other, so that several of them have the same
/// result as one. Other commands have options or fields that a split would separate.
const SPLIT: [&str; 11] =
    ["rpush", "lpush", "rpushx", "lpushx", "sadd", "srem", "hset", "hmset", "hdel", "zadd", "zrem"];

/// Effects that are to be logged.
#[derive(Debug, Default)]
pub struct Journal {
    bytes: Vec<u8>,
    enabled: bool,
}

impl Journal {
    /// Turns recording on or off. It is off at first, and stays off without a log (`--durability
    /// none`).
    pub(crate) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.bytes.clear();
    }

    /// Whether effects are recorded.
    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether nothing has been recorded since the last take.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One log record: the effects since the last take, if there are any.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        if self.bytes.is_empty() {
            return None;
        }
        let capacity = self.bytes.len().min(1 << 16);
        Some(std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity)))
    }

    /// The record without taking it; [`Journal::clear`] then takes it.
    pub(crate) fn record(&self) -> Option<&[u8]> {
        (!self.bytes.is_empty()).then_some(self.bytes.as_slice())
    }

    /// Drops the record, which has been copied. The buffer is reused, unless it has become large.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
    }

    /// Adds the effects of a record, which another journal has gathered.
    pub(crate) fn append_record(&mut self, record: &[u8]) {
        match record {
            [EFFECTS, effects @ ..] if !self.bytes.is_empty() => self.bytes.extend_from_slice(effects),
            _ => self.bytes.extend_from_slice(record),
        }
    }

    /// Adds an effect. One of [`SPLIT`] with more than [`MOST_ARGUMENTS`] becomes several. ZADD is
    /// recorded without options.
    pub(crate) fn append(&mut self, database: usize, arguments: &[&[u8]]) {
        if self.bytes.is_empty() {
            self.bytes.push(EFFECTS);
        }
        encode_bounded(&mut self.bytes, database, arguments);
    }
}

/// Appends one effect to `out`, as several if it has more than [`MOST_ARGUMENTS`] and is one of
/// [`SPLIT`].
pub(crate) fn encode_bounded(out: &mut Vec<u8>, database: usize, arguments: &[&[u8]]) {
    let splits = || SPLIT.iter().any(|name| arguments[0].eq_ignore_ascii_case(name.as_bytes()));
    if arguments.len() <= MOST_ARGUMENTS || !splits() {
        return encode(out, database, arguments);
    }
    let (head, elements) = arguments.split_at(HEAD);
    for part in elements.chunks(MOST_ARGUMENTS - HEAD) {
        encode(out, database, &[head, part].concat());
    }
}

/// Appends one effect to `out`.
pub fn encode(out: &mut Vec<u8>, database: usize, arguments: &[&[u8]]) {
    number(out, database as u64);
    number(out, arguments.len() as u64);
    for argument in arguments {
        number(out, argument.len() as u64);
        out.extend_from_slice(argument);
    }
}

/// Appends a number as LEB128.
pub(crate) fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A record cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The record ends within an effect.
    #[error(
        "log record {sequence}: an effect is cut off at byte {at}; it was written by another program or a newer Sietch"
    )]
    Truncated {
        /// Of the record.
        sequence: u64,
        /// Offset in the record.
        at: usize,
    },
    /// The first byte of the record is unknown.
    #[error(
        "log record {sequence}: unknown kind {kind}; it was written by another program or a newer Sietch"
    )]
    Kind {
        /// Of the record.
        sequence: u64,
        /// Its first byte.
        kind: u8,
    },
    /// An effect names a command that is unknown or does not change data.
    #[error("log record {sequence}: unknown effect '{name}'; it was written by a newer Sietch")]
    Command {
        /// Of the record.
        sequence: u64,
        /// Name of the command.
        name: String,
    },
    /// An effect cannot be applied, although the state that it met at first is there.
    #[error(
        "log record {sequence}: effect '{effect}' on key '{key}' cannot be repeated: {reason}; the record is damaged, or another program wrote it"
    )]
    Refused {
        /// Of the record.
        sequence: u64,
        /// Name of its command.
        effect: String,
        /// The beginning of the key.
        key: String,
        /// What the command says.
        reason: String,
    },
    /// An effect is in a database that does not exist.
    #[error(
        "log record {sequence}: database {database} does not exist; start with at least as many databases as before"
    )]
    Database {
        /// Of the record.
        sequence: u64,
        /// Number of the database.
        database: u64,
    },
    /// An effect of few bytes builds more than an area has room for.
    #[error(
        "log record {sequence}: the data would take more than {limit} bytes, which no store of this area has; if it had them before the area was shortened, make it as large again with `sietch vsa resize`; otherwise another program wrote the log"
    )]
    TooLarge {
        /// Of the record.
        sequence: u64,
        /// Bytes of data that were accepted.
        limit: u64,
    },
}

impl ReplayError {
    /// What is wrong, without the number of the record: those of a backup have none.
    pub(crate) fn reason(&self) -> String {
        let text = self.to_string();
        text.split_once(": ").map_or_else(|| text.clone(), |(_, reason)| reason.to_owned())
    }

    /// The record that cannot be replayed.
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Self::Truncated { sequence, .. }
            | Self::Kind { sequence, .. }
            | Self::Command { sequence, .. }
            | Self::Refused { sequence, .. }
            | Self::Database { sequence, .. }
            | Self::TooLarge { sequence, .. } => *sequence,
        }
    }
}

/// Decodes effects.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    sequence: u64,
}

impl<'a> Reader<'a> {
    /// Reads `record`, whose sequence number errors name.
    ///
    /// # Errors
    /// It is not of this kind.
    pub fn new(record: &'a [u8], kind: u8, sequence: u64) -> Result<Self, ReplayError> {
        match record.first() {
            Some(&first) if first == kind => Ok(Self { bytes: record, at: 1, sequence }),
            Some(&other) => Err(ReplayError::Kind { sequence, kind: other }),
            None => Err(ReplayError::Truncated { sequence, at: 0 }),
        }
    }

    /// Reads the effects behind the first `at` bytes of `bytes`, which are those of the record
    /// `sequence`.
    pub(crate) fn of_effects(bytes: &'a [u8], at: usize, sequence: u64) -> Self {
        Self { bytes, at, sequence }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Whether nothing follows.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn truncated(&self) -> ReplayError {
        ReplayError::Truncated { sequence: self.sequence, at: self.at }
    }

    /// The next number.
    ///
    /// # Errors
    /// The record ends within it, or it exceeds 64 bits.
    #[inline]
    pub fn number(&mut self) -> Result<u64, ReplayError> {
        // Nearly all are short.
        if let Some(&byte) = self.bytes.get(self.at)
            && byte < 0x80
        {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        self.long_number()
    }

    fn long_number(&mut self) -> Result<u64, ReplayError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let &byte = self.bytes.get(self.at).ok_or_else(|| self.truncated())?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.truncated())
    }

    /// The next effect: its database, and its arguments into `arguments`. `None` at the end.
    ///
    /// # Errors
    /// The record ends within the effect.
    pub fn effect(&mut self, arguments: &mut Vec<&'a [u8]>) -> Result<Option<u64>, ReplayError> {
        arguments.clear();
        self.effect_behind(arguments)
    }

    /// As [`Reader::effect`], with the arguments behind what `arguments` holds already.
    ///
    /// # Errors
    /// As [`Reader::effect`].
    pub(crate) fn effect_behind(
        &mut self,
        arguments: &mut Vec<&'a [u8]>,
    ) -> Result<Option<u64>, ReplayError> {
        if self.is_at_end() {
            return Ok(None);
        }
        let database = self.number()?;
        let count = self.number()?;
        // Each argument takes at least one byte, so a valid count cannot exceed the bytes left.
        if count == 0 || count > (self.bytes.len() - self.at) as u64 {
            return Err(self.truncated());
        }
        for _ in 0..count {
            let length = self.number()?;
            let rest = &self.bytes[self.at..];
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let argument = rest.get(..length).ok_or_else(|| self.truncated())?;
            arguments.push(argument);
            self.at += length;
        }
        Ok(Some(database))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn effects_read_back(effects in prop::collection::vec(
            (0usize..300, prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6)),
            1..20,
        )) {
            let mut journal = Journal::default();
            journal.enable(true);
            for (database, arguments) in &effects {
                let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                journal.append(*database, &arguments);
            }
            let record = journal.take().expect("effects were appended");
            prop_assert!(journal.take().is_none());
            let mut reader = Reader::new(&record, EFFECTS, 1).expect("a record of effects");
            let mut arguments = Vec::new();
            for (database, expected) in &effects {
                prop_assert_eq!(reader.effect(&mut arguments), Ok(Some(*database as u64)));
                prop_assert_eq!(&arguments, expected);
            }
            prop_assert_eq!(reader.effect(&mut arguments), Ok(None));
        }

        #[test]
        fn records_are_put_together(first in prop::collection::vec(any::<u8>(), 0..9), second in any::<u64>()) {
            let mut journals = [Journal::default(), Journal::default()];
            journals.iter_mut().for_each(|journal| journal.enable(true));
            let [all, other] = &mut journals;
            let numbers = [second.to_be_bytes(), second.to_le_bytes()];
            other.append(1, &[b"SET", &first]);
            all.append_record(&other.take().expect("an effect"));
            for number in &numbers {
                other.append(2, &[b"DEL", number]);
            }
            all.append_record(&other.take().expect("two effects"));
            let record = all.take().expect("three effects");
            let mut reader = Reader::new(&record, EFFECTS, 1).expect("a record of effects");
            let (mut arguments, mut read) = (Vec::new(), Vec::new());
            while let Some(database) = reader.effect(&mut arguments).expect("its own record") {
                read.push((database, arguments[1].to_vec()));
            }
            prop_assert_eq!(read, [(1, first), (2, numbers[0].to_vec()), (2, numbers[1].to_vec())]);
        }

        #[test]
        fn an_effect_with_many_arguments_is_several(pairs in MOST_ARGUMENTS / 2 - 3..MOST_ARGUMENTS / 2 + 3) {
            let numbers: Vec<[u8; 4]> = (0..2 * pairs as u32).map(u32::to_be_bytes).collect();
            let mut effect: Vec<&[u8]> = vec![b"HSET", b"key"];
            effect.extend(numbers.iter().map(<[u8; 4]>::as_slice));
            let mut journal = Journal::default();
            journal.enable(true);
            journal.append(3, &effect);
            let record = journal.take().expect("an effect was appended");
            let mut reader = Reader::new(&record, EFFECTS, 1).expect("a record of effects");
            let (mut arguments, mut read) = (Vec::new(), Vec::new());
            while let Some(database) = reader.effect(&mut arguments).expect("its own record") {
                prop_assert!(database == 3 && arguments.len() <= MOST_ARGUMENTS);
                prop_assert!(arguments.len().is_multiple_of(2), "a pair was torn");
                prop_assert_eq!(&arguments[..2], &effect[..2]);
                read.extend_from_slice(&arguments[2..]);
            }
            prop_assert!(read == effect[2..]);
        }

        #[test]
        fn grouped_arguments_stay_in_one_effect(count in MOST_ARGUMENTS..MOST_ARGUMENTS + 9) {
            let mut effect: Vec<&[u8]> = vec![b"BITFIELD", b"key"];
            effect.resize(count, b"GET");
            let mut journal = Journal::default();
            journal.enable(true);
            journal.append(3, &effect);
            let record = journal.take().expect("an effect was appended");
            let mut reader = Reader::new(&record, EFFECTS, 1).expect("a record of effects");
            let mut arguments = Vec::new();
            prop_assert_eq!(reader.effect(&mut arguments), Ok(Some(3)));
            prop_assert!(arguments == effect);
            prop_assert_eq!(reader.effect(&mut arguments), Ok(None));
        }

        #[test]
        fn foreign_bytes_are_errors_not_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut arguments = Vec::new();
            if let Ok(mut reader) = Reader::new(&bytes, EFFECTS, 7) {
                while let Ok(Some(_)) = reader.effect(&mut arguments) {}
            }
        }
    }
}
