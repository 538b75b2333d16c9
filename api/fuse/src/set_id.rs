//! Set-user-ID and set-group-ID bits, which a change of the content or the owner clears.
//!
//! 1. Set-user-ID goes, and set-group-ID where the group may execute.
//! 2. Elsewhere set-group-ID is no privilege. It stays if root makes the change, or a member of the
//!    file's group; that is what Linux does.
//! 3. Only the rare case 2 needs the caller's supplementary groups ([`crate::sender`]). Where they
//!    are unknown, the bit goes.

use sietch_fs::access::Credentials;
use sietch_fs::inode::{Attributes, Kind, SET_GID, SET_UID};

use crate::sender::Sender;

/// The permission of the group to execute.
const GROUP_EXECUTE: u16 = 0o010;

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
    let groups = if unknown { sender.groups() } else { Vec::new() };
    Credentials { uid: sender.uid, gid: sender.gid, groups, is_privileged: false }
}

/// Whether the inode has bits that a change clears.
pub(crate) fn has_bits(shown: &Attributes) -> bool {
    shown.kind != Kind::Directory && shown.mode & (SET_UID | SET_GID) != 0
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
}
