//! `epoll_wait` and `epoll_ctl` on streams: levels, edges, one-shots, order, removal, and epolls in
//! epolls.
//!
//! Each test states what the kernel's epoll does with a TCP socket in the same state. The peer is
//! in the same process, so nothing depends on another process's schedule.

use super::*;

#[test]
fn level_triggered_readiness_is_reported_until_it_is_used_up() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 7);
    assert_eq!(epoll.wait(0), []);
    peer.send(b"hello");
    assert_eq!(epoll.wait(-1), [(7, IN)]);
    assert_eq!(epoll.wait(-1), [(7, IN)]);
    stream.receive();
    assert_eq!(epoll.wait(0), []);
    epoll.modify(stream.0, IN | OUT, 8);
    assert_eq!(epoll.wait(-1), [(8, OUT)]);
}

#[test]
fn a_sleeper_is_woken_by_bytes_by_room_and_by_the_end() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | RDHUP, 7);
    std::thread::scope(|threads| {
        for _ in 0..200 {
            let waiter = threads.spawn(|| epoll.wait(-1));
            until_asleep(&stream);
            peer.send(b"hello");
            assert_eq!(waiter.join().expect("the waiter"), [(7, IN)]);
            assert_eq!(stream.receive(), 5);
        }
        stream.fill();
        epoll.modify(stream.0, OUT, 8);
        let waiter = threads.spawn(|| epoll.wait(-1));
        until_asleep(&stream);
        peer.receive();
        assert_eq!(waiter.join().expect("the waiter"), [(8, OUT)]);
        epoll.modify(stream.0, IN | RDHUP, 9);
        let waiter = threads.spawn(|| epoll.wait(-1));
        until_asleep(&stream);
        peer.finish();
        assert_eq!(waiter.join().expect("the waiter"), [(9, IN | RDHUP)]);
    });
}

#[test]
fn an_array_unmapped_during_the_wait_is_a_fault_and_takes_nothing() {
    crate::signal::faults::install();
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | EDGE, 7);
    peer.send(b"hello");
    for timeout in [Some(0), Some(1_000_000), None] {
        let epfd = epoll.0;
        let (answer, answered) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let held = table::find(epfd).expect("an epoll");
            let set = crate::readiness::set::with_streams(&held).expect("a stream is registered");
            let nowhere = (ptr::without_provenance_mut(8), 4);
            // SAFETY: the fault is answered.
            let outcome = unsafe { epoll::wait_with(held, set, epfd, nowhere, timeout, ptr::null()) };
            let _ = answer.send(outcome);
        });
        let outcome = answered.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(outcome, Ok(Err(libc::EFAULT)), "waiting for {timeout:?}");
    }
    assert_eq!(epoll.wait(0), [(7, IN)]);
}

#[test]
fn an_array_that_is_nowhere_is_a_fault_and_takes_nothing() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | EDGE, 7);
    peer.send(b"hello");
    for address in [0, 8, usize::MAX - 4096] {
        let nowhere = ptr::without_provenance_mut(address);
        // SAFETY: no array is there, which the call notices.
        let outcome = unsafe { epoll::wait_if_ours(epoll.0, nowhere, 4, Some(0), ptr::null()) };
        assert_eq!(outcome, Some(Err(libc::EFAULT)), "{address:x}");
    }
    assert_eq!(epoll.wait(0), [(7, IN)]);
}

#[test]
fn a_stream_that_is_always_ready_leaves_the_next_call_to_others() {
    let (busy, busy_peer) = pair();
    busy_peer.send(b"never read");
    let (full, full_peer) = pair();
    let (inner, inner_peer) = pair();
    for edge in [0, EDGE] {
        let (epoll, nested) = (Epoll::new(), Epoll::new());
        let reported_in_two = |what: u64| {
            let one = || epoll.try_wait(1, 0).expect("epoll_wait")[0].0;
            let two = [one(), one()];
            assert!(two.contains(&what), "{two:?}, edges {edge:x}");
        };
        epoll.add(full.0, OUT | edge, 2);
        full.fill();
        assert_eq!(epoll.wait(0), []);
        nested.add(inner.0, IN, 4);
        epoll.add(nested.0, IN | edge, 3);
        epoll.add(busy.0, IN, 1);
        assert_eq!([0; 3].map(|_| epoll.try_wait(1, 0)), [(); 3].map(|()| Ok(vec![(1, IN)])));
        full_peer.receive();
        reported_in_two(2);
        full.fill();
        inner_peer.send(b"hello");
        reported_in_two(3);
        inner.receive();
    }
}

#[test]
fn the_death_of_the_peer_wakes_and_is_a_reset_if_something_was_unread() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 7);
    stream.end(|end| end.send().expect("free").write(b"never read"));
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| epoll.wait(-1));
        until_asleep(&stream);
        // As after SIGKILL: nothing is said, the kernel closes.
        drop(peer);
        assert_eq!(waiter.join().expect("the waiter"), [(7, IN | ERR | HUP)]);
    });
}

#[test]
fn a_close_is_a_fin_and_with_the_own_fin_a_hang_up() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | OUT | RDHUP, 7);
    peer.finish();
    peer.close();
    assert_eq!(epoll.wait(-1), [(7, IN | OUT | RDHUP)]);
    stream.end(Endpoint::finish);
    assert_eq!(epoll.wait(-1), [(7, IN | OUT | RDHUP | HUP)]);
    // With no event requested, a hang-up is reported all the same, once the kernel was polled.
    epoll.modify(stream.0, 0, 7);
    assert_eq!(epoll.wait(-1), [(7, HUP)]);
}

#[test]
fn edges_are_reported_once_each() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | OUT | RDHUP | EDGE, 7);
    assert_eq!(epoll.wait(-1), [(7, OUT)]);
    assert_eq!(epoll.wait(0), []);
    peer.send(b"one");
    assert_eq!(epoll.wait(-1), [(7, IN | OUT)]);
    assert_eq!(epoll.wait(0), []);
    peer.send(b"two");
    assert_eq!(epoll.wait(-1), [(7, IN | OUT)], "more bytes are a new edge");
    epoll.modify(stream.0, IN | OUT | RDHUP | EDGE, 8);
    assert_eq!(epoll.wait(-1), [(8, IN | OUT)], "so is a modification");
    stream.receive();
    assert_eq!(epoll.wait(0), []);
    peer.finish();
    assert_eq!(epoll.wait(-1), [(8, IN | OUT | RDHUP)]);
    assert_eq!(epoll.wait(0), []);
}

#[test]
fn an_edge_of_room_is_seen_though_it_came_before_the_check() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, OUT | EDGE, 7);
    assert_eq!(epoll.wait(-1), [(7, OUT)]);
    for _ in 0..20 {
        stream.fill();
        assert_eq!(epoll.wait(0), []);
        peer.receive();
        assert_eq!(epoll.wait(-1), [(7, OUT)]);
        assert_eq!(epoll.wait(0), []);
        // Full and empty again while no thread checked.
        stream.fill();
        peer.receive();
        assert_eq!(epoll.wait(-1), [(7, OUT)]);
    }
}

#[test]
fn sleepers_on_edges_are_woken() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | EDGE, 7);
    std::thread::scope(|threads| {
        for _ in 0..100 {
            let waiter = threads.spawn(|| epoll.wait(-1));
            until_asleep(&stream);
            peer.send(b"x");
            // Never read: only what comes new is an edge.
            assert_eq!(waiter.join().expect("the waiter"), [(7, IN)]);
        }
    });
}

#[test]
fn a_one_shot_registration_reports_once_until_it_is_modified() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN | ONCE, 7);
    peer.send(b"x");
    assert_eq!(epoll.wait(-1), [(7, IN)]);
    peer.send(b"x");
    peer.close();
    assert_eq!(epoll.wait(0), [], "not even a hang-up");
    epoll.modify(stream.0, IN | ONCE, 8);
    assert_eq!(epoll.wait(-1)[0].0, 8);
    assert_eq!(epoll.wait(0), []);
}

#[test]
fn errors_are_those_of_the_kernel() {
    let (stream, _peer) = pair();
    let epoll = Epoll::new();
    assert_eq!(epoll.remove(stream.0), Err(libc::ENOENT));
    assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN, 0), Err(libc::ENOENT));
    epoll.add(stream.0, IN, 1);
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, stream.0, IN, 0), Err(libc::EEXIST));
    assert_eq!(epoll.control(99, stream.0, IN, 0), Err(libc::EINVAL));
    let exclusive = libc::EPOLLEXCLUSIVE as u32;
    assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN | exclusive, 0), Err(libc::EINVAL));
    assert_eq!(epoll.remove(stream.0), Ok(0));
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, stream.0, IN | ONCE | exclusive, 0), Err(libc::EINVAL));
    epoll.add(stream.0, IN | EDGE | exclusive, 1);
    assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN, 0), Err(libc::EINVAL));
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, epoll.0, IN, 0), Err(libc::EINVAL));
    // SAFETY: no event: the kernel refuses it.
    let nothing = unsafe { control::control(epoll.0, libc::EPOLL_CTL_ADD, stream.0, ptr::null()) };
    assert_eq!(nothing, Err(libc::EFAULT));
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, file.as_raw_fd(), IN, 0), Err(libc::EPERM));
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, 1_000_000, IN, 0), Err(libc::EBADF));
    assert_eq!(epoll.try_wait(0, 0), Err(libc::EINVAL));
}

/// The data of up to `most`, in the order in which they are reported.
fn in_order(epoll: &Epoll, most: usize) -> Vec<u64> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
    // SAFETY: so many entries.
    let got = unsafe { epoll::wait(epoll.0, events.as_mut_ptr(), most as c_int, Some(0), ptr::null()) }
        .expect("wait");
    events[..got].iter().map(|event| event.u64).collect()
}

#[test]
fn the_stream_that_became_ready_first_is_reported_first() {
    let pairs: Vec<_> = (0..100).map(|_| pair()).collect();
    for events in [IN, IN | EDGE] {
        for round in 0..20 {
            let epoll = Epoll::new();
            for (index, (stream, _)) in pairs.iter().enumerate() {
                epoll.add(stream.0, events, index as u64);
            }
            if round % 2 == 0 {
                assert_eq!(epoll.wait(0), []);
            }
            let order: Vec<u64> = (0..100).map(|at| (at * 37 + round) % 100).collect();
            for index in &order {
                pairs[*index as usize].1.send(b"x");
            }
            // More bytes do not change the order; nor does a reader that takes few events at a
            // time.
            pairs[order[0] as usize].1.send(b"more");
            assert_eq!(in_order(&epoll, 3), order[..3]);
            assert_eq!(in_order(&epoll, 20), order[3..23]);
            assert_eq!(in_order(&epoll, 30), order[23..53]);
            let read = |(stream, _): &(Stream, Peer)| assert_ne!(stream.receive(), 0);
            pairs.iter().skip(1).for_each(read);
            pairs[7].1.send(b"x");
            pairs[3].1.send(b"x");
            // Unreported registrations keep their place. Behind them come the level-triggered ones
            // that were reported, and the edge-triggered ones with a new event.
            let (reported, unreported) = order.split_at(53);
            let ready = |index: &&u64| [0, 3, 7].contains(*index);
            let mut expected: Vec<u64> = unreported.iter().filter(ready).copied().collect();
            if events == IN {
                expected.extend(reported.iter().filter(ready));
            } else {
                expected.extend([7, 3].iter().filter(|index| reported.contains(index)));
            }
            assert_eq!(in_order(&epoll, 100), expected);
            [0, 3, 7].iter().for_each(|index| read(&pairs[*index]));
        }
    }
}

#[test]
fn calls_report_what_a_ready_list_would_hold_in_its_order() {
    let pairs: Vec<_> = (0..40).map(|_| pair()).collect();
    let mut state: u64 = 1;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for events in [IN, IN | EDGE] {
        let epoll = Epoll::new();
        for (index, (stream, _)) in pairs.iter().enumerate() {
            epoll.add(stream.0, events, index as u64);
        }
        assert!(in_order(&epoll, 64).is_empty());
        // The kernel's list: what wakes goes behind all that is there; a call takes all, and puts
        // those of a level behind again.
        let (mut list, mut unread) = (Vec::<u64>::new(), [false; 40]);
        for round in 0..400 {
            for _ in 0..random(if round % 3 == 0 { 3 } else { 80 }) {
                let index = random(40);
                pairs[index].1.send(b"x");
                unread[index] = true;
                if !list.contains(&(index as u64)) {
                    list.push(index as u64);
                }
            }
            list.retain(|index| unread[*index as usize]);
            assert_eq!(in_order(&epoll, 64), list, "events {events:x}, call {round}");
            for index in &list {
                // Only so many arrivals are noted while bytes are unread.
                if random(4) != 0 || events != IN {
                    assert_ne!(pairs[*index as usize].0.receive(), 0);
                    unread[*index as usize] = false;
                }
            }
            if events != IN {
                list.clear();
            }
        }
        pairs.iter().filter(|(stream, _)| stream.end(Endpoint::readable) != 0).for_each(|(stream, _)| {
            stream.receive();
        });
    }
}

#[test]
fn an_array_that_ends_at_a_hole_gets_the_earliest_events() {
    crate::signal::faults::install();
    let pairs: Vec<_> = (0..8).map(|_| pair()).collect();
    let epoll = Epoll::new();
    for (index, (stream, _)) in pairs.iter().enumerate() {
        epoll.add(stream.0, IN, index as u64);
    }
    assert!(in_order(&epoll, 8).is_empty());
    let order = [5, 2, 7, 0, 3, 1, 6, 4];
    for index in order {
        pairs[index as usize].1.send(b"x");
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of two pages, of which the second is made inaccessible.
    let hole = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(ptr::null_mut(), 8192, access, flags, -1, 0).cast::<u8>();
        assert_eq!(libc::mprotect(start.add(4096).cast(), 4096, libc::PROT_NONE), 0);
        start.add(4096)
    };
    let events = hole.wrapping_sub(3 * size_of::<libc::epoll_event>()).cast::<libc::epoll_event>();
    // SAFETY: three entries are there; a fault of the others is answered.
    let got = unsafe { epoll::wait(epoll.0, events, 8, Some(0), ptr::null()) };
    // SAFETY: as above.
    let data = [0, 1, 2].map(|index| unsafe { events.add(index).read_unaligned() }.u64);
    assert_eq!((got, data), (Ok(3), [5, 2, 7]));
    assert_eq!(in_order(&epoll, 8), [0, 3, 1, 6, 4, 5, 2, 7]);
    // SAFETY: the mapping of above.
    unsafe { libc::munmap(hole.sub(4096).cast(), 8192) };
}

#[test]
fn an_end_and_bytes_come_in_their_order() {
    let (first, first_peer) = pair();
    let (second, second_peer) = pair();
    let (third, _third_peer) = pair();
    let epoll = Epoll::new();
    for (stream, data) in [(&third, 3), (&second, 2), (&first, 1)] {
        epoll.add(stream.0, IN, data);
    }
    assert!(in_order(&epoll, 8).is_empty());
    epoll.remove(third.0).expect("it is there");
    // An option of the peer is no arrival.
    second_peer.end.abort_on_close(true);
    first_peer.finish();
    second_peer.send(b"x");
    assert_eq!(in_order(&epoll, 8), [1, 2]);
}

#[test]
fn a_removed_stream_is_not_reported_whatever_happens_to_it() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    assert_eq!(epoll.wait(0), []);
    epoll.remove(stream.0).expect("it is there");
    peer.finish();
    hooks::wake_watchers(&table::find(stream.0).expect("a stream"));
    assert_eq!(epoll.wait(0), []);
}

#[test]
fn a_stream_removed_and_added_again_is_as_if_it_were_new() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    for round in 0..20 {
        epoll.add(stream.0, IN | if round % 3 == 0 { EDGE } else { 0 }, round);
        peer.send(b"x");
        assert_eq!(epoll.wait(-1), [(round, IN)]);
        assert_eq!(epoll.remove(stream.0), Ok(0));
        assert_eq!(epoll.wait(0), []);
        assert_eq!(epoll.remove(stream.0), Err(libc::ENOENT));
        assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN, 0), Err(libc::ENOENT));
    }
    let exclusive = libc::EPOLLEXCLUSIVE as u32;
    epoll.add(stream.0, IN | exclusive, 30);
    assert_eq!(epoll.wait(-1), [(30, IN)]);
    assert_eq!(epoll.remove(stream.0), Ok(0));
    // The peer closes while no thread watches.
    peer.close();
    assert_eq!(epoll.wait(0), []);
    epoll.add(stream.0, IN | RDHUP, 31);
    stream.receive();
    assert_eq!(epoll.wait(-1), [(31, IN | RDHUP)]);
}

#[test]
fn closing_removes_registrations_and_a_duplicate_keeps_them() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    let other = crate::calls::descriptor::duplicate::dup(stream.0);
    assert!(other >= 0);
    epoll.add(stream.0, IN, 1);
    epoll.add(other, IN, 2);
    peer.send(b"x");
    assert_eq!(epoll.wait(-1), [(1, IN), (2, IN)]);
    crate::calls::descriptor::close::close(other);
    assert_eq!(epoll.wait(-1), [(1, IN), (2, IN)], "the description stays, as in the kernel");
    drop(stream);
    assert_eq!(epoll.wait(0), []);
    // The memory of the connection is freed with the last registration.
    let held = table::find(epoll.0).expect("the epoll");
    let locked = crate::readiness::set::set_of(&held).expect("an set").lock().expect("free");
    assert_eq!(locked.watched, 0);
}

#[test]
fn one_stream_in_two_epolls_is_reported_by_both() {
    let (stream, peer) = pair();
    let (one, other) = (Epoll::new(), Epoll::new());
    one.add(stream.0, IN, 1);
    other.add(stream.0, IN, 2);
    std::thread::scope(|threads| {
        for _ in 0..50 {
            let first = threads.spawn(|| one.wait(-1));
            let second = threads.spawn(|| other.wait(-1));
            while stream.end(Endpoint::waiting) < 2 {
                std::thread::yield_now();
            }
            peer.send(b"x");
            assert_eq!(first.join().expect("a waiter"), [(1, IN)]);
            assert_eq!(second.join().expect("a waiter"), [(2, IN)]);
            stream.receive();
        }
    });
}

#[test]
fn kernel_descriptors_are_reported_beside_a_stream_that_is_always_ready() {
    let (stream, peer) = pair();
    let (reader, writer) = pipe();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    epoll.add(reader.as_raw_fd(), IN, 2);
    peer.send(b"x");
    write(&writer);
    assert!((0..1_000_000).any(|_| epoll.try_wait(1, 0).expect("a wait") == [(2, IN)]));
    assert!((0..1_000_000).any(|_| epoll.try_wait(1, 0).expect("a wait") == [(1, IN)]));
    stream.receive();
    assert_eq!(epoll.wait(-1), [(2, IN)]);
}

#[test]
fn a_socket_that_becomes_a_stream_keeps_its_registration() {
    let epoll = Epoll::new();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let fd = OwnedFd::from(tcp).into_raw_fd();
    let pending = description::describe(Kind::Pending, None).expect("a description");
    assert!(table::put(fd, &pending));
    epoll.add(fd, IN | RDHUP, 5);
    assert_eq!(epoll.wait(0), []);

    let (stream, peer) = pair();
    let held = table::remove(stream.0).expect("a stream");
    let memory =
        Memory::create(RegionSizes { smallest: 12, largest: 14 }, [Names::default(); 2]).expect("memory");
    let end = |index: usize| {
        Endpoint::attach(memory.common.as_fd(), memory.private[index].as_fd()).expect("an end")
    };
    pending.become_stream(end(0)).expect("it was pending");
    crate::system::kernel::dup3(stream.0, fd, 0).expect("dup3");
    hooks::replaced(fd, &pending);
    crate::system::kernel::close(stream.0).expect("close");
    std::mem::forget(stream);
    drop(held);
    let peer = Peer { end: end(1), placeholder: peer.placeholder };
    let stream = Stream(fd);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| epoll.wait(-1));
        until_asleep(&stream);
        peer.send(b"x");
        assert_eq!(waiter.join().expect("the waiter"), [(5, IN)]);
    });
}

#[test]
fn many_streams_of_which_one_is_active() {
    // As many as the descriptors allow: each takes two, and two maps an end.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are on the stack.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let count = 10_000.min((limit.rlim_cur as usize).saturating_sub(1000) / 2);
    let epoll = Epoll::new();
    let all: Vec<_> = (0..count)
        .map(|number| {
            let (stream, peer) = pair();
            epoll.add(stream.0, IN, number as u64);
            (stream, peer)
        })
        .collect();
    assert_eq!(epoll.wait(0), []);
    for active in (0..count).step_by(count / 50) {
        for _ in 0..3 {
            all[active].1.send(b"x");
            assert_eq!(epoll.wait(-1), [(active as u64, IN)]);
            all[active].0.receive();
        }
    }
    all.iter().for_each(|(_, peer)| {
        peer.send(b"x");
    });
    let mut seen = vec![false; count];
    while seen.iter().any(|seen| !seen) {
        epoll.wait(-1).iter().for_each(|(data, _)| seen[*data as usize] = true);
    }
}

#[test]
#[ignore = "run under callgrind: instructions of a wait that finds 10 of 50"]
fn ten_ready_of_fifty() {
    let pairs: Vec<_> = (0..50).map(|_| pair()).collect();
    let epoll = Epoll::new();
    for (index, (stream, _)) in pairs.iter().enumerate() {
        epoll.add(stream.0, IN, index as u64);
    }
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    for round in 0..1000 {
        for (_, peer) in pairs.iter().skip(round % 5).step_by(5) {
            peer.send(b"x");
        }
        // SAFETY: so many entries.
        assert_eq!(unsafe { epoll::wait(epoll.0, events.as_mut_ptr(), 64, None, ptr::null()) }, Ok(10));
        for (stream, _) in pairs.iter().skip(round % 5).step_by(5) {
            let held = table::find(stream.0).expect("a stream");
            let end = held.end().expect("a stream");
            end.receive().expect("free").read(&mut [0; 16]);
        }
    }
}

#[test]
fn a_placeholder_is_examined_while_its_stream_is_removed_and_not_after_its_number_is_reused() {
    use crate::readiness::set::shared::bit;
    let examine = |epoll: &Epoll, fd: c_int, note: bool| {
        let held = table::find(epoll.0).expect("an epoll");
        let set = crate::readiness::set::set_of(&held).expect("registrations");
        let mut locked = set.lock().expect("no other holder");
        let number = locked.find(fd, &table::find(fd).expect("a stream")).expect("a registration");
        let slot = locked.slot(number);
        slot.state |= if note { bit::EXAMINE } else { 0 };
        (number, slot.state & bit::EXAMINE != 0)
    };
    let (stream, _peer) = pair();
    // One that exec leaves open has nothing in it that was taken out.
    let epoll = Epoll(control::create(libc::EPOLL_CLOEXEC).expect("an epoll") as c_int);
    epoll.add(stream.0, IN, 1);
    let (number, _) = examine(&epoll, stream.0, true);
    epoll.remove(stream.0).expect("EPOLL_CTL_DEL");
    epoll.add(stream.0, IN, 1);
    assert_eq!(examine(&epoll, stream.0, false), (number, true));
    drop(stream);
    let (other, _peer) = pair();
    epoll.add(other.0, IN, 2);
    assert_eq!(examine(&epoll, other.0, false), (number, false));
}

#[test]
fn data_of_the_program_that_look_like_ours_are_its_own() {
    use crate::readiness::tag::TAG;

    for with_stream in [false, true] {
        let ((stream, peer), (reader, writer), epoll) = (pair(), pipe(), Epoll::new());
        epoll.add(reader.as_raw_fd(), IN, TAG | 5);
        if with_stream {
            epoll.add(stream.0, IN, TAG | 6);
            peer.send(b"x");
        }
        write(&writer);
        let streams: &[_] = if with_stream { &[(TAG | 6, IN)] } else { &[] };
        let all = |own| [&[(own, IN)], streams].concat();
        assert_eq!(epoll.wait(1000), all(TAG | 5));
        epoll.modify(reader.as_raw_fd(), IN, TAG | 4);
        assert_eq!(epoll.wait(1000), all(TAG | 4));
        // Through the C library's call as well.
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: two entries.
        let got =
            unsafe { crate::calls::wait::epoll_pwait(epoll.0, events.as_mut_ptr(), 2, 1000, ptr::null()) };
        let mut found: Vec<_> =
            events[..got as usize].iter().map(|event| (event.u64, event.events)).collect();
        found.sort_unstable();
        assert_eq!(found, all(TAG | 4));
        assert_eq!(epoll.remove(reader.as_raw_fd()), Ok(0));
        stream.receive();
        assert_eq!(epoll.wait(0), []);
    }
}
