//! Blocks of one operation each.
//!
//! 1. Each thread has a file of its own; names are in one directory.
//! 2. What a block needs is made before its clock starts, and removed after its clock has stopped.
//! 3. A file that has grown to [`LARGEST`] is replaced by an empty one. That belongs to the elapsed
//!    time of every subject, and to the time of no append.
//! 4. *Burst* appends [`BURST`] bytes and then waits, off the clock, until nothing is left to be
//!    digested or written back: what an application sees that does not write all the time.

use std::io;
use std::time::{Duration, Instant};

use super::files::{Files, Open, Use};
use super::random::Random;
use super::tally::Tally;

/// Bytes at which an appended file is replaced.
const LARGEST: u64 = 128 << 20;
/// Bytes of a burst: less than the half of the log at which the digest begins at once.
const BURST: u64 = 8 << 20;
/// Bytes of a file that is read or overwritten.
const EXISTING: u64 = 8 << 20;
/// Names that a block creates or removes, at most.
const NAMES: usize = 20_000;
/// Names that are renamed.
const RENAMED: usize = 1000;

/// When the data that are read were digested, or written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// Just written: in the log.
    New,
    /// Long ago.
    Old,
}

/// One operation, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Append { bytes: usize, sync: bool },
    Burst { bytes: usize },
    Overwrite { bytes: usize, sync: bool },
    Read { bytes: usize, age: Age },
    Create,
    Rename,
    Unlink,
}

/// One thread's block.
pub(super) struct Block<'a> {
    pub files: &'a dyn Files,
    pub thread: usize,
    pub duration: Duration,
}

impl Operation {
    /// Runs a block; `ready` is called when everything is prepared, and returns when all threads
    /// are.
    pub(super) fn run(self, block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally) -> io::Result<()> {
        match self {
            Self::Append { bytes, sync } => append(block, ready, tally, bytes, sync),
            Self::Burst { bytes } => burst(block, ready, tally, bytes),
            Self::Overwrite { bytes, sync } => overwrite(block, ready, tally, bytes, sync),
            Self::Read { bytes, age } => read(block, ready, tally, bytes, age),
            Self::Create => create(block, ready, tally),
            Self::Rename => rename(block, ready, tally),
            Self::Unlink => unlink(block, ready, tally),
        }
    }
}

impl Block<'_> {
    fn name(&self, what: &str, index: usize) -> String {
        format!("{what}-{}-{index}", self.thread)
    }
}

fn append(
    block: &Block<'_>,
    ready: &dyn Fn(),
    tally: &mut Tally,
    bytes: usize,
    sync: bool,
) -> io::Result<()> {
    let (files, name, data) = (block.files, block.name("append", 0), vec![0x5a; bytes]);
    let mut file = files.create(&name, Use::Append)?;
    let mut length = 0;
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    while start - begun < block.duration {
        files.append(&file, &data)?;
        if sync {
            files.sync(&file)?;
        }
        start = tally.done(start);
        length += bytes as u64;
        if length >= LARGEST {
            length = 0;
            files.close(file);
            files.unlink(&name)?;
            file = files.create(&name, Use::Append)?;
            start = Instant::now();
        }
    }
    tally.stop(begun)?;
    files.close(file);
    files.unlink(&name)
}

fn burst(block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally, bytes: usize) -> io::Result<()> {
    let (files, data) = (block.files, vec![0x5a; bytes]);
    ready();
    for round in 0.. {
        let name = block.name("burst", round);
        let file = files.create(&name, Use::Append)?;
        let begun = Instant::now();
        let mut start = begun;
        for _ in 0..BURST / bytes as u64 {
            files.append(&file, &data)?;
            start = tally.done(start);
        }
        tally.elapsed += start - begun;
        files.close(file);
        files.unlink(&name)?;
        files.settle()?;
        if tally.elapsed * 10 > block.duration {
            break;
        }
    }
    Ok(())
}

/// A file with data.
fn existing(block: &Block<'_>, name: &str) -> io::Result<Open> {
    let file = block.files.create(name, Use::Anywhere)?;
    let data = vec![0xa5; 64 << 10];
    for offset in (0..EXISTING).step_by(data.len()) {
        block.files.write_at(&file, offset, &data)?;
    }
    Ok(file)
}

fn overwrite(
    block: &Block<'_>,
    ready: &dyn Fn(),
    tally: &mut Tally,
    bytes: usize,
    sync: bool,
) -> io::Result<()> {
    let (files, name, data) = (block.files, block.name("overwrite", 0), vec![0x5a; bytes]);
    let file = existing(block, &name)?;
    files.settle()?;
    let mut random = Random::new(block.thread as u64);
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    while start - begun < block.duration {
        let offset = random.below(EXISTING / bytes as u64) * bytes as u64;
        files.write_at(&file, offset, &data)?;
        if sync {
            files.sync(&file)?;
        }
        start = tally.done(start);
    }
    tally.stop(begun)?;
    files.close(file);
    files.unlink(&name)
}

fn read(block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally, bytes: usize, age: Age) -> io::Result<()> {
    let (files, name, mut data) = (block.files, block.name("read", 0), vec![0; bytes]);
    let file = existing(block, &name)?;
    if age == Age::Old {
        files.settle()?;
    }
    let mut random = Random::new(block.thread as u64);
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    while start - begun < block.duration {
        let offset = random.below(EXISTING / bytes as u64) * bytes as u64;
        if files.read_at(&file, offset, &mut data)? != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        start = tally.done(start);
    }
    tally.stop(begun)?;
    if data.iter().any(|byte| *byte != 0xa5) {
        return Err(io::Error::other("other data than were written"));
    }
    files.close(file);
    files.unlink(&name)
}

fn create(block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally) -> io::Result<()> {
    let names: Vec<_> = (0..NAMES).map(|index| block.name("create", index)).collect();
    let mut made = 0;
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    for name in &names {
        if start - begun > block.duration {
            break;
        }
        let file = block.files.create(name, Use::Anywhere)?;
        block.files.close(file);
        start = tally.done(start);
        made += 1;
    }
    tally.stop(begun)?;
    names[..made].iter().try_for_each(|name| block.files.unlink(name))
}

fn rename(block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally) -> io::Result<()> {
    let mut names: Vec<_> =
        (0..RENAMED).map(|index| (block.name("from", index), block.name("to", index))).collect();
    for (from, _) in &names {
        block.files.close(block.files.create(from, Use::Anywhere)?);
    }
    block.files.settle()?;
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    'block: loop {
        for (from, to) in &mut names {
            if start - begun > block.duration {
                break 'block;
            }
            block.files.rename(from, to)?;
            std::mem::swap(from, to);
            start = tally.done(start);
        }
    }
    tally.stop(begun)?;
    names.iter().try_for_each(|(name, _)| block.files.unlink(name))
}

fn unlink(block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally) -> io::Result<()> {
    let mut names: Vec<_> = (0..NAMES).map(|index| block.name("unlink", index)).collect();
    for name in &names {
        block.files.close(block.files.create(name, Use::Anywhere)?);
    }
    block.files.settle()?;
    ready();
    let begun = tally.start()?;
    let mut start = begun;
    while start - begun <= block.duration
        && let Some(name) = names.pop()
    {
        block.files.unlink(&name)?;
        start = tally.done(start);
    }
    tally.stop(begun)?;
    names.iter().try_for_each(|name| block.files.unlink(name))
}
