//! What each user has of a file system, and may have at most.
//!
//! 1. The digest counts blocks and inodes of each owner where it writes inodes, in the same commit
//!    ([`crate::digest`]). So the sums are exact for every generation of the pool.
//! 2. A limit is set by an extended attribute of the root directory, `user.sietch.quota.UID`. The
//!    record goes through the log as every other. The digest stores the limit beside the user's
//!    usage, and no attribute: it is not listed.
//! 3. A client refuses with `EDQUOT` what would exceed a limit (`client/quota.rs`).
//!
//! | attribute of the root directory | value |
//! | --- | --- |
//! | `user.sietch.quota.UID`, set | two decimal numbers: bytes, inodes; 0: no limit |
//! | `user.sietch.quota.UID`, read | one line of the next row |
//! | `user.sietch.quota.from.UID`, read | a line for each user from UID on, as many as fit |
//!
//! A line has five decimal numbers: uid, bytes and inodes in use, limits of bytes and of inodes.

use crate::limits::BLOCK;

/// What the names of all attributes about quotas begin with. Only the root directory has them.
pub const QUOTA: &[u8] = b"user.sietch.quota.";

/// What follows in the name of the attribute that lists users.
const FROM: &[u8] = b"from.";

/// The number that no user has (`chown(2)` takes it for "as it is").
const NO_USER: u32 = u32::MAX;

/// Blocks and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Blocks of [`BLOCK`] bytes: those of the data of files, written or reserved.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Amount {
    /// Nothing, or as a limit: none.
    pub const ZERO: Self = Self { blocks: 0, inodes: 0 };

    /// The sum. It saturates: sums of a damaged pool may be anything.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// The difference, not below 0.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(other.blocks),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

/// A user's part of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// What the user has.
    pub used: Amount,
    /// What the user may have at most; 0: no limit.
    pub limit: Amount,
}

impl Quota {
    /// Whether the user may have `more`. What needs nothing is never refused, also beyond a limit.
    pub(crate) fn allows(&self, pending: Amount, more: Amount) -> bool {
        let all = self.used.plus(pending).plus(more);
        let fits = |more: u64, all: u64, limit: u64| more == 0 || limit == 0 || all <= limit;
        fits(more.blocks, all.blocks, self.limit.blocks) && fits(more.inodes, all.inodes, self.limit.inodes)
    }

    /// The line that shows it.
    pub(crate) fn line(&self, uid: u32) -> String {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK as u64);
        let (used, limit) = (self.used, self.limit);
        let (used_bytes, most_bytes) = (bytes(used.blocks), bytes(limit.blocks));
        format!("{uid} {used_bytes} {} {most_bytes} {}\n", used.inodes, limit.inodes)
    }
}

/// Whether an attribute of the root directory is about quotas.
pub(crate) fn is_about(name: &[u8]) -> bool {
    name.starts_with(QUOTA)
}

/// The user whose limit an attribute of the root directory is.
pub(crate) fn user(name: &[u8]) -> Option<u32> {
    number(name.strip_prefix(QUOTA)?).filter(|uid| *uid != NO_USER)
}

/// The first user that an attribute of the root directory lists.
pub(crate) fn first_listed(name: &[u8]) -> Option<u32> {
    number(name.strip_prefix(QUOTA)?.strip_prefix(FROM)?)
}

/// A limit, as its attribute has it. Bytes count as whole blocks.
pub(crate) fn limit(value: &[u8]) -> Option<Amount> {
    let mut numbers = value.split(|byte| *byte == b' ');
    let (bytes, inodes): (u64, u64) = (number(numbers.next()?)?, number(numbers.next()?)?);
    let amount = Amount { blocks: bytes.div_ceil(BLOCK as u64), inodes };
    numbers.next().is_none().then_some(amount)
}

/// A decimal number in its only form.
fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    let is_plain = text == b"0" || text.first().is_some_and(|first| (b'1'..=b'9').contains(first));
    std::str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// The name of the attribute with a user's limit.
pub fn attribute(uid: u32) -> String {
    format!("{}{uid}", String::from_utf8_lossy(QUOTA))
}

/// The name of the attribute that lists users from `uid` on.
pub fn list_attribute(uid: u32) -> String {
    format!("{}{}{uid}", String::from_utf8_lossy(QUOTA), String::from_utf8_lossy(FROM))
}

/// The value that sets a limit.
pub fn limit_value(bytes: u64, inodes: u64) -> String {
    format!("{bytes} {inodes}")
}

/// A line of a list: the user, and the user's part.
pub fn read_line(line: &str) -> Option<(u32, Quota)> {
    let mut numbers = line.split(' ');
    let uid = numbers.next()?.parse().ok()?;
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (used, used_inodes, most, most_inodes) = (next()?, next()?, next()?, next()?);
    let amount = |bytes: u64, inodes| Amount { blocks: bytes / BLOCK as u64, inodes };
    let quota = Quota { used: amount(used, used_inodes), limit: amount(most, most_inodes) };
    numbers.next().is_none().then_some((uid, quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_one_form() {
        assert_eq!(limit(b"4097 3"), Some(Amount { blocks: 2, inodes: 3 }));
        assert_eq!(limit(b"0 0"), Some(Amount::ZERO));
        let most = Amount { blocks: u64::MAX.div_ceil(4096), inodes: u64::MAX };
        assert_eq!(limit(b"18446744073709551615 18446744073709551615"), Some(most));
        for wrong in ["", " ", "1", "1 ", " 1", "1 2 3", "1  2", "+1 2", "-1 2", "01 2", "1 2\n", "x 1"] {
            assert_eq!(limit(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(limit(b"18446744073709551616 0"), None);
    }

    #[test]
    fn names_of_users_have_one_form() {
        assert_eq!(user(attribute(0).as_bytes()), Some(0));
        assert_eq!(user(attribute(4_294_967_294).as_bytes()), Some(4_294_967_294));
        assert_eq!(first_listed(list_attribute(7).as_bytes()), Some(7));
        for wrong in ["4294967295", "-1", "+1", "00", "01", "", "1 ", "from.1", "4294967296", "x"] {
            assert_eq!(user(&[QUOTA, wrong.as_bytes()].concat()), None, "{wrong:?}");
        }
        assert_eq!(user(b"user.sietch.medium"), None);
    }

    #[test]
    fn what_is_at_a_limit_fits_and_one_more_does_not() {
        let amount = |blocks, inodes| Amount { blocks, inodes };
        let quota = Quota { used: amount(5, 2), limit: amount(10, 3) };
        assert!(quota.allows(amount(2, 0), amount(3, 1)));
        assert!(!quota.allows(amount(2, 0), amount(4, 0)));
        assert!(!quota.allows(amount(0, 1), amount(0, 1)));
        // Who has more than the limit may still do what needs nothing.
        let beyond = Quota { limit: amount(1, 1), ..quota };
        assert!(beyond.allows(Amount::ZERO, Amount::ZERO));
        assert!(!beyond.allows(Amount::ZERO, amount(1, 0)));
        let full = Quota { used: amount(u64::MAX, 0), limit: amount(u64::MAX - 1, 0) };
        assert!(!full.allows(amount(u64::MAX, 0), amount(u64::MAX, 0)));
        assert!(Quota { limit: Amount::ZERO, ..full }.allows(amount(1, 1), amount(1, 1)));
    }

    #[test]
    fn a_line_says_what_the_quota_is() {
        let quota = Quota { used: Amount { blocks: 3, inodes: 4 }, limit: Amount { blocks: 5, inodes: 0 } };
        let line = quota.line(7);
        assert_eq!(line, "7 12288 4 20480 0\n");
        assert_eq!(read_line(line.trim_end()), Some((7, quota)));
        assert_eq!(
            (read_line("7 1 2 3"), read_line("7 1 2 3 4 5"), read_line("x 1 2 3 4")),
            (None, None, None)
        );
    }
}
