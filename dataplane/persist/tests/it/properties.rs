//! One operation enum, one oracle: whatever is done to a log, an opening delivers what the oracle
//! holds.

use proptest::prelude::*;
use sietch_disk::MemoryQueue;
use sietch_persist::{
    AppendError, Durability, Entry, Follower, FormatOptions, Log, MAX_RECORD, Options, Read, SnapshotError,
    TruncateError,
};

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    AppendShrinking(usize),
    Submit,
    Poll,
    Flush,
    /// Writes a snapshot of the oracle, cut into payloads of this many entries, and drops the
    /// previous entries.
    Compact(usize),
    AbortedSnapshot,
    /// Gives up all but so many of the newest records.
    Truncate(usize),
    /// Reads everything from so many records before the end.
    Read(usize),
    Settle,
    /// Drops the process: what was written stays.
    Reopen,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..300usize).prop_map(Step::Append),
        2 => (300..20_000usize).prop_map(Step::Append),
        1 => (20_000..70_000usize).prop_map(Step::Append),
        1 => (0..300usize).prop_map(Step::AppendShrinking),
        4 => Just(Step::Submit),
        6 => Just(Step::Poll),
        1 => Just(Step::Flush),
        2 => (1..5usize).prop_map(Step::Compact),
        1 => Just(Step::AbortedSnapshot),
        2 => (0..6usize).prop_map(Step::Truncate),
        2 => (0..9usize).prop_map(Step::Read),
        2 => Just(Step::Settle),
        1 => Just(Step::Reopen),
        1 => Just(Step::Close),
    ]
}

/// Payloads with the sequences that their appends returned.
type Held = Vec<(u64, Vec<u8>)>;

struct Model {
    log: Option<Log<MemoryQueue>>,
    options: Options,
    /// Payloads of the current snapshot.
    snapshot: Vec<Vec<u8>>,
    /// Records after it.
    records: Held,
    /// A snapshot on its way: its payloads and the first sequence it does not stand for.
    pending: Option<(Vec<Vec<u8>>, u64)>,
    /// A truncation on its way: the first record to keep.
    truncating: Option<u64>,
    counter: u8,
}

fn open(disk: MemoryQueue, options: Options) -> (Log<MemoryQueue>, Vec<Vec<u8>>, Held) {
    let (mut snapshot, mut records) = (Vec::new(), Held::new());
    let (log, report) = Log::open(disk, options, &mut |entry| {
        match entry {
            Entry::Snapshot(payload) => snapshot.push(payload.to_vec()),
            Entry::Record(sequence, payload) => records.push((sequence, payload.to_vec())),
        }
        Ok(())
    })
    .expect("an undamaged log");
    assert_eq!(report.records as usize, records.len());
    assert_eq!(report.snapshot_records as usize, snapshot.len());
    (log, snapshot, records)
}

impl Model {
    fn new(capacity: usize, options: Options) -> Self {
        let mut disk = MemoryQueue::new(capacity);
        Log::format(&mut disk, FormatOptions { identity: 3, segment_bytes: Some(16384) })
            .expect("large enough");
        let (log, _, _) = open(disk, options);
        Self {
            log: Some(log),
            options,
            snapshot: vec![],
            records: vec![],
            pending: None,
            truncating: None,
            counter: 0,
        }
    }

    fn log(&mut self) -> &mut Log<MemoryQueue> {
        self.log.as_mut().expect("put back after each step")
    }

    fn append(&mut self, length: usize, shrinking: bool) {
        self.counter = self.counter.wrapping_add(1);
        let payload = vec![self.counter; length];
        let result =
            if shrinking { self.log().append_shrinking(&payload) } else { self.log().append(&payload) };
        match result {
            Ok(sequence) => self.records.push((sequence, payload)),
            Err(AppendError::Full { used, limit }) => assert!(used <= limit + 65536),
            Err(other) => panic!("{other}"),
        }
    }

    fn compact(&mut self, entries: usize) {
        let start = match self.log().begin_snapshot() {
            Ok(start) => start,
            Err(SnapshotError::InProgress) => return,
            Err(other) => panic!("no room to compact: {other}"),
        };
        let state: Vec<Vec<u8>> =
            self.snapshot.iter().cloned().chain(self.records.iter().map(|(_, p)| p.clone())).collect();
        // The newest entries alone: deletions happened.
        let kept: Vec<Vec<u8>> = state.into_iter().rev().take(entries).collect();
        for payload in &kept {
            self.log().snapshot_append(payload).expect("no larger than what it replaces");
        }
        self.log().finish_snapshot().expect("a disk that works");
        self.pending = Some((kept, start));
        self.notice();
    }

    fn truncate(&mut self, count: usize) {
        let keep = match self.records.len().checked_sub(count) {
            Some(at) if at < self.records.len() => self.records[at].0,
            _ => self.log().last() + 1,
        };
        match self.log().truncate(keep) {
            Ok(()) => {
                self.truncating = Some(keep);
                self.notice();
            }
            Err(TruncateError::InProgress) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Reads with a cursor what is at the end, as far as it was written.
    fn read(&mut self, count: usize) {
        let at = self.records.len().saturating_sub(count);
        let Some(&(from, _)) = self.records.get(at) else { return };
        let head = self.log().head();
        let mut found = Held::new();
        let mut cursor = match self.log().cursor(from) {
            Ok(cursor) => cursor,
            Err(error) => return assert!(from < head, "{error}"),
        };
        loop {
            let log = self.log();
            match log.read(&mut cursor) {
                Ok(Read::Record(sequence, payload)) => found.push((sequence, payload.to_vec())),
                Ok(Read::Waiting) => drop(log.poll().expect("a disk that works")),
                Ok(Read::End) => break,
                Err(error) => {
                    assert!(from < self.log().head(), "{error}");
                    return self.notice();
                }
            }
        }
        let written = self.log().written();
        let expected = self.records.iter().filter(|(s, _)| (from..=written).contains(s));
        let unwritten = self.records.iter().filter(|(s, _)| *s >= from && *s > written).count();
        assert!(found.iter().eq(expected), "{} found, {unwritten} not written", found.len());
        self.notice();
    }

    /// Takes a snapshot or a truncation into the oracle once the log says that it is in place.
    fn notice(&mut self) {
        if !self.log().is_truncating()
            && let Some(keep) = self.truncating.take()
        {
            self.records.retain(|(sequence, _)| *sequence >= keep);
        }
        if self.log().is_snapshotting() {
            return;
        }
        if let Some((kept, start)) = self.pending.take() {
            self.snapshot = kept;
            self.records.retain(|(sequence, _)| *sequence >= start);
        }
    }

    fn settle(&mut self) {
        while !self.log().is_idle() {
            self.log().submit().expect("a disk that works");
            self.log().poll().expect("a disk that works");
        }
        self.notice();
    }

    fn reopen(&mut self, close: bool) {
        let log = self.log.take().expect("put back after each step");
        let (written, last) = (log.written(), log.last());
        let disk = if close { log.close().expect("a disk that works") } else { log.into_disk() };
        let (log, snapshot, records) = open(disk, self.options);
        self.log = Some(log);
        if let Some((kept, start)) = self.pending.take()
            && (close || snapshot != self.snapshot)
        {
            self.snapshot = kept;
            self.records.retain(|(sequence, _)| *sequence >= start);
        }
        if let Some(keep) = self.truncating.take()
            && (close || records.first().map_or(last + 1, |(s, _)| *s) >= keep)
        {
            self.records.retain(|(sequence, _)| *sequence >= keep);
        }
        let (found, held) = (records.len(), self.records.len());
        assert!(snapshot == self.snapshot, "{} for {} in the snapshot", snapshot.len(), self.snapshot.len());
        assert!(found <= held && records[..] == self.records[..found], "{found} records of {held}");
        self.follow(&records);
        let found = records.last().map_or(0, |(sequence, _)| *sequence);
        let must = if close { last } else { written };
        let expected = self.records.iter().rev().find(|(s, _)| *s <= must).map_or(0, |(s, _)| *s);
        assert!(found >= expected, "{found} of {expected}");
        self.records.truncate(records.len());
    }

    /// A follower sees what opening has delivered.
    fn follow(&mut self, records: &Held) {
        let bytes = self.log().disk().bytes().to_vec();
        let mut follower = Follower::open(MemoryQueue::from_bytes(bytes)).expect("a log");
        let (mut followed, mut snapshots) = (Held::new(), 0);
        follower
            .poll(&mut |entry| {
                match entry {
                    Entry::Record(sequence, payload) => followed.push((sequence, payload.to_vec())),
                    Entry::Snapshot(_) => snapshots += 1,
                }
                Ok(())
            })
            .expect("an undamaged log");
        assert!(followed == *records, "{} followed, {} recovered", followed.len(), records.len());
        assert_eq!(snapshots, self.snapshot.len());
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Append(length) => self.append(length, false),
            Step::AppendShrinking(length) => self.append(length, true),
            Step::Submit => self.log().submit().expect("a disk that works"),
            Step::Flush => self.log().flush().expect("a disk that works"),
            Step::Poll => {
                let durable = self.log().poll().expect("a disk that works");
                assert!(durable <= self.log().last());
                self.notice();
            }
            Step::Compact(entries) => self.compact(entries),
            Step::AbortedSnapshot => {
                if self.log().begin_snapshot().is_ok() {
                    drop(self.log().snapshot_append(&[9; 5000]));
                    self.log().abort_snapshot();
                }
            }
            Step::Truncate(count) => self.truncate(count),
            Step::Read(count) => self.read(count),
            Step::Settle => self.settle(),
            Step::Reopen => self.reopen(false),
            Step::Close => self.reopen(true),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    #[test]
    fn an_opening_delivers_the_written_records(
        steps in proptest::collection::vec(step(), 1..120),
        segments in 16..40usize,
        deferred in any::<bool>(),
        in_flight in 1..5usize,
    ) {
        let durability = if deferred { Durability::Deferred } else { Durability::Always };
        let options = Options { durability, in_flight };
        let mut model = Model::new(16384 + segments * 16384, options);
        for step in &steps {
            model.step(step);
        }
        model.reopen(true);
    }
}

/// Thousands of laps over the same few segments, restarts included: nothing of an earlier lap comes
/// back.
#[test]
fn the_area_never_fills_while_the_state_fits() {
    let mut model = Model::new(16384 + 16 * 16384, Options::default());
    let mut compactions = 0;
    for n in 0..4000usize {
        model.append(n * 31 % 700, false);
        assert_eq!(model.records.last().map(|(_, p)| p.len()), Some(n * 31 % 700), "full at {n}");
        model.settle();
        if model.log().should_compact() {
            compactions += 1;
            model.compact(2);
            model.settle();
        }
        if n % 97 == 0 {
            model.reopen(n % 2 == 0);
        }
    }
    assert!(compactions > 20, "{compactions} compactions");
}

#[test]
fn a_full_log_says_so_before_it_acknowledges_and_still_compacts() {
    let mut model = Model::new(16384 + 16 * 16384, Options::default());
    let refused = loop {
        let payload = vec![1; 1000];
        match model.log().append(&payload) {
            Ok(sequence) => model.records.push((sequence, payload)),
            Err(error) => break error,
        }
        model.settle();
    };
    assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
    assert!(model.log().should_compact());
    // Deleting still works, and so does a snapshot as large as everything there is.
    model.append(10, true);
    model.settle();
    model.compact(usize::MAX);
    model.settle();
    model.reopen(false);
    // Much was deleted: the next snapshot is small, and then there is room again.
    model.compact(1);
    model.settle();
    model.append(1000, false);
    model.settle();
    assert_eq!(model.records.len(), 1);
    model.reopen(false);
    assert_eq!(model.records.len(), 1);
}

#[test]
fn a_record_larger_than_any_area_is_refused() {
    let mut model = Model::new(16384 + 40 * 16384, Options::default());
    let payload = vec![0; MAX_RECORD + 1];
    assert!(matches!(model.log().append(&payload), Err(AppendError::TooLarge { .. })));
    assert!(matches!(model.log().append(&payload[..MAX_RECORD]), Err(AppendError::Full { .. })));
    model.append(100_000, false);
    model.settle();
    assert_eq!(model.records.len(), 1);
    model.reopen(true);
}

#[test]
fn restarts_alone_do_not_wear_the_area_out() {
    let mut model = Model::new(16384 + 300 * 16384, Options::default());
    for n in 0..400 {
        model.append(10, false);
        assert_eq!(model.records.last().map(|(_, p)| p.len()), Some(10), "refused after {n} restarts");
        model.settle();
        model.reopen(false);
        if model.log().should_compact() {
            model.compact(3);
            model.settle();
        }
        for _ in 0..3 {
            model.reopen(false);
        }
    }
}

/// A hundred restarts and more between compactions: the superblock cannot name another run, so the
/// log requests a snapshot.
#[test]
fn when_the_superblock_is_full_a_snapshot_makes_room() {
    let mut model = Model::new(16384 + 600 * 16384, Options::default());
    let mut appended = 0;
    loop {
        match model.log().append(b"x") {
            Ok(sequence) => model.records.push((sequence, b"x".to_vec())),
            Err(AppendError::Full { .. }) => break,
            Err(other) => panic!("{other}"),
        }
        appended += 1;
        assert!(appended < 1000, "the superblock names any number of runs?");
        model.settle();
        model.reopen(false);
    }
    assert!(appended >= 100 && model.log().should_compact());
    model.compact(5);
    model.settle();
    model.append(7, false);
    model.settle();
    model.reopen(false);
    assert_eq!((model.snapshot.len(), model.records.len()), (5, 1));
}

/// Also one that never had a record, and one whose superblock is full.
#[test]
fn a_log_that_was_closed_in_order_knows_it() {
    let open = |disk| Log::open(disk, Options::default(), &mut |_| Ok(())).expect("an undamaged log");
    let mut disk = MemoryQueue::new(16384 + 600 * 16384);
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    let mut last = 0;
    for life in 0.. {
        let (log, report) = open(disk);
        assert_eq!((report.clean, report.last_sequence), (life > 0, last), "life {life}");
        let (mut log, report) = open(log.close().expect("a disk that works"));
        assert_eq!((report.clean, report.last_sequence), (true, last), "life {life}");
        let refused = match log.append(b"x") {
            Ok(sequence) => {
                last = sequence;
                false
            }
            Err(error) => matches!(error, AppendError::Full { .. }),
        };
        disk = log.close().expect("a disk that works");
        if refused {
            break;
        }
        assert!(life < 1000, "the superblock names any number of runs?");
    }
    let (log, report) = open(disk);
    assert!(report.clean, "{report:?}");
    let (_, report) = open(log.into_disk());
    assert!(!report.clean, "it was killed");
}

#[test]
fn records_fit_where_the_log_reports_room() {
    for (area, step) in [(1 << 20, 700), (4 << 20, 5000), (16 << 20, 90_000)] {
        let mut disk = MemoryQueue::new(area);
        Log::format(&mut disk, FormatOptions::new(7)).unwrap();
        let bytes = disk.into_bytes();
        let payload = vec![0; area];
        for records in 0.. {
            let options = Options::default();
            let (mut log, _) =
                Log::open(MemoryQueue::from_bytes(bytes.clone()), options, &mut |_| Ok(())).unwrap();
            let mut filled = 0;
            while filled < records * 7 && log.append_shrinking(&payload[..step]).is_ok() {
                filled += 1;
                log.submit().unwrap();
                log.poll().unwrap();
            }
            let room = usize::try_from(log.room()).unwrap();
            assert!(records > 0 || room > area / 4, "an empty log of {area} bytes has room for {room}");
            let fits = room == 0 || log.append_shrinking(&payload[..room]).is_ok();
            assert!(fits, "{room} bytes after {filled} records");
            if filled < records * 7 {
                break;
            }
        }
    }
}
