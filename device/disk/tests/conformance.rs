//! One suite over every disk queue: what a log relies on holds for each of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use sietch_disk::nvm::{Mapped, Model};
use sietch_disk::uring::UringOptions;
use sietch_disk::{
    AreaQueue, BlockingQueue, Buffer, Completion, DiskQueue, MemoryQueue, NvmQueue, OpenError, Operation,
    Part, Priority, SubmitError, UringQueue, area, open_area, open_memory, open_parts,
};

const CAPACITY: usize = 64 << 10;

/// A directory that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("sietch-disk-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a writable temporary directory");
        Self(path)
    }

    /// A new area and its descriptor.
    fn area(&self) -> OwnedFd {
        let path = self.0.join("area");
        area::create(&path, CAPACITY as u64, &mut |_| {}).expect("room for 64 KiB");
        area::open(&path, CAPACITY as u64).expect("just made")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs a test over every queue that this machine has, on disk and on tmpfs.
fn each(name: &str, test: impl Fn(&mut dyn DiskQueue)) {
    test(&mut MemoryQueue::new(CAPACITY));
    let slow = Model {
        read_latency: Duration::from_micros(3),
        write_latency: Duration::from_micros(2),
        bandwidth: 1 << 30,
    };
    for model in [None, Some(slow)] {
        test(&mut NvmQueue::over(Mapped::anonymous(CAPACITY).expect("64 KiB"), model));
    }
    test(&mut open_memory(sealed(CAPACITY as u64), CAPACITY as u64, None).expect("sealed memory"));
    // As an area that has grown while it was held: requests cross the borders of its parts.
    let third = CAPACITY as u64 / 3 / 4096 * 4096;
    let lengths = [third, 4096, CAPACITY as u64 - third - 4096];
    let parts = lengths.map(|length| (sealed(length + 4096), length));
    test(&mut open_parts(parts.into(), None).expect("parts of sealed memory"));
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        if !parent.is_dir() {
            eprintln!("SKIPPED {name} on {}: needs that directory", parent.display());
            continue;
        }
        let folder = Folder::new(&parent, &format!("{name}-blocking"));
        test(&mut BlockingQueue::open(folder.area(), CAPACITY as u64).expect("a regular file"));
        let folder = Folder::new(&parent, &format!("{name}-uring"));
        let options = UringOptions { depth: 8 };
        match UringQueue::open(folder.area(), CAPACITY as u64, options) {
            Ok(mut queue) => test(&mut queue),
            Err(OpenError::Unavailable { cause }) => {
                eprintln!("SKIPPED {name}: needs io_uring: {cause}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Sealed memory of `bytes`.
fn sealed(bytes: u64) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING.union(rustix::fs::MemfdFlags::CLOEXEC);
    let memory = rustix::fs::memfd_create("area", flags).expect("a memfd");
    rustix::fs::ftruncate(&memory, bytes).expect("memory");
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).expect("a seal");
    memory
}

/// Does one request and waits for it.
fn execute(queue: &mut dyn DiskQueue, operation: Operation) -> Option<Buffer> {
    finish(queue, operation, Priority::Latency).buffer
}

fn finish(queue: &mut dyn DiskQueue, operation: Operation, priority: Priority) -> Completion {
    queue.submit_with(7, operation, priority).expect("room in an idle queue");
    let mut done = Vec::new();
    for _ in 0..100 {
        queue.wait(Duration::from_secs(1)).expect("a working queue");
        if queue.complete(&mut done) > 0 {
            break;
        }
    }
    let completion = done.pop().expect("a completion within 100 s");
    assert_eq!(completion.token, 7);
    assert!(done.is_empty());
    assert_eq!(queue.in_flight(), 0);
    assert!(completion.result.is_ok(), "a request inside the area: {:?}", completion.result);
    completion
}

/// All that the area holds.
fn contents(queue: &mut dyn DiskQueue) -> Vec<u8> {
    let read = Operation::Read { offset: 0, length: CAPACITY, buffer: Buffer::new(CAPACITY) };
    execute(queue, read).expect("the buffer back").to_vec()
}

#[test]
fn vectored_requests_move_one_range_to_and_from_many_buffers() {
    each("vectored", |queue| {
        let block = queue.block_size();
        let lengths = [block, 3 * block, block, 2 * block];
        let parts = |fill: bool| -> Vec<Part> {
            let part = |(index, length): (usize, &usize)| Part {
                buffer: filled(*length, if fill { index as u8 + 1 } else { 0 }),
                length: *length,
            };
            lengths.iter().enumerate().map(part).collect()
        };
        let offset = 5 * block as u64;
        let mut expected = vec![0; CAPACITY];
        let mut at = offset as usize;
        for (index, length) in lengths.iter().enumerate() {
            expected[at..at + length].fill(index as u8 + 1);
            at += length;
        }
        for priority in [Priority::Latency, Priority::Throughput, Priority::Bulk] {
            let write = Operation::WriteVectored { offset, parts: parts(true), durable: true };
            let done = finish(queue, write, priority);
            assert!(done.buffer.is_none());
            let back: Vec<usize> = done.parts.iter().map(|part| part.length).collect();
            assert_eq!(back, lengths);
            assert!(contents(queue) == expected, "a neighbour was touched, or the order is wrong");
            let read = Operation::ReadVectored { offset, parts: parts(false) };
            for (index, part) in finish(queue, read, priority).parts.iter().enumerate() {
                assert!(part.buffer[..part.length].iter().all(|byte| *byte == index as u8 + 1));
                assert!(part.buffer[part.length..].iter().all(|byte| *byte == 0));
            }
        }
        // As many parts as there may be, and the slot is used for a plain request afterwards.
        let one = |_| Part { buffer: filled(block, 9), length: block };
        let most = (CAPACITY / block).min(1024);
        let write =
            Operation::WriteVectored { offset: 0, parts: (0..most).map(one).collect(), durable: false };
        assert_eq!(finish(queue, write, Priority::Bulk).parts.len(), most);
        assert!(contents(queue)[..most * block].iter().all(|byte| *byte == 9));
        execute(queue, Operation::Flush);
    });
}

#[test]
fn a_discarded_range_reads_as_zeros_until_it_is_written() {
    each("discard", |queue| {
        let block = queue.block_size();
        let write =
            Operation::Write { offset: 0, length: CAPACITY, buffer: filled(CAPACITY, 7), durable: true };
        execute(queue, write);
        let (from, to) = (3 * block, CAPACITY - 5 * block);
        let done = finish(
            queue,
            Operation::Discard { offset: from as u64, length: (to - from) as u64 },
            Priority::Bulk,
        );
        assert!(done.buffer.is_none() && done.parts.is_empty());
        execute(queue, Operation::Flush);
        let mut expected = vec![7; CAPACITY];
        expected[from..to].fill(0);
        assert!(contents(queue) == expected);
        let write =
            Operation::Write { offset: from as u64, length: block, buffer: filled(block, 8), durable: true };
        execute(queue, write);
        expected[from..from + block].fill(8);
        assert!(contents(queue) == expected);
        finish(queue, Operation::Discard { offset: 0, length: CAPACITY as u64 }, Priority::Latency);
        assert!(contents(queue).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn vectors_and_discards_of_bad_form_come_back_whole() {
    each("bad-forms", |queue| {
        let block = queue.block_size();
        let part = |length: usize| Part { buffer: Buffer::new(8192), length };
        let end = queue.capacity() - block as u64;
        let vectors: Vec<(u64, Vec<Part>)> = vec![
            (0, vec![]),
            (0, vec![part(block), part(0)]),
            (0, vec![part(block), part(block / 2), part(block / 2)]),
            (0, vec![part(block), part(8192 + block)]),
            (end, vec![part(block), part(block)]),
            (u64::MAX - block as u64 + 1, vec![part(block)]),
            (block as u64 / 2, vec![part(block)]),
            (0, (0..1025).map(|_| Part { buffer: Buffer::new(0), length: 0 }).collect()),
            (0, (0..1025).map(|_| Part { buffer: Buffer::new(block), length: block }).collect()),
        ];
        for (offset, parts) in vectors {
            let (count, lengths) = (parts.len(), parts.iter().map(|part| part.length).sum::<usize>());
            let refused = queue.submit(1, Operation::ReadVectored { offset, parts });
            let Err(SubmitError::OutOfRange(Operation::ReadVectored { parts, .. })) = refused else {
                panic!("took a read of {lengths} in {count} at {offset}");
            };
            assert_eq!(parts.len(), count);
            let write = Operation::WriteVectored { offset, parts, durable: false };
            assert!(matches!(queue.submit(1, write), Err(SubmitError::OutOfRange(_))));
        }
        let (block, capacity) = (block as u64, queue.capacity());
        let discards = [
            (0, 0),
            (0, block / 2),
            (block / 2, block),
            (0, capacity + block),
            (capacity, block),
            (block, u64::MAX - block + 1),
            (u64::MAX - block + 1, block),
        ];
        for (offset, length) in discards {
            let refused = queue.submit(1, Operation::Discard { offset, length });
            assert!(matches!(refused, Err(SubmitError::OutOfRange(_))), "{length} at {offset}");
        }
        assert_eq!(queue.in_flight(), 0);
        assert!(contents(queue).iter().all(|byte| *byte == 0), "a refused request did something");
    });
}

fn filled(length: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(length);
    buffer[..length].fill(byte);
    buffer
}

#[derive(Clone, Debug)]
enum Step {
    Write { block: usize, blocks: usize, byte: u8, durable: bool },
    Read { block: usize, blocks: usize },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..CAPACITY / 4096, 1..4usize);
    let step = prop_oneof![
        (range(), any::<u8>(), any::<bool>())
            .prop_map(|((block, blocks), byte, durable)| { Step::Write { block, blocks, byte, durable } }),
        range().prop_map(|(block, blocks)| Step::Read { block, blocks }),
        Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..40)
}

#[test]
fn reads_return_what_was_written() {
    each("oracle", |queue| {
        let queue = std::cell::RefCell::new(queue);
        let oracle = std::cell::RefCell::new(vec![0u8; CAPACITY]);
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) };
        proptest!(config, |(steps in steps())| {
            let mut queue = queue.borrow_mut();
            let mut oracle = oracle.borrow_mut();
            let clip = |block: usize, blocks: usize| {
                let start = block * 4096;
                start..(start + blocks * 4096).min(CAPACITY)
            };
            for step in steps {
                match step {
                    Step::Write { block, blocks, byte, durable } => {
                        let range = clip(block, blocks);
                        let operation = Operation::Write {
                            offset: range.start as u64,
                            length: range.len(),
                            buffer: filled(range.len(), byte),
                            durable,
                        };
                        execute(&mut **queue, operation);
                        oracle[range].fill(byte);
                    }
                    Step::Read { block, blocks } => {
                        let range = clip(block, blocks);
                        let operation = Operation::Read {
                            offset: range.start as u64,
                            length: range.len(),
                            buffer: Buffer::new(range.len()),
                        };
                        let read = execute(&mut **queue, operation).expect("the buffer back");
                        prop_assert_eq!(&read[..range.len()], &oracle[range]);
                    }
                    Step::Flush => {
                        execute(&mut **queue, Operation::Flush);
                    }
                }
            }
        });
    });
}

#[test]
fn requests_outside_the_area_come_back() {
    each("bounds", |queue| {
        let block = queue.block_size() as u64;
        let capacity = queue.capacity();
        let cases = [
            (capacity, 4096),
            (capacity - 4096, 8192),
            (u64::MAX - 4095, 4096),
            (u64::MAX / 4096 * 4096, 4096),
            (block / 2, 4096),
            (0, block as usize / 2),
            (0, 0),
            (0, 16 << 10),
        ];
        for (offset, length) in cases {
            let read = Operation::Read { offset, length, buffer: Buffer::new(8192) };
            let refused = queue.submit(1, read);
            let Err(SubmitError::OutOfRange(Operation::Read { buffer, .. })) = refused else {
                panic!("took a read of {length} at {offset}");
            };
            let write = Operation::Write { offset, length, buffer, durable: true };
            assert!(matches!(queue.submit(1, write), Err(SubmitError::OutOfRange(_))));
        }
        assert_eq!(queue.in_flight(), 0);
    });
}

#[test]
fn a_full_queue_hands_the_request_back_and_goes_on_later() {
    each("full", |queue| {
        let depth = queue.depth() as u64;
        for token in 0..depth {
            let offset = token % 16 * 4096;
            let buffer = filled(4096, token as u8);
            queue
                .submit(token, Operation::Write { offset, length: 4096, buffer, durable: true })
                .expect("room up to the depth");
        }
        assert!(matches!(queue.submit(99, Operation::Flush), Err(SubmitError::Full(_))));
        let mut done = Vec::new();
        while done.len() < depth as usize {
            queue.wait(Duration::from_secs(1)).expect("a working queue");
            queue.complete(&mut done);
        }
        let mut tokens: Vec<u64> = done.iter().map(|completion| completion.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..depth).collect::<Vec<_>>());
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        execute(queue, Operation::Flush);
    });
}

#[test]
fn the_doorbell_rings_when_a_completion_is_there() {
    let folder = Folder::new(&std::env::temp_dir(), "doorbell");
    let options = UringOptions::default();
    let mut queue = match UringQueue::open(folder.area(), CAPACITY as u64, options) {
        Ok(queue) => queue,
        Err(e) => return eprintln!("SKIPPED the_doorbell_rings: needs io_uring: {e}"),
    };
    let readable = |queue: &UringQueue, seconds: i64| {
        let mut fds = [rustix::event::PollFd::new(queue, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&timeout)).expect("poll on the ring") > 0
    };
    assert!(!readable(&queue, 0));
    for round in 0..50u8 {
        let write = Operation::Write { offset: 0, length: 4096, buffer: filled(4096, round), durable: true };
        queue.submit(u64::from(round), write).expect("room");
        queue.ring().expect("a working queue");
        let mut done = Vec::new();
        while queue.complete(&mut done) == 0 {
            assert!(readable(&queue, 10), "a completion without a wake-up");
        }
        assert!(!readable(&queue, 0), "nothing left to take");
    }
    assert!(queue.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_queue_dropped_with_requests_in_flight_lets_them_land() {
    let folder = Folder::new(&std::env::temp_dir(), "drop");
    let path = folder.0.join("area");
    drop(folder.area());
    let fd = area::open(&path, CAPACITY as u64).expect("the lock is free");
    let mut queue = open_area(fd, CAPACITY as u64).expect("a regular file");
    for index in 0..8 {
        let buffer = filled(4096, 0xa5);
        let write = Operation::Write { offset: index * 4096, length: 4096, buffer, durable: false };
        queue.submit(index, write).expect("room");
    }
    queue.ring().expect("a working queue");
    drop(queue);
    let fd = area::open(&path, CAPACITY as u64).expect("the lock is free again");
    drop(fd);
    let bytes = std::fs::read(&path).expect("readable");
    assert!(bytes[..8 * 4096].iter().all(|&byte| byte == 0xa5));
}

#[test]
fn an_area_is_whole_private_and_for_one_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = Folder::new(&std::env::temp_dir(), "area");
    let path = folder.0.join("area");
    let size = (9 << 20) + 4096;
    let mut told = 0;
    area::create(&path, size, &mut |bytes| told = bytes).expect("room for 9 MiB");
    assert_eq!(told, size);
    let metadata = path.metadata().expect("made");
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 >= size, "a sparse area");
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&folder.0).expect("readable").count(), 1);

    let exists = area::create(&path, size, &mut |_| {}).expect_err("no second one");
    assert!(matches!(exists, area::AreaError::Exists { .. }), "{exists}");
    let wrong = area::open(&path, size + 4096).expect_err("another size");
    assert!(matches!(wrong, area::AreaError::WrongSize { .. }), "{wrong}");
    let owner = area::open(&path, size).expect("free");
    let busy = area::open(&path, size).expect_err("owned");
    assert!(matches!(busy, area::AreaError::Busy { .. }), "{busy}");
    drop(owner);
    area::open(&path, size).expect("free again");
}

#[test]
fn what_is_no_area_is_refused_with_its_name() {
    let folder = Folder::new(&std::env::temp_dir(), "refused");
    let path = folder.0.join("area");
    let huge = area::create(&path, 1 << 60, &mut |_| {}).expect_err("an exbibyte");
    let text = huge.to_string();
    assert!(text.contains("area") && text.contains(&(1u64 << 60).to_string()), "{text}");
    assert!(matches!(huge, area::AreaError::NoSpace { .. }), "{text}");
    assert!(matches!(area::create(&path, 1000, &mut |_| {}), Err(area::AreaError::Size { size: 1000, .. })));
    assert_eq!(std::fs::read_dir(&folder.0).expect("readable").count(), 0, "left something");
    assert!(matches!(area::open(&folder.0, 4096), Err(area::AreaError::Io { .. })));
    std::os::unix::fs::symlink("/etc/passwd", &path).expect("a link");
    assert!(matches!(area::open(&path, 4096), Err(area::AreaError::NotAFile { .. })));
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    assert!(matches!(BlockingQueue::open(pipe, 4096), Err(OpenError::NotAnArea)));
    let file = std::fs::File::create_new(folder.0.join("short")).expect("a file");
    assert!(matches!(open_area(file.into(), 4096), Err(OpenError::TooShort { wanted: 4096, found: 0 })));
}

#[test]
fn memory_shared_by_two_processes_is_one_area() {
    let memory = sealed(CAPACITY as u64);
    let again = memory.try_clone().expect("a descriptor");
    let mut first = open_area(memory, CAPACITY as u64).expect("sealed memory");
    assert!(matches!(first, AreaQueue::Nvm(_)), "{}", first.description());
    assert!(first.description().contains("DRAM standing in"), "{}", first.description());
    let write = Operation::Write { offset: 192, length: 64, buffer: filled(64, 0x5a), durable: true };
    execute(&mut first, write);
    drop(first);
    let mut second = open_area(again, CAPACITY as u64).expect("sealed memory");
    let read = Operation::Read { offset: 128, length: 192, buffer: Buffer::new(192) };
    let bytes = execute(&mut second, read).expect("the buffer back");
    assert!(bytes[64..128].iter().all(|&byte| byte == 0x5a));
    assert!(bytes[..64].iter().chain(&bytes[128..192]).all(|&byte| byte == 0), "a neighbour was touched");
}

#[test]
fn memory_that_could_be_cut_short_is_refused() {
    let memory = rustix::fs::memfd_create("area", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&memory, CAPACITY as u64).expect("memory");
    assert!(matches!(Mapped::memory(memory, CAPACITY as u64), Err(OpenError::Unsealed)));
    let short = open_memory(sealed(4096), 8192, None);
    assert!(matches!(short, Err(OpenError::TooShort { wanted: 8192, found: 4096 })));
    assert!(matches!(open_memory(sealed(4096), 100, None), Err(OpenError::Capacity { capacity: 100 })));
    let folder = Folder::new(&std::env::temp_dir(), "dax");
    let refused = Mapped::dax(folder.area(), CAPACITY as u64).expect_err("an ordinary disk");
    assert!(refused.to_string().contains("MAP_SYNC"), "{refused}");
}

#[test]
fn modelled_memory_is_as_slow_as_its_model() {
    let model = Model {
        read_latency: Duration::from_millis(2),
        write_latency: Duration::from_millis(3),
        bandwidth: 4 << 20,
    };
    let mut queue = NvmQueue::over(Mapped::anonymous(CAPACITY).expect("64 KiB"), Some(model));
    assert!(queue.description().contains("+2000000 ns a read, +3000000 ns a write, 4 MB/s"));
    let start = std::time::Instant::now();
    let write = Operation::Write { offset: 0, length: 4096, buffer: filled(4096, 1), durable: true };
    execute(&mut queue, write);
    let read = Operation::Read { offset: 0, length: 4096, buffer: Buffer::new(4096) };
    execute(&mut queue, read);
    // Two transfers of 1/1024 s each, one latency of both kinds.
    assert!(start.elapsed() >= Duration::from_micros(6953));
}
