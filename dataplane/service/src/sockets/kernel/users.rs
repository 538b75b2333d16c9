//! Users that have no uid in the user namespace of the service.
//!
//! 1. The kernel shows all of them under one uid, `/proc/sys/kernel/overflowuid`. They are
//!    different users, and must not see, end or take what another one of them has.
//! 2. Where every user has a uid, as on the host, that uid belongs to an ordinary user.
//! 3. Where some have none, a user may still have the overflow uid itself. It cannot be
//!    distinguished from the others, so it counts as one of them.

use std::path::Path;

/// The kernel's default of `overflowuid`.
const OVERFLOW: u32 = 65_534;
/// The number of uids: `u32::MAX` is none.
const ALL: u64 = u32::MAX as u64;

/// The uid that several users share, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sockets) struct UnmappedUsers(Option<u32>);

impl UnmappedUsers {
    /// Reads the user namespace of this process.
    pub(crate) fn here() -> Self {
        let map = Path::new("/proc/self/uid_map");
        match std::fs::read_to_string(map) {
            Ok(map) => Self::of(&map, &read("/proc/sys/kernel/overflowuid")),
            // A kernel without user namespaces.
            Err(_) if Path::new("/proc/self/status").exists() && !map.exists() => Self(None),
            // The state is unknown.
            Err(_) => Self::of("", ""),
        }
    }

    /// Parses the texts of `uid_map` and of `overflowuid`.
    fn of(map: &str, overflow: &str) -> Self {
        let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
        let mapped: u64 = map.lines().filter_map(count).sum();
        Self((mapped < ALL).then(|| overflow.trim().parse().unwrap_or(OVERFLOW)))
    }

    /// Returns whether several users may have this uid.
    pub(crate) fn contains(self, uid: u32) -> bool {
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
    fn a_full_map_leaves_no_user_without_a_uid() {
        assert_eq!(UnmappedUsers::of("         0          0 4294967295\n", "65534\n"), UnmappedUsers(None));
        // Two ranges that cover all uids.
        assert_eq!(UnmappedUsers::of("0 0 1000\n1000 1000 4294966295\n", "65534\n"), UnmappedUsers(None));
    }

    #[test]
    fn a_partial_map_marks_the_overflow_uid() {
        let found = UnmappedUsers::of("         0       1000          1\n", "65534\n");
        assert!(found.contains(65_534) && !found.contains(0));
        // A user that has the overflow uid itself cannot be distinguished.
        assert!(UnmappedUsers::of("0 100000 65536\n", "65534\n").contains(65_534));
        assert!(
            UnmappedUsers::of("0 1000 1\n", "1234\n").contains(1234),
            "the administrator of the host chose this overflow uid"
        );
        assert!(UnmappedUsers::of("", "").contains(65_534), "a namespace without a map");
    }
}
