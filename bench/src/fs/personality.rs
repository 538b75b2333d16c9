//! Filebench's varmail, fileserver and webserver, written anew.
//!
//! 1. Their flows, sizes (gamma, shape 1.5) and appends (uniform below 16 KiB) are those of
//!    filebench 1.5. Different here: 1000 files for all (fileserver has 10,000 there), 16 threads
//!    for all (there 16, 50 and 100), and one directory (there a tree for fileserver and
//!    webserver).
//! 2. A thread that takes a file has it alone, as in filebench. Of the files, 80 % exist at the
//!    start; webserver's all do.
//! 3. What is timed is one pass through the flow.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::files::{Files, Open, Use};
use super::operations::Block;
use super::random::Random;
use super::tally::Tally;

/// Files, those that exist and those that may be created.
const FILES: usize = 1000;
/// Of so many files, so many exist at the start.
const PRESENT: (usize, usize) = (8, 10);
/// Bytes of the largest append.
const APPEND: u64 = 16 << 10;
/// Bytes of one read or write.
const PIECE: usize = 1 << 20;
/// Pages that webserver reads for each line of its log.
const PAGES: usize = 10;
/// The log of webserver.
const LOG: &str = "weblog";

/// A flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Personality {
    Varmail,
    Fileserver,
    Webserver,
}

impl Personality {
    fn mean(self) -> f64 {
        match self {
            Self::Varmail | Self::Webserver => 16.0 * 1024.0,
            Self::Fileserver => 128.0 * 1024.0,
        }
    }
}

/// The files of a flow that all threads share.
#[derive(Debug)]
pub(super) struct FileSet {
    personality: Personality,
    free: Mutex<Free>,
}

/// Numbers of files that no thread has.
#[derive(Debug)]
struct Free {
    present: Vec<usize>,
    absent: Vec<usize>,
}

impl FileSet {
    /// Makes the files.
    pub(super) fn create(files: &dyn Files, personality: Personality) -> io::Result<Self> {
        let present = match personality {
            Personality::Webserver => FILES,
            _ => FILES * PRESENT.0 / PRESENT.1,
        };
        let mut flow = Flow::new(files, personality, 0);
        for number in 0..present {
            let file = files.create(&name(number), Use::Append)?;
            flow.write_whole(&file)?;
            files.close(file);
        }
        if personality == Personality::Webserver {
            files.close(files.create(LOG, Use::Append)?);
        }
        files.settle()?;
        let free = Free { present: (0..present).collect(), absent: (present..FILES).collect() };
        Ok(Self { personality, free: Mutex::new(free) })
    }

    /// Removes the files.
    pub(super) fn remove(self, files: &dyn Files) -> io::Result<()> {
        let free = self.free.into_inner().unwrap_or_else(PoisonError::into_inner);
        free.present.iter().try_for_each(|number| files.unlink(&name(*number)))?;
        if self.personality == Personality::Webserver {
            files.unlink(LOG)?;
        }
        files.settle()
    }

    /// Passes through the flow for the duration of `block`.
    pub(super) fn run(&self, block: &Block<'_>, ready: &dyn Fn(), tally: &mut Tally) -> io::Result<()> {
        let mut flow = Flow::new(block.files, self.personality, block.thread as u64);
        ready();
        let begun = tally.start()?;
        let mut start = begun;
        while start - begun < block.duration {
            match self.personality {
                Personality::Varmail => self.varmail(&mut flow)?,
                Personality::Fileserver => self.fileserver(&mut flow)?,
                Personality::Webserver => self.webserver(&mut flow)?,
            }
            start = tally.done(start);
        }
        tally.stop(begun)?;
        Ok(())
    }

    /// Takes any file of a list away from it.
    fn take(&self, random: &mut Random, of: fn(&mut Free) -> &mut Vec<usize>) -> io::Result<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let list = of(&mut free);
        if list.is_empty() {
            return Err(io::Error::other("more threads than files"));
        }
        let index = random.below(list.len() as u64) as usize;
        Ok(list.swap_remove(index))
    }

    fn put(&self, number: usize, of: fn(&mut Free) -> &mut Vec<usize>) {
        of(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner)).push(number);
    }

    fn delete(&self, flow: &mut Flow<'_>) -> io::Result<()> {
        let number = self.take(&mut flow.random, present)?;
        flow.files.unlink(&name(number))?;
        self.put(number, absent);
        Ok(())
    }

    /// Opens a file that is there, and puts it back afterwards.
    fn with_open<'f>(
        &self,
        flow: &mut Flow<'f>,
        act: impl FnOnce(&mut Flow<'f>, &Open) -> io::Result<()>,
    ) -> io::Result<()> {
        let number = self.take(&mut flow.random, present)?;
        let file = flow.files.open(&name(number), Use::Append)?;
        act(flow, &file)?;
        flow.files.close(file);
        self.put(number, present);
        Ok(())
    }

    fn with_new<'f>(
        &self,
        flow: &mut Flow<'f>,
        act: impl FnOnce(&mut Flow<'f>, &Open) -> io::Result<()>,
    ) -> io::Result<()> {
        let number = self.take(&mut flow.random, absent)?;
        let file = flow.files.create(&name(number), Use::Append)?;
        act(flow, &file)?;
        flow.files.close(file);
        self.put(number, present);
        Ok(())
    }

    /// Delete; create, append, fsync; open, read, append, fsync; open, read.
    fn varmail(&self, flow: &mut Flow<'_>) -> io::Result<()> {
        self.delete(flow)?;
        self.with_new(flow, |flow, file| {
            flow.append(file)?;
            flow.files.sync(file)
        })?;
        self.with_open(flow, |flow, file| {
            flow.read_whole(file)?;
            flow.append(file)?;
            flow.files.sync(file)
        })?;
        self.with_open(flow, Flow::read_whole)
    }

    /// Create, write; open, append; open, read; delete; stat.
    fn fileserver(&self, flow: &mut Flow<'_>) -> io::Result<()> {
        self.with_new(flow, Flow::write_whole)?;
        self.with_open(flow, Flow::append)?;
        self.with_open(flow, Flow::read_whole)?;
        self.delete(flow)?;
        let number = self.take(&mut flow.random, present)?;
        flow.files.size(&name(number))?;
        self.put(number, present);
        Ok(())
    }

    /// Ten times open and read; append to the log.
    fn webserver(&self, flow: &mut Flow<'_>) -> io::Result<()> {
        for _ in 0..PAGES {
            self.with_open(flow, Flow::read_whole)?;
        }
        let log = flow.files.open(LOG, Use::Append)?;
        flow.append(&log)?;
        flow.files.close(log);
        Ok(())
    }
}

fn present(free: &mut Free) -> &mut Vec<usize> {
    &mut free.present
}

fn absent(free: &mut Free) -> &mut Vec<usize> {
    &mut free.absent
}

fn name(number: usize) -> String {
    format!("file-{number:08}")
}

/// One thread's side of a flow.
struct Flow<'a> {
    files: &'a dyn Files,
    mean: f64,
    random: Random,
    data: Vec<u8>,
}

impl<'a> Flow<'a> {
    fn new(files: &'a dyn Files, personality: Personality, thread: u64) -> Self {
        Self { files, mean: personality.mean(), random: Random::new(thread), data: vec![0x5a; PIECE] }
    }

    fn append(&mut self, file: &Open) -> io::Result<()> {
        let length = self.random.below(APPEND) as usize + 1;
        self.files.append(file, &self.data[..length])
    }

    fn write_whole(&mut self, file: &Open) -> io::Result<()> {
        let mut left = self.random.gamma(self.mean) as usize + 1;
        while left > 0 {
            let length = left.min(PIECE);
            self.files.append(file, &self.data[..length])?;
            left -= length;
        }
        Ok(())
    }

    fn read_whole(&mut self, file: &Open) -> io::Result<()> {
        let mut offset = 0;
        loop {
            let read = self.files.read_at(file, offset, &mut self.data)?;
            offset += read as u64;
            if read < self.data.len() {
                return Ok(());
            }
        }
    }
}
