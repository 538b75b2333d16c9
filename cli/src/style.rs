//! Colours and aligned tables.
//!
//! Colours appear only on a terminal, and not where `NO_COLOR` is set or the terminal is dumb. A
//! table is aligned by characters, colours aside, and has no lines: it can be cut with `awk`.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use sietch_protocol::AreaUsage;

/// The meaning of a piece of text; the palette decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Ordinary text.
    Plain,
    /// A heading.
    Strong,
    /// Good.
    Good,
    /// Missing, with a way around.
    Warning,
    /// Wrong.
    Bad,
    /// Less important.
    Faint,
}

/// Whether and how text is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Palette {
    coloured: bool,
}

impl Palette {
    /// The palette for standard output.
    pub(crate) fn of_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { coloured: !refused && std::io::stdout().is_terminal() }
    }

    /// No colours.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { coloured: false }
    }

    /// `text` in `tone`.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
    right: bool,
}

impl Cell {
    /// Left-aligned ordinary text. It might come from a hostile holder of a grant ([`escaped`]).
    pub(crate) fn text(text: impl std::fmt::Display) -> Self {
        Self { text: escaped(&text.to_string()), tone: Tone::Plain, right: false }
    }

    /// A right-aligned number with separated thousands.
    pub(crate) fn number(number: u64) -> Self {
        Self { text: grouped(number), tone: Tone::Plain, right: true }
    }

    /// The same, aligned to the right.
    pub(crate) fn right(mut self) -> Self {
        self.right = true;
        self
    }

    /// The same, in `tone`.
    pub(crate) fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }
}

/// Text of another user for this user's terminal: a name, or what a program said. Control
/// characters and format characters, such as those that turn the direction of writing, are escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // As in the middle of a text, where an accent belongs to the letter in front of it.
        let is_plain =
            matches!(c, '"' | '\'' | '\\') || String::from_iter(['a', c]).escape_debug().eq(['a', c]);
        if is_plain { escaped.push(c) } else { escaped.extend(c.escape_debug()) }
    }
    escaped
}

/// The state of a grant: revoked, held, free; or held, and writes are refused because it is full.
pub(crate) fn state(revoked: bool, held: bool, usage: Option<AreaUsage>) -> Cell {
    match (revoked, held) {
        (true, _) => Cell::text("revoked").tone(Tone::Bad),
        (false, true) if usage.is_some_and(|usage| usage.full) => Cell::text("full").tone(Tone::Bad),
        (false, true) => Cell::text("held").tone(Tone::Good),
        (false, false) => Cell::text("free"),
    }
}

/// Rows of cells whose columns line up.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    /// An empty table, its rows moved right by `indent` spaces.
    pub(crate) fn new(indent: usize) -> Self {
        Self { rows: Vec::new(), indent }
    }

    /// A row of headings.
    pub(crate) fn headings(&mut self, headings: &[&str]) {
        self.rows.push(headings.iter().map(|name| Cell::text(name).tone(Tone::Faint)).collect());
    }

    /// A row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table as lines.
    pub(crate) fn render(&self, palette: Palette) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let mut out = String::new();
        for row in &self.rows {
            out.extend(std::iter::repeat_n(' ', self.indent));
            for (column, cell) in row.iter().enumerate() {
                let last = column + 1 == row.len();
                let space = widths[column] - cell.text.chars().count();
                let painted = palette.paint(cell.tone, &cell.text);
                let (before, after) = if cell.right { (space, 0) } else { (0, space) };
                let after = if last { 0 } else { after + 2 };
                // Writing to a String cannot fail.
                let _ = write!(out, "{:before$}{painted}{:after$}", "", "");
            }
            out.push('\n');
        }
        out
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the largest unit that leaves a whole number, or one decimal.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scale = 1_u64;
    while unit + 1 < UNITS.len() && number / scale >= 1024 {
        scale <<= 10;
        unit += 1;
    }
    let (whole, tenth) = (number / scale, (number % scale) / (scale / 10).max(1));
    match tenth.min(9) {
        0 => format!("{whole} {}", UNITS[unit]),
        tenth => format!("{whole}.{tenth} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_colour() {
        let mut table = Table::new(2);
        table.headings(&["name", "count"]);
        table.row(vec![Cell::text("kv").tone(Tone::Good), Cell::number(1_234_567)]);
        table.row(vec![Cell::text("longer name"), Cell::number(5)]);
        insta::assert_snapshot!(table.render(Palette::plain()), @r"
        name         count
        kv           1,234,567
        longer name          5
        ");
        let coloured = table.render(Palette { coloured: true });
        assert!(coloured.contains("\x1b[32mkv\x1b[0m           1,234,567\n"), "{coloured:?}");
    }

    #[test]
    fn escapes_in_foreign_text_do_not_reach_the_terminal() {
        let mut table = Table::new(0);
        table.row(vec![Cell::text("a\x1b[2J\nb")]);
        assert_eq!(table.render(Palette::plain()), "a\\u{1b}[2J\\nb\n");
    }

    #[test]
    fn text_that_changes_how_other_text_is_shown_is_escaped_and_names_stay_readable() {
        let harmful =
            ["\u{7}", "\u{9b}", "\u{7f}", "\u{202e}", "\u{2066}", "\u{200b}", "\u{2028}", "\u{feff}"];
        for text in harmful {
            assert!(escaped(text).is_ascii() && escaped(text).starts_with("\\u{"), "{text:?}");
        }
        let names =
            "it's \"a\" \\ na\u{ef}ve nai\u{308}ve \u{e44}\u{e17}\u{e22}\u{e35} \u{65e5}\u{672c} \u{1f600}";
        assert_eq!(escaped(names), names);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
