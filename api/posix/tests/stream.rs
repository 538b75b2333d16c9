//! The calls on two ends of one connection in one process: the bytes, ends and errors that a
//! program sees.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sietch_posix::calls::{data, descriptor, options, socket};
use sietch_posix::table::{self, Kind};
use sietch_ring::stream::{Endpoint, Memory, Names, RegionSizes};

fn name(port: u16) -> [u8; 28] {
    let mut name = [0; 28];
    name[..2].copy_from_slice(&2_u16.to_ne_bytes());
    name[2..4].copy_from_slice(&port.to_be_bytes());
    name[4..8].copy_from_slice(&[127, 0, 0, 1]);
    name
}

/// One test at a time: a child of fork holds the descriptors of all, and a number that one closes
/// is another's at once.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two connected descriptors, as connect and accept give them.
fn pair() -> [c_int; 2] {
    pair_and_memory().0
}

/// The same, and the memory that both share.
fn pair_and_memory() -> ([c_int; 2], OwnedFd) {
    let ends = [(name(40_000), name(80)), (name(80), name(40_000))];
    let names = ends.map(|(local, peer)| Names { local, peer, local_length: 16, peer_length: 16 });
    let memory = Memory::create(RegionSizes { smallest: 14, largest: 16 }, names).expect("a connection");
    let (first, second) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut index = 0;
    let both = [first, second].map(|placeholder| {
        let end = Endpoint::attach(memory.common.as_fd(), memory.private[index].as_fd()).expect("an end");
        index += 1;
        let held = table::describe(Kind::Stream, Some(end)).expect("memory");
        let fd = placeholder.into_raw_fd();
        held.socket.domain.store(libc::AF_INET.cast_unsigned(), Ordering::Relaxed);
        assert!(table::put(fd, &held));
        fd
    });
    (both, memory.common)
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn thread() -> u32 {
    // SAFETY: touches no memory.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// The return value of a C library function, or its errno.
fn outcome_of(answer: isize) -> Result<usize, c_int> {
    usize::try_from(answer).map_err(|_| errno())
}

fn read(fd: c_int, most: usize) -> Result<Vec<u8>, c_int> {
    receive(fd, most, 0)
}

fn receive(fd: c_int, most: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; most];
    let (to, none) = (bytes.as_mut_ptr().cast(), std::ptr::null_mut());
    // SAFETY: `most` bytes may be written.
    let got = unsafe { data::recvfrom(fd, to, most, flags, none, std::ptr::null_mut()) };
    outcome_of(got).map(|got| bytes[..got].to_vec())
}

fn write(fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: a slice.
    let sent = unsafe { data::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, std::ptr::null(), 0) };
    outcome_of(sent)
}

fn option(fd: c_int, level: c_int, name: c_int) -> Result<c_int, c_int> {
    let (mut value, mut length): (c_int, _) = (-1, 4);
    let to: *mut c_void = (&raw mut value).cast();
    // SAFETY: an int and its length.
    let answer = unsafe { options::getsockopt(fd, level, name, to, &raw mut length) };
    outcome_of(answer as isize).map(|_| value)
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<usize, c_int> {
    let from: *const c_void = (&raw const value).cast();
    // SAFETY: an int.
    outcome_of(unsafe { options::setsockopt(fd, level, name, from, 4) } as isize)
}

#[test]
fn a_peer_that_publishes_an_impossible_position_resets_the_connection() {
    let _alone = alone();
    for flags in [0, libc::MSG_DONTWAIT, libc::MSG_PEEK, libc::MSG_WAITALL] {
        let ([fd, other], memory) = pair_and_memory();
        assert_eq!(write(other, b"believed"), Ok(8));
        assert_eq!(read(fd, 100), Ok(b"believed".to_vec()));
        // The tail of the other's direction: more than its region holds, less than all of them.
        let tail: u64 = 20_000 << 8;
        std::fs::File::from(memory).write_at(&tail.to_ne_bytes(), 0x300).expect("shared memory");
        assert_eq!(receive(fd, 100, flags), Err(libc::ECONNRESET), "{flags}");
        assert_eq!(receive(fd, 100, flags), Ok(Vec::new()), "{flags}");
        assert_eq!(write(fd, b"late"), Err(libc::EPIPE));
        assert_eq!([fd, other].map(descriptor::close), [0, 0]);
    }
}

#[test]
fn bytes_arrive_in_order_and_the_end_after_them() {
    let _alone = alone();
    let [a, b] = pair();
    assert_eq!((write(a, b"hello "), write(a, b"world")), (Ok(6), Ok(5)));
    assert_eq!(read(b, 6), Ok(b"hello ".to_vec()));
    assert_eq!(socket::shutdown(a, libc::SHUT_WR), 0);
    assert_eq!(read(b, 100), Ok(b"world".to_vec()));
    assert_eq!(read(b, 100), Ok(vec![]));
    assert_eq!(write(b, b"answer"), Ok(6));
    assert_eq!(read(a, 100), Ok(b"answer".to_vec()));
    assert_eq!(write(a, b"no"), Err(libc::EPIPE));
    assert_eq!((descriptor::close(a), descriptor::close(b)), (0, 0));
    assert_eq!(read(a, 1), Err(libc::EBADF));
}

#[test]
fn an_empty_socket_gives_eagain_to_a_nonblocking_call() {
    let _alone = alone();
    let [a, b] = pair();
    assert_eq!(receive(a, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    // SAFETY: a number.
    assert_eq!(unsafe { descriptor::fcntl(a, libc::F_SETFL, libc::O_NONBLOCK as usize) }, 0);
    assert_eq!(read(a, 1), Err(libc::EAGAIN));
    let full = vec![7; 1 << 20];
    // SAFETY: a number.
    assert_eq!(unsafe { descriptor::fcntl(b, libc::F_SETFL, libc::O_NONBLOCK as usize) }, 0);
    let sent = write(b, &full).expect("room");
    assert!(sent < full.len() && write(b, &full) == Err(libc::EAGAIN));
    assert_eq!(read(a, sent + 1).map(|bytes| bytes.len()), Ok(sent));
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn peeking_takes_nothing_and_waitall_waits_for_all() {
    let _alone = alone();
    let [a, b] = pair();
    write(a, b"abc").expect("room");
    assert_eq!(receive(b, 10, libc::MSG_PEEK), Ok(b"abc".to_vec()));
    assert_eq!(receive(b, 2, libc::MSG_PEEK), Ok(b"ab".to_vec()));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(b, 6, libc::MSG_WAITALL));
        write(a, b"d").expect("room");
        write(a, b"ef").expect("room");
        assert_eq!(reader.join().expect("no panic"), Ok(b"abcdef".to_vec()));
    });
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn much_more_than_the_rings_hold_goes_through_between_threads_that_sleep() {
    let _alone = alone();
    let [a, b] = pair();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|index| ((index * 7) >> 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(write(a, &sent), Ok(sent.len()));
            assert_eq!(descriptor::close(a), 0);
        });
        let mut got = Vec::new();
        loop {
            match read(b, 10_007).expect("data") {
                bytes if bytes.is_empty() => break,
                bytes => got.extend(bytes),
            }
        }
        assert!(got == sent);
    });
    descriptor::close(b);
}

#[test]
fn a_close_with_unread_bytes_resets_and_the_peer_gets_the_error_once_after_its_data() {
    let _alone = alone();
    let [a, b] = pair();
    write(a, b"for b").expect("room");
    write(b, b"for a").expect("room");
    descriptor::close(b);
    assert_eq!(read(a, 10), Ok(b"for a".to_vec()));
    assert_eq!(read(a, 10), Err(libc::ECONNRESET));
    assert_eq!(read(a, 10), Ok(vec![]));
    assert_eq!(write(a, b"x"), Err(libc::EPIPE));
    descriptor::close(a);
}

#[test]
fn a_reset_can_be_taken_with_so_error_and_is_then_reported() {
    let _alone = alone();
    let [a, b] = pair();
    write(a, b"unread").expect("room");
    descriptor::close(b);
    assert_eq!(receive(a, 1, libc::MSG_DONTWAIT), Err(libc::ECONNRESET));
    assert_eq!(option(a, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    descriptor::close(a);
}

#[test]
fn after_the_others_close_one_write_succeeds() {
    let _alone = alone();
    let [a, b] = pair();
    descriptor::close(b);
    assert_eq!(write(a, b"one"), Ok(3));
    assert_eq!(read(a, 1), Ok(vec![]));
    assert_eq!(write(a, b"two"), Err(libc::EPIPE));
    descriptor::close(a);
}

#[test]
fn lingering_for_no_time_resets() {
    let _alone = alone();
    let [a, b] = pair();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let from: *const c_void = (&raw const linger).cast();
    // SAFETY: a linger.
    assert_eq!(unsafe { options::setsockopt(b, libc::SOL_SOCKET, libc::SO_LINGER, from, 8) }, 0);
    descriptor::close(b);
    assert_eq!(read(a, 1), Err(libc::ECONNRESET));
    descriptor::close(a);
}

#[test]
fn a_reader_that_sleeps_is_woken_by_data_by_an_end_by_a_hangup_and_by_its_own_shutdown() {
    let _alone = alone();
    for how in 0..4 {
        let [a, b] = pair();
        let asleep = AtomicU32::new(0);
        let got = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                asleep.store(thread(), Ordering::Release);
                read(b, 10)
            });
            while asleep.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            sleeping(asleep.load(Ordering::Acquire));
            match how {
                0 => assert_eq!(write(a, b"x"), Ok(1)),
                1 => assert_eq!(socket::shutdown(a, libc::SHUT_WR), 0),
                2 => assert_eq!(descriptor::close(a), 0),
                _ => assert_eq!(socket::shutdown(b, libc::SHUT_RDWR), 0),
            }
            reader.join().expect("no panic")
        });
        assert_eq!(got, Ok(if how == 0 { b"x".to_vec() } else { vec![] }), "{how}");
        if how != 2 {
            descriptor::close(a);
        }
        descriptor::close(b);
    }
}

/// Waits until a thread of this process sleeps in the kernel.
fn sleeping(thread: u32) {
    for _ in 0..20_000 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_receive_timeout_ends_a_call() {
    let _alone = alone();
    let [a, b] = pair();
    let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let from: *const c_void = (&raw const time).cast();
    // SAFETY: a timeval.
    assert_eq!(unsafe { options::setsockopt(a, libc::SOL_SOCKET, libc::SO_RCVTIMEO, from, 16) }, 0);
    assert_eq!(read(a, 1), Err(libc::EAGAIN));
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn a_duplicate_keeps_the_connection_open() {
    let _alone = alone();
    let [a, b] = pair();
    let copy = descriptor::dup(b);
    assert!(table::is_ours(copy));
    descriptor::close(b);
    assert_eq!(write(a, b"still"), Ok(5));
    assert_eq!(read(copy, 10), Ok(b"still".to_vec()));
    assert_eq!(receive(a, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    descriptor::close(copy);
    assert_eq!(read(a, 1), Ok(vec![]));
    descriptor::close(a);
}

#[test]
fn an_engine_behind_a_connection_is_notified_of_its_options() {
    let _alone = alone();
    let [a, b] = pair();
    let [served, service] = [a, b].map(|fd| table::find(fd).expect("it is ours"));
    let (end, other) = (served.end().expect("an end"), service.end().expect("an end"));
    assert_eq!(set(a, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), Ok(0));
    assert_eq!(other.option_changes(), 0, "another program has no use for it");
    end.private().set(sietch_ring::stream::flag::SERVED);
    assert_eq!(set(a, libc::IPPROTO_TCP, libc::TCP_NODELAY, 0), Ok(0));
    assert_eq!(set(a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3), Ok(0));
    assert_eq!((other.option_changes(), other.readable()), (1, 0));
    let mut doorbell = [0_u8; 4];
    // SAFETY: four bytes may be written.
    let received = unsafe { libc::recv(b, doorbell.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT) };
    assert_eq!(received, 1);
    // The engine's algorithms are known here, whatever the kernel has.
    let named = |name: &[u8]| {
        let (from, length) = (name.as_ptr().cast(), name.len() as libc::socklen_t);
        // SAFETY: a slice.
        let answer = unsafe { options::setsockopt(a, libc::IPPROTO_TCP, libc::TCP_CONGESTION, from, length) };
        outcome_of(answer as isize)
    };
    assert_eq!((named(b"dctcp"), named(b"nonsense")), (Ok(0), Err(libc::ENOENT)));
    let (mut name, mut length) = ([0xff_u8; 16], 16);
    // SAFETY: sixteen bytes may be written.
    let answer = unsafe {
        let to = name.as_mut_ptr().cast();
        options::getsockopt(a, libc::IPPROTO_TCP, libc::TCP_CONGESTION, to, &raw mut length)
    };
    assert_eq!((answer, length, &name), (0, 16, b"dctcp\0\0\0\0\0\0\0\0\0\0\0"));
    assert_eq!([a, b].map(descriptor::close), [0, 0]);
}

#[test]
fn options_are_returned_and_wrong_ones_refused_as_the_kernel_does() {
    let _alone = alone();
    let [a, b] = pair();
    assert_eq!(option(a, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(0));
    assert_eq!(set(a, libc::IPPROTO_TCP, libc::TCP_NODELAY, 5), Ok(0));
    assert_eq!(option(a, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
    assert_eq!(set(a, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0), Err(libc::EINVAL));
    assert_eq!(set(a, libc::SOL_SOCKET, libc::SO_SNDBUF, 100_000), Ok(0));
    assert_eq!(option(a, libc::SOL_SOCKET, libc::SO_SNDBUF), Ok(200_000));
    assert_eq!(set(a, 77, 1, 0), Err(libc::ENOPROTOOPT));
    assert_eq!(option(a, libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
    assert_eq!(option(a, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET));
    assert_eq!(option(a, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
    // As inherited by all who hold the end, not by the other.
    assert_eq!(option(b, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(0));
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn names_are_those_of_the_connection_and_cut_off_as_the_kernel_does() {
    let _alone = alone();
    let [a, b] = pair();
    let mut out = [0_u8; 28];
    let mut length: libc::socklen_t = 4;
    // SAFETY: 28 bytes and a length that is less.
    assert_eq!(unsafe { socket::getpeername(a, out.as_mut_ptr().cast(), &raw mut length) }, 0);
    assert_eq!((length, &out[..5]), (16, &[2, 0, 0, 80, 0][..]));
    length = 28;
    // SAFETY: as above.
    assert_eq!(unsafe { socket::getsockname(a, out.as_mut_ptr().cast(), &raw mut length) }, 0);
    assert_eq!(out[..16], name(40_000)[..16]);
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn a_file_goes_through_the_ring_and_the_offset_follows() {
    let _alone = alone();
    let [a, b] = pair();
    let path = std::env::temp_dir().join(format!("sietch-posix-{}", std::process::id()));
    let bytes: Vec<u8> = (0..200_000_u32).map(|index| (index >> 5) as u8).collect();
    std::fs::write(&path, &bytes).expect("a file");
    let from = std::fs::File::open(&path).expect("a file").into_raw_fd();
    std::fs::remove_file(&path).expect("removed");
    let got = std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(b, 199_000, libc::MSG_WAITALL));
        let mut offset: libc::off_t = 1000;
        let mut sent = 0;
        while sent < 199_000 {
            // SAFETY: an offset.
            let now = unsafe { data::sendfile(a, from, &raw mut offset, 300_000) };
            assert!(now > 0);
            sent += now;
        }
        assert_eq!(offset, 200_000);
        reader.join().expect("no panic")
    });
    assert!(got.expect("data") == bytes[1000..]);
    // SAFETY: null offsets.
    let spliced = unsafe { data::splice(b, std::ptr::null_mut(), a, std::ptr::null_mut(), 1, 0) };
    assert_eq!((spliced, errno()), (-1, libc::EINVAL));
    for fd in [a, b, from] {
        descriptor::close(fd);
    }
}

#[test]
fn several_messages_are_one_call() {
    let _alone = alone();
    let [a, b] = pair();
    let mut out = [[0_u8; 4]; 3];
    let vectors: Vec<libc::iovec> =
        out.iter_mut().map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 }).collect();
    let mut messages: Vec<libc::mmsghdr> = vectors
        .iter()
        .map(|vector| {
            // SAFETY: zeroes are a message without anything.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = std::ptr::from_ref(vector).cast_mut();
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    write(a, b"abcdefgh").expect("room");
    let none = std::ptr::null_mut();
    // SAFETY: three messages.
    let got = unsafe { data::recvmmsg(b, messages.as_mut_ptr(), 3, libc::MSG_WAITFORONE, none) };
    assert_eq!((got, messages[0].msg_len, messages[1].msg_len), (2, 4, 4));
    assert_eq!((&out[0], &out[1]), (b"abcd", b"efgh"));
    descriptor::close(a);
    descriptor::close(b);
}

#[test]
fn a_process_that_is_killed_is_an_end_or_a_reset() {
    let _alone = alone();
    for unread in [false, true] {
        let [a, b] = pair();
        if unread {
            write(a, b"x").expect("room");
        }
        // SAFETY: the child makes no call but system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            sietch_ring::stream::after_fork();
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        // The child alone holds b now.
        descriptor::close(b);
        assert_eq!(receive(a, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        // SAFETY: the child of above, and what it was given of `a` goes with it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let got = read(a, 1);
        assert_eq!(got, if unread { Err(libc::ECONNRESET) } else { Ok(vec![]) });
        descriptor::close(a);
    }
}

/// Messages of one vector each: so many bytes at an address.
fn messages(vectors: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    let of = |vector: &mut libc::iovec| {
        // SAFETY: zeros are an empty message.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (vector, 1);
        message
    };
    vectors.iter_mut().map(of).collect()
}

#[test]
fn after_a_message_that_was_sent_in_part_no_other_is_sent() {
    let _alone = alone();
    let [a, b] = pair();
    let mut bytes = vec![7_u8; 1 << 20];
    let mut vectors =
        [1 << 20, 0].map(|iov_len| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len });
    let mut both = messages(&mut vectors);
    // SAFETY: two messages.
    let sent = unsafe { data::sendmmsg(a, both.as_mut_ptr(), 2, libc::MSG_DONTWAIT) };
    let part = both[0].msg_len as usize;
    assert!(sent == 1 && (1..1 << 20).contains(&part), "{sent} of {part} bytes");
    assert_eq!(read(b, 1 << 20).map(|bytes| bytes.len()), Ok(part));
    assert_eq!([a, b].map(descriptor::close), [0, 0]);
}

#[test]
fn an_error_after_some_messages_is_returned_by_the_next_call() {
    let _alone = alone();
    let [a, b] = pair();
    write(a, b"good, then nowhere").expect("room");
    let mut bytes = [0_u8; 4];
    let addresses = [bytes.as_mut_ptr(), std::ptr::null_mut()];
    let mut vectors = addresses.map(|to| libc::iovec { iov_base: to.cast(), iov_len: 4 });
    let mut both = messages(&mut vectors);
    // SAFETY: two messages, of which one leads nowhere.
    let mut receive_both = || unsafe { data::recvmmsg(b, both.as_mut_ptr(), 2, 0, std::ptr::null_mut()) };
    assert_eq!(receive_both(), 1);
    assert_eq!(receive_both(), -1);
    assert_eq!(errno(), libc::EFAULT);
    assert_eq!(read(b, 100), Ok(b", then nowhere".to_vec()));
    assert_eq!([a, b].map(descriptor::close), [0, 0]);
}

#[test]
fn the_time_of_recvmmsg_is_checked_and_the_remaining_time_written_back() {
    let _alone = alone();
    let [a, b] = pair();
    write(a, b"one").expect("room");
    let mut bytes = [0_u8; 4];
    let mut vectors = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 }];
    let mut one = messages(&mut vectors);
    let mut time = libc::timespec { tv_sec: 1000, tv_nsec: 1_000_000_000 };
    // SAFETY: a message and a time.
    assert_eq!(unsafe { data::recvmmsg(b, one.as_mut_ptr(), 1, 0, &raw mut time) }, -1);
    assert_eq!(errno(), libc::EINVAL);
    time.tv_nsec = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { data::recvmmsg(b, one.as_mut_ptr(), 1, 0, &raw mut time) }, 1);
    assert!(time.tv_sec < 1000, "{}", time.tv_sec);
    assert_eq!([a, b].map(descriptor::close), [0, 0]);
}
