//! Reading requests, incrementally and without copying.
//!
//! 1. [`Parser::next`] gets the client's input from the start of a command on and remembers how far
//!    it has read, so bytes that arrive one by one are read once. It remembers positions relative
//!    to that start; the bytes themselves are not copied.
//! 2. A multibulk command becomes ranges in the input. An inline command is unquoted into a scratch
//!    buffer, and the ranges are in that.
//! 3. Limits are Redis': length of an inline command and of a header line, number and length of
//!    arguments. A header that announces much allocates nothing: ranges grow with the bytes that
//!    arrive.
//! 4. A pipeline is read many commands at a time ([`PipelineBatch`]), as far as they are whole and
//!    ordinary: few arguments of less than a thousand bytes, encoded as all clients do. Other
//!    commands are left to the parser.
//! 5. After a [`ProtocolError`] the client must be closed; its parser cannot continue.

use std::ops::Range;

use arrayvec::ArrayVec;

/// Longest inline command or header line, in bytes: Redis' `PROTO_INLINE_MAX_SIZE`.
const LINE_LIMIT: usize = 64 << 10;
/// Most arguments of a command, as in Redis. What bounds them is the limit of a client's input.
const ARGUMENT_LIMIT: i64 = i32::MAX as i64;
/// Commands that are read ahead: the depth of an ordinary pipeline.
const BATCH_COMMANDS: usize = 16;
/// Arguments of all of them together: three each.
const BATCH_ARGUMENTS: usize = 48;
/// Ranges kept allocated between commands.
const KEPT_RANGES: usize = 1024;

/// Limits that can be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest argument, in bytes.
    pub bulk: u64,
    /// The client is authenticated, or no password is required.
    pub authenticated: bool,
}

/// Most arguments, and most bytes of one, of a client that is not authenticated: enough for HELLO
/// and AUTH. Redis' limits.
const UNAUTHENTICATED_ARGUMENTS: i64 = 10;
const UNAUTHENTICATED_BULK: u64 = 16 << 10;

/// The client's input is not valid RESP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub String);

impl ProtocolError {
    fn new(text: &str) -> Self {
        Self(format!("ERR Protocol error: {text}"))
    }
}

/// What [`Parser::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The command is not complete.
    More,
    /// A command of so many bytes; its arguments are in [`Parser::arguments`].
    Command(usize),
    /// So many bytes that are no command (an empty line or array).
    Nothing(usize),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    /// So many arguments are missing; a header comes next.
    Header(usize),
    /// So many arguments are missing; the next has this length.
    Bulk(usize, usize),
}

/// Reads one command after the other.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    state: State,
    /// Position where parsing continues.
    at: usize,
    /// Position up to which no line end was found.
    searched: usize,
    ranges: Vec<Range<usize>>,
    /// An unquoted inline command.
    scratch: Vec<u8>,
    inline: bool,
}

/// Whole commands at the beginning of some input.
#[derive(Debug)]
pub(crate) struct PipelineBatch<'a> {
    arguments: ArrayVec<&'a [u8], BATCH_ARGUMENTS>,
    /// Of each command: where its arguments end, and where its bytes do.
    ends: ArrayVec<(usize, usize), BATCH_COMMANDS>,
}

impl<'a> PipelineBatch<'a> {
    /// No commands yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { arguments: ArrayVec::new(), ends: ArrayVec::new() }
    }

    /// Reads as many as are whole and ordinary. `input` begins with a command. The batch is filled
    /// in place, because to return one copies a kilobyte.
    #[inline]
    pub(crate) fn read(&mut self, input: &'a [u8]) {
        let mut used = 0;
        while !self.ends.is_full()
            && let Some(length) = ordinary(&input[used..], &mut self.arguments)
        {
            used += length;
            self.ends.push((self.arguments.len(), used));
        }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The arguments of each, at least one, and the position where its bytes end.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&[&'a [u8]], usize)> {
        let mut from = 0;
        self.ends.iter().map(move |&(to, end)| {
            let arguments = &self.arguments[from..to];
            from = to;
            (arguments, end)
        })
    }
}

/// Appends the arguments of the command at the beginning of `input` if it is whole, has one digit
/// of arguments and each three digits of bytes at most (which every limit allows), and returns how
/// many bytes it takes. Of another command `into` may get some arguments.
#[inline]
fn ordinary<'a>(input: &'a [u8], into: &mut ArrayVec<&'a [u8], BATCH_ARGUMENTS>) -> Option<usize> {
    let digit = |byte: u8| usize::from(byte - b'0');
    let [b'*', count @ b'1'..=b'9', b'\r', b'\n', rest @ ..] = input else { return None };
    let mut rest = rest;
    for _ in 0..digit(*count) {
        let (length, body) = match rest {
            [b'$', ones @ b'0'..=b'9', b'\r', b'\n', body @ ..] => (digit(*ones), body),
            [b'$', tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', body @ ..] => {
                (digit(*tens) * 10 + digit(*ones), body)
            }
            [
                b'$',
                hundreds @ b'1'..=b'9',
                tens @ b'0'..=b'9',
                ones @ b'0'..=b'9',
                b'\r',
                b'\n',
                body @ ..,
            ] => (digit(*hundreds) * 100 + digit(*tens) * 10 + digit(*ones), body),
            _ => return None,
        };
        // The two bytes after an argument are skipped unchecked.
        if body.len() < length + 2 {
            return None;
        }
        into.try_push(&body[..length]).ok()?;
        rest = &body[length + 2..];
    }
    Some(input.len() - rest.len())
}

/// The arguments of the command that was read last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// One after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.ranges.iter().map(move |range| &bytes[range.clone()])
    }
}

impl Parser {
    /// The arguments of the command that [`Parser::next`] found at the start of `input`.
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.inline { &self.scratch } else { input };
        Arguments { bytes, ranges: &self.ranges }
    }

    /// Whether no part of a command has been read.
    #[inline]
    pub(crate) fn is_between_commands(&self) -> bool {
        self.state == State::Start && self.searched == 0
    }

    /// Bytes that the argument which is arriving still lacks: how much input it is worth to make
    /// room for.
    pub(crate) fn missing(&self, available: usize) -> usize {
        match self.state {
            State::Bulk(_, length) => (self.at + length + 2).saturating_sub(available),
            _ => 0,
        }
    }

    /// Bytes the parser itself has allocated.
    pub(crate) fn memory(&self) -> usize {
        self.ranges.capacity() * size_of::<Range<usize>>() + self.scratch.capacity()
    }

    fn restart(&mut self) {
        self.state = State::Start;
        self.at = 0;
        self.searched = 0;
    }

    /// Reads on. `input` starts with the command that is being read and has at least the bytes it
    /// had before.
    ///
    /// # Errors
    /// The input is not valid RESP, or exceeds a limit.
    pub(crate) fn next(&mut self, input: &[u8], limits: Limits) -> Result<Progress, ProtocolError> {
        if self.state == State::Start {
            match input.first() {
                None => return Ok(Progress::More),
                Some(b'*') => {}
                Some(_) => return self.inline(input),
            }
            let Some(line) = self.line(input, "too big mbulk count string")? else {
                return Ok(Progress::More);
            };
            let count = line_integer(&line[1..])
                .filter(|&count| count <= ARGUMENT_LIMIT)
                .ok_or_else(|| ProtocolError::new("invalid multibulk length"))?;
            if count > UNAUTHENTICATED_ARGUMENTS && !limits.authenticated {
                return Err(ProtocolError::new("unauthenticated multibulk length"));
            }
            if count <= 0 {
                let consumed = self.at;
                self.restart();
                return Ok(Progress::Nothing(consumed));
            }
            self.inline = false;
            self.ranges.clear();
            self.ranges.shrink_to(KEPT_RANGES);
            self.state = State::Header(count as usize);
        }
        self.bulks(input, limits)
    }

    fn bulks(&mut self, input: &[u8], limits: Limits) -> Result<Progress, ProtocolError> {
        loop {
            let (missing, length) = match self.state {
                State::Bulk(missing, length) => (missing, length),
                State::Header(missing) => {
                    match input.get(self.at) {
                        None => return Ok(Progress::More),
                        Some(b'$') => {}
                        Some(&other) => {
                            let shown = char::from(other);
                            return Err(ProtocolError::new(&format!("expected '$', got '{shown}'")));
                        }
                    }
                    let Some(line) = self.line(input, "too big bulk count string")? else {
                        return Ok(Progress::More);
                    };
                    let length = line_integer(&line[1..])
                        .and_then(|length| u64::try_from(length).ok())
                        .filter(|&length| length <= limits.bulk)
                        .ok_or_else(|| ProtocolError::new("invalid bulk length"))?;
                    if length > UNAUTHENTICATED_BULK && !limits.authenticated {
                        return Err(ProtocolError::new("unauthenticated bulk length"));
                    }
                    (missing, usize::try_from(length).unwrap_or(usize::MAX))
                }
                State::Start => return Ok(Progress::More),
            };
            self.state = State::Bulk(missing, length);
            let end = self.at.saturating_add(length);
            if input.len() < end.saturating_add(2) {
                return Ok(Progress::More);
            }
            self.ranges.push(self.at..end);
            self.at = end + 2;
            self.searched = self.at;
            if missing == 1 {
                let consumed = self.at;
                self.restart();
                return Ok(Progress::Command(consumed));
            }
            self.state = State::Header(missing - 1);
        }
    }

    /// The line at the current position without its end, which is then passed. `None`: it is not
    /// complete.
    fn line<'a>(&mut self, input: &'a [u8], too_long: &str) -> Result<Option<&'a [u8]>, ProtocolError> {
        let from = self.searched.max(self.at);
        // Nearly always the end is a few bytes away.
        let found = input[from..].iter().position(|&byte| byte == b'\r').map(|at| from + at);
        let Some(end) = found else {
            self.searched = input.len();
            if input.len() - self.at > LINE_LIMIT {
                return Err(ProtocolError::new(too_long));
            }
            return Ok(None);
        };
        if end + 1 >= input.len() {
            self.searched = end;
            return Ok(None);
        }
        let line = &input[self.at..end];
        self.at = end + 2;
        self.searched = self.at;
        Ok(Some(line))
    }

    fn inline(&mut self, input: &[u8]) -> Result<Progress, ProtocolError> {
        let from = self.searched;
        let found = input[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at);
        let Some(end) = found else {
            self.searched = input.len();
            if input.len() > LINE_LIMIT {
                return Err(ProtocolError::new("too big inline request"));
            }
            return Ok(Progress::More);
        };
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.restart();
        self.inline = true;
        self.ranges.clear();
        self.scratch.clear();
        unquote(line, &mut self.scratch, &mut self.ranges)
            .ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))?;
        if self.ranges.is_empty() {
            return Ok(Progress::Nothing(end + 1));
        }
        Ok(Progress::Command(end + 1))
    }
}

/// An integer of a header line. Nearly always one to four digits.
fn line_integer(digits: &[u8]) -> Option<i64> {
    match digits {
        [digit @ b'0'..=b'9'] => Some(i64::from(digit - b'0')),
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9'] => {
            Some(i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
        }
        _ => crate::foundation::text::number::parse_integer(digits),
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

/// Splits an inline command as redis-cli quotes it: words, `"..."` with escapes, `'...'` with `\'`.
/// `None` if a quote is not closed or not followed by a blank.
fn unquote(line: &[u8], scratch: &mut Vec<u8>, ranges: &mut Vec<Range<usize>>) -> Option<()> {
    let mut at = 0;
    loop {
        while at < line.len() && is_space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Some(());
        }
        let start = scratch.len();
        while at < line.len() && !is_space(line[at]) {
            match line[at] {
                quote @ (b'"' | b'\'') => {
                    at = quoted(line, at + 1, quote, scratch)?;
                    if at < line.len() && !is_space(line[at]) {
                        return None;
                    }
                }
                byte => {
                    scratch.push(byte);
                    at += 1;
                }
            }
        }
        ranges.push(start..scratch.len());
    }
}

/// Unquotes from `at` (after the opening quote); the position after the closing quote.
fn quoted(line: &[u8], mut at: usize, quote: u8, scratch: &mut Vec<u8>) -> Option<usize> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    loop {
        let &byte = line.get(at)?;
        at += 1;
        if byte == quote {
            return Some(at);
        }
        if byte != b'\\' {
            scratch.push(byte);
            continue;
        }
        if quote == b'\'' {
            if line.get(at) == Some(&b'\'') {
                scratch.push(b'\'');
                at += 1;
            } else {
                scratch.push(b'\\');
            }
            continue;
        }
        let &escaped = line.get(at)?;
        at += 1;
        if escaped == b'x'
            && let (Some(high), Some(low)) = (digit(line.get(at)), digit(line.get(at + 1)))
        {
            scratch.push((high * 16 + low) as u8);
            at += 2;
            continue;
        }
        scratch.push(match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            other => other,
        });
    }
}
