//! Numbers of bytes on the command line.

/// A number of bytes, as Redis writes it, and terabytes likewise: `512mb` and `512mib` are
/// 512 * 1024 * 1024, `512m` is 512 million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" => 1000,
            "kb" | "kib" => 1 << 10,
            "m" => 1_000_000,
            "mb" | "mib" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" | "gib" => 1 << 30,
            "t" => 1_000_000_000_000,
            "tb" | "tib" => 1 << 40,
            _ => return Err(format!("{text:?} has no unit of bytes; write 512mb, 2gb or 1tb")),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no size; write a number with a unit, as in 512mb"))
    }
}
