//! `sietch fs quota`: shows what users have of a file system, and sets limits.
//!
//! 1. All of it is reading and writing extended attributes of the root directory
//!    ([`sietch_fs::quota`]).
//! 2. The argument says where that directory is: below a mount the kernel is asked. In the folder
//!    of a file system that a process serves, this command becomes a client of it. A file system
//!    that nothing uses is opened.
//! 3. Names of users are those in `/etc/passwd`.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::XattrMode;
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::limits::MAX_XATTR_VALUE;
use sietch_fs::quota::{self, Quota};
use sietch_service::fs::{self, StoreError, shared};

use crate::arguments::fs_quota::{FsQuotaArguments, Most};
use crate::error::Error;
use crate::output;
use crate::style::{self, Cell, Palette, Table};

const BLOCK: u64 = fs::BLOCK as u64;

/// The description of a file system, in its folder.
const DESCRIPTION: &str = "fs.toml";

/// What a user has, as JSON has it.
#[derive(Debug, Serialize)]
struct User {
    uid: u32,
    name: Option<String>,
    used_bytes: u64,
    used_inodes: u64,
    /// `null`: no limit.
    most_bytes: Option<u64>,
    most_inodes: Option<u64>,
}

/// All users that have something or a limit.
#[derive(Debug, Serialize)]
struct Report {
    users: Vec<User>,
}

/// Shows or sets what the arguments say.
///
/// # Errors
/// [`Error::FileSystem`], [`Error::File`].
pub(crate) fn run(arguments: &FsQuotaArguments) -> Result<(), Error> {
    let path = &arguments.path;
    if arguments.recount {
        fs::recount(path).map_err(|error| failed(path, error))?;
        return output::print(&format!("{}: all inodes are counted\n", path.display()));
    }
    let users = Passwd::read();
    let user = arguments.user.as_deref().map(|user| users.uid(user)).transpose()?;
    if !path.join(DESCRIPTION).is_file() {
        return work(&mut Mounted::of(path)?, arguments, user, &users);
    }
    if shared::is_served(path) {
        let mut attached = shared::attach(path).map_err(|error| failed(path, error))?;
        return work(&mut Opened { path, client: &mut attached.client }, arguments, user, &users);
    }
    let mut running = fs::open(path).map_err(|error| failed(path, error))?;
    let done = work(&mut Opened { path, client: &mut running.client }, arguments, user, &users);
    drop(running.client);
    let folder = path.clone();
    running.digester.end().map_err(|cause| Error::Undigested { folder, cause })?;
    done
}

fn failed(path: &Path, error: StoreError) -> Error {
    if error.is_busy() {
        let fix = "name the directory that shows it instead of the folder; --recount needs it unmounted";
        return Error::file(path, fix)(io::Error::other("another process has the file system open"));
    }
    Error::FileSystem(Box::new(error))
}

fn work(
    place: &mut dyn Place,
    arguments: &FsQuotaArguments,
    user: Option<u32>,
    users: &Passwd,
) -> Result<(), Error> {
    let Some(uid) = user else {
        return show(&all(place)?, arguments.json, users);
    };
    if arguments.bytes.is_none() && arguments.inodes.is_none() {
        return show(&[(uid, one(place, uid)?)], arguments.json, users);
    }
    // What is not given stays.
    let before = if arguments.bytes.is_some() && arguments.inodes.is_some() {
        Quota::default()
    } else {
        one(place, uid)?
    };
    let bytes = arguments.bytes.map_or(before.limit.blocks.saturating_mul(BLOCK), Most::number);
    let inodes = arguments.inodes.map_or(before.limit.inodes, Most::number);
    place.set(&quota::attribute(uid), quota::limit_value(bytes, inodes).as_bytes())?;
    show(&[(uid, one(place, uid)?)], arguments.json, users)
}

/// One user.
fn one(place: &mut dyn Place, uid: u32) -> Result<Quota, Error> {
    let value = place.get(&quota::attribute(uid))?;
    let found = lines(place, &value)?;
    found.first().map(|(_, quota)| *quota).ok_or_else(|| place.wrong())
}

/// All users.
fn all(place: &mut dyn Place) -> Result<Vec<(u32, Quota)>, Error> {
    let (mut found, mut from) = (Vec::new(), Some(0));
    while let Some(first) = from {
        let value = place.get(&quota::list_attribute(first))?;
        let more = lines(place, &value)?;
        let Some((last, _)) = more.last() else { break };
        if *last < first {
            return Err(place.wrong());
        }
        from = last.checked_add(1);
        found.extend(more);
    }
    Ok(found)
}

fn lines(place: &mut dyn Place, value: &[u8]) -> Result<Vec<(u32, Quota)>, Error> {
    let read = || std::str::from_utf8(value).ok()?.lines().map(quota::read_line).collect();
    let read: Option<Vec<_>> = read();
    read.ok_or_else(|| place.wrong())
}

fn show(quotas: &[(u32, Quota)], is_json: bool, users: &Passwd) -> Result<(), Error> {
    let limit = |number: u64| Some(number).filter(|number| *number != 0);
    let user = |(uid, quota): &(u32, Quota)| User {
        uid: *uid,
        name: users.name(*uid),
        used_bytes: quota.used.blocks.saturating_mul(BLOCK),
        used_inodes: quota.used.inodes,
        most_bytes: limit(quota.limit.blocks.saturating_mul(BLOCK)),
        most_inodes: limit(quota.limit.inodes),
    };
    let found: Vec<User> = quotas.iter().map(user).collect();
    if is_json {
        return output::print(&output::json(&Report { users: found })?);
    }
    let mut table = Table::new(0);
    table.headings(&["uid", "user", "used", "limit", "inodes", "limit"]);
    for user in found {
        let most_bytes = user.most_bytes.map_or("-".to_owned(), style::bytes);
        let most_inodes = user.most_inodes.map_or("-".to_owned(), style::grouped);
        table.row(vec![
            Cell::text(user.uid).right(),
            Cell::text(user.name.as_deref().unwrap_or("-")),
            Cell::text(style::bytes(user.used_bytes)).right(),
            Cell::text(most_bytes).right(),
            Cell::number(user.used_inodes),
            Cell::text(most_inodes).right(),
        ]);
    }
    output::print(&table.render(Palette::of_stdout()))
}

/// Where the attributes of the root directory are.
trait Place {
    fn get(&mut self, name: &str) -> Result<Vec<u8>, Error>;
    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Error>;
    fn path(&self) -> &Path;

    fn failed(&self, errno: Errno) -> Error {
        let fix = match errno {
            Errno::PERM | Errno::ACCESS => {
                "run as root, or as the owner of the root directory; everybody may see their own: --user NAME"
            }
            Errno::NODATA => "name the folder of a file system, or a directory below a `sietch fs mount`",
            Errno::OPNOTSUPP => {
                "name a directory below a `sietch fs mount`; if it is one, users are not counted, and limits are \
                 not enforced: its log says why. Remove files if the media are full, or what \
                 `sietch fs check` names; mount it again"
            }
            _ => "see the log of `sietch fs mount` or `sietch fs serve`",
        };
        Error::file(self.path(), fix)(errno.into())
    }

    fn wrong(&self) -> Error {
        let fix = "use the `sietch` of the version that mounts or serves it";
        Error::file(self.path(), fix)(io::Error::other("what it says of users has another form"))
    }
}

/// The root directory of a mount.
struct Mounted {
    root: PathBuf,
}

impl Mounted {
    fn of(path: &Path) -> Result<Self, Error> {
        let fix = "name the folder of a file system, or a directory below a `sietch fs mount`";
        let read = || {
            let mut root = path.canonicalize()?;
            let device = root.metadata()?.dev();
            while let Some(above) = root.parent()
                && above.metadata()?.dev() == device
            {
                root = above.to_owned();
            }
            Ok(root)
        };
        read().map(|root| Self { root }).map_err(Error::file(path, fix))
    }
}

impl Place for Mounted {
    fn get(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        let mut value = vec![0; MAX_XATTR_VALUE];
        let length = rustix::fs::getxattr(&self.root, name, &mut value);
        value.truncate(length.map_err(|errno| self.failed(errno))?);
        Ok(value)
    }

    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        rustix::fs::setxattr(&self.root, name, value, XattrFlags::empty()).map_err(|errno| self.failed(errno))
    }

    fn path(&self) -> &Path {
        &self.root
    }
}

/// A file system of which this process is a client.
struct Opened<'a, F> {
    path: &'a Path,
    client: &'a mut F,
}

/// Who runs this command.
fn credentials() -> Credentials {
    let uid = geteuid();
    Credentials { is_privileged: uid.is_root(), ..Credentials::user(uid.as_raw(), getegid().as_raw()) }
}

fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    // Nanoseconds of a second.
    Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}

impl<F: FileSystem> Place for Opened<'_, F> {
    fn get(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        let caller = Caller { credentials: &credentials(), now: now() };
        let value = self.client.xattr(caller, InodeNumber::ROOT, name.as_bytes());
        value.map_err(|errno| self.failed(errno))
    }

    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        let caller = Caller { credentials: &credentials(), now: now() };
        let set = self.client.set_xattr(caller, InodeNumber::ROOT, name.as_bytes(), value, XattrMode::Set);
        set.map_err(|errno| self.failed(errno))
    }

    fn path(&self) -> &Path {
        self.path
    }
}

/// Users by number and name.
struct Passwd(Vec<(u32, String)>);

impl Passwd {
    fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        Self(text.lines().filter_map(user).collect())
    }

    fn name(&self, uid: u32) -> Option<String> {
        self.0.iter().find(|(known, _)| *known == uid).map(|(_, name)| name.clone())
    }

    fn uid(&self, user: &str) -> Result<u32, Error> {
        if let Ok(uid) = user.parse() {
            return Ok(uid);
        }
        let found = self.0.iter().find(|(_, name)| name == user).map(|(uid, _)| *uid);
        let fix = "name a user of that file, or give the number";
        let unknown = || io::Error::other(format!("no user {user:?}"));
        found.ok_or_else(|| Error::file(Path::new("/etc/passwd"), fix)(unknown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_name_and_by_number() {
        let users =
            Passwd::parse("root:x:0:0::/:\nbroken\nann:x:1000:100:Ann:/home/ann:/bin/sh\nbob:x:y:1:\n");
        assert_eq!((users.uid("ann").ok(), users.uid("1001").ok()), (Some(1000), Some(1001)));
        assert_eq!((users.name(0), users.name(7)), (Some("root".to_owned()), None));
        let unknown = users.uid("bob").expect_err("it has no number");
        assert!(unknown.to_string().contains("no user \"bob\""), "{unknown}");
    }
}
