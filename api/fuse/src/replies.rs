//! Replies that several requests have, also when they are answered later.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr};
use rustix::io::Errno;
use sietch_fs::inode::Attributes;

use crate::attributes::file_attributes;

/// A reply that the steps of an operation add to, and its answer sends.
pub(crate) struct Shared<R>(Arc<Mutex<Option<R>>>);

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Shared<R> {
    pub(crate) fn new(reply: R) -> Self {
        Self(Arc::new(Mutex::new(Some(reply))))
    }

    /// Adds to the reply.
    ///
    /// # Errors
    /// Those of `add`; `EIO`: it was sent.
    pub(crate) fn with<T>(&self, add: impl FnOnce(&mut R) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut reply = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        add(reply.as_mut().ok_or(Errno::IO)?)
    }

    /// The reply, to be sent.
    pub(crate) fn take(&self) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A name that a request has, for as long as that is under way.
pub(crate) fn owned(name: &OsStr) -> Box<[u8]> {
    name.as_bytes().into()
}

/// Replies with an inode that the kernel knows from now on, and may keep for `keep`.
pub(crate) fn reply_entry(found: Result<Attributes, fuser::Errno>, keep: Duration, reply: ReplyEntry) {
    match found {
        Ok(shown) => reply.entry(&keep, &file_attributes(&shown), Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn reply_attributes(found: Result<Attributes, fuser::Errno>, keep: Duration, reply: ReplyAttr) {
    match found {
        Ok(shown) => reply.attr(&keep, &file_attributes(&shown)),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn reply_empty(result: Result<(), fuser::Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Replies with a value as `getxattr(2)` and `listxattr(2)` want it: its size if `room` is 0.
pub(crate) fn reply_value(value: Result<Vec<u8>, fuser::Errno>, room: u32, reply: ReplyXattr) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(size) if room == 0 => reply.size(size),
            Ok(size) if size <= room => reply.data(&value),
            _ => reply.error(fuser::Errno::ERANGE),
        },
    }
}
