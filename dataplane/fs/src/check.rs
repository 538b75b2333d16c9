//! Verifying a whole file system: a pool that nothing else uses, or the state of one root
//! ([`check_at`]).
//!
//! 1. One walk over the tree ([`crate::pool`] verifies nodes, and that each block has one owner)
//!    meets every item in the order of inodes. [`group`] judges the items of one inode together:
//!    they decode, entries, pieces and extents are complete and in order, and their sums are those
//!    of the inode. With [`Options::data`] each block is read, and must have its checksum.
//! 2. What an inode must be to others is kept in a table ([`table`]), and judged after the walk:
//!    names and links, kinds, parents, and that the root leads to each directory.
//! 3. What users have is summed, and compared with the items that say it ([`users`]).
//! 4. A finding says where on which medium, which inode and its path, what is wrong, and what is
//!    lost. Paths are looked up only then.
//!
//! Memory: about 120 bytes an inode, 100 bytes a user, 32 bytes a run of blocks, and the names of
//! one hash. Nothing grows with the names or the data of a file.
//!
//! What it must never do: change anything; trust an item because its node has its checksum; end
//! without a report because of what is on a medium.

mod data;
mod files;
mod finding;
mod group;
mod table;
#[cfg(test)]
mod tests;
mod users;

use sietch_disk::DiskQueue;

use crate::error::Fault;
use crate::inode::{InodeNumber, Kind};
use crate::items::{self, FREED, KEPT, LogState};
use crate::log::LINE;
use crate::name::{Cookie, NameKey};
use crate::pool::{Item, MediumUse, Member, OpenError, Pool, Root, Run, Superblocks, check_items};
pub use files::{FileOn, FilesOn, files_on};
use finding::{Finding, Findings, shown};
use group::Group;
use table::Table;
use users::Users;

/// What is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// All data are read, and must have their checksums.
    pub data: bool,
}

/// What a file system has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Inodes without a name: they are freed when the file system is opened.
    pub nameless: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks with data.
    pub data_blocks: u64,
    /// Blocks that are reserved and were never written.
    pub reserved_blocks: u64,
    /// Blocks of data that were read.
    pub verified_blocks: u64,
    /// Blocks of data that cannot be read, or do not have their checksum.
    pub damaged_blocks: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Blocks that no file has.
    pub free_blocks: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, and where; empty if nothing is.
    pub findings: Vec<String>,
    /// Findings that are not listed, because there are too many.
    pub unlisted: u64,
    /// Files with damaged data that are not listed.
    pub unlisted_files: u64,
    /// What is there.
    pub totals: Totals,
    /// Whether what users have is counted. If not, limits are not enforced; the next start counts.
    pub are_users_counted: bool,
    /// How far each log was applied.
    pub logs: Vec<(u32, LogState)>,
}

/// Verifies the file system in a pool, which must have no changes to commit.
///
/// # Errors
/// The pool is stopped, or has changes. What is wrong on the media is a finding.
pub fn check<D: DiskQueue>(pool: &mut Pool<D>, options: Options) -> Result<Report, Fault> {
    check_with(pool, Superblocks::Verified, options)
}

/// Verifies the state with this root, while another process changes the pool and keeps what a
/// reader of `root` needs. Superblocks are left out. Returns also how full each medium is.
///
/// # Errors
/// The media are not those of the pool, or what says which blocks are free cannot be read. What is
/// wrong beyond that is a finding.
pub fn check_at<D: DiskQueue>(
    members: Vec<Member<D>>,
    root: Root,
    options: Options,
) -> Result<(Report, Vec<MediumUse>), OpenError> {
    let mut pool = Pool::view(members, root)?;
    let report = check_with(&mut pool, Superblocks::Left, options)?;
    Ok((report, pool.media_usage()))
}

fn check_with<D: DiskQueue>(
    pool: &mut Pool<D>,
    superblocks: Superblocks,
    options: Options,
) -> Result<Report, Fault> {
    let counters = pool.root().counters;
    let mut walk = Walk::new(pool, options);
    let found = check_items(pool, superblocks, &mut |item, runs| {
        walk.item(item, runs);
        Ok(())
    })?;
    walk.end_group();
    let home = walk.media.first().cloned().unwrap_or_default();
    walk.table.judge(&home, &mut walk.findings);
    walk.users.judge(&home, &mut walk.findings);
    walk.totals.nameless = walk.table.nameless();
    if walk.totals.inodes != counters.inodes {
        let (counted, said) = (walk.totals.inodes, counters.inodes);
        let what = format!("it has {counted} inodes, and its superblock says {said}");
        walk.findings.add(Finding::of_pool(&home, what).losing("nothing; the number of inodes is wrong"));
    }
    walk.totals.nodes = found.nodes;
    walk.totals.free_blocks = found.free;
    let are_users_counted = walk.users.are_counted();
    let mut report = Report { totals: walk.totals, are_users_counted, logs: walk.logs, ..Report::default() };
    for (at, mut text) in found.findings.into_iter().enumerate() {
        for (_, object) in found.objects.iter().filter(|(finding, _)| *finding == at) {
            text += &format!("; inode {object} is {}", path(pool, &walk.table, *object));
        }
        report.findings.push(text);
    }
    report.unlisted = walk.findings.unlisted();
    report.unlisted_files = walk.findings.unlisted_files();
    for finding in walk.findings.into_list() {
        let path = finding.inode.map(|inode| path(pool, &walk.table, inode));
        report.findings.push(finding.text(path.as_deref()));
    }
    Ok(report)
}

/// Names of a path that are shown.
const SHOWN: usize = 256;

/// The path of an inode, as far as the tree says it.
fn path<D: DiskQueue>(pool: &mut Pool<D>, table: &Table, inode: u64) -> String {
    let mut names = Vec::new();
    let mut at = inode;
    while at != InodeNumber::ROOT.0 {
        let Some((directory, cookie)) = table.place(at) else {
            names.push("(no name)".to_owned());
            names.reverse();
            return names.join("/");
        };
        let value = pool.get(items::entry_key(InodeNumber(directory), Cookie(cookie)));
        let name = match &value {
            Ok(Some(value)) => items::read_entry(Cookie(cookie), value).map(|(_, name)| shown(name)),
            _ => None,
        };
        names.push(name.unwrap_or_else(|| "(unreadable)".to_owned()));
        if names.len() == SHOWN {
            names.push("...".to_owned());
            names.reverse();
            return names.join("/");
        }
        at = directory;
    }
    names.push(String::new());
    names.reverse();
    if names.len() == 1 { "/".to_owned() } else { names.join("/") }
}

/// The walk over all items.
struct Walk {
    options: Options,
    name_key: NameKey,
    /// What the media are called.
    media: Vec<String>,
    next_inode: u64,
    findings: Findings,
    table: Table,
    totals: Totals,
    logs: Vec<(u32, LogState)>,
    users: Users,
    group: Option<Group>,
}

impl Walk {
    fn new<D: DiskQueue>(pool: &Pool<D>, options: Options) -> Self {
        Self {
            options,
            name_key: pool.name_key(),
            media: pool.medium_names(),
            next_inode: pool.root().counters.next_inode,
            findings: Findings::default(),
            table: Table::default(),
            totals: Totals::default(),
            logs: Vec::new(),
            users: Users::default(),
            group: None,
        }
    }

    fn item(&mut self, item: &mut Item<'_>, runs: &mut Vec<Run>) {
        if item.key.object == items::NO_INODE {
            self.own_item(item);
            return;
        }
        if self.group.as_ref().is_none_or(|group| group.number() != item.key.object) {
            self.end_group();
            self.group = Some(Group::new(item.key.object));
        }
        match item.key.kind {
            items::INODE => self.inode(item),
            items::TARGET => self.target(item),
            items::ENTRY => self.entry(item),
            items::EXTENT => self.extent(item, runs),
            items::XATTR => self.xattr(item),
            items::XATTR_MORE.. => self.xattr_piece(item),
            kind => {
                let what = format!("an item of kind {kind}, which does not exist");
                self.findings.add(Finding::of(item, what));
            }
        }
    }

    /// Marks of inodes without names, logs, and users.
    fn own_item(&mut self, item: &Item<'_>) {
        let (key, value) = (item.key, item.value);
        match key.kind {
            items::ORPHAN => match value {
                [mark @ (KEPT | FREED)] => self.table.mark(key.offset, *mark, item.node),
                _ => {
                    let what = "the mark of an inode without a name has another value".to_owned();
                    let finding = Finding { inode: Some(key.offset), ..Finding::of(item, what) };
                    self.findings.add(finding.losing("nothing; its room may stay in use"));
                    self.table.mark(key.offset, KEPT, item.node);
                }
            },
            items::LOG => {
                let state = items::read_log(value).filter(|state| {
                    let lines = state.position / LINE as u64;
                    let is_place =
                        state.position.is_multiple_of(LINE as u64) && i64::try_from(state.position).is_ok();
                    is_place && state.sequence <= lines
                });
                match (state, u32::try_from(key.offset)) {
                    (Some(state), Ok(log)) => self.logs.push((log, state)),
                    _ => {
                        let what = format!("how far log {} was applied cannot be so", key.offset);
                        let lost = "what the log has and the pool has not";
                        self.findings.add(Finding { inode: None, ..Finding::of(item, what) }.losing(lost));
                    }
                }
            }
            items::USER => self.users.user(item, &mut self.findings),
            items::COUNTED => self.users.counted(item, &mut self.findings),
            kind => {
                let what = format!("an item of kind {kind} of no inode, which does not exist");
                self.findings.add(Finding { inode: None, ..Finding::of(item, what) });
            }
        }
    }

    fn inode(&mut self, item: &Item<'_>) {
        self.totals.inodes += 1;
        let number = item.key.object;
        let Some(inode) = items::read_inode(item.value).filter(|_| item.key.offset == 0) else {
            let what = "its attributes cannot be read".to_owned();
            self.findings.add(Finding::of(item, what).losing("it, and what is below it"));
            return;
        };
        self.users.inode(&inode);
        self.totals.directories += u64::from(inode.kind == Kind::Directory);
        if number >= self.next_inode {
            let what = format!("its number is not below {}, the next new one", self.next_inode);
            self.findings.add(Finding::of(item, what).losing("nothing yet; a new file may replace it"));
        }
        if let Some(what) = group::implausible(&inode) {
            self.findings.add(Finding::of(item, what.to_owned()).losing("the attribute"));
        }
        let (log, sequence) = inode.applied;
        let is_known = |(known, state): &(u32, LogState)| *known == log && state.sequence >= sequence;
        if (log, sequence) != (0, 0) && !self.logs.iter().any(is_known) {
            let what =
                format!("record {sequence} of log {log} changed it, and that log was not applied so far");
            self.findings.add(Finding::of(item, what).losing("later changes of it, perhaps"));
        }
        if let Some(named_as) = self.table.add(number, &inode, item.node) {
            let what = format!("it is a {:?}, and an entry says {named_as:?}", inode.kind);
            self.findings.add(Finding::of(item, what).losing("nothing; a listing shows it wrongly"));
        }
        let mark = self.table.orphan(number);
        if let Some(group) = &mut self.group {
            group.begin(inode, mark, item.place);
        }
    }

    fn target(&mut self, item: &Item<'_>) {
        let Some(group) = &mut self.group else { return };
        if let Err(what) = group.target(item) {
            self.findings.add(Finding::of(item, what).losing("the link's target"));
        }
    }

    fn entry(&mut self, item: &Item<'_>) {
        let cookie = Cookie(item.key.offset);
        self.totals.entries += 1;
        let Some(group) = &mut self.group else { return };
        let Some((entry, name)) = items::read_entry(cookie, item.value) else {
            group.count_entry(None);
            let what = format!("the entry at {} cannot be read", cookie.0);
            self.findings.add(Finding::of(item, what).losing("a name, and what it leads to"));
            return;
        };
        group.count_entry(Some(entry.kind));
        if let Err(cause) = group.place(self.name_key, item.key, name) {
            let what = format!("the entry {:?} {cause}", shown(name));
            self.findings.add(Finding::of(item, what).losing("the name: it may not be found"));
        }
        if let Err(cause) = self.table.name(&entry, item.key.object, item.node) {
            let what = format!("the entry {:?} of inode {} {cause}", shown(name), entry.inode);
            self.findings.add(Finding::of(item, what).losing("nothing; a listing shows it wrongly"));
        }
    }

    fn xattr(&mut self, item: &Item<'_>) {
        self.totals.xattrs += 1;
        let Some(group) = &mut self.group else { return };
        if let Err(what) = group.xattr(self.name_key, item) {
            self.findings.add(Finding::of(item, what).losing("an extended attribute"));
        }
    }

    fn xattr_piece(&mut self, item: &Item<'_>) {
        let Some(group) = &mut self.group else { return };
        if let Err(what) = group.xattr_piece(item) {
            self.findings.add(Finding::of(item, what).losing("an extended attribute"));
        }
    }

    fn extent(&mut self, item: &mut Item<'_>, runs: &mut Vec<Run>) {
        self.totals.extents += 1;
        let Some(group) = &mut self.group else { return };
        let Some(extent) = items::read_extent(item.key.offset, item.value) else {
            let what = format!("its extent at block {} cannot be read", item.key.offset);
            self.findings.add(Finding::of(item, what).losing("the data from there to the next extent"));
            return;
        };
        runs.push(extent.run);
        let blocks = u64::from(extent.run.blocks);
        let total = match extent.is_unwritten() {
            true => &mut self.totals.reserved_blocks,
            false => &mut self.totals.data_blocks,
        };
        *total += blocks;
        if let Err(what) = group.extent(&extent) {
            self.findings.add(Finding::of(item, what).losing("the data of that extent, perhaps"));
        }
        if self.options.data && !extent.is_unwritten() {
            let size = group.size();
            let damaged =
                data::check(item, &extent, size, &self.media, &mut group.damage, &mut self.findings);
            self.totals.verified_blocks += blocks;
            self.totals.damaged_blocks += damaged;
        }
    }

    fn end_group(&mut self) {
        let Some(mut group) = self.group.take() else { return };
        group.damage.end(group.number(), &self.media, &mut self.findings);
        for finding in group.end() {
            self.findings.add(finding);
        }
    }
}
