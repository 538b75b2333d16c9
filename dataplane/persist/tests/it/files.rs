//! The log on real files, through io_uring and through blocking calls. With `--ignored`: what it
//! measures.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sietch_disk::uring::UringOptions;
use sietch_disk::{AreaQueue, BlockingQueue, MemoryQueue, OpenError, UringQueue, area};
use sietch_persist::{Applied, Entry, FormatOptions, Log, Options};

/// An area in a directory removed with the test.
struct TemporaryArea(PathBuf);

impl TemporaryArea {
    fn new(name: &str, size: u64) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-persist-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a writable temporary directory");
        area::create(&path.join("area"), size, &mut |_| {}).expect("room");
        Self(path)
    }

    fn open(&self, uring: bool) -> Option<AreaQueue> {
        let path = self.0.join("area");
        let size = path.metadata().expect("made").len();
        let fd = area::open(&path, size).expect("no other owner");
        if !uring {
            let queue = BlockingQueue::open(fd, size).expect("a regular file");
            return Some(AreaQueue::Blocking(queue, "requested".into()));
        }
        match UringQueue::open(fd, size, UringOptions::default()) {
            Ok(queue) => Some(AreaQueue::Uring(Box::new(queue))),
            Err(OpenError::Unavailable { cause }) => {
                eprintln!("SKIPPED files through io_uring: needs io_uring: {cause}");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }
}

impl Drop for TemporaryArea {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn nothing(_: Entry<'_>) -> Applied {
    Ok(())
}

fn acknowledge(log: &mut Log<AreaQueue>, sequence: u64) {
    log.submit().expect("a disk that works");
    while log.wait(Duration::from_secs(1)).expect("a disk that works") < sequence {}
}

#[test]
fn a_log_on_a_file_keeps_acknowledged_records() {
    for uring in [true, false] {
        let place = TemporaryArea::new(if uring { "uring" } else { "blocking" }, 4 << 20);
        let Some(mut disk) = place.open(uring) else { continue };
        Log::format(&mut disk, FormatOptions::new(11)).expect("large enough");
        let (mut log, _) = Log::open(disk, Options::default(), &mut nothing).expect("formatted");
        for n in 0..500u32 {
            let mut last = 0;
            for part in 0..3u32 {
                let mut payload = vec![part as u8; (n * 13 % 400) as usize];
                payload.extend(n.to_le_bytes());
                last = log.append(&payload).expect("room");
            }
            if n % 7 == 0 {
                acknowledge(&mut log, last);
            } else {
                log.submit().expect("a disk that works");
            }
            if n == 250 {
                log.begin_snapshot().expect("room");
                log.snapshot_append(&vec![7; 300_000]).expect("room");
                log.finish_snapshot().expect("a disk that works");
            }
        }
        let last = log.last();
        acknowledge(&mut log, last);
        while log.is_snapshotting() {
            log.wait(Duration::from_secs(1)).expect("a disk that works");
        }
        drop(log);
        let (mut next, mut snapshot) = (251 * 3, 0);
        let disk = place.open(uring).expect("opened before");
        let (log, report) = Log::open(disk, Options::default(), &mut |entry| {
            match entry {
                Entry::Snapshot(payload) => snapshot += payload.len(),
                Entry::Record(_, payload) => {
                    let n = next / 3;
                    assert_eq!(payload[payload.len() - 4..], u32::to_le_bytes(n));
                    next += 1;
                }
            }
            Ok(())
        })
        .expect("whole");
        assert_eq!((next, snapshot), (1500, 300_000));
        assert_eq!(report.torn_tail, None);
        log.close().expect("a disk that works");
    }
}

#[test]
#[ignore = "a measurement: run with --release -- --ignored --nocapture --test-threads 1"]
fn measure_durable_appends() {
    let payload = [7u8; 100];
    for uring in [true, false] {
        let place = TemporaryArea::new("measure", 256 << 20);
        let Some(mut disk) = place.open(uring) else { continue };
        println!("{}", disk.description());
        Log::format(&mut disk, FormatOptions::new(11)).expect("large enough");
        let (mut log, _) = Log::open(disk, Options::default(), &mut nothing).expect("formatted");
        for (name, group, rounds) in [("1 in flight", 1, 20_000), ("groups of 50", 50, 10_000)] {
            let mut times = Vec::with_capacity(rounds);
            let start = Instant::now();
            for _ in 0..rounds {
                let began = Instant::now();
                let mut last = 0;
                for _ in 0..group {
                    last = log.append(&payload).expect("room");
                }
                acknowledge(&mut log, last);
                times.push(began.elapsed());
            }
            let rate = (rounds * group) as f64 / start.elapsed().as_secs_f64();
            times.sort_unstable();
            println!(
                "  {name}: {rate:.0} appends/s, p50 {:?}, p99 {:?}",
                times[rounds / 2],
                times[rounds * 99 / 100]
            );
        }
        let start = Instant::now();
        let mut waiting = 0u64;
        for _ in 0..20_000 {
            for _ in 0..10 {
                waiting = log.append(&payload).expect("room");
            }
            log.submit().expect("a disk that works");
            while log.last() - log.durable() > 40 {
                log.wait(Duration::from_secs(1)).expect("a disk that works");
            }
        }
        acknowledge(&mut log, waiting);
        println!(
            "  50 outstanding in groups of 10: {:.0} appends/s, {:?}",
            200_000.0 / start.elapsed().as_secs_f64(),
            log.metrics()
        );
    }
}

#[test]
#[ignore = "a measurement: run with --release -- --ignored --nocapture --test-threads 1"]
fn measure_recovery() {
    for length in [100, 4096] {
        let mut disk = MemoryQueue::new(1 << 30);
        Log::format(&mut disk, FormatOptions::new(11)).expect("large enough");
        let (mut log, _) = Log::open(disk, Options::default(), &mut nothing).expect("formatted");
        let payload = vec![7; length];
        let began = Instant::now();
        while log.append(&payload).is_ok() {
            if log.queued() > 200_000 {
                log.submit().expect("a disk that works");
                log.poll().expect("a disk that works");
            }
        }
        while !log.is_idle() {
            log.submit().expect("a disk that works");
            log.poll().expect("a disk that works");
        }
        let appending = began.elapsed();
        let used = log.used();
        let began = Instant::now();
        let mut bytes = 0;
        let (_, report) = Log::open(log.into_disk(), Options::default(), &mut |entry| {
            if let Entry::Record(_, payload) = entry {
                bytes += payload.len();
            }
            Ok(())
        })
        .expect("whole");
        println!(
            "{} records of {length} B, {used} B used: appended in {appending:?}, recovered in {:?}: {:.2} GB/s",
            report.records,
            began.elapsed(),
            used as f64 / began.elapsed().as_secs_f64() / 1e9
        );
    }
}

#[test]
#[ignore = "a measurement: run with --release -- --ignored --nocapture --test-threads 1"]
fn measure_area_creation() {
    let began = Instant::now();
    let _place = TemporaryArea::new("create", 1 << 30);
    println!("1 GiB created in {:?}", began.elapsed());
}
