//! A reader on another thread, over descriptors of its own, while the writer commits.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc;

use sietch_disk::{BLOCK, BlockingQueue};
use sietch_fs::Key;
use sietch_fs::pool::{Class, Counters, Member, Pool, Reader, Run, format};

use super::life::{filled, options, run_value, value_run};

const BLOCKS: u64 = 1024;
const KEYS: u64 = 60;
const COMMITS: u64 = 120;

/// A file that goes with the test.
struct Area(PathBuf);

impl Area {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-fs-{}-{name}", std::process::id()));
        let file = File::create(&path).expect("a temporary directory");
        file.set_len(BLOCKS * BLOCK as u64).expect("room");
        Self(path)
    }

    fn member(&self) -> Member<BlockingQueue> {
        let file = File::options().read(true).write(true).open(&self.0).expect("it was made");
        let disk = BlockingQueue::open(file.into(), BLOCKS * BLOCK as u64).expect("a regular file");
        Member { name: self.0.display().to_string(), class: Class::Ssd, disk }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Each generation is read whole, although the writer uses its blocks again as soon as it may.
#[test]
fn a_reader_on_another_thread_sees_whole_generations() {
    let area = Area::new("reader");
    format(&mut [area.member()], &options(3)).expect("large enough");
    let mut pool = Pool::open(vec![area.member()]).expect("formatted");
    let first = pool.root();
    let (roots, received) = mpsc::sync_channel(3);
    let (acknowledge, acknowledged) = mpsc::channel();
    let member = area.member();
    let thread = std::thread::spawn(move || {
        let mut reader = Reader::with_nodes(vec![member], first, 8).expect("a pool");
        for root in received {
            reader.advance(root);
            let version = root.counters.inodes;
            for offset in 0..KEYS {
                let value = reader.get(Key::new(1, 1, offset)).expect("whole").expect("an item");
                let (run, number) = value_run(&value);
                assert_eq!(number, version, "item {offset} is of another generation");
                if run.blocks > 0 {
                    assert!(reader.read(run).expect("whole")[..] == filled(run.blocks, number)[..]);
                }
            }
            acknowledge.send(root.generation).expect("the writer waits");
        }
    });
    let nothing = Run { medium: 0, start: 0, blocks: 0 };
    let (mut run, mut read) = (None, 0);
    for version in 1..=COMMITS {
        if let Some(run) = run.replace(pool.allocate(Class::Ssd, 3).expect("room")) {
            pool.free(run).expect("allocated");
        }
        let run = run.expect("just allocated");
        pool.write(run, filled(run.blocks, version)).expect("a file");
        for offset in 0..KEYS {
            let run = if offset == version % KEYS { run } else { nothing };
            pool.insert(Key::new(1, 1, offset), &run_value(run, version)).expect("room");
        }
        let root = pool.commit(Counters { inodes: version, next_inode: 1 }).expect("a file");
        roots.send(root).expect("the reader lives");
        while let Ok(generation) = acknowledged.try_recv() {
            pool.readers_at(generation);
            read = generation;
        }
    }
    drop(roots);
    thread.join().expect("the reader saw what was committed");
    assert_eq!(acknowledged.iter().last().unwrap_or(read), COMMITS + 1);
}

/// Blocks of data that a commit freed are used again when no reader needs them, and not before.
#[test]
fn freed_data_stay_as_long_as_a_reader_needs_them() {
    let area = Area::new("held");
    format(&mut [area.member()], &options(4)).expect("large enough");
    let mut pool = Pool::open(vec![area.member()]).expect("formatted");
    let mut runs = Vec::new();
    while let Ok(run) = pool.allocate(Class::Ssd, 8) {
        runs.push(run);
    }
    let old = pool.commit(Counters::default()).expect("a file");
    pool.readers_at(old.generation);
    let freed = runs.pop().expect("it had room");
    pool.free(freed).expect("allocated");
    let new = pool.commit(Counters::default()).expect("a file");
    assert!(pool.allocate(Class::Ssd, 8).is_err(), "a reader of generation {} needs it", old.generation);
    pool.readers_at(new.generation);
    assert_eq!(pool.allocate(Class::Ssd, 8).expect("it is free"), freed);
}
