//! The file system: answers the kernel's requests with what the daemon reports.
//!
//! 1. The kernel sends the uid of the caller with every request. An area is visible and readable to
//!    its own uid and to root, whichever user mounted; other users get EACCES. As for any file, an
//!    open descriptor stays readable and can be passed on.
//! 2. Nothing can be written: the mount is read-only, and the daemon's descriptors are read-only.
//! 3. Reads bypass the kernel's cache (`FOPEN_DIRECT_IO`): the owners write in ways that the kernel
//!    does not see.
//! 4. An open area is a descriptor: it survives a restart of the daemon, and the removal of the
//!    area's name, as with any file.
//! 5. Requests within a view go to its owner ([`super::views`]), each in a lane of its own.
//! 6. Where users other than the mounting one may read, the kernel must not cache names and
//!    attributes, because they depend on the user.

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
use sietch_protocol::view::is_file_name;
use sietch_protocol::{AreaStatus, FileAttributes};

use super::areas::{Areas, FRESH, Listing};
use super::error::errno;
use super::nodes::{Node, Nodes};
use super::views::{OpenDirectory, OpenFile, Path as ViewPath, Views, is_directory};
use super::workers::{Lane, ReconnectingClient, Workers};

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// The recommended size of a read.
const READ_SIZE: u32 = 128 << 10;
/// The suffix of a view's name after that of its area; no area's name can have it.
const VIEW: &str = ".view";

/// An open file or directory.
enum Open {
    /// An area with a descriptor of its own.
    File { file: OwnedFd, size: u64 },
    /// An area that the daemon reads.
    Pieces { path: String, size: u64 },
    /// A directory as it was when it was opened.
    Directory(Vec<(String, Node)>),
    /// A file of a view.
    Shown(OpenFile),
    /// A directory of a view.
    Listed(OpenDirectory),
}

/// The state that all threads of a mount share.
struct Shared {
    nodes: Mutex<Nodes>,
    areas: Areas,
    views: Views,
    open: Mutex<HashMap<u64, Arc<Open>>>,
    next_handle: AtomicU64,
    /// How long the kernel may cache names and attributes.
    keep: Duration,
    /// The user who mounted, and the time of the mount.
    uid: u32,
    gid: u32,
    began: SystemTime,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data under these locks change in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Whether `uid` may see and read what belongs to `owner`.
    fn may(uid: u32, owner: u32) -> bool {
        // The highest number means that the owner, or the caller, is unknown.
        uid == 0 || (uid == owner && uid != u32::MAX)
    }

    fn attributes(&self, node: &Node, area: Option<&AreaStatus>, shown: Option<FileAttributes>) -> FileAttr {
        let (kind, perm, nlink) = match node {
            Node::Root | Node::Volume(_) => (FileType::Directory, 0o555, 2),
            Node::Area(_) => (FileType::RegularFile, 0o400, 1),
            Node::View(_) => match shown {
                Some(shown) if !is_directory(shown) => (FileType::RegularFile, 0o400, 1),
                _ => (FileType::Directory, 0o500, 2),
            },
        };
        let (size, taken) = match (shown, area) {
            (Some(shown), _) => (shown.size, shown.size),
            (None, Some(area)) => (area.size, area.allocated),
            (None, None) => (0, 0),
        };
        let modified = area.and_then(|area| area.modified);
        let time = modified.map_or(self.began, |time| UNIX_EPOCH + Duration::from_nanos(time));
        let uid = area.map_or(self.uid, |area| area.uid);
        FileAttr {
            ino: INodeNo(locked(&self.nodes).number(node)),
            size,
            blocks: taken.div_ceil(STAT_BLOCK),
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

    /// The area at `path`, if `uid` may see it.
    fn area<'a>(uid: u32, path: &str, listing: &'a Listing) -> Result<&'a AreaStatus, Errno> {
        let area = listing.area(path).ok_or(Errno::ENOENT)?;
        if Self::may(uid, area.uid) { Ok(area) } else { Err(Errno::EACCES) }
    }

    /// The attributes of `node` for `uid`; none if only its owner knows them.
    fn known_attributes(&self, uid: u32, node: &Node, listing: &Listing) -> Result<Option<FileAttr>, Errno> {
        match node {
            Node::Root => Ok(Some(self.attributes(node, None, None))),
            Node::Volume(name) if listing.volumes.binary_search(name).is_ok() => {
                Ok(Some(self.attributes(node, None, None)))
            }
            Node::Volume(_) => Err(Errno::ENOENT),
            Node::Area(path) => {
                let area = Self::area(uid, path, listing)?;
                Ok(Some(self.attributes(node, Some(area), None)))
            }
            Node::View(path) => {
                let area = Self::area(uid, &path.area, listing)?;
                if !area.view {
                    return Err(Errno::ENOENT);
                }
                let shown = self.views.fresh(path);
                Ok(shown.map(|shown| self.attributes(node, Some(area), Some(shown))))
            }
        }
    }

    /// The same for a file within a view, from its owner.
    fn view_attributes(&self, path: &ViewPath, client: &mut ReconnectingClient) -> Result<FileAttr, Errno> {
        let shown = self.views.attributes(client, path)?;
        let listing = self.areas.get(client).map_err(|error| errno(&error))?;
        let area = listing.area(&path.area).ok_or(Errno::ENOENT)?;
        Ok(self.attributes(&Node::View(path.clone()), Some(area), Some(shown)))
    }

    fn directory(&self, uid: u32, node: &Node, listing: &Listing) -> Result<Open, Errno> {
        self.known_attributes(uid, node, listing)?;
        match node {
            Node::Root => {
                let volume = |name: &String| (name.clone(), Node::Volume(name.clone()));
                Ok(Open::Directory(listing.volumes.iter().map(volume).collect()))
            }
            Node::Volume(volume) => {
                let mut entries = Vec::new();
                for (name, area) in listing.of(volume).filter(|(_, area)| Self::may(uid, area.uid)) {
                    entries.push((name.to_owned(), Node::Area(area.path.clone())));
                    if area.view {
                        let path = ViewPath { area: area.path.clone(), within: String::new() };
                        entries.push((format!("{name}{VIEW}"), Node::View(path)));
                    }
                }
                Ok(Open::Directory(entries))
            }
            Node::View(path) => Ok(Open::Listed(OpenDirectory::new(path.clone()))),
            Node::Area(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Adds entries, the first of which is at offset `at`, as far as there is room.
    fn fill<'a>(
        &self,
        mut at: u64,
        entries: impl Iterator<Item = (&'a str, Node, FileType)>,
        mut reply: ReplyDirectory,
    ) {
        let nodes = locked(&self.nodes);
        for (name, node, kind) in entries {
            at += 1;
            if reply.add(INodeNo(nodes.number(&node)), at, kind, name) {
                break;
            }
        }
        drop(nodes);
        reply.ok();
    }

    fn opened(&self, open: Open) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        locked(&self.open).insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    fn handle(&self, handle: FileHandle) -> Option<Arc<Open>> {
        locked(&self.open).get(&handle.0).cloned()
    }

    /// Opens an area, if it is for `uid`. The daemon has checked that it is for the mounting user.
    fn open(&self, uid: u32, path: &str, client: &mut ReconnectingClient) -> Result<Open, Errno> {
        let reply = client.request(|connection| connection.read_vsa(path));
        let (area, file) = reply.map_err(|error| errno(&error))?;
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

fn read(
    open: &Open,
    offset: u64,
    size: u32,
    views: &Views,
    client: &mut ReconnectingClient,
) -> Result<Vec<u8>, Errno> {
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
                let reply =
                    client.request(|connection| connection.read_vsa_at(path, from, left.min(MAX_PIECE)));
                let piece = reply.map_err(|error| errno(&error))?;
                if piece.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(bytes)
        }
        Open::Shown(file) => file.read(views, client, offset, size),
        Open::Directory(_) | Open::Listed(_) => Err(Errno::EISDIR),
    }
}

/// See the module's account.
pub(super) struct Names {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
}

impl Names {
    /// The namespace of the daemon at `socket`. `others`: other users than the mounting one may
    /// read.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn new(socket: &Path, others: bool) -> io::Result<Self> {
        let shared = Shared {
            nodes: Mutex::default(),
            areas: Areas::default(),
            views: Views::default(),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
            keep: if others { Duration::ZERO } else { FRESH },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            began: SystemTime::now(),
        };
        Ok(Self { shared: Arc::new(shared), workers: Arc::new(Workers::start(socket)?) })
    }

    /// Runs `work` with the listing: at once if a recent one is cached, else after the daemon's
    /// reply.
    fn with_listing(&self, work: impl FnOnce(&Arc<Shared>, Result<&Listing, Errno>) + Send + 'static) {
        if let Some(listing) = self.shared.areas.fresh() {
            return work(&self.shared, Ok(&listing));
        }
        let shared = Arc::clone(&self.shared);
        let job = move |client: Option<&mut ReconnectingClient>| {
            let listing = match client {
                Some(client) => shared.areas.get(client).map_err(|error| errno(&error)),
                None => Err(Errno::EAGAIN),
            };
            work(&shared, listing.as_deref().map_err(|errno| *errno));
        };
        self.workers.submit(Lane::Names, Box::new(job));
    }

    fn open_view(&self, uid: u32, path: ViewPath, reply: ReplyOpen) {
        self.find(uid, Node::View(path.clone()), move |shared, found| match found {
            Ok(found) if found.kind == FileType::RegularFile => {
                let open = Open::Shown(OpenFile::new(path));
                reply.opened(shared.opened(open), FopenFlags::FOPEN_DIRECT_IO);
            }
            Ok(_) => reply.error(Errno::EISDIR),
            Err(errno) => reply.error(errno),
        });
    }

    fn node(&self, number: INodeNo) -> Option<Node> {
        locked(&self.shared.nodes).get(number.0)
    }

    /// The node of `name` in the directory `parent`, if it exists.
    fn child(&self, parent: INodeNo, name: &OsStr) -> Option<Node> {
        let name = name.to_str()?;
        match self.node(parent)? {
            Node::Root => is_name(name).then(|| Node::Volume(name.to_owned())),
            Node::Volume(volume) => match name.strip_suffix(VIEW) {
                Some(area) if is_name(area) => {
                    Some(Node::View(ViewPath { area: format!("/{volume}/{area}"), within: String::new() }))
                }
                _ => is_name(name).then(|| Node::Area(format!("/{volume}/{name}"))),
            },
            Node::View(path) => is_file_name(name).then(|| Node::View(path.child(name))),
            Node::Area(_) => None,
        }
    }

    /// Finds the attributes of `node` for `uid`, and calls `reply` with them.
    fn find(
        &self,
        uid: u32,
        node: Node,
        reply: impl FnOnce(&Shared, Result<FileAttr, Errno>) + Send + 'static,
    ) {
        let workers = Arc::clone(&self.workers);
        self.with_listing(move |shared, listing| {
            let found = listing.and_then(|listing| shared.known_attributes(uid, &node, listing));
            let path = match (found, node) {
                (Ok(None), Node::View(path)) => path,
                (Ok(found), _) => return reply(shared, found.ok_or(Errno::EIO)),
                (Err(errno), _) => return reply(shared, Err(errno)),
            };
            let shared = Arc::clone(shared);
            let lane = Lane::View(path.area.clone());
            let job = move |client: Option<&mut ReconnectingClient>| {
                let found = client.ok_or(Errno::EAGAIN);
                reply(&shared, found.and_then(|client| shared.view_attributes(&path, client)));
            };
            workers.submit(lane, Box::new(job));
        });
    }
}

impl Filesystem for Names {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(node) = self.child(parent, name) else { return reply.error(Errno::ENOENT) };
        let looked_up = node.clone();
        self.find(request.uid(), node, move |shared, found| match found {
            Ok(mut attributes) => {
                attributes.ino = INodeNo(locked(&shared.nodes).looked_up(&looked_up));
                reply.entry(&shared.keep, &attributes, Generation(0));
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        locked(&self.shared.nodes).forget(number.0, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let Some(node) = self.node(number) else { return reply.error(Errno::ENOENT) };
        self.find(request.uid(), node, move |shared, found| match found {
            Ok(attributes) => reply.attr(&shared.keep, &attributes),
            Err(errno) => reply.error(errno),
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let uid = request.uid();
        let path = match self.node(number) {
            Some(Node::Area(path)) => path,
            Some(Node::View(path)) => return self.open_view(uid, path, reply),
            Some(_) => return reply.error(Errno::EISDIR),
            None => return reply.error(Errno::ENOENT),
        };
        let shared = Arc::clone(&self.shared);
        let lane = Lane::Area(path.clone());
        let job = move |client: Option<&mut ReconnectingClient>| {
            let opened = client.ok_or(Errno::EAGAIN).and_then(|client| shared.open(uid, &path, client));
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
        let lane = match self.node(number) {
            Some(Node::Area(path)) => Lane::Area(path),
            Some(Node::View(path)) => Lane::View(path.area),
            _ => return reply.error(Errno::EBADF),
        };
        let Some(open) = self.shared.handle(handle) else { return reply.error(Errno::EBADF) };
        let shared = Arc::clone(&self.shared);
        let job = move |client: Option<&mut ReconnectingClient>| {
            let client = client.ok_or(Errno::EAGAIN);
            match client.and_then(|client| read(&open, offset, size, &shared.views, client)) {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            }
        };
        self.workers.submit(lane, Box::new(job));
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
            match listing.and_then(|listing| shared.directory(uid, &node, listing)) {
                Ok(open) => reply.opened(shared.opened(open), FopenFlags::empty()),
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
        let Some(open) = self.shared.handle(handle) else { return reply.error(Errno::EBADF) };
        let mut at = offset;
        for name in [".", ".."].into_iter().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            at += 1;
            if reply.add(number, at, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let shared = Arc::clone(&self.shared);
        let lane = match &*open {
            Open::Directory(entries) => {
                let passed = usize::try_from(at - 2).unwrap_or(usize::MAX);
                let kind = |node: &Node| match node {
                    Node::Area(_) => FileType::RegularFile,
                    _ => FileType::Directory,
                };
                let entries = entries.get(passed..).unwrap_or_default().iter();
                let entries = entries.map(|(name, node)| (name.as_str(), node.clone(), kind(node)));
                return shared.fill(at, entries, reply);
            }
            Open::Listed(listed) => Lane::View(listed.path.area.clone()),
            _ => return reply.error(Errno::ENOTDIR),
        };
        let job = move |client: Option<&mut ReconnectingClient>| {
            let Open::Listed(listed) = &*open else { return reply.error(Errno::ENOTDIR) };
            let entries = client.ok_or(Errno::EAGAIN);
            match entries.and_then(|client| listed.entries(&shared.views, client, at)) {
                Ok(entries) => {
                    let entries = entries.iter().map(|entry| {
                        let directory = is_directory(entry.attributes);
                        let kind = if directory { FileType::Directory } else { FileType::RegularFile };
                        (entry.name.as_str(), Node::View(listed.path.child(&entry.name)), kind)
                    });
                    shared.fill(at, entries, reply);
                }
                Err(errno) => reply.error(errno),
            }
        };
        self.workers.submit(lane, Box::new(job));
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
