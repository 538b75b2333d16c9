//! `client-output-buffer-limit`: how much output may wait for a client, by its class.
//!
//! 1. A client with as many bytes as the hard limit is closed at once.
//! 2. A client that has had as many as the soft limit for longer than the limit's seconds is
//!    closed, whether it receives more or not.

use std::fmt;

use super::memory::parse_memory;

/// The limit of one class; 0 bytes are no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputLimit {
    /// Bytes from which on a client is closed at once.
    pub hard: u64,
    /// Bytes that a client may have for `seconds` only.
    pub soft: u64,
    /// How long a client may have as many bytes as `soft`.
    pub seconds: u64,
}

impl OutputLimit {
    /// Whether it limits anything.
    pub(crate) fn is_set(self) -> bool {
        (self.hard | self.soft) > 0
    }

    /// Whether a client with so many bytes is closed at once.
    pub(crate) fn is_reached(self, bytes: usize) -> bool {
        self.hard > 0 && bytes as u64 >= self.hard
    }

    /// Whether a client with so many bytes may have them for a while only.
    pub(crate) fn is_soft_reached(self, bytes: usize) -> bool {
        self.soft > 0 && bytes as u64 >= self.soft
    }

    /// The same time in nanoseconds.
    pub(crate) fn nanoseconds(self) -> u64 {
        self.seconds.saturating_mul(1_000_000_000)
    }
}

impl fmt::Display for OutputLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.hard, self.soft, self.seconds)
    }
}

/// The limits of all classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Of clients that are neither subscribers nor monitors.
    pub normal: OutputLimit,
    /// Shown only: there are no replicas.
    pub replica: OutputLimit,
    /// Of subscribers and monitors.
    pub pubsub: OutputLimit,
}

impl Default for OutputLimits {
    /// Redis' limits. A subscriber that does not read is closed, so that it does not use up memory.
    fn default() -> Self {
        Self {
            normal: OutputLimit::default(),
            replica: OutputLimit { hard: 256 << 20, soft: 64 << 20, seconds: 60 },
            pubsub: OutputLimit { hard: 32 << 20, soft: 8 << 20, seconds: 60 },
        }
    }
}

impl fmt::Display for OutputLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "normal {} slave {} pubsub {}", self.normal, self.replica, self.pubsub)
    }
}

impl OutputLimits {
    /// These limits, changed by the value of a CONFIG SET: a class, its hard and its soft limit and
    /// its seconds, for any number of classes.
    ///
    /// # Errors
    /// Redis' wording.
    pub(super) fn changed_by(mut self, value: &str) -> Result<Self, &'static str> {
        let words: Vec<&str> = if value.is_empty() { Vec::new() } else { value.split(' ').collect() };
        if !words.len().is_multiple_of(4) {
            return Err("Wrong number of arguments in buffer limit configuration.");
        }
        for words in words.chunks_exact(4) {
            let class = match words[0].to_ascii_lowercase().as_str() {
                "normal" => &mut self.normal,
                "slave" | "replica" => &mut self.replica,
                "pubsub" => &mut self.pubsub,
                _ => return Err("Invalid client class specified in buffer limit configuration."),
            };
            let seconds = words[3].parse::<i64>().ok().and_then(|seconds| u64::try_from(seconds).ok());
            let (Some(hard), Some(soft), Some(seconds)) =
                (parse_memory(words[1]), parse_memory(words[2]), seconds)
            else {
                return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.");
            };
            *class = OutputLimit { hard, soft, seconds };
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_any_number_of_classes_or_is_refused_as_a_whole() {
        let limits = OutputLimits::default();
        assert_eq!(limits.to_string(), "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60");
        let changed = limits.changed_by("normal 1kb 2 3 REPLICA 1gb 0 5").expect("two classes");
        assert_eq!(changed.to_string(), "normal 1024 2 3 slave 1073741824 0 5 pubsub 33554432 8388608 60");
        assert_eq!(limits.changed_by(""), Ok(limits));
        for (value, reason) in [
            ("normal", "Wrong number"),
            ("normal 1 2", "Wrong number"),
            ("normal 0 0 0 ", "Wrong number"),
            ("normal  0 0 0", "Wrong number"),
            ("pubsub 1 2 3 normal 4 5", "Wrong number"),
            ("normal 1mb xyz abc", "Error in hard, soft"),
            ("normal -1 0 0", "Error in hard, soft"),
            ("normal 1 2 -1", "Error in hard, soft"),
            ("normal 1 1 99999999999999999999", "Error in hard, soft"),
            ("master 0 0 0", "Invalid client class"),
        ] {
            let refused = limits.changed_by(value).expect_err(value);
            assert!(refused.starts_with(reason), "{value}: {refused}");
        }
    }
}
