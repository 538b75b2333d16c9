//! How long an append to the operation log takes: `cargo bench -p sietch-fs --bench append`.
//!
//! The log is in DRAM, by the stores and fences of persistent memory. Each line is the median of
//! several runs, each over several laps of the ring, and the range; reclaiming is included.

use std::hint::black_box;
use std::time::Instant;

use sietch_disk::nvm::Mapped;
use sietch_fs::change::{Change, Place};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::log::{Durability, LogIdentity, LogReader, LogWriter};
use sietch_fs::name::Cookie;

const RING: usize = 64 << 20;
const RUNS: usize = 9;
const APPENDS: usize = 100_000;

fn writer(durability: Durability) -> LogWriter<Mapped> {
    let identity = LogIdentity { log: 1, epoch: 1, seed: 0x5eed_5eed_5eed_5eed };
    let medium = Mapped::anonymous(RING).expect("memory for the ring");
    LogWriter::new(medium, identity, durability).expect("a ring")
}

fn run(name: &str, durability: Durability, change: &Change<'_>, data: &[u8]) {
    let mut writer = writer(durability);
    let mut runs: Vec<f64> = Vec::with_capacity(RUNS);
    for _ in 0..=RUNS {
        let started = Instant::now();
        for _ in 0..APPENDS {
            if writer.room() < 2 << 20 {
                writer.reclaim(writer.next_position());
            }
            let appended = writer.append(Timestamp::default(), black_box(change), black_box(data));
            black_box(appended.expect("room"));
        }
        runs.push(started.elapsed().as_nanos() as f64 / APPENDS as f64);
    }
    // The first run touches the pages.
    runs.remove(0);
    runs.sort_by(f64::total_cmp);
    println!("{name:<36} {:>8.0} ns  ({:.0} to {:.0})", runs[RUNS / 2], runs[0], runs[RUNS - 1]);
}

fn read(length: usize) {
    let mut writer = writer(Durability::Operation);
    let data = vec![7; length];
    let change = Change::Write { inode: InodeNumber(3), offset: 0, length: length as u32 };
    let mut count = 0;
    while writer.append(Timestamp::default(), &change, &data).is_ok() {
        count += 1;
    }
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        let mut reader = LogReader::new(writer.medium(), writer.identity(), 0, 1).expect("a ring");
        for _ in 0..count {
            black_box(reader.next().expect("no damage").expect("a record"));
        }
        runs.push(started.elapsed().as_nanos() as f64 / f64::from(count));
    }
    runs.sort_by(f64::total_cmp);
    println!(
        "read a write of {length:<21} {:>8.0} ns  ({:.0} to {:.0})",
        runs[RUNS / 2],
        runs[0],
        runs[RUNS - 1]
    );
}

fn main() {
    let operation = Durability::Operation;
    let inode = InodeNumber(3);
    let write = |length: usize| Change::Write { inode, offset: 1 << 20, length: length as u32 };
    for length in [1, 64, 256, 512, 1024, 4096, 16384, 65536] {
        run(&format!("write {length}"), operation, &write(length), &vec![7; length]);
    }
    run("write 4096, mirrored", Durability::Sync { block: 4096 }, &write(4096), &[7; 4096]);
    let place = Place { directory: InodeNumber(1), cookie: Cookie(4096), name: b"a-name-of-20-letters" };
    let create = Change::Create {
        inode,
        place: Some(place),
        kind: Kind::File,
        mode: 0o644,
        uid: 1,
        gid: 1,
        device: 0,
        target: &[],
    };
    run("create", operation, &create, &[]);
    run("unlink", operation, &Change::Unlink { inode, place }, &[]);
    run("free", operation, &Change::Free { inode }, &[]);
    read(64);
    read(4096);
}
