//! Instructions of a request and its reply through the calls that replace `write` and `read`,
//! counted by callgrind: repeatable where time is not.
//!
//! Both ends of a connection are in one process, so no call sleeps. The count is the cost for a
//! program that finds its data ready, from the look-up of its descriptor on. The limits are the
//! measured counts plus 3 %: a change that makes a call longer has to raise them here. Some 30
//! instructions are for bytes that are held back (`MSG_MORE`) and for taking over from a writer
//! that was killed, some 65 for numbers that other threads change meanwhile.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;
use std::os::fd::{AsFd as _, IntoRawFd as _, RawFd};

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sietch_posix::calls::data;
use sietch_posix::table::{self, Kind};
use sietch_ring::stream::{Endpoint, Memory, Names, RegionSizes};

/// Messages in each direction that a measurement counts.
const MESSAGES: usize = 1000;

struct Scene {
    ends: [RawFd; 2],
    bytes: Vec<u8>,
}

impl Scene {
    /// A message from one end to the other.
    fn carry(&mut self, from: usize) {
        let length = self.bytes.len();
        // SAFETY: a vector of that length.
        let written = unsafe { data::write(self.ends[from], self.bytes.as_ptr().cast(), length) };
        // SAFETY: as above.
        let read = unsafe { data::read(self.ends[from ^ 1], self.bytes.as_mut_ptr().cast(), length) };
        assert_eq!((written as usize, read as usize), (length, length));
    }

    fn run(&mut self) {
        for _ in 0..MESSAGES {
            self.carry(0);
            self.carry(1);
        }
    }
}

fn scene(bytes: usize) -> Scene {
    let memory = Memory::create(RegionSizes::default(), [Names::default(); 2]).expect("memfds");
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("a pair of sockets");
    let mut ends = [first.into_raw_fd(), second.into_raw_fd()];
    for (fd, private) in ends.iter_mut().zip(&memory.private) {
        let end = Endpoint::attach(memory.common.as_fd(), private.as_fd()).expect("its own memory");
        let held = table::describe(Kind::Stream, Some(end)).expect("memory");
        assert!(table::put(*fd, &held));
    }
    let mut scene = Scene { ends, bytes: vec![0x5a; bytes] };
    // Every page is there.
    scene.run();
    scene
}

/// For a message, one way.
fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * 2 * MESSAGES as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::small(args = (64), setup = scene, config = limit(673))]
#[bench::large(args = (4096), setup = scene, config = limit(1497))]
fn message(mut scene: Scene) -> Scene {
    black_box(&mut scene).run();
    scene
}

library_benchmark_group!(name = calls; benchmarks = message);
main!(library_benchmark_groups = calls);
