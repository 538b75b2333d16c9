//! Instructions of a durable append to memory, counted by callgrind: repeatable where time is not.
//!
//! Each writer has one record on its way. The count covers all that a loop asks of a log for
//! [`APPENDS`] appends: append, submit, poll. Memory stands in for NVM, so the device's part
//! (stores and a fence) is counted too. Set-up is not. The limits are the measured counts plus 3 %:
//! a change that makes an append longer has to raise them here.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use sietch_disk::NvmQueue;
use sietch_disk::nvm::Mapped;
use sietch_persist::{FormatOptions, Log, Options};

/// Appends that a measurement counts.
const APPENDS: usize = 6400;

/// Room for all of them, so that none is refused and no compaction is due.
const AREA: usize = 256 << 20;

struct Scene {
    log: Log<NvmQueue<Mapped>>,
    record: Vec<u8>,
    writers: usize,
}

impl Scene {
    fn run(&mut self) {
        for _ in 0..APPENDS / self.writers {
            let mut last = 0;
            for _ in 0..self.writers {
                last = self.log.append(&self.record).expect("there is room");
            }
            self.log.submit().expect("memory does not fail");
            while black_box(self.log.poll().expect("memory does not fail")) < last {}
        }
    }
}

fn scene(bytes: usize, writers: usize) -> Scene {
    let memory = Mapped::anonymous(AREA).expect("256 MiB of memory");
    let mut disk = NvmQueue::over(memory, None);
    Log::format(&mut disk, FormatOptions::new(42)).expect("a fresh area");
    let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("it was just formatted");
    let mut scene = Scene { log, record: vec![0x5a; bytes], writers };
    // Every buffer has found its size.
    scene.run();
    scene
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * APPENDS as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::small(args = (64, 1), setup = scene, config = limit(1865))]
#[bench::large(args = (4096, 1), setup = scene, config = limit(5540))]
#[bench::small_of_many(args = (64, 64), setup = scene, config = limit(798))]
fn append(mut scene: Scene) -> Scene {
    black_box(&mut scene).run();
    scene
}

library_benchmark_group!(name = log; benchmarks = append);
main!(library_benchmark_groups = log);
