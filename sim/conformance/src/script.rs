//! The script language: a subset of packetdrill's, with a few additions. `scripts/README.md`
//! describes it for authors of scripts.
//!
//! 1. `lexer` cuts the text into tokens, without comments.
//! 2. Lines that begin with `--` set options of the run.
//! 3. Everything else is a list of [`Event`]s: a time, then a call, a packet (`packets`) or an
//!    assertion.

use crate::host::Settings;

mod lexer;
mod packets;
mod symbols;
mod syntax;

use lexer::{Token, Tokens};
pub use symbols::{errno_name, errno_of};
pub use syntax::{
    Action, Assertion, Call, Content, Event, IcmpError, Operator, Packet, Script, ScriptError, Segment,
    Value, When,
};

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The first line that makes no sense, and why.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut script =
            Self { settings: Settings::default(), ipv6: false, tolerance: 0, events: Vec::new() };
        let mut body = String::new();
        for (index, line) in text.lines().enumerate() {
            if line.starts_with("--") {
                script.option(line).map_err(|message| ScriptError { line: index + 1, message })?;
            } else {
                // The real packetdrill takes it for a comment.
                body.push_str(line.strip_prefix("//%").unwrap_or(line));
            }
            body.push('\n');
        }
        let mut tokens = Tokens::new(&body)?;
        while !tokens.at_end() {
            script.events.push(event(&mut tokens, script.ipv6)?);
        }
        Ok(script)
    }

    fn option(&mut self, line: &str) -> Result<(), String> {
        let line = line.split("//").next().unwrap_or_default().trim();
        let (name, value) = line.split_once('=').ok_or("an option is `--name=value`")?;
        let value = value.trim_matches('"');
        match (name, value) {
            ("--ip_version", "ipv4") => self.ipv6 = false,
            ("--ip_version", "ipv6") => self.ipv6 = true,
            ("--mtu", mtu) => {
                self.settings.apply(&format!("mtu={mtu}")).map_err(|error| error.to_string())?
            }
            ("--tolerance_usecs", value) => {
                self.tolerance = value.parse::<u64>().map_err(|_| "not a number of microseconds")? * 1000;
            }
            ("--so_flags", list) => self.settings.apply(list).map_err(|error| error.to_string())?,
            _ => return Err(format!("there is no option `{name}` with the value `{value}`")),
        }
        Ok(())
    }
}

fn event(tokens: &mut Tokens, ipv6: bool) -> Result<Event, ScriptError> {
    let line = tokens.line();
    let when = time(tokens)?;
    let until = if tokens.take(&Token::Ellipsis) {
        tokens.take(&Token::Symbol('+'));
        Some(tokens.nanoseconds()?)
    } else {
        None
    };
    let action = match tokens.next()? {
        Token::Symbol('<') => Action::Inject(packets::packet(tokens, ipv6)?),
        Token::Symbol('>') => Action::Expect(packets::packet(tokens, ipv6)?),
        Token::Word(name) => Action::Call(call(tokens, name, until)?),
        Token::Code(code) => Action::Assert(assertions(&code, line)?),
        other => return Err(tokens.error(format!("a call, `<`, `>` or `%{{` was expected, not {other}"))),
    };
    Ok(Event { line, when, action })
}

fn time(tokens: &mut Tokens) -> Result<When, ScriptError> {
    if tokens.take(&Token::Symbol('*')) {
        return Ok(When::Any);
    }
    let relative = tokens.take(&Token::Symbol('+'));
    let first = tokens.nanoseconds()?;
    if tokens.take(&Token::Symbol('~')) {
        tokens.take(&Token::Symbol('+'));
        let second = tokens.nanoseconds()?;
        return Ok(if relative {
            When::RelativeRange(first, second)
        } else {
            When::AbsoluteRange(first, second)
        });
    }
    Ok(if relative { When::Relative(first) } else { When::Absolute(first) })
}

fn call(tokens: &mut Tokens, name: String, until: Option<u64>) -> Result<Call, ScriptError> {
    tokens.expect(&Token::Symbol('('))?;
    let arguments = list(tokens, ')')?;
    tokens.expect(&Token::Symbol('='))?;
    let result = value(tokens)?;
    let errno = tokens.take_word();
    if errno.is_some() && tokens.take(&Token::Symbol('(')) {
        // The error in words, for the reader.
        while tokens.next()? != Token::Symbol(')') {}
    }
    Ok(Call { name, arguments, result, errno, until })
}

fn list(tokens: &mut Tokens, end: char) -> Result<Vec<Value>, ScriptError> {
    let mut values = Vec::new();
    while !tokens.take(&Token::Symbol(end)) {
        if !values.is_empty() {
            tokens.expect(&Token::Symbol(','))?;
        }
        values.push(value(tokens)?);
    }
    Ok(values)
}

fn value(tokens: &mut Tokens) -> Result<Value, ScriptError> {
    match tokens.next()? {
        Token::Ellipsis => Ok(Value::Ellipsis),
        Token::Text(text) => Ok(Value::Text(text)),
        Token::Symbol('[') => Ok(Value::List(list(tokens, ']')?)),
        Token::Symbol('{') => {
            let mut fields = Vec::new();
            while !tokens.take(&Token::Symbol('}')) {
                if !fields.is_empty() {
                    tokens.expect(&Token::Symbol(','))?;
                }
                let name = tokens.take_word().ok_or_else(|| tokens.error("a field's name was expected"))?;
                tokens.expect(&Token::Symbol('='))?;
                fields.push((name, value(tokens)?));
            }
            Ok(Value::Fields(fields))
        }
        Token::Symbol('-') => match tokens.next()? {
            Token::Number(number) => Ok(Value::Integer(-tokens.integer(&number)?)),
            other => Err(tokens.error(format!("a number was expected, not {other}"))),
        },
        Token::Number(number) => Ok(Value::Integer(tokens.integer(&number)?)),
        Token::Word(name) => {
            let mut sum = tokens.symbol(&name)?;
            while tokens.take(&Token::Symbol('|')) {
                let name = tokens.take_word().ok_or_else(|| tokens.error("a name was expected after `|`"))?;
                sum |= tokens.symbol(&name)?;
            }
            Ok(Value::Integer(sum))
        }
        other => Err(tokens.error(format!("a value was expected, not {other}"))),
    }
}

/// The lines of `%{ .. }%`: each `assert name operator number`, with whatever Python would print
/// after a comma ignored.
fn assertions(code: &str, line: usize) -> Result<Vec<Assertion>, ScriptError> {
    let error =
        |text: &str| ScriptError { line, message: format!("`{text}` is not `assert name operator number`") };
    let mut found = Vec::new();
    for text in
        code.split(['\n', ';']).map(str::trim).filter(|text| !text.is_empty() && !text.starts_with('#'))
    {
        let rest = text.strip_prefix("assert ").ok_or_else(|| error(text))?;
        let words: Vec<&str> = rest.split(',').next().unwrap_or_default().split_whitespace().collect();
        let &[field, operator, value] = words.as_slice() else { return Err(error(text)) };
        let operator = match operator {
            "==" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            _ => return Err(error(text)),
        };
        let value = match value.parse() {
            Ok(value) => value,
            Err(_) => symbols::symbol(value).ok_or_else(|| error(text))?,
        };
        found.push(Assertion { field: field.into(), operator, value });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
