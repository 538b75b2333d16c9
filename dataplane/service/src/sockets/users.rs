//! Users that have no number in the user namespace of the service.
//!
//! 1. The kernel says one number of all of them, `/proc/sys/kernel/overflowuid`. They are many
//!    users, and must not see, end or take what another one of them has.
//! 2. Where every user has a number, as on the host, that number is a user of its own (nobody's).
//! 3. Where not every user has one, a user may still have that number itself. Nothing tells it from
//!    the others, so it counts as one of them.

use std::path::Path;

/// What the kernel says where nobody changed it.
const OVERFLOW: u32 = 65_534;
/// How many users there are: `u32::MAX` is none.
const ALL: u64 = u32::MAX as u64;

/// The number of those users; none where all users have one of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unmapped(Option<u32>);

impl Unmapped {
    /// As the kernel says it of this process.
    pub fn here() -> Self {
        let map = Path::new("/proc/self/uid_map");
        match std::fs::read_to_string(map) {
            Ok(map) => Self::of(&map, &read("/proc/sys/kernel/overflowuid")),
            // A kernel without user namespaces.
            Err(_) if Path::new("/proc/self/status").exists() && !map.exists() => Self(None),
            // Nothing says how it is.
            Err(_) => Self::of("", ""),
        }
    }

    /// From the texts of `uid_map` and of `overflowuid`.
    fn of(map: &str, overflow: &str) -> Self {
        let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
        let mapped: u64 = map.lines().filter_map(count).sum();
        Self((mapped < ALL).then(|| overflow.trim().parse().unwrap_or(OVERFLOW)))
    }

    /// Whether this number may be any of several users.
    pub fn contains(self, uid: u32) -> bool {
        self.0 == Some(uid)
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_every_user_has_a_number_nobody_is_one_of_several() {
        assert_eq!(Unmapped::of("         0          0 4294967295\n", "65534\n"), Unmapped(None));
        // Two parts of all of them.
        assert_eq!(Unmapped::of("0 0 1000\n1000 1000 4294966295\n", "65534\n"), Unmapped(None));
    }

    #[test]
    fn where_some_have_none_they_have_the_kernels_number_together() {
        let found = Unmapped::of("         0       1000          1\n", "65534\n");
        assert!(found.contains(65_534) && !found.contains(0));
        // One that has that number itself cannot be told apart.
        assert!(Unmapped::of("0 100000 65536\n", "65534\n").contains(65_534));
        assert!(Unmapped::of("0 1000 1\n", "1234\n").contains(1234), "the host's administrator chose it");
        assert!(Unmapped::of("", "").contains(65_534), "of a namespace without a map");
    }
}
