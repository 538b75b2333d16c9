//! Text to tokens, each with its line.

use std::fmt;

use super::symbols;
use super::syntax::ScriptError;

/// A piece of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A number as it is written, perhaps with a decimal point, perhaps hexadecimal.
    Number(String),
    Word(String),
    Text(String),
    Code(String),
    Ellipsis,
    Symbol(char),
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(text) | Self::Word(text) => write!(formatter, "`{text}`"),
            Self::Text(text) => write!(formatter, "\"{text}\""),
            Self::Code(_) => formatter.write_str("an assertion"),
            Self::Ellipsis => formatter.write_str("`...`"),
            Self::Symbol(symbol) => write!(formatter, "`{symbol}`"),
        }
    }
}

/// The tokens of a script, and how far it was read.
pub(super) struct Tokens {
    tokens: Vec<(usize, Token)>,
    at: usize,
}

impl Tokens {
    pub(super) fn new(text: &str) -> Result<Self, ScriptError> {
        let mut lexer = Lexer { rest: text, line: 1, tokens: Vec::new() };
        lexer.run()?;
        Ok(Self { tokens: lexer.tokens, at: 0 })
    }

    pub(super) fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// The line of the next token, or of the last.
    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |entry| entry.0)
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ScriptError {
        let line = self.tokens.get(self.at.saturating_sub(1)).map_or(1, |entry| entry.0);
        ScriptError { line, message: message.into() }
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|entry| &entry.1)
    }

    pub(super) fn next(&mut self) -> Result<Token, ScriptError> {
        let token = self.peek().cloned();
        self.at += 1;
        token
            .ok_or_else(|| ScriptError { line: self.line(), message: "the script ends in the middle".into() })
    }

    pub(super) fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    /// The next token if it is this word.
    pub(super) fn take_this(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn take_word(&mut self) -> Option<String> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        let word = word.clone();
        self.at += 1;
        Some(word)
    }

    pub(super) fn expect(&mut self, token: &Token) -> Result<(), ScriptError> {
        match self.next()? {
            found if found == *token => Ok(()),
            found => Err(self.error(format!("{token} was expected, not {found}"))),
        }
    }

    /// A number of seconds, in nanoseconds.
    pub(super) fn nanoseconds(&mut self) -> Result<u64, ScriptError> {
        match self.next()? {
            Token::Number(text) => {
                let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
                let digits = format!("{part:0<9}");
                let seconds = if whole.is_empty() { Ok(0) } else { whole.parse::<u64>() };
                match (seconds, digits.parse::<u64>()) {
                    (Ok(seconds), Ok(rest)) if digits.len() == 9 => Ok(seconds * 1_000_000_000 + rest),
                    _ => Err(self.error(format!("`{text}` is not a time in seconds"))),
                }
            }
            other => Err(self.error(format!("a time was expected, not {other}"))),
        }
    }

    /// A number without a decimal point.
    pub(super) fn whole(&mut self) -> Result<i64, ScriptError> {
        match self.next()? {
            Token::Number(text) => self.integer(&text),
            other => Err(self.error(format!("a number was expected, not {other}"))),
        }
    }

    pub(super) fn integer(&self, text: &str) -> Result<i64, ScriptError> {
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| self.error(format!("`{text}` is not a whole number")))
    }

    pub(super) fn symbol(&self, name: &str) -> Result<i64, ScriptError> {
        symbols::symbol(name).ok_or_else(|| self.error(format!("the name `{name}` is not known")))
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<(usize, Token)>,
}

impl<'a> Lexer<'a> {
    fn run(&mut self) -> Result<(), ScriptError> {
        while let Some(first) = self.rest.chars().next() {
            let line = self.line;
            if first.is_whitespace() {
                self.skip(first.len_utf8());
            } else if self.rest.starts_with("//") || first == '#' {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.delimited(2, "*/", line)?;
            } else if self.rest.starts_with("%{") {
                let code = self.delimited(2, "}%", line)?.to_owned();
                self.tokens.push((line, Token::Code(code)));
            } else if first == '"' {
                let text = self.delimited(1, "\"", line)?.to_owned();
                self.tokens.push((line, Token::Text(text)));
            } else if self.rest.starts_with("...") {
                self.skip(3);
                self.tokens.push((line, Token::Ellipsis));
            } else {
                self.plain(first);
            }
        }
        Ok(())
    }

    fn plain(&mut self, first: char) {
        let bytes = self.rest.as_bytes();
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let word =
            |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let mut length = first.len_utf8();
        let token = if first.is_ascii_digit() || (first == '.' && digit(1)) {
            let hexadecimal = self.rest.starts_with("0x");
            let mut at = if hexadecimal { 2 } else { 0 };
            while digit(at) || (hexadecimal && word(at)) {
                at += 1;
            }
            if bytes.get(at) == Some(&b'.') && digit(at + 1) {
                at += 1;
                while digit(at) {
                    at += 1;
                }
            }
            length = at;
            Token::Number(self.rest[..at].to_owned())
        } else if first.is_ascii_alphabetic() || first == '_' {
            let mut at = 0;
            while word(at) {
                at += 1;
            }
            length = at;
            Token::Word(self.rest[..at].to_owned())
        } else {
            Token::Symbol(first)
        };
        self.tokens.push((self.line, token));
        self.skip(length);
    }

    /// Takes what is between an opening of `open` bytes and `close`.
    fn delimited(&mut self, open: usize, close: &str, line: usize) -> Result<&'a str, ScriptError> {
        let inside = &self.rest[open..];
        let end = inside
            .find(close)
            .ok_or_else(|| ScriptError { line, message: format!("nothing closes this with `{close}`") })?;
        self.skip(open + end + close.len());
        Ok(&inside[..end])
    }

    fn skip(&mut self, bytes: usize) {
        self.line += self.rest[..bytes].matches('\n').count();
        self.rest = &self.rest[bytes..];
    }
}
