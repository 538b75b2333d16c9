//! Packets in scripts.
//!
//! ```text
//! direction [:peer] [marks] flags seq:end(length) [ack N] [win N] [urg N] [<options>]
//! direction [:peer] icmp unreachable CODE [mtu N] [seq:end(length)]
//! ```
//! Marks in square brackets: `noecn`, `ect0`, `ect1`, `ect01`, `ce`; and `badsum` for a packet that
//! comes with a wrong checksum.

use super::lexer::{Token, Tokens};
use super::syntax::{Content, IcmpError, Packet, ScriptError, Segment};
use crate::packet::{ACK, FLAGS, TcpOption};

pub(super) fn packet(tokens: &mut Tokens, ipv6: bool) -> Result<Packet, ScriptError> {
    let peer = if tokens.take(&Token::Symbol(':')) { Some(number(tokens)?) } else { None };
    let mut ecn = Vec::new();
    let mut corrupt = false;
    while tokens.take(&Token::Symbol('[')) {
        match tokens.take_word().unwrap_or_default().as_str() {
            "noecn" => ecn.push(0),
            "ect1" => ecn.push(1),
            "ect0" => ecn.push(2),
            "ect01" => ecn.extend([1, 2]),
            "ce" => ecn.push(3),
            "badsum" => corrupt = true,
            other => return Err(tokens.error(format!("there is no mark `[{other}]`"))),
        }
        tokens.expect(&Token::Symbol(']'))?;
    }
    let content = if tokens.take_this("icmp") {
        Content::Icmp(icmp(tokens, ipv6)?)
    } else {
        Content::Tcp(segment(tokens)?)
    };
    Ok(Packet { peer, ecn, corrupt, content })
}

fn segment(tokens: &mut Tokens) -> Result<Segment, ScriptError> {
    let mut flags = 0;
    loop {
        let letters = match tokens.peek() {
            Some(Token::Word(word)) => word.clone(),
            Some(Token::Symbol(symbol @ ('.' | '-'))) => symbol.to_string(),
            _ => break,
        };
        for letter in letters.chars().filter(|letter| *letter != '-') {
            let (_, bit) = FLAGS
                .iter()
                .find(|entry| entry.0 == letter)
                .ok_or_else(|| tokens.error(format!("there is no flag `{letter}`")))?;
            flags |= bit;
        }
        tokens.next()?;
    }
    let (seq, length) = range(tokens)?;
    let ack = if tokens.take_this("ack") { Some(number(tokens)?) } else { None };
    let window = if tokens.take_this("win") { Some(number(tokens)?) } else { None };
    let urgent = if tokens.take_this("urg") { Some(number(tokens)?) } else { None };
    let options = if tokens.take(&Token::Symbol('<')) { options(tokens)? } else { Some(Vec::new()) };
    if ack.is_some() != (flags & ACK != 0) {
        return Err(tokens.error("a segment has an `ack` if it has the flag `.`, and only then"));
    }
    Ok(Segment { flags, seq, length, ack, window, urgent, options })
}

/// `seq:end(length)`.
fn range(tokens: &mut Tokens) -> Result<(u32, u32), ScriptError> {
    let start: u32 = number(tokens)?;
    tokens.expect(&Token::Symbol(':'))?;
    let end: u32 = number(tokens)?;
    tokens.expect(&Token::Symbol('('))?;
    let length: u32 = number(tokens)?;
    tokens.expect(&Token::Symbol(')'))?;
    if start.wrapping_add(length) != end {
        return Err(tokens.error(format!("{length} bytes from {start} on do not end at {end}")));
    }
    Ok((start, length))
}

fn options(tokens: &mut Tokens) -> Result<Option<Vec<TcpOption>>, ScriptError> {
    if tokens.take(&Token::Ellipsis) {
        tokens.expect(&Token::Symbol('>'))?;
        return Ok(None);
    }
    let mut options = Vec::new();
    while !tokens.take(&Token::Symbol('>')) {
        if !options.is_empty() {
            tokens.expect(&Token::Symbol(','))?;
        }
        options.push(match tokens.take_word().unwrap_or_default().as_str() {
            "mss" => TcpOption::Mss(number(tokens)?),
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::End,
            "sackOK" => TcpOption::SackPermitted,
            "wscale" => TcpOption::WindowScale(number(tokens)?),
            "TS" => {
                if !tokens.take_this("val") {
                    return Err(tokens.error("timestamps are `TS val N ecr N`"));
                }
                let value = number(tokens)?;
                if !tokens.take_this("ecr") {
                    return Err(tokens.error("timestamps are `TS val N ecr N`"));
                }
                TcpOption::Timestamps(value, number(tokens)?)
            }
            "sack" => {
                let mut blocks = Vec::new();
                while matches!(tokens.peek(), Some(Token::Number(_))) {
                    let start = number(tokens)?;
                    tokens.expect(&Token::Symbol(':'))?;
                    blocks.push((start, number(tokens)?));
                }
                TcpOption::Sack(blocks)
            }
            // A request for a cookie of TCP Fast Open (RFC 7413 section 4.1.1), which the engine
            // does not support.
            "FO" => TcpOption::Unknown(34, Vec::new()),
            other => return Err(tokens.error(format!("there is no option `{other}`"))),
        });
    }
    Ok(Some(options))
}

fn icmp(tokens: &mut Tokens, ipv6: bool) -> Result<IcmpError, ScriptError> {
    let mut words = Vec::new();
    while let Some(word) = tokens.take_word() {
        if word == "mtu" {
            break;
        }
        words.push(word);
    }
    let mtu = if matches!(tokens.peek(), Some(Token::Number(_))) { number(tokens)? } else { 0 };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (kind, code) = match (ipv6, words.as_slice()) {
        (false, ["unreachable", "net_unreachable"]) => (3, 0),
        (false, ["unreachable", "host_unreachable"]) => (3, 1),
        (false, ["unreachable", "proto_unreachable"]) => (3, 2),
        (false, ["unreachable", "port_unreachable"]) => (3, 3),
        (false, ["unreachable", "frag_needed"]) => (3, 4),
        (false, ["unreachable", "net_prohibited"]) => (3, 9),
        (false, ["source_quench"]) => (4, 0),
        (false, ["time_exceeded"]) => (11, 0),
        (false, ["parameter_problem"]) => (12, 0),
        (true, ["unreachable", "no_route"]) => (1, 0),
        (true, ["unreachable", "prohibited"]) => (1, 1),
        (true, ["unreachable", "address_unreachable"]) => (1, 3),
        (true, ["unreachable", "port_unreachable"]) => (1, 4),
        (true, ["packet_too_big"]) => (2, 0),
        (true, ["time_exceeded"]) => (3, 0),
        (true, ["parameter_problem"]) => (4, 0),
        _ => return Err(tokens.error(format!("there is no ICMP error `{}` here", words.join(" ")))),
    };
    tokens.expect(&Token::Symbol('['))?;
    let quoted = range(tokens)?;
    tokens.expect(&Token::Symbol(']'))?;
    Ok(IcmpError { kind, code, mtu, quoted })
}

fn number<N: TryFrom<i64>>(tokens: &mut Tokens) -> Result<N, ScriptError> {
    let value = tokens.whole()?;
    N::try_from(value).map_err(|_| tokens.error(format!("{value} does not fit its field")))
}
