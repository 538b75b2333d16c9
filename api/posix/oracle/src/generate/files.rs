//! Programs of calls on files.
//!
//! 1. A program opens some files and then uses them: by their position and at offsets, through
//!    duplicates, in threads and children, through streams and mappings, with and without a limit
//!    of their size. Names are few, so that descriptors share files.
//! 2. One actor does a step at a time, so each step has one outcome.
//! 3. The generator avoids what differs between file systems: the largest file, sizes in blocks,
//!    and what remains of an unreadable buffer (a write in memory may make the file longer and then
//!    fail).

use super::random::Random;
use crate::operation::Operation;
use crate::operation::words::{
    Access, Faulty, InHandler, MessageFlags, Name, OpenFlags, Reserve, Sharing, Slot, SocketFlags,
    StreamMode, VectorFlags, Whence,
};
use crate::program::{Actor, Program, Step};

/// Lengths of data; the blocks of the file system are 4096 bytes long.
const LENGTHS: [i64; 12] = [0, 1, 2, 10, 100, 511, 1000, 4095, 4096, 4097, 9000, 70_000];
/// Offsets and sizes.
const OFFSETS: [i64; 12] = [0, 0, 1, 7, 100, 1000, 4095, 4096, 5000, 8192, 20_000, 150_000];
/// Offsets of mappings, and one that is none.
const PAGES: [i64; 4] = [0, 0, 4096, 100];
/// Bytes of a file that is mapped, at least.
const MAPPED: i64 = 80_000;
/// More than one record of the file system has.
const LARGE: i64 = 1_300_000;

/// What a slot has, as far as the generator knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Empty,
    Closed,
    File,
    /// One end of a pair of sockets; the other end has the next number.
    Socket,
}

/// A program under construction.
struct Generator {
    random: Random,
    slots: [Kind; Slot::COUNT as usize],
    children: [bool; 2],
    is_limited: bool,
    /// Space is reserved. Whether that is a hole differs: nothing seeks one then.
    reserves: bool,
    /// A write met a fault, which may fill a hole with zeros: nothing seeks one from then on.
    faults: bool,
    /// Files are mapped. What is written to a mapping beyond their end is not determined: nothing
    /// makes them shorter then.
    maps: bool,
    /// Descriptors are passed in messages. The kernel moves their position to where it takes the
    /// end to be if they append, which is documented: nothing appends then.
    passes: bool,
    steps: Vec<Step>,
}

/// The program of a seed.
pub fn program(seed: u64) -> Program {
    let mut generator = Generator {
        random: Random::new(seed),
        slots: [Kind::Empty; Slot::COUNT as usize],
        children: [false; 2],
        is_limited: false,
        passes: false,
        maps: false,
        reserves: false,
        faults: false,
        steps: Vec::new(),
    };
    generator.passes = generator.random.percent(25);
    generator.maps = generator.random.percent(40);
    generator.reserves = generator.random.percent(40);
    for _ in 0..=generator.random.below(2) {
        generator.open();
    }
    for _ in 0..8 + generator.random.below(30) {
        generator.step();
    }
    Program { steps: generator.steps }
}

impl Generator {
    fn by(&mut self, actor: Actor, operation: Operation) {
        self.steps.push(Step::Call { actor, start: false, operation });
    }

    /// A call of any actor: mostly the main thread.
    fn call(&mut self, operation: Operation) {
        let children: Vec<_> = [1, 2].into_iter().filter(|child| self.children[child - 1]).collect();
        let actor = match self.random.below(10) {
            0 => Actor::Thread(1),
            1 => Actor::Thread(2),
            2..=4 if !children.is_empty() => {
                Actor::Child(u8::try_from(self.random.one(&children)).unwrap_or(1))
            }
            _ => Actor::Main,
        };
        self.by(actor, operation);
    }

    fn some(&mut self, kind: Kind) -> Option<Slot> {
        let fitting: Vec<_> =
            (0..Slot::COUNT).map(Slot).filter(|slot| self.slots[slot.index()] == kind).collect();
        (!fitting.is_empty()).then(|| self.random.one(&fitting))
    }

    /// A file's slot, and rarely any.
    fn file(&mut self) -> Slot {
        let file = self.some(Kind::File).filter(|_| self.random.percent(97));
        file.unwrap_or_else(|| Slot(u8::try_from(self.random.below(6)).unwrap_or(0)))
    }

    /// A slot for a new descriptor: an empty one, or a closed one.
    fn free(&mut self, kind: Kind) -> Slot {
        let slot = match self.random.percent(50) {
            true => self.some(Kind::Closed).or_else(|| self.some(Kind::Empty)),
            false => self.some(Kind::Empty).or_else(|| self.some(Kind::Closed)),
        };
        let slot = slot.unwrap_or(Slot(0));
        self.slots[slot.index()] = kind;
        slot
    }

    fn name(&mut self) -> Name {
        Name::named(self.random.one(&["a", "a", "a", "b", "b", "c", "d"]))
    }

    fn length(&mut self) -> i64 {
        if self.random.percent(2) { LARGE } else { self.random.one(&LENGTHS) }
    }

    fn offset(&mut self) -> i64 {
        self.random.one(&OFFSETS)
    }

    fn open(&mut self) {
        let name = self.name();
        let access = Access::named(self.random.one(&["rw", "rw", "rw", "rw", "r", "w"]));
        let flags = self.random.one(&[
            "creat",
            "creat",
            "creat",
            "creat",
            "creat+append",
            "creat+append",
            "creat+trunc",
            "-",
            "append",
            "creat+excl",
            "creat+sync",
            "creat+dsync",
            "creat+cloexec",
            "path",
            "trunc",
        ]);
        let flags = if self.passes { flags.trim_end_matches("+append") } else { flags };
        let flags = if self.passes && flags == "append" { "-" } else { flags };
        let flags = if self.maps { flags.trim_end_matches("+trunc") } else { flags };
        let flags = if self.maps && flags == "trunc" { "-" } else { flags };
        let to = self.free(Kind::File);
        let operation = if self.random.percent(4) {
            Operation::Mkstemp { to }
        } else {
            Operation::Open { to, name, access, flags: OpenFlags::of(flags) }
        };
        self.call(operation);
    }

    fn step(&mut self) {
        match self.random.below(60) {
            0..=13 => self.at_position(),
            14..=23 => self.at_offset(),
            24..=27 => self.seek(),
            28..=31 => self.size(),
            32..=34 => self.status(),
            35..=37 => self.open(),
            38..=41 => self.descriptor(),
            42..=44 => self.name_change(),
            45..=48 if self.maps => self.mapping(),
            49 | 50 => self.stream(),
            51 | 52 => self.process(),
            53 if self.passes => self.rights(),
            54 => self.limit(),
            55 | 56 => self.unusual(),
            _ => {
                let name = self.name();
                self.steps.push(Step::Look(name));
            }
        }
    }

    fn at_position(&mut self) {
        let (fd, length, second) = (self.file(), self.length(), self.length());
        let flags = VectorFlags(0);
        let operation = match self.random.below(10) {
            0..=3 => Operation::Write { fd, length },
            4..=6 => Operation::Read { fd, length },
            7 => Operation::Writev { fd, first: length, second },
            8 => Operation::Readv { fd, first: length, second },
            _ if self.random.percent(50) => {
                Operation::Pwritev2 { fd, first: length, second, offset: -1, flags }
            }
            _ => Operation::Preadv2 { fd, first: length, second, offset: -1, flags },
        };
        self.call(operation);
    }

    fn at_offset(&mut self) {
        let (fd, length, second) = (self.file(), self.length(), self.length());
        let offset = match self.random.below(30) {
            0 => -1,
            1 => i64::MAX,
            _ => self.offset(),
        };
        let flags = VectorFlags::of(self.random.one(&["-", "-", "hipri", "dsync", "sync", "append"]));
        let operation = match self.random.below(10) {
            0..=3 => Operation::Pwrite { fd, length, offset },
            4..=6 => Operation::Pread { fd, length, offset },
            7 => Operation::Pwritev { fd, first: length, second, offset },
            8 => Operation::Preadv { fd, first: length, second, offset },
            _ if self.random.percent(60) => Operation::Pwritev2 { fd, first: length, second, offset, flags },
            _ => Operation::Preadv2 { fd, first: length, second, offset, flags: VectorFlags(0) },
        };
        self.call(operation);
    }

    fn seek(&mut self) {
        let fd = self.file();
        let whence = self.random.one(&[
            "set", "set", "set", "cur", "cur", "cur", "end", "end", "end", "end", "data", "hole", "none",
        ]);
        let is_hole = matches!(whence, "data" | "hole");
        let whence = if is_hole && (self.reserves || self.faults) { "end" } else { whence };
        let offset = match self.random.below(20) {
            0 => -1,
            1 => -100,
            2 => return self.far(fd),
            3 if whence == "end" => i64::MAX,
            3..=10 => 0,
            _ => self.offset(),
        };
        self.call(Operation::Lseek { fd, offset, whence: Whence::named(whence) });
    }

    /// Reads at the end of all offsets. Writes there differ: file systems have different limits.
    fn far(&mut self, fd: Slot) {
        let offset = self.random.one(&[i64::MAX, i64::MAX - 20, i64::MAX - 5000]);
        let (length, second) = (self.random.one(&LENGTHS), self.random.one(&LENGTHS));
        let set = Whence::named("set");
        self.by(Actor::Main, Operation::Lseek { fd, offset, whence: set });
        self.by(Actor::Main, Operation::Readv { fd, first: length, second });
        self.by(Actor::Main, Operation::Lseek { fd, offset: 0, whence: set });
    }

    fn size(&mut self) {
        let (fd, name, offset) = (self.file(), self.name(), self.offset());
        let length = self.random.one(&LENGTHS);
        let offset = if self.maps { MAPPED + offset } else { offset };
        let operation = match self.random.below(10) {
            0..=4 => Operation::Ftruncate { fd, length: if self.random.percent(3) { -1 } else { offset } },
            // The kernel compares a limit with the size that it knows, which may be old.
            5..=9 if self.is_limited || !self.reserves => Operation::Truncate { name, length: offset },
            5..=7 => Operation::Truncate { name, length: offset },
            _ => {
                let how = Reserve::named(self.random.one(Reserve::NAMES));
                Operation::Fallocate { fd, how, offset, length }
            }
        };
        self.call(operation);
    }

    fn status(&mut self) {
        let (fd, name) = (self.file(), self.name());
        let operation = match self.random.below(8) {
            0..=2 => Operation::Fstat { fd },
            3..=5 => Operation::Stat { name },
            6 => Operation::Fsync { fd },
            _ => Operation::Fdatasync { fd },
        };
        self.call(operation);
    }

    fn descriptor(&mut self) {
        let fd = self.file();
        let operation = match self.random.below(12) {
            0 | 1 => Operation::Dup { fd, to: self.free(Kind::File) },
            2 => Operation::Dup2 { fd, onto: self.file() },
            3 => Operation::Dup3 { fd, onto: self.file(), flags: SocketFlags::of("cloexec") },
            4 => {
                let to = self.free(Kind::File);
                Operation::DupFrom { fd, lowest: self.random.one(&[3, 20, 100]), cloexec: 0, to }
            }
            5 | 6 => Operation::SetStatus {
                fd,
                flags: SocketFlags::of(if self.passes {
                    "-"
                } else {
                    self.random.one(&["append", "-", "nonblock"])
                }),
            },
            7 => Operation::GetStatus { fd },
            8 => {
                let to = self.file();
                self.slots[fd.index()] = Kind::Closed;
                Operation::CloseRange { from: fd, to }
            }
            _ => {
                self.slots[fd.index()] = Kind::Closed;
                Operation::Close { fd }
            }
        };
        self.call(operation);
    }

    fn name_change(&mut self) {
        let (from, to) = (self.name(), self.name());
        let operation = match self.random.below(4) {
            0 | 1 => Operation::Unlink { name: from },
            2 => Operation::Rename { from, to },
            _ => Operation::Link { from, to },
        };
        self.call(operation);
    }

    fn mapping(&mut self) {
        let map = i64::try_from(self.random.below(2)).unwrap_or(0);
        let (fd, at, length) = (self.file(), self.offset(), self.random.one(&LENGTHS));
        let operation = match self.random.below(10) {
            0 | 1 => {
                let sharing = Sharing::named(self.random.one(Sharing::NAMES));
                let length = self.random.one(&[1, 4096, 10_000, 70_000]);
                // At least one page more than is mapped.
                self.by(Actor::Main, Operation::Ftruncate { fd, length: MAPPED });
                Operation::Map { map, fd, offset: self.random.one(&PAGES), length, sharing }
            }
            2..=4 => Operation::MapRead { map, at, length },
            5..=7 => Operation::MapWrite { map, at, length },
            8 => Operation::Msync { map },
            _ => Operation::Unmap { map },
        };
        self.call(operation);
    }

    fn stream(&mut self) {
        let stream = 0;
        let shortens = |mode: &&str| mode.starts_with('w');
        let modes: Vec<_> =
            StreamMode::NAMES.iter().copied().filter(|mode| !self.maps || !shortens(mode)).collect();
        let mode = StreamMode::named(self.random.one(&modes));
        let (fd, name, length) = (self.file(), self.name(), self.random.one(&LENGTHS));
        let opening = if self.random.percent(60) {
            Operation::StreamOf { stream, fd, mode }
        } else {
            Operation::StreamOpen { stream, name, mode }
        };
        self.by(Actor::Main, opening);
        for _ in 0..1 + self.random.below(4) {
            let offset = self.offset();
            let whence = Whence::named(self.random.one(&["set", "cur", "end"]));
            let operation = match self.random.below(8) {
                0..=2 => Operation::StreamWrite { stream, length },
                3..=4 => Operation::StreamRead { stream, length },
                5 => Operation::StreamFlush { stream },
                _ => Operation::StreamSeek { stream, offset, whence },
            };
            // Between reads and writes of one stream there must be a seek.
            self.by(Actor::Main, operation);
            self.by(Actor::Main, Operation::StreamSeek { stream, offset: 0, whence: Whence::named("cur") });
        }
        if self.random.percent(70) {
            self.by(Actor::Main, Operation::StreamClose { stream });
        }
    }

    fn process(&mut self) {
        let child = 1 + self.random.below(2);
        let actor = Actor::Child(u8::try_from(child).unwrap_or(1));
        if !self.children[child - 1] {
            self.children[child - 1] = true;
            self.by(Actor::Main, Operation::Fork { child: i64::try_from(child).unwrap_or(1) });
            return;
        }
        match self.random.below(4) {
            0 => self.by(actor, Operation::Execute {}),
            1 => {
                self.children[child - 1] = false;
                self.steps.push(Step::Kill(actor));
            }
            2 => {
                self.children[child - 1] = false;
                self.by(actor, Operation::Exit { status: 0 });
            }
            _ => {}
        }
    }

    /// Two connected sockets of the main process.
    fn pair(&mut self) -> (Slot, Slot) {
        let (first, second) = (Slot(Slot::COUNT - 2), Slot(Slot::COUNT - 1));
        if self.slots[first.index()] != Kind::Socket || self.slots[second.index()] != Kind::Socket {
            self.slots[first.index()] = Kind::Socket;
            self.slots[second.index()] = Kind::Socket;
            let flags = SocketFlags::of("nonblock");
            self.by(Actor::Main, Operation::Socketpair { first, second, flags });
        }
        (first, second)
    }

    /// Passes a descriptor, to any actor.
    fn rights(&mut self) {
        let Some(file) = self.some(Kind::File) else { return };
        let (first, second) = self.pair();
        self.call(Operation::SendDescriptor { via: first, fd: file });
        let to = self.free(Kind::File);
        self.call(Operation::ReceiveDescriptor { via: second, to, flags: MessageFlags(0) });
    }

    fn limit(&mut self) {
        let bytes = self.random.one(&[5000, 100, 4096, -1]);
        self.is_limited = true;
        self.by(Actor::Main, Operation::Limit { bytes });
        for _ in 0..1 + self.random.below(5) {
            match self.random.below(4) {
                0 | 1 => self.at_position(),
                2 => self.at_offset(),
                _ => self.size(),
            }
        }
        if self.random.percent(60) {
            self.is_limited = false;
            self.by(Actor::Main, Operation::Limit { bytes: -1 });
        }
    }

    fn unusual(&mut self) {
        let (fd, other, length) = (self.file(), self.file(), self.random.one(&LENGTHS));
        let operation = match self.random.below(8) {
            0 | 1 => {
                let call = self.random.one(&["read", "readv", "writev", "pread", "pwrite"]);
                self.faults |= call.contains("write");
                Operation::Fault { call: Faulty::named(call), fd }
            }
            2 | 3 => {
                let shortens = |call: &&str| *call == "ftruncate";
                let calls: Vec<_> =
                    InHandler::NAMES.iter().copied().filter(|call| !self.maps || !shortens(call)).collect();
                let call = InHandler::named(self.random.one(&calls));
                if call.name() == "close" {
                    self.slots[fd.index()] = Kind::Closed;
                }
                Operation::InHandler { call, fd, length }
            }
            4 | 5 => {
                // Within one file it would depend on the pages that are under way.
                let input = self.free(Kind::Empty);
                self.by(Actor::Main, Operation::Memfd { to: input, length: 9000 });
                let offset = self.random.one(&[-1, 0, 1000]);
                self.by(Actor::Main, Operation::Sendfile { out: fd, input, offset, count: length });
                self.by(Actor::Main, Operation::Close { fd: input });
                let (out, reader) = self.pair();
                self.by(Actor::Main, Operation::Sendfile { out, input: other, offset, count: length });
                return self.by(Actor::Main, Operation::Read { fd: reader, length: 100_000 });
            }
            _ => {
                let (from, to) = (self.random.one(&[-1, 0, 4096]), self.random.one(&[-1, 0, 100]));
                Operation::CopyRange { input: fd, from, out: other, to, length }
            }
        };
        self.call(operation);
    }
}
