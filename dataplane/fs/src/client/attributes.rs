//! Operations on attributes, with the rules of `setattr_prepare` (Linux, `fs/attr.c`).
//!
//! A change of a file's content or owner takes its set-ID bits and its capabilities away
//! (`file_remove_privs`). Those are records of their own, before that of the change: after a crash
//! between them the file has less rights, never more.

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::{Client, Service};
use crate::access::{Caller, Credentials, WRITE};
use crate::change::{Change, NewAttributes};
use crate::file_system::{AttributeChange, Handle, NewTime};
use crate::inode::{Attributes, InodeNumber, Kind, MODE_BITS, SET_GID, SET_UID, Timestamp};
use crate::lease::Mode;
use crate::limits::MAX_FILE;

/// The attribute that gives a program capabilities.
pub(super) const CAPABILITIES: &[u8] = b"security.capability";

impl<S: Service<M>, M: Medium> Client<S, M> {
    pub(super) fn change_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        self.need(inode, Mode::Exclusive)?;
        let found = self.stat(inode)?;
        if let Some(size) = change.size {
            self.may_truncate(caller, &found, handle, size)?;
        }
        let new = may_change(caller, &found, change)?;
        if let Some(size) = change.size {
            self.drop_privileges(caller, inode)?;
            // Also where the file has this size already, as POSIX says and ext4 does.
            self.truncate(caller, inode, size)?;
        }
        let is_chown = change.uid.is_some() || change.gid.is_some();
        if is_chown && found.kind != Kind::Directory {
            self.drop_capabilities(caller, inode)?;
        }
        if new != NewAttributes::default() {
            let charge = match new.uid {
                Some(uid) => self.charge_owner(inode, uid)?,
                None => None,
            };
            let change = Change::SetAttributes { inode, attributes: new };
            self.commit_charged(caller.now, change, &[], charge)?;
        }
        self.stat(inode)
    }

    fn may_truncate(
        &mut self,
        caller: Caller<'_>,
        found: &Attributes,
        handle: Option<Handle>,
        size: u64,
    ) -> Result<(), Errno> {
        match handle {
            Some(handle) => {
                let open = self.handle(handle)?;
                if open.inode != found.inode {
                    return Err(Errno::BADF);
                }
                if found.kind != Kind::File || !open.mode.write {
                    return Err(Errno::INVAL);
                }
            }
            None => match found.kind {
                Kind::File => caller.credentials.check(found, WRITE)?,
                Kind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            },
        }
        if size > MAX_FILE { Err(Errno::FBIG) } else { Ok(()) }
    }

    /// Changes the size of a file.
    pub(super) fn truncate(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        size: u64,
    ) -> Result<(), Errno> {
        self.commit_with(caller.now, Change::Truncate { inode, size }, &[])
    }

    /// Takes the set-ID bits and the capabilities of a file whose content changes.
    pub(super) fn drop_privileges(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<(), Errno> {
        let found = self.inode(inode)?;
        if found.mode & (SET_UID | SET_GID) != 0 && !caller.credentials.is_privileged {
            let found = self.stat(inode)?;
            let mode = without_set_id(caller.credentials, &found);
            if mode != found.mode {
                let attributes = NewAttributes { mode: Some(mode), ..NewAttributes::default() };
                let change = Change::SetAttributes { inode, attributes };
                self.repeatable(|client| client.commit(caller.now, change, &[]))?;
            }
        }
        self.drop_capabilities(caller, inode)
    }

    fn drop_capabilities(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<(), Errno> {
        if self.without_capabilities.contains(&inode) {
            return Ok(());
        }
        if self.see(|overlay, base| overlay.xattr(base, inode, CAPABILITIES))?.is_some() {
            self.repeatable(|client| client.remove_xattr_unchecked(caller, inode, CAPABILITIES))?;
        }
        self.without_capabilities.insert(inode);
        Ok(())
    }
}

/// The mode after a change of the content, or of the owner. Without execution by the group,
/// set-group-ID means mandatory locks, and stays if the user is in the group.
fn without_set_id(who: &Credentials, found: &Attributes) -> u16 {
    let in_group = who.is_privileged || who.is_member(found.gid);
    let drops_group = found.mode & 0o010 != 0 || !in_group;
    found.mode & !SET_UID & !(if drops_group { SET_GID } else { 0 })
}

/// Checks what is not the size, and returns it with its side effects.
fn may_change(
    caller: Caller<'_>,
    found: &Attributes,
    change: &AttributeChange,
) -> Result<NewAttributes, Errno> {
    let who = caller.credentials;
    if change.mode.is_some() && found.kind == Kind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    let is_owner = who.uid == found.uid;
    let may_uid = change.uid.is_none_or(|uid| is_owner && uid == found.uid);
    let may_gid = change.gid.is_none_or(|gid| is_owner && (gid == found.gid || who.is_member(gid)));
    let may_own = may_uid && may_gid;
    if !who.is_privileged && !may_own {
        return Err(Errno::PERM);
    }
    if change.mode.is_some() && !who.owns(found) {
        return Err(Errno::PERM);
    }
    may_change_times(who, found, change)?;
    let gid = change.gid.unwrap_or(found.gid);
    let is_chown = change.uid.is_some() || change.gid.is_some();
    let mode = match change.mode {
        Some(mode) => Some(who.allowed_mode(gid, mode & MODE_BITS)),
        None if is_chown && found.kind != Kind::Directory => {
            let mode = without_set_id(who, found);
            (mode != found.mode).then_some(mode)
        }
        None => None,
    };
    let time = |time: NewTime| match time {
        NewTime::Now => caller.now,
        NewTime::At(time) => time,
    };
    Ok(NewAttributes {
        mode,
        uid: change.uid,
        gid: change.gid,
        atime: change.atime.map(time),
        mtime: change.mtime.map(time),
    })
}

fn may_change_times(who: &Credentials, found: &Attributes, change: &AttributeChange) -> Result<(), Errno> {
    for time in [change.atime, change.mtime] {
        if matches!(time, Some(NewTime::At(Timestamp { nanoseconds: 1_000_000_000.., .. }))) {
            return Err(Errno::INVAL);
        }
    }
    match (change.atime, change.mtime) {
        (None, None) => Ok(()),
        // What ftruncate sets on the way.
        (None, Some(NewTime::Now)) if change.size.is_some() => Ok(()),
        (Some(NewTime::Now), Some(NewTime::Now)) if !who.owns(found) => who.check(found, WRITE),
        _ if who.owns(found) => Ok(()),
        _ => Err(Errno::PERM),
    }
}
