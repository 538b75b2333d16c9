//! Operations on extended attributes, with the namespaces of `xattr(7)`.

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::attributes::CAPABILITIES;
use super::xattr_names::STEP;
use super::{Client, Service};
use crate::access::{Caller, READ, WRITE};
use crate::base::Base as _;
use crate::change::Change;
use crate::file_system::XattrMode;
use crate::inode::{Attributes, InodeNumber, Kind, STICKY};
use crate::lease::Mode;
use crate::limits::{MAX_XATTR_NAME, MAX_XATTR_NAMES, MAX_XATTR_VALUE};
use crate::name::Cookie;
use crate::pin::{self, PIN};
use crate::quota;

impl<S: Service<M>, M: Medium> Client<S, M> {
    pub(super) fn get_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        check_name(name)?;
        if is_quota(inode, name) {
            return self.shown_quotas(caller, name);
        }
        let found = self.stat(inode)?;
        may_use(caller, &found, name, READ)?;
        self.see(|overlay, base| overlay.xattr(base, inode, name))?.ok_or(Errno::NODATA)
    }

    /// Lists some names; where it goes on, if there are more.
    pub(super) fn list_xattrs(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        from: Cookie,
        take: &mut dyn FnMut(Box<[u8]>),
    ) -> Result<Option<Cookie>, Errno> {
        self.stat(inode)?;
        let is_shown = |name: &[u8]| {
            !is_quota(inode, name) && (caller.credentials.is_privileged || !name.starts_with(b"trusted."))
        };
        let mut take = |name: Box<[u8]>| {
            if is_shown(&name) {
                take(name)
            }
        };
        self.see(|overlay, base| overlay.xattrs_from(base, inode, from, STEP, &mut take))
    }

    /// Counts some of the names of a file; whether all are counted.
    fn count_names(&mut self, inode: InodeNumber) -> Result<bool, Errno> {
        let Some(from) = self.xattr_names.next(inode) else { return Ok(true) };
        let mut found = Vec::new();
        let mut take = |name: Box<[u8]>| found.push(name);
        let next = self.see(|overlay, base| overlay.xattrs_from(base, inode, from, STEP, &mut take))?;
        for name in found.iter().filter(|name| !is_quota(inode, name)) {
            self.xattr_names.count(inode, name);
        }
        self.xattr_names.counted_to(inode, next);
        Ok(next.is_none())
    }

    /// Sets an attribute; `false`: only a step was done.
    pub(super) fn put_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool, Errno> {
        check_name(name)?;
        if is_quota(inode, name) {
            return self.set_limit(caller, name, value, mode).map(|()| true);
        }
        if value.len() > MAX_XATTR_VALUE {
            return Err(Errno::TOOBIG);
        }
        self.need(inode, Mode::Exclusive)?;
        let found = self.stat(inode)?;
        may_use(caller, &found, name, WRITE)?;
        if name == PIN && !pin::class(value).is_some_and(|class| self.service.base().has_class(class)) {
            // Nothing would move.
            return Err(Errno::INVAL);
        }
        let is_there = self.see(|overlay, base| overlay.xattr(base, inode, name))?.is_some();
        match mode {
            XattrMode::Create if is_there => return Err(Errno::EXIST),
            XattrMode::Replace if !is_there => return Err(Errno::NODATA),
            _ => {}
        }
        if !is_there {
            if !self.count_names(inode)? {
                return Ok(false);
            }
            if !self.xattr_names.has_room(inode, name, MAX_XATTR_NAMES) {
                return Err(Errno::NOSPC);
            }
        }
        if name == CAPABILITIES {
            self.without_capabilities.remove(&inode);
        }
        let change = Change::SetXattr { inode, name, length: value.len() as u32 };
        self.commit_with(caller.now, change, value)?;
        if !is_there {
            self.xattr_names.count(inode, name);
        }
        Ok(true)
    }

    pub(super) fn drop_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        check_name(name)?;
        if is_quota(inode, name) {
            return self.set_limit(caller, name, NO_LIMIT, XattrMode::Set);
        }
        self.need(inode, Mode::Exclusive)?;
        let found = self.stat(inode)?;
        may_use(caller, &found, name, WRITE)?;
        if self.see(|overlay, base| overlay.xattr(base, inode, name))?.is_none() {
            return Err(Errno::NODATA);
        }
        self.remove_xattr_unchecked(caller, inode, name)
    }

    /// Removes an attribute that is there.
    pub(super) fn remove_xattr_unchecked(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.commit(caller.now, Change::RemoveXattr { inode, name }, &[])?;
        let first = self.service.base().name_key().cookie(name);
        self.xattr_names.removed(inode, name, first);
        Ok(())
    }
}

/// The value that takes a limit away.
const NO_LIMIT: &[u8] = b"0 0";

/// Whether it is no attribute, but what is known of users.
fn is_quota(inode: InodeNumber, name: &[u8]) -> bool {
    inode == InodeNumber::ROOT && quota::is_about(name)
}

/// Namespaces with rules of their own; the last is for users.
const NAMESPACES: [&[u8]; 3] = [b"security.", b"trusted.", b"user."];

/// Refuses what cannot be the name of an attribute.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > MAX_XATTR_NAME {
        return Err(Errno::RANGE);
    }
    if name.contains(&0) { Err(Errno::INVAL) } else { Ok(()) }
}

/// Whether the caller may read or write an attribute with this name. The namespace decides who
/// may, and only then whether there is a name in it (`xattr_permission`, Linux, `fs/xattr.c`).
fn may_use(caller: Caller<'_>, found: &Attributes, name: &[u8], wanted: u8) -> Result<(), Errno> {
    let who = caller.credentials;
    let is_read = wanted == READ;
    if name.starts_with(b"trusted.") && !who.is_privileged {
        return Err(if is_read { Errno::NODATA } else { Errno::PERM });
    }
    if name.starts_with(b"security.") && !is_read && !who.is_privileged {
        return Err(Errno::PERM);
    }
    let is_of_users = name.starts_with(b"user.");
    if is_of_users {
        may_use_as_user(caller, found, is_read)?;
    }
    let is_of_system =
        [&b"system."[..], b"security.", b"trusted."].iter().any(|namespace| name.starts_with(namespace));
    if !is_of_system {
        who.check(found, wanted)?;
    }
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}

fn may_use_as_user(caller: Caller<'_>, found: &Attributes, is_read: bool) -> Result<(), Errno> {
    if !matches!(found.kind, Kind::File | Kind::Directory) {
        return Err(if is_read { Errno::NODATA } else { Errno::PERM });
    }
    let is_shared = found.kind == Kind::Directory && found.mode & STICKY != 0;
    if !is_read && is_shared && !caller.credentials.owns(found) { Err(Errno::PERM) } else { Ok(()) }
}
