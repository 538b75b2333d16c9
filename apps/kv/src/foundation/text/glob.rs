//! Glob patterns as KEYS, SCAN and PSUBSCRIBE know them.
//!
//! `*` any bytes, `?` one byte, `[ab]`, `[^ab]`, `[a-c]` one byte of a class, `\x` the byte `x`
//! itself. Bytes are signed in ranges, an unclosed class ends with the pattern, and an empty text
//! is matched by the empty pattern alone: all of that as in Redis.
//!
//! Each element of a pattern but `*` takes exactly one byte, so when the text does not match after
//! a `*`, only the last `*` need take one byte more: the time is bounded by the product of both
//! lengths, whatever the pattern.

/// Whether all of `text` matches.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    run(pattern, text, false)
}

/// The same; ASCII letters match in both cases.
pub(crate) fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    run(pattern, text, true)
}

fn run(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let mut at = 0;
    let mut text_at = 0;
    // Behind the last star, and where in the text its tail is tried next.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if text_at == text.len() {
            return pattern[at..].iter().all(|&byte| byte == b'*');
        }
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            if at == pattern.len() {
                return true;
            }
            retry = Some((at, text_at));
            continue;
        }
        let step = if at < pattern.len() { one(&pattern[at..], text[text_at], ignore_case) } else { None };
        match (step, &mut retry) {
            (Some(length), _) => {
                at += length;
                text_at += 1;
            }
            (None, Some((behind, from))) => {
                *from += 1;
                (at, text_at) = (*behind, *from);
            }
            (None, None) => return false,
        }
    }
}

/// How long the first element of `pattern` is, if it matches `byte`.
fn one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let same = |a: u8, b: u8| if ignore_case { a.eq_ignore_ascii_case(&b) } else { a == b };
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (matched, length) = in_class(class, byte, ignore_case);
            matched.then_some(1 + length)
        }
        [b'\\', literal, ..] => same(*literal, byte).then_some(2),
        [literal, ..] => same(*literal, byte).then_some(1),
        [] => None,
    }
}

/// Whether the class (what follows its bracket) has `byte`, and its length with the closing
/// bracket.
fn in_class(class: &[u8], byte: u8, ignore_case: bool) -> (bool, usize) {
    let lower = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut matched = false;
    loop {
        match &class[at..] {
            // An escaped byte is compared as it is, in either mode.
            [b'\\', literal, ..] => {
                matched |= *literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [] => break,
            [from, b'-', to, ..] => {
                let (from, to) = (lower(*from) as i8, lower(*to) as i8);
                matched |= (from.min(to)..=from.max(to)).contains(&(lower(byte) as i8));
                at += 3;
            }
            [literal, ..] => {
                matched |= lower(*literal) == lower(byte);
                at += 1;
            }
        }
    }
    (matched != negated, at)
}

#[cfg(test)]
mod tests;
