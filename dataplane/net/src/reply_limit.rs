//! Rate limits of stateless replies. A receiver cannot infer from them how many replies others got.

use crate::limits::SECOND;
use crate::siphash::Key;

/// A token bucket that bounds how often something stateless is sent, to all receivers together.
///
/// Receivers share it, so one could count the answers that it gets in a second and infer how many
/// went to others. Attacks found and broke into connections that way (Cao et al., Off-Path TCP
/// Exploits, USENIX Security 2016; RFC 5961 section 7 calls for the limit that they used). So an
/// answer costs no token, one or two, by a keyed hash: one on average, and unpredictable from
/// outside.
#[derive(Debug)]
pub(crate) struct ReplyLimit {
    rate: u64,
    tokens: u64,
    /// The last answer cost a token that was not there.
    owes: bool,
    refilled_at: u64,
    secret: Key,
    /// Answers so far.
    granted: u64,
}

impl ReplyLimit {
    /// A full bucket of `rate` tokens, refilled at `rate` tokens a second.
    pub(crate) const fn new(rate: u64, secret: Key) -> Self {
        Self { rate, tokens: rate, owes: false, refilled_at: 0, secret, granted: 0 }
    }

    /// Takes what an answer costs. False if the bucket is empty.
    pub(crate) fn take(&mut self, now: u64) -> bool {
        let elapsed = now.saturating_sub(self.refilled_at);
        if elapsed >= SECOND {
            self.tokens = self.rate;
            self.refilled_at = now;
        } else {
            let earned = elapsed * self.rate / SECOND;
            if earned > 0 {
                self.tokens = (self.tokens + earned).min(self.rate);
                self.refilled_at = now;
            }
        }
        if self.owes && self.tokens > 0 {
            self.tokens -= 1;
            self.owes = false;
        }
        if self.tokens == 0 {
            return false;
        }
        self.granted += 1;
        // The rate is part of the hash, so that the buckets of one engine differ.
        let cost = self.secret.hash_word(self.granted ^ self.rate << 40) % 3;
        self.owes = cost > self.tokens;
        self.tokens = self.tokens.saturating_sub(cost);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::ReplyLimit;
    use crate::limits::MILLISECOND;
    use crate::siphash::Key;

    /// Answers in each of `seconds` seconds, of a limit of 100 a second under ten times the load.
    fn granted(secret: u8, seconds: u64) -> Vec<u64> {
        let mut bucket = ReplyLimit::new(100, Key::new([secret; 16]));
        let in_second = |second: u64| {
            (0..1000).filter(|&at| bucket.take((second * 1000 + at) * MILLISECOND)).count() as u64
        };
        // The first second also empties the full bucket.
        (0..=seconds).map(in_second).skip(1).collect()
    }

    #[test]
    fn answers_keep_their_rate_on_average_and_their_number_in_a_second_is_unpredictable() {
        let one = granted(1, 100);
        let sum: u64 = one.iter().sum();
        assert!((9_500..=10_500).contains(&sum), "{sum} answers in 100 s");
        assert_ne!(one, granted(2, 100), "the costs depend on the secret");
        let (least, most) = (one.iter().min(), one.iter().max());
        assert!(most > least.map(|count| count + 5).as_ref(), "{least:?} to {most:?} answers in a second");
    }
}
