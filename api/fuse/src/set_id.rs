//! Set-user-ID and set-group-ID bits, which a change of the content or the owner clears.
//!
//! 1. Set-user-ID goes, and set-group-ID where the group may execute.
//! 2. Elsewhere set-group-ID is no privilege. It stays if root makes the change, or a member of the
//!    file's group; that is what Linux does.
//! 3. FUSE does not send supplementary groups. Only the rare case 2 needs them: they are read from
//!    `/proc`. The caller waits in its system call, so they do not change meanwhile. Of a caller
//!    in another PID namespace they are unknown, and the bit goes.

use sietch_fs::access::Credentials;
use sietch_fs::inode::{Attributes, Kind, SET_GID, SET_UID};

/// The permission of the group to execute.
const GROUP_EXECUTE: u16 = 0o010;

/// Who sends a request: what is left of it when it is answered later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread.
    pub(crate) pid: u32,
}

/// Whether only a caller's groups say what stays.
fn depends_on_groups(shown: &Attributes) -> bool {
    shown.kind != Kind::Directory && shown.mode & (SET_GID | GROUP_EXECUTE) == SET_GID
}

/// The mode that is left after a change by `caller`.
fn left(shown: &Attributes, caller: &Credentials) -> u16 {
    if shown.kind == Kind::Directory {
        return shown.mode;
    }
    let stays = depends_on_groups(shown) && (caller.uid == 0 || caller.is_member(shown.gid));
    shown.mode & !SET_UID & if stays { u16::MAX } else { !SET_GID }
}

/// The mode that is left after the caller has changed the content or the owner.
pub(crate) fn mode_after(shown: &Attributes, sender: Sender) -> u16 {
    left(shown, &unprivileged(shown, sender))
}

/// The caller without privilege, with all groups that matter for the bits of this inode.
pub(crate) fn unprivileged(shown: &Attributes, sender: Sender) -> Credentials {
    let unknown = depends_on_groups(shown) && sender.uid != 0 && sender.gid != shown.gid;
    let groups = if unknown { groups(sender.pid) } else { Vec::new() };
    Credentials { uid: sender.uid, gid: sender.gid, groups, is_privileged: false }
}

/// Whether the inode has bits that a change clears.
pub(crate) fn has_bits(shown: &Attributes) -> bool {
    shown.kind != Kind::Directory && shown.mode & (SET_UID | SET_GID) != 0
}

/// The supplementary groups of a thread; none if it cannot be seen from here.
fn groups(thread: u32) -> Vec<u32> {
    parse(&std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default())
}

fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use sietch_fs::inode::{InodeNumber, Timestamp};

    use super::*;

    #[test]
    fn set_group_id_stays_only_where_it_is_no_privilege_of_root_or_a_member() {
        let shown = |kind, mode| Attributes {
            inode: InodeNumber(2),
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 7,
            device: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
        };
        let other = Credentials::user(1, 1);
        let member = Credentials { groups: vec![8, 7], ..other.clone() };
        for (kind, mode, caller, expected) in [
            (Kind::File, 0o6755, &member, 0o755),
            (Kind::File, 0o6755, &Credentials::root(), 0o755),
            (Kind::File, 0o6745, &member, 0o2745),
            (Kind::File, 0o6745, &Credentials::root(), 0o2745),
            (Kind::File, 0o6745, &other, 0o745),
            (Kind::File, 0o1644, &other, 0o1644),
            (Kind::Directory, 0o6755, &other, 0o6755),
        ] {
            assert_eq!(left(&shown(kind, mode), caller), expected, "{kind:?} {mode:o} {caller:?}");
        }
    }

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        assert_eq!(parse("Name:\tx\nGid:\t5\t5\nGroups:\t4 24 4294967295 \nNgid:\t0\n"), [4, 24, u32::MAX]);
        assert_eq!(parse("Groups:\t \n"), Vec::<u32>::new());
        assert_eq!(parse("Groups:\tx -1 3\n"), [3]);
        assert_eq!(parse(""), Vec::<u32>::new());
    }
}
