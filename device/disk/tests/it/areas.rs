//! The files behind areas, and the memory.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::support::{CAPACITY, Folder, execute, filled, sealed};
use sietch_disk::nvm::{Mapped, Model};
use sietch_disk::uring::{Mode, UringOptions};
use sietch_disk::{
    AreaQueue, BlockingQueue, Buffer, DiskQueue, NvmQueue, OpenError, Operation, UringQueue, area, open_area,
    open_memory,
};

#[test]
fn the_doorbell_rings_when_a_completion_is_there() {
    for mode in [Mode::Plain, Mode::Cooperative, Mode::KernelThread] {
        let folder = Folder::temporary();
        let options = UringOptions { mode, ..UringOptions::default() };
        match UringQueue::open(folder.area(), CAPACITY as u64, options) {
            Ok(queue) => rings_when_a_completion_is_there(queue),
            Err(e) => eprintln!("SKIPPED the_doorbell_rings: needs io_uring: {e}"),
        }
    }
}

fn rings_when_a_completion_is_there(mut queue: UringQueue) {
    let readable = |queue: &UringQueue, seconds: i64| {
        let mut fds = [rustix::event::PollFd::new(queue, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&timeout)).expect("poll on the ring") > 0
    };
    assert!(!readable(&queue, 0));
    for round in 0..50u8 {
        let write = Operation::Write { offset: 0, length: 4096, buffer: filled(4096, round), durable: true };
        queue.submit(u64::from(round), write).expect("room");
        queue.notify().expect("a working queue");
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
    let folder = Folder::temporary();
    let path = folder.0.join("area");
    drop(folder.area());
    let fd = area::open(&path, CAPACITY as u64).expect("the lock is free");
    let mut queue = open_area(fd, CAPACITY as u64).expect("a regular file");
    for index in 0..8 {
        let buffer = filled(4096, 0xa5);
        let write = Operation::Write { offset: index * 4096, length: 4096, buffer, durable: false };
        queue.submit(index, write).expect("room");
    }
    queue.notify().expect("a working queue");
    drop(queue);
    let fd = area::open(&path, CAPACITY as u64).expect("the lock is free again");
    drop(fd);
    let bytes = std::fs::read(&path).expect("readable");
    assert!(bytes[..8 * 4096].iter().all(|&byte| byte == 0xa5));
}

#[test]
fn an_area_is_whole_private_and_for_one_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = Folder::temporary();
    let path = folder.0.join("area");
    let size = (9 << 20) + 4096;
    let mut written = 0;
    area::create(&path, size, &mut |bytes| written = bytes).expect("room for 9 MiB");
    assert_eq!(written, size);
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
fn files_that_are_no_area_are_refused_with_their_name() {
    let folder = Folder::temporary();
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
    let reopen = memory.try_clone().expect("a descriptor");
    let mut first = open_area(memory, CAPACITY as u64).expect("sealed memory");
    assert!(matches!(first, AreaQueue::Nvm(_)), "{}", first.description());
    assert!(first.description().contains("DRAM standing in"), "{}", first.description());
    let write = Operation::Write { offset: 192, length: 64, buffer: filled(64, 0x5a), durable: true };
    execute(&mut first, write);
    drop(first);
    let mut second = open_area(reopen, CAPACITY as u64).expect("sealed memory");
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
    let folder = Folder::temporary();
    let refused = Mapped::dax(folder.area(), CAPACITY as u64).expect_err("an ordinary disk");
    assert!(refused.to_string().contains("MAP_SYNC"), "{refused}");
}

#[test]
fn modelled_memory_is_as_slow_as_its_model() {
    let model = Model {
        read_latency: Duration::from_millis(2),
        write_latency: Duration::from_millis(3),
        bandwidth: 4 << 20,
        seek: None,
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

#[test]
fn a_modelled_disk_pays_for_random_access_only() {
    const COUNT: u64 = 8;
    let disk = Model::ROTATING_DISK;
    let mut queue = NvmQueue::over(Mapped::anonymous(1 << 20).expect("a MiB"), Some(disk));
    assert!(queue.description().contains("250 MB/s, a seek of 1000 to 10060 us"));
    let mut time = |places: &mut dyn Iterator<Item = u64>| {
        let start = std::time::Instant::now();
        for block in places {
            let read = Operation::Read { offset: block * 4096, length: 4096, buffer: Buffer::new(4096) };
            execute(&mut queue, read);
        }
        start.elapsed()
    };
    // Backwards, so that nothing passes below the head. The time is a lower bound.
    let random = time(&mut (0..COUNT).rev().map(|at| at * 30));
    let seek = disk.seek.expect("a seek time");
    assert!(random >= (seek.shortest + seek.half_rotation) * (COUNT - 1) as u32, "{random:?}");
}
