use super::*;
use crate::wait::{poll, select};

fn entry(fd: c_int, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: -1 }
}

fn run(entries: &mut [libc::pollfd], timeout: c_int) -> (Outcome, Vec<i16>) {
    // SAFETY: so many entries.
    let ready =
        unsafe { poll::poll(entries.as_mut_ptr(), entries.len(), poll::milliseconds(timeout), ptr::null()) };
    (ready, entries.iter().map(|entry| entry.revents).collect())
}

#[test]
fn streams_and_kernel_descriptors_in_one_poll() {
    let (stream, peer) = pair();
    let (reader, writer) = pipe();
    let (read, out) = (libc::POLLIN, libc::POLLOUT);
    let mut set = [entry(stream.0, read), entry(reader.as_raw_fd(), read), entry(-5, read)];
    assert_eq!(run(&mut set, 0), (Ok(0), vec![0, 0, 0]));
    peer.send(b"x");
    assert_eq!(run(&mut set, -1), (Ok(1), vec![read, 0, 0]));
    write(&writer);
    assert_eq!(run(&mut set, -1), (Ok(2), vec![read, read, 0]), "all that is ready is reported");
    stream.receive();
    assert_eq!(run(&mut set, -1), (Ok(1), vec![0, read, 0]));
    let mut set = [entry(stream.0, read | out), entry(1_000_000, read)];
    assert_eq!(run(&mut set, -1), (Ok(2), vec![out, libc::POLLNVAL]));
    let mut many: Vec<_> = (0..100).map(|_| entry(stream.0, out | libc::POLLWRNORM)).collect();
    assert_eq!(run(&mut many, -1), (Ok(100), vec![out | libc::POLLWRNORM; 100]));
}

#[test]
fn a_sleeper_in_poll_is_woken_by_either_kind() {
    let (stream, peer) = pair();
    let (reader, writer) = pipe();
    let read = libc::POLLIN;
    std::thread::scope(|threads| {
        for round in 0..100 {
            let waiter =
                threads.spawn(|| run(&mut [entry(stream.0, read), entry(reader.as_raw_fd(), read)], -1));
            until_asleep(&stream);
            if round % 2 == 0 {
                peer.send(b"x");
                assert_eq!(waiter.join().expect("the waiter"), (Ok(1), vec![read, 0]));
                stream.receive();
            } else {
                write(&writer);
                assert_eq!(waiter.join().expect("the waiter"), (Ok(1), vec![0, read]));
                let mut byte = [0; 1];
                // SAFETY: a byte.
                unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
            }
        }
        let waiter = threads.spawn(|| run(&mut [entry(stream.0, read | libc::POLLRDHUP)], -1));
        until_asleep(&stream);
        peer.finish();
        peer.close();
        assert_eq!(waiter.join().expect("the waiter"), (Ok(1), vec![read | libc::POLLRDHUP]));
    });
    // Its peer has closed, and no requested event can come: time passes, and no more.
    assert_eq!(run(&mut [entry(stream.0, libc::POLLPRI)], 10), (Ok(0), vec![0]));
}

#[test]
fn a_hang_up_is_seen_without_waiting() {
    let (stream, peer) = pair();
    stream.end(|end| end.send().expect("free").write(b"never read"));
    drop(peer);
    let (ready, events) = run(&mut [entry(stream.0, libc::POLLIN)], 0);
    assert_eq!((ready, events), (Ok(1), vec![libc::POLLIN | libc::POLLERR | libc::POLLHUP]));
}

#[test]
fn select_knows_streams_in_every_set() {
    let (stream, peer) = pair();
    let (reader, writer) = pipe();
    let mut sets = [[0_u64; 1 << 10]; 3];
    let put = |set: &mut [u64], fd: c_int| set[fd as usize / 64] |= 1 << (fd % 64);
    let has = |set: &[u64], fd: c_int| set[fd as usize / 64] & 1 << (fd % 64) != 0;
    let count = stream.0.max(reader.as_raw_fd()) + 1;
    let mut go = |wanted: [bool; 3], timeout: Option<u64>| {
        for (set, wanted) in sets.iter_mut().zip(wanted) {
            set.fill(0);
            if wanted {
                put(set, stream.0);
                put(set, reader.as_raw_fd());
            }
        }
        let pointers = [0, 1, 2].map(|index: usize| sets[index].as_mut_ptr().cast::<libc::fd_set>());
        // SAFETY: sets of enough bits.
        let ready = unsafe { select::select(count, pointers, timeout, ptr::null()) };
        let found = [0, 1, 2].map(|index: usize| has(&sets[index], stream.0));
        (ready, found, has(&sets[0], reader.as_raw_fd()))
    };
    assert_eq!(go([true; 3], None), (Ok(1), [false, true, false], false));
    assert_eq!(go([true, false, true], Some(1000)), (Ok(0), [false; 3], false));
    peer.send(b"x");
    assert_eq!(go([true; 3], None), (Ok(2), [true, true, false], false));
    write(&writer);
    assert_eq!(go([true, false, false], None), (Ok(2), [true, false, false], true));
    // Higher than any other test's descriptors.
    let high = 60_000;
    let mut set = [0_u64; 1 << 10];
    put(&mut set, high);
    put(&mut set, stream.0);
    let pointers = [set.as_mut_ptr().cast(), ptr::null_mut(), ptr::null_mut()];
    // SAFETY: a set of enough bits.
    assert_eq!(unsafe { select::select(high + 1, pointers, None, ptr::null()) }, Err(libc::EBADF));
}
