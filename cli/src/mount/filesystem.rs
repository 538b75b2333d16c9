//! The file system: what the kernel asks, answered from what the daemon says.
//!
//! 1. Every question carries the uid of whoever asks, from the kernel. An area is shown and opened to its own uid and to root, whoever mounted
//!    it; others get EACCES. As for any file, who was allowed to open it may go on reading, and pass it on.
//! 2. Nothing can be written: the mount is read-only, and the daemon gives descriptors that only read.
//! 3. Files are read past the kernel's cache (`FOPEN_DIRECT_IO`): their owners write them by ways that the kernel does not see.
//! 4. An open area is a descriptor: it outlives a restart of the daemon, and the area's name, as with any file.
//! 5. Where others than the mounting user may look, the kernel may not keep what one of them was told: names and attributes are asked for anew.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use sietch_protocol::message::{MAX_PIECE, is_name};
use sietch_protocol::{AreaStatus, ErrorKind};

use super::areas::{Areas, FRESH, Listing};
use super::nodes::{Node, Nodes};
use super::workers::{Lane, Speaker, Trouble, Workers};

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// What a reader is advised to read at once.
const READ_SIZE: u32 = 128 << 10;

/// What the kernel has open.
enum Open {
    /// An area with a descriptor of its own.
    File { file: OwnedFd, size: u64 },
    /// An area that the daemon reads.
    Pieces { path: String, size: u64 },
    /// A directory as it was when it was opened.
    Directory(Vec<(String, Node)>),
}

/// What all parts of a mount share.
struct Shared {
    nodes: Mutex<Nodes>,
    areas: Areas,
    open: Mutex<HashMap<u64, Arc<Open>>>,
    next_handle: AtomicU64,
    /// How long the kernel may keep what it was told.
    keep: Duration,
    /// Who mounted it, and when.
    uid: u32,
    gid: u32,
    began: SystemTime,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is under these locks changes in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a caller is told of a failure.
pub fn errno(trouble: &Trouble) -> Errno {
    match trouble {
        Trouble::Refused(error) => match error.kind {
            ErrorKind::Unknown => Errno::ENOENT,
            ErrorKind::Denied => Errno::EACCES,
            ErrorKind::Unsupported => Errno::ENOTSUP,
            ErrorKind::Busy => Errno::EBUSY,
            ErrorKind::Limit => Errno::EAGAIN,
            ErrorKind::Silent => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        },
        Trouble::Gone(_) => Errno::EIO,
    }
}

impl Shared {
    /// Whether `uid` may see and read what belongs to `owner`.
    fn may(uid: u32, owner: u32) -> bool {
        // The last number means that the owner, or the asker, is not known.
        uid == 0 || (uid == owner && uid != u32::MAX)
    }

    fn attributes(&self, node: &Node, area: Option<&AreaStatus>) -> FileAttr {
        let (kind, perm, nlink) = match node {
            Node::Root | Node::Volume(_) => (FileType::Directory, 0o555, 2),
            Node::Area(_) => (FileType::RegularFile, 0o400, 1),
        };
        let modified = area.and_then(|area| area.modified);
        let time = modified.map_or(self.began, |time| UNIX_EPOCH + Duration::from_nanos(time));
        let uid = area.map_or(self.uid, |area| area.uid);
        FileAttr {
            ino: INodeNo(locked(&self.nodes).number(node)),
            size: area.map_or(0, |area| area.size),
            blocks: area.map_or(0, |area| area.allocated.div_ceil(STAT_BLOCK)),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid,
            gid: self.gid,
            rdev: 0,
            blksize: READ_SIZE,
            flags: 0,
        }
    }

    /// What `node` is to `uid`.
    fn look(&self, uid: u32, node: &Node, listing: &Listing) -> Result<FileAttr, Errno> {
        match node {
            Node::Root => Ok(self.attributes(node, None)),
            Node::Volume(name) if listing.volumes.binary_search(name).is_ok() => {
                Ok(self.attributes(node, None))
            }
            Node::Volume(_) => Err(Errno::ENOENT),
            Node::Area(path) => {
                let area = listing.area(path).ok_or(Errno::ENOENT)?;
                if !Self::may(uid, area.uid) {
                    return Err(Errno::EACCES);
                }
                Ok(self.attributes(node, Some(area)))
            }
        }
    }

    fn entries(&self, uid: u32, node: &Node, listing: &Listing) -> Result<Vec<(String, Node)>, Errno> {
        self.look(uid, node, listing)?;
        match node {
            Node::Root => {
                let volume = |name: &String| (name.clone(), Node::Volume(name.clone()));
                Ok(listing.volumes.iter().map(volume).collect())
            }
            Node::Volume(volume) => {
                let own = listing.of(volume).filter(|(_, area)| Self::may(uid, area.uid));
                Ok(own.map(|(name, area)| (name.to_owned(), Node::Area(area.path.clone()))).collect())
            }
            Node::Area(_) => Err(Errno::ENOTDIR),
        }
    }

    fn opened(&self, open: Open) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        locked(&self.open).insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    fn handle(&self, handle: FileHandle) -> Option<Arc<Open>> {
        locked(&self.open).get(&handle.0).cloned()
    }

    /// Opens an area, if it is for `uid`. The daemon has looked whether it is for whoever mounted.
    fn open(&self, uid: u32, path: &str, speaker: &mut Speaker) -> Result<Open, Errno> {
        let asked = speaker.ask(|connection| connection.read_vsa(path));
        let (area, file) = asked.map_err(|trouble| errno(&trouble))?;
        if !Self::may(uid, area.uid) {
            return Err(Errno::EACCES);
        }
        Ok(match file {
            Some(file) => Open::File { file, size: area.size },
            None => Open::Pieces { path: area.path, size: area.size },
        })
    }
}

/// Reads until `bytes` is full or the file ends.
fn read_at(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(file, &mut bytes[at..], offset + at as u64) {
            Ok(0) => break,
            Ok(count) => at += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(at)
}

fn read(open: &Open, offset: u64, size: u32, speaker: &mut Speaker) -> Result<Vec<u8>, Errno> {
    match open {
        Open::File { file, size: end } => {
            let length = u64::from(size).min(end.saturating_sub(offset));
            // At most `size`.
            let mut bytes = vec![0; length as usize];
            let count = read_at(file, &mut bytes, offset).map_err(|_| Errno::EIO)?;
            bytes.truncate(count);
            Ok(bytes)
        }
        Open::Pieces { path, size: end } => {
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < u64::from(size) {
                let from = offset.saturating_add(bytes.len() as u64);
                let left = size - bytes.len() as u32;
                if from >= *end {
                    break;
                }
                let asked = speaker.ask(|connection| connection.read_vsa_at(path, from, left.min(MAX_PIECE)));
                let piece = asked.map_err(|trouble| errno(&trouble))?;
                if piece.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(bytes)
        }
        Open::Directory(_) => Err(Errno::EISDIR),
    }
}

/// See the module's account.
pub struct Names {
    shared: Arc<Shared>,
    workers: Workers,
}

impl Names {
    /// The namespace of the daemon at `socket`. `others`: others than the mounting user will ask.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(socket: &Path, others: bool) -> io::Result<Self> {
        let shared = Shared {
            nodes: Mutex::default(),
            areas: Areas::default(),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
            keep: if others { Duration::ZERO } else { FRESH },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            began: SystemTime::now(),
        };
        Ok(Self { shared: Arc::new(shared), workers: Workers::start(socket)? })
    }

    /// Answers with `work` and what there is: at once if that is known, else when the daemon has said it.
    fn with_listing(&self, work: impl FnOnce(&Shared, Result<&Listing, Errno>) + Send + 'static) {
        if let Some(listing) = self.shared.areas.fresh() {
            return work(&self.shared, Ok(&listing));
        }
        let shared = Arc::clone(&self.shared);
        let job = move |speaker: Option<&mut Speaker>| {
            let listing = match speaker {
                Some(speaker) => shared.areas.get(speaker).map_err(|trouble| errno(&trouble)),
                None => Err(Errno::EAGAIN),
            };
            work(&shared, listing.as_deref().map_err(|errno| *errno));
        };
        self.workers.submit(Lane::Names, Box::new(job));
    }

    fn node(&self, number: INodeNo) -> Option<Node> {
        locked(&self.shared.nodes).get(number.0)
    }

    /// What `name` in the directory `parent` would be.
    fn child(&self, parent: INodeNo, name: &OsStr) -> Option<Node> {
        let name = name.to_str().filter(|name| is_name(name))?;
        match self.node(parent)? {
            Node::Root => Some(Node::Volume(name.to_owned())),
            Node::Volume(volume) => Some(Node::Area(format!("/{volume}/{name}"))),
            Node::Area(_) => None,
        }
    }
}

impl Filesystem for Names {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let uid = request.uid();
        let Some(node) = self.child(parent, name) else { return reply.error(Errno::ENOENT) };
        self.with_listing(move |shared, listing| {
            match listing.and_then(|listing| shared.look(uid, &node, listing)) {
                Ok(mut attributes) => {
                    attributes.ino = INodeNo(locked(&shared.nodes).told(&node));
                    reply.entry(&shared.keep, &attributes, Generation(0));
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        locked(&self.shared.nodes).forget(number.0, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let uid = request.uid();
        let Some(node) = self.node(number) else { return reply.error(Errno::ENOENT) };
        self.with_listing(move |shared, listing| {
            match listing.and_then(|listing| shared.look(uid, &node, listing)) {
                Ok(attributes) => reply.attr(&shared.keep, &attributes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let path = match self.node(number) {
            Some(Node::Area(path)) => path,
            Some(_) => return reply.error(Errno::EISDIR),
            None => return reply.error(Errno::ENOENT),
        };
        let (uid, shared) = (request.uid(), Arc::clone(&self.shared));
        let lane = Lane::Area(path.clone());
        let job = move |speaker: Option<&mut Speaker>| {
            let opened = speaker.ok_or(Errno::EAGAIN).and_then(|speaker| shared.open(uid, &path, speaker));
            match opened {
                Ok(open) => reply.opened(shared.opened(open), FopenFlags::FOPEN_DIRECT_IO),
                Err(errno) => reply.error(errno),
            }
        };
        self.workers.submit(lane, Box::new(job));
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (Some(open), Some(Node::Area(path))) = (self.shared.handle(handle), self.node(number)) else {
            return reply.error(Errno::EBADF);
        };
        let job = move |speaker: Option<&mut Speaker>| match speaker
            .ok_or(Errno::EAGAIN)
            .and_then(|speaker| read(&open, offset, size, speaker))
        {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        };
        self.workers.submit(Lane::Area(path), Box::new(job));
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        locked(&self.shared.open).remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let uid = request.uid();
        let Some(node) = self.node(number) else { return reply.error(Errno::ENOENT) };
        self.with_listing(move |shared, listing| {
            match listing.and_then(|listing| shared.entries(uid, &node, listing)) {
                Ok(entries) => {
                    reply.opened(shared.opened(Open::Directory(entries)), FopenFlags::empty());
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let open = self.shared.handle(handle);
        let Some(Open::Directory(entries)) = open.as_deref() else { return reply.error(Errno::EBADF) };
        let nodes = locked(&self.shared.nodes);
        let own =
            [(number.0, "."), (number.0, "..")].map(|(number, name)| (number, FileType::Directory, name));
        let of = |(name, node): &'_ (String, Node)| {
            let kind =
                if matches!(node, Node::Area(_)) { FileType::RegularFile } else { FileType::Directory };
            (nodes.number(node), kind, name.clone())
        };
        let all = own.into_iter().map(|(number, kind, name)| (number, kind, name.to_owned()));
        let all = all.chain(entries.iter().map(of));
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (number, kind, name)) in all.enumerate().skip(first) {
            if reply.add(INodeNo(number), at as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        locked(&self.shared.open).remove(&handle.0);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
