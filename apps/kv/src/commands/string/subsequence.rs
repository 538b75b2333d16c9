//! LCS: the longest common subsequence of two strings.
//!
//! The classic table of lengths, one row for each byte of the first string. It takes 4 bytes a
//! cell, so its size is bounded before it is allocated.

use crate::commands::context::{Context, Outcome};
use crate::data::value::ValueRef;
use crate::foundation::command::{integer, is};
use crate::foundation::protocol::Fault;

/// Most cells of the table: 1 GiB of them would stall the shard for seconds.
const CELL_LIMIT: u64 = 64 << 20;

#[derive(Default)]
struct Options {
    length: bool,
    matches: bool,
    match_lengths: bool,
    least: usize,
}

fn options(arguments: &[&[u8]]) -> Result<Options, Fault> {
    let mut options = Options::default();
    let mut rest = arguments;
    while let [word, tail @ ..] = rest {
        rest = tail;
        if is(word, "len") {
            options.length = true;
        } else if is(word, "idx") {
            options.matches = true;
        } else if is(word, "withmatchlen") {
            options.match_lengths = true;
        } else if is(word, "minmatchlen")
            && let [value, tail @ ..] = rest
        {
            options.least = usize::try_from(integer(value)?).unwrap_or(0);
            rest = tail;
        } else {
            return Err(Fault::SYNTAX);
        }
    }
    if options.length && options.matches {
        return Err(Fault::of("ERR If you want both the length and indexes, please just use IDX."));
    }
    Ok(options)
}

fn operand(context: &mut Context<'_>, key: &[u8]) -> Result<Vec<u8>, Fault> {
    match context.data.read(key) {
        None => Ok(Vec::new()),
        Some(ValueRef::String(string)) => Ok(string.to_vec()),
        Some(_) => Err(Fault::of("ERR The specified keys must contain string values")),
    }
}

/// Lengths of the subsequences of all prefixes, row by row.
struct Lengths {
    cells: Vec<u32>,
    width: usize,
}

impl Lengths {
    fn of(first: &[u8], second: &[u8]) -> Self {
        let width = second.len() + 1;
        let mut cells = vec![0u32; (first.len() + 1) * width];
        for (row, a) in first.iter().enumerate() {
            for (column, b) in second.iter().enumerate() {
                let at = (row + 1) * width + column + 1;
                cells[at] =
                    if a == b { cells[at - width - 1] + 1 } else { cells[at - width].max(cells[at - 1]) };
            }
        }
        Self { cells, width }
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        self.cells[row * self.width + column]
    }
}

/// A range of bytes that both strings have: its end in each (exclusive), and its length.
struct Match {
    ends: (usize, usize),
    length: usize,
}

/// Walks back through the table and returns the subsequence and its ranges, last one first.
fn trace(first: &[u8], second: &[u8], lengths: &Lengths) -> (Vec<u8>, Vec<Match>) {
    let mut result = Vec::new();
    let mut matches: Vec<Match> = Vec::new();
    let (mut row, mut column) = (first.len(), second.len());
    let mut connected = false;
    while row > 0 && column > 0 {
        if first[row - 1] == second[column - 1] {
            result.push(first[row - 1]);
            match matches.last_mut().filter(|_| connected) {
                Some(last) => last.length += 1,
                None => matches.push(Match { ends: (row, column), length: 1 }),
            }
            connected = true;
            row -= 1;
            column -= 1;
        } else {
            connected = false;
            if lengths.at(row - 1, column) > lengths.at(row, column - 1) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
    }
    result.reverse();
    (result, matches)
}

pub(super) fn lcs(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let first = operand(context, arguments[1])?;
    let second = operand(context, arguments[2])?;
    let options = options(&arguments[3..])?;
    if (first.len() as u64 + 1) * (second.len() as u64 + 1) > CELL_LIMIT {
        return Err(Fault::of(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let lengths = Lengths::of(&first, &second);
    let total = lengths.at(first.len(), second.len());
    if options.length {
        context.reply.integer(i64::from(total));
        return Ok(());
    }
    let (result, matches) = trace(&first, &second, &lengths);
    let reply = &mut context.reply;
    if !options.matches {
        reply.bulk(&result);
        return Ok(());
    }
    let shown: Vec<&Match> = matches.iter().filter(|found| found.length >= options.least).collect();
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(shown.len());
    for found in shown {
        reply.array(if options.match_lengths { 3 } else { 2 });
        for end in [found.ends.0, found.ends.1] {
            reply.array(2);
            reply.count(end - found.length);
            reply.count(end - 1);
        }
        if options.match_lengths {
            reply.count(found.length);
        }
    }
    reply.bulk(b"len");
    reply.integer(i64::from(total));
    Ok(())
}
