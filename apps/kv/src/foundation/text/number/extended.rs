//! The 80-bit extended format of the x87 (`long double`), as far as INCRBYFLOAT needs it: read,
//! add, print.
//!
//! 1. A finite number is `(-1)^negative * mantissa * 2^exponent` with the mantissa's top bit set,
//!    or zero.
//! 2. Reading is exact: the decimal digits become a quotient of two big integers, of which 64 bits
//!    are taken and the rest rounds them, half to even. The exponent is bounded first, so that a
//!    short text cannot ask for much work.
//! 3. Adding aligns in 128 bits with a sticky bit below, and rounds once, half to even.
//! 4. Printing is `%.17Lf` of the exact value, without the zeros at its end.

/// Exponent of the largest power of two in range, and past the smallest (denormal) one.
const MAXIMUM_EXPONENT: i64 = 16383;
const MINIMUM_EXPONENT: i64 = -16445;

/// Longest text that is read, as in Redis.
const LONGEST: usize = 255;

/// Fraction digits that are printed.
const FRACTION_DIGITS: u32 = 17;

/// A number of 64 bits of precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// See the module documentation.
    Finite {
        /// Whether it is below zero.
        negative: bool,
        /// Top bit set, or 0.
        mantissa: u64,
        /// Power of two that the mantissa is multiplied by.
        exponent: i32,
    },
    /// Plus or minus infinity.
    Infinite {
        /// Whether it is minus infinity.
        negative: bool,
    },
    /// What infinities of different signs sum up to.
    NotANumber,
}

impl Extended {
    /// Zero.
    pub(crate) const ZERO: Self = Self::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// What `strtold` reads, if it reads all of `bytes`; nothing out of range, no NaN, no leading
    /// space.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > LONGEST {
            return None;
        }
        let (negative, rest) = match bytes {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite { negative });
        }
        if rest.len() > 2 && rest[..2].eq_ignore_ascii_case(b"0x") {
            let (digits, exponent) = split(&rest[2..], 16, b'p')?;
            // Four bits for each digit after the point have been counted by `split` as one.
            let number = Big::from_digits(&digits, 16);
            return Self::quotient(negative, number, Big::from(1), exponent);
        }
        let (digits, exponent) = split(rest, 10, b'e')?;
        let mut number = Big::from_digits(&digits, 10);
        if number.is_zero() {
            return Some(Self::Finite { negative, mantissa: 0, exponent: 0 });
        }
        // 10^5300 is far out of range with 255 digits beside it.
        if !(-5300..=5300).contains(&exponent) {
            return None;
        }
        let mut divisor = Big::from(1);
        let power = if exponent < 0 { &mut divisor } else { &mut number };
        for _ in 0..exponent.unsigned_abs() {
            power.multiply_add(10, 0);
        }
        Self::quotient(negative, number, divisor, 0)
    }

    /// `number / divisor * 2^scale`, rounded.
    fn quotient(negative: bool, mut number: Big, mut divisor: Big, scale: i64) -> Option<Self> {
        if number.is_zero() {
            return Some(Self::Finite { negative, mantissa: 0, exponent: 0 });
        }
        let mut power = number.bits() as i64 - divisor.bits() as i64;
        if power > 0 {
            divisor.shift_left(power as usize);
        } else {
            number.shift_left(power.unsigned_abs() as usize);
        }
        if number.is_below(&divisor) {
            number.shift_left(1);
            power -= 1;
        }
        // Now 1 <= number / divisor < 2.
        let mut mantissa: u64 = 0;
        for _ in 0..64 {
            mantissa <<= 1;
            if !number.is_below(&divisor) {
                number.subtract(&divisor);
                mantissa |= 1;
            }
            number.shift_left(1);
        }
        let mut exponent = power.checked_add(scale)?;
        let above = !number.is_below(&divisor);
        let tie = above && number == divisor;
        if above && (!tie || mantissa & 1 == 1) {
            mantissa = match mantissa.checked_add(1) {
                Some(more) => more,
                None => {
                    exponent += 1;
                    1 << 63
                }
            };
        }
        (MINIMUM_EXPONENT..=MAXIMUM_EXPONENT).contains(&exponent).then(|| Self::Finite {
            negative,
            mantissa,
            exponent: exponent as i32 - 63,
        })
    }

    /// Whether this is a number that INCRBYFLOAT may store.
    pub(crate) fn is_finite(self) -> bool {
        matches!(self, Self::Finite { .. })
    }

    fn rounded(negative: bool, sum: u128, exponent: i32) -> Self {
        if sum == 0 {
            return Self::ZERO;
        }
        let zeros = sum.leading_zeros();
        let sum = sum << zeros;
        let mut mantissa = (sum >> 64) as u64;
        let mut exponent = exponent - zeros as i32 + 64;
        let rest = sum as u64;
        if rest > 1 << 63 || rest == 1 << 63 && mantissa & 1 == 1 {
            mantissa = match mantissa.checked_add(1) {
                Some(more) => more,
                None => {
                    exponent += 1;
                    1 << 63
                }
            };
        }
        if i64::from(exponent) + 63 > MAXIMUM_EXPONENT {
            return Self::Infinite { negative };
        }
        Self::Finite { negative, mantissa, exponent }
    }

    /// The nearest double, or an infinity.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::Finite { negative, mantissa, exponent } => {
                // Two steps, lest the power alone leaves the range.
                let half = exponent / 2;
                let value = mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent - half);
                if negative { -value } else { value }
            }
            Self::Infinite { negative: false } => f64::INFINITY,
            Self::Infinite { negative: true } => f64::NEG_INFINITY,
            Self::NotANumber => f64::NAN,
        }
    }

    /// `%.17Lf` without the zeros at its end.
    pub(crate) fn print(self) -> String {
        let (negative, mantissa, exponent) = match self {
            Self::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
            Self::Infinite { negative } => return if negative { "-inf" } else { "inf" }.into(),
            Self::NotANumber => return "nan".into(),
        };
        let text = if exponent >= 0 {
            let mut whole = Big::from(mantissa);
            whole.shift_left(exponent as usize);
            whole.decimal()
        } else {
            print_fraction(mantissa, exponent.unsigned_abs())
        };
        if negative && text != "0" { format!("-{text}") } else { text }
    }
}

impl std::ops::Add for Extended {
    type Output = Self;

    /// The sum, rounded.
    fn add(self, other: Self) -> Self {
        let (a, b) = match (self, other) {
            (Self::Finite { .. }, Self::Finite { .. }) => (self, other),
            (Self::Infinite { negative: a }, Self::Infinite { negative: b }) if a != b => {
                return Self::NotANumber;
            }
            (Self::NotANumber, _) | (_, Self::NotANumber) => return Self::NotANumber,
            (Self::Infinite { .. }, _) => return self,
            (_, Self::Infinite { .. }) => return other,
        };
        let parts = |number| match number {
            Self::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
            _ => (false, 0, 0),
        };
        let (mut large, mut small) = (parts(a), parts(b));
        if large.1 == 0 || small.1 != 0 && (large.2, large.1) < (small.2, small.1) {
            std::mem::swap(&mut large, &mut small);
        }
        if small.1 == 0 {
            let negative = if large.1 == 0 { large.0 && small.0 } else { large.0 };
            return Self::Finite { negative, mantissa: large.1, exponent: large.2 };
        }
        // The larger one is shifted 62 bits up; one bit is left above it for a carry, and the
        // smaller one's bits that fall off at the bottom leave a sticky bit.
        let shift = (large.2 - small.2) as u32;
        let high = u128::from(large.1) << 62;
        let wide = u128::from(small.1) << 62;
        let low = if shift > 126 { 1 } else { wide >> shift | u128::from(wide & ((1 << shift) - 1) != 0) };
        let sum = if large.0 == small.0 { high + low } else { high - low };
        Self::rounded(large.0, sum, large.2 - 62)
    }
}

/// `mantissa / 2^shift` with 17 digits after the point, rounded half to even, zeros cut off.
fn print_fraction(mantissa: u64, shift: u32) -> String {
    let one = 10u128.pow(FRACTION_DIGITS);
    let scaled = u128::from(mantissa) * one;
    let rounded = if shift >= 127 {
        0
    } else {
        let below = scaled & ((1 << shift) - 1);
        let half = 1u128 << (shift - 1);
        let down = scaled >> shift;
        down + u128::from(below > half || below == half && down & 1 == 1)
    };
    let (whole, fraction) = (rounded / one, rounded % one);
    let digits = format!("{fraction:017}");
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() { whole.to_string() } else { format!("{whole}.{digits}") }
}

/// The digits of a number without its point, and the power (of the base; of two for base 16) they
/// are to be multiplied by.
fn split(text: &[u8], base: u32, mark: u8) -> Option<(Vec<u32>, i64)> {
    let end = text.iter().position(|byte| byte.eq_ignore_ascii_case(&mark));
    let mut digits = Vec::new();
    let mut after_point = None;
    for &byte in &text[..end.unwrap_or(text.len())] {
        if byte == b'.' && after_point.is_none() {
            after_point = Some(0);
            continue;
        }
        digits.push(char::from(byte).to_digit(base)?);
        after_point = after_point.map(|count: i64| count + 1);
    }
    if digits.is_empty() {
        return None;
    }
    let mut exponent = 0i64;
    if let Some(end) = end {
        let (negative, rest) = match &text[end + 1..] {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.is_empty() {
            return None;
        }
        for &byte in rest {
            let digit = char::from(byte).to_digit(10)?;
            // Past a million everything is out of range alike.
            exponent = (exponent * 10 + i64::from(digit)).min(1_000_000);
        }
        if negative {
            exponent = -exponent;
        }
    }
    let unit = if base == 16 { 4 } else { 1 };
    Some((digits, exponent - unit * after_point.unwrap_or(0)))
}

/// A natural number, least significant word first, without zeros at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(value: u64) -> Self {
        let mut big = Self(vec![value as u32, (value >> 32) as u32]);
        big.trim();
        big
    }
}

impl Big {
    fn from_digits(digits: &[u32], base: u32) -> Self {
        let mut big = Self(Vec::new());
        for &digit in digits {
            big.multiply_add(base, digit);
        }
        big
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn bits(&self) -> usize {
        match self.0.last() {
            Some(top) => self.0.len() * 32 - top.leading_zeros() as usize,
            None => 0,
        }
    }

    fn shift_left(&mut self, bits: usize) {
        if self.is_zero() {
            return;
        }
        let small = bits % 32;
        if small > 0 {
            let mut carry = 0;
            for word in &mut self.0 {
                let wide = u64::from(*word) << small | carry;
                *word = wide as u32;
                carry = wide >> 32;
            }
            if carry > 0 {
                self.0.push(carry as u32);
            }
        }
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 32));
    }

    fn is_below(&self, other: &Self) -> bool {
        self.0.len() < other.0.len()
            || self.0.len() == other.0.len() && self.0.iter().rev().lt(other.0.iter().rev())
    }

    /// Takes `other` away, which is not greater.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (place, word) in self.0.iter_mut().enumerate() {
            let taken = other.0.get(place).copied().unwrap_or(0);
            let (less, first) = word.overflowing_sub(taken);
            let (less, second) = less.overflowing_sub(u32::from(borrow));
            *word = less;
            borrow = first || second;
        }
        self.trim();
    }

    fn decimal(mut self) -> String {
        const BILLION: u64 = 1_000_000_000;
        let mut parts = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for word in self.0.iter_mut().rev() {
                let wide = rest << 32 | u64::from(*word);
                *word = (wide / BILLION) as u32;
                rest = wide % BILLION;
            }
            self.trim();
            parts.push(rest);
        }
        let mut text = parts.pop().unwrap_or(0).to_string();
        for part in parts.iter().rev() {
            text.push_str(&format!("{part:09}"));
        }
        text
    }
}
