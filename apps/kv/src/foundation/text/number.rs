//! Numbers as Redis 7.0 reads and writes them.
//!
//! Integers have one spelling each. Doubles are read as `strtod` does and written with 17
//! significant digits, or with as few as read back as the same number; sums of INCRBYFLOAT are made
//! in the x87's 80-bit format ([`Extended`]), because that is what clients see on the machines
//! Redis runs on.

mod extended;

pub(crate) use extended::Extended;

/// Room for the decimal digits of any `i64`, with its sign.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digits([u8; 20]);

impl Digits {
    /// Writes `integer` and returns its digits.
    pub(crate) fn write(&mut self, integer: i64) -> &[u8] {
        let at = print_integer(integer, &mut self.0);
        &self.0[at..]
    }
}

/// Prints `value` at the end of `into` (20 bytes at least) and returns where it starts.
#[inline]
pub(crate) fn print_integer(value: i64, into: &mut [u8]) -> usize {
    let mut rest = value.unsigned_abs();
    let mut at = into.len();
    loop {
        at -= 1;
        into[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        into[at] = b'-';
    }
    at
}

/// The integer whose only decimal spelling `bytes` are: no space, no plus, no leading zero, no
/// `-0`.
pub(crate) fn parse_integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Nineteen digits always fit.
        value = value * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// Decimal digits of a number.
pub(crate) fn digits(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// A double as `%.17g` writes it: every double reads back as itself. Infinities are `inf` and
/// `-inf`.
pub(crate) fn format_double(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if value == value.trunc() && value.abs() < 1e16 && (value != 0.0 || value.is_sign_positive()) {
        return (value as i64).to_string();
    }
    let scientific = format!("{value:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(|&digit| digit != '.').collect();
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return format!("{sign}0");
    }
    if !(-4..17).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let direction = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{point}{rest}e{direction}{:02}", exponent.abs());
    }
    if exponent < 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}", "0".repeat(whole - digits.len()));
    }
    let (whole, fraction) = digits.split_at(whole);
    format!("{sign}{whole}.{fraction}")
}

/// A double as replies show it (`%.17g`), without an allocation of its own for integers.
pub(crate) fn print_double(value: f64) -> DoubleText {
    if value == value.trunc() && value.abs() < 1e16 && (value != 0.0 || value.is_sign_positive()) {
        return DoubleText::Integer(Digits::default().written(value as i64));
    }
    DoubleText::Other(format_double(value))
}

/// See [`print_double`].
#[derive(Clone, Debug)]
pub(crate) enum DoubleText {
    /// The digits of an integer.
    Integer(WrittenDigits),
    /// Anything else.
    Other(String),
}

impl std::ops::Deref for DoubleText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Integer(digits) => digits,
            Self::Other(text) => text.as_bytes(),
        }
    }
}

/// Digits of one integer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenDigits {
    digits: Digits,
    start: u8,
}

impl std::ops::Deref for WrittenDigits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.digits.0[self.start as usize..]
    }
}

impl Digits {
    /// The digits of `integer`, kept together with where they start.
    pub(crate) fn written(mut self, integer: i64) -> WrittenDigits {
        let length = self.write(integer).len();
        WrittenDigits { digits: self, start: (20 - length) as u8 }
    }
}

/// A double as `strtod` reads all of `bytes`: decimal or hexadecimal, `inf`, `infinity`, no leading
/// space. What is NaN, too great or too small for a double is refused.
pub(crate) fn parse_float(bytes: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned.len() > 2 && unsigned.as_bytes()[..2].eq_ignore_ascii_case(b"0x") {
        let value = Extended::parse(bytes)?.to_f64();
        return value.is_finite().then_some(value);
    }
    let value: f64 = text.parse().ok()?;
    let digits = unsigned.split(['e', 'E']).next().unwrap_or_default();
    if unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && (value.is_infinite() || value == 0.0 && digits.contains(|digit: char| matches!(digit, '1'..='9')))
    {
        return None;
    }
    (!value.is_nan()).then_some(value)
}

/// A bound of a range of scores. Unlike [`parse_float`] it takes what `strtod` takes up to the
/// first zero byte: leading space, nothing at all (0), and what is out of range.
pub(crate) fn parse_bound(bytes: &[u8]) -> Option<f64> {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    if bytes.is_empty() {
        return Some(0.0);
    }
    let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let start = bytes.iter().position(|byte| !space(byte)).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    parse_float(bytes).or_else(|| {
        // Out of range of doubles is an infinity or zero here.
        let value: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
        (!value.is_nan()).then_some(value)
    })
}

#[cfg(test)]
mod tests;
