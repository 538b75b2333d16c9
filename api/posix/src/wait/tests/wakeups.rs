//! Reports of the kernel that come late, are lost, or are meant for another thread.
//!
//! Most tests put the epoll set into the state that a race leaves, instead of running the race.

use std::time::{Duration, Instant};

use super::*;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{SlotKind, bit};
use crate::readiness::set::{EpollSet, set_of};
use crate::system::multiplexing;

/// The set behind an epoll in which a stream is registered.
fn set(epoll: &Epoll) -> &'static EpollSet {
    set_of(&table::find(epoll.0).expect("an epoll")).expect("a set")
}

/// Changes the registrations of an epoll.
fn with<R>(epoll: &Epoll, change: impl FnOnce(&mut Registrations) -> R) -> R {
    change(&mut set(epoll).lock().expect("no other holder"))
}

fn number(epoll: &Epoll, stream: &Stream) -> u32 {
    let held = table::find(stream.0).expect("a stream");
    with(epoll, |locked| locked.find(stream.0, &held)).expect("a registration")
}

/// The state of a registration.
fn state(epoll: &Epoll, stream: &Stream) -> u16 {
    let number = number(epoll, stream);
    with(epoll, |locked| locked.slot(number).state)
}

/// What the kernel would report to a thread that sleeps in an epoll, which takes it.
fn kernel_reports(epoll: &Epoll) -> usize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: so many entries.
    unsafe { multiplexing::epoll_wait(epoll.0, events.as_mut_ptr(), 8, Some(0), ptr::null()) }
        .expect("epoll_wait")
}

/// Waits for 5 s at most, from `count` threads at once, while `then` runs.
fn each_of<const N: usize>(epoll: &Epoll, asleep: &Stream, then: impl FnOnce()) -> [Vec<(u64, u32)>; N] {
    std::thread::scope(|threads| {
        let waiters = [(); N].map(|()| threads.spawn(|| epoll.wait(5000)));
        until_asleep(asleep);
        while with(epoll, |locked| locked.sleepers) < N as u32 {
            std::thread::yield_now();
        }
        then();
        waiters.map(|waiter| waiter.join().expect("a waiter"))
    })
}

#[test]
fn the_hang_up_of_an_earlier_stream_ends_no_later_one_in_the_same_slot() {
    let ((stream, peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN | RDHUP, 1);
    let number = number(&epoll, &stream);
    // The kernel has reported the hang-up of another stream to this thread, which then waited for
    // the lock while the slot was used again.
    with(&epoll, |locked| locked.note_kernel_event(number, IN | HUP));
    assert_eq!(epoll.wait(0), []);
    peer.send(b"hello");
    assert_eq!(epoll.wait(0), [(1, IN)]);
    assert_eq!(stream.receive(), 5);
    // A hang-up of this one is seen, also through another of its descriptors.
    let other = crate::calls::descriptor::duplicate::dup(stream.0);
    drop(stream);
    drop(peer);
    with(&epoll, |locked| locked.note_kernel_event(number, HUP));
    assert_eq!(epoll.wait(0), [(1, IN | RDHUP)]);
    drop(Stream(other));
}

#[test]
fn a_sleeper_that_was_killed_costs_no_system_call_for_each_report() {
    let ([(first, first_peer), (second, second_peer)], epoll) = ([(); 2].map(|()| pair()), Epoll::new());
    epoll.add(first.0, IN, 1);
    epoll.add(second.0, IN, 2);
    first_peer.send(b"hello");
    let begin_period = |locked: &mut Registrations| locked.forcing_since = cycles();
    with(&epoll, |locked| {
        locked.share();
        locked.sleepers += 1;
        begin_period(locked);
        assert!(locked.wake_another());
    });
    assert_eq!(kernel_reports(&epoll), 1);
    for _ in 0..100 {
        with(&epoll, |locked| {
            begin_period(locked);
            locked.wake_another();
        });
        assert_eq!(kernel_reports(&epoll), 0, "forced in this period already");
    }
    // The sleeper's report was lost, although another stream is forced again and again.
    second_peer.send(b"hello");
    let number = number(&epoll, &second);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(20));
        with(&epoll, |locked| assert!(control::force_report(locked, number)));
        with(&epoll, |locked| assert!(locked.wake_another()));
        assert_eq!(kernel_reports(&epoll), 2);
    }
    with(&epoll, |locked| locked.sleepers = 0);
}

#[test]
fn a_poll_whose_descriptor_becomes_another_socket_neither_spins_nor_ends_the_connection() {
    let ((stream, peer), (other, other_peer)) = (pair(), pair());
    let kept = Stream(crate::calls::descriptor::duplicate::dup(stream.0));
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| {
            let mut one = [libc::pollfd { fd: stream.0, events: libc::POLLIN, revents: 0 }];
            // SAFETY: one entry.
            let ready =
                unsafe { crate::wait::poll::poll(one.as_mut_ptr(), 1, Some(3_000_000_000), ptr::null()) };
            (ready, one[0].revents)
        });
        until_asleep(&kept);
        drop(other_peer);
        crate::calls::descriptor::duplicate::dup2(other.0, stream.0);
        // A byte ends the sleep, and the kernel then finds the other socket, which has hung up.
        sietch_stream::peer::notify_always(Direct(peer.placeholder.as_fd()));
        assert_eq!(waiter.join().expect("the waiter"), (Ok(1), libc::POLLNVAL));
    });
    assert!(!kept.end(|end| end.private().has(sietch_ring::stream::flag::HUNG_UP)));
    peer.send(b"hello");
    assert_eq!(kept.receive(), 5);
}

#[test]
fn a_poll_for_one_event_takes_a_stream_that_the_kernel_reports_after_its_own_descriptors() {
    let ((stream, peer), epoll, (reader, writer)) = (pair(), Epoll::new(), pipe());
    epoll.add(stream.0, IN, 1);
    epoll.add(reader.as_raw_fd(), IN, 2);
    // The stream is off the list: the kernel alone knows when its bytes come.
    for _ in 0..40 {
        epoll.wait(1);
    }
    write(&writer);
    // The next call polls the kernel before it scans.
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(epoll.try_wait(1, 0), Ok(vec![(2, IN)]), "fills the array");
    peer.send(b"hello");
    // SAFETY: a byte.
    assert_eq!(unsafe { libc::read(reader.as_raw_fd(), [0_u8].as_mut_ptr().cast(), 1) }, 1);
    assert_eq!(epoll.try_wait(1, 0), Ok(vec![(1, IN)]));
}

#[test]
fn a_watcher_takes_no_report_from_a_thread_that_sleeps_in_the_epoll() {
    let ((stream, peer), (inner, outer)) = (pair(), (Epoll::new(), Epoll::new()));
    inner.add(stream.0, IN, 1);
    outer.add(inner.0, IN, 2);
    assert_eq!(outer.wait(0), []);
    with(&inner, |locked| locked.sleepers += 1);
    peer.send(b"hello");
    let number = number(&inner, &stream);
    with(&inner, |locked| assert!(locked.wake_another()));
    assert_eq!(outer.wait(0), [(2, IN)]);
    assert_ne!(state(&inner, &stream) & bit::PENDING, 0);
    assert_eq!(kernel_reports(&inner), 1, "for the sleeper");
    with(&inner, |locked| {
        locked.note_kernel_event(number, IN | OUT);
        locked.sleepers -= 1;
    });
    // Without one the watcher has the kernel watch it for data alone.
    assert_eq!(outer.wait(0), [(2, IN)]);
    assert_eq!(stream.receive(), 5);
    assert_eq!(outer.wait(0), []);
    assert_eq!(kernel_reports(&inner), 0);
}

#[test]
fn a_level_in_a_nested_epoll_wakes_every_thread_that_waits() {
    for kernels in [false, true] {
        let ((stream, peer), (inner, outer)) = (pair(), (Epoll::new(), Epoll::new()));
        let (reader, writer) = pipe();
        inner.add(stream.0, IN, 1);
        inner.add(reader.as_raw_fd(), IN, 3);
        outer.add(inner.0, IN, 2);
        // So that the outer epoll has a set of its own in each case.
        let (quiet, _quiet) = pair();
        outer.add(quiet.0, IN, 4);
        let began = std::time::Instant::now();
        let woken = each_of::<3>(&outer, &quiet, || {
            if kernels {
                write(&writer);
            } else {
                peer.send(b"hello");
            }
        });
        assert_eq!(woken, [(); 3].map(|()| vec![(2, IN)]), "of the kernel: {kernels}");
        assert!(began.elapsed() < Duration::from_secs(4), "of the kernel: {kernels}");
    }
}

#[test]
fn the_kernel_watches_an_exclusive_registration_after_it_was_forced() {
    let ((stream, peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN | libc::EPOLLEXCLUSIVE as u32, 1);
    peer.send(b"hello");
    with(&epoll, |locked| assert!(locked.wake_another()));
    assert_eq!(kernel_reports(&epoll), 1);
    assert_eq!(multiplexing::registrations(epoll.0, stream.0), Some(1));
}

#[test]
fn a_registration_that_the_kernel_refuses_is_made_again_by_the_next_report() {
    let ((stream, peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN | libc::EPOLLEXCLUSIVE as u32, 1);
    peer.send(b"hello");
    // As without memory: an epoll that no call can change.
    with(&epoll, |locked| {
        locked.epfd = -1;
        assert!(!locked.wake_another());
    });
    assert_eq!(state(&epoll, &stream) & (bit::FORCED | bit::PENDING | bit::UNWATCHED), bit::UNWATCHED);
    with(&epoll, |locked| {
        locked.epfd = epoll.0;
        assert!(locked.wake_another());
    });
    assert_eq!(kernel_reports(&epoll), 1);
}

#[test]
fn a_stream_that_was_closed_here_keeps_no_other_from_waking_a_thread() {
    let ((closed, peer), (open, _open), epoll) = (pair(), pair(), Epoll::new());
    epoll.add(closed.0, IN, 1);
    epoll.add(open.0, IN | OUT, 2);
    let other = Stream(crate::calls::descriptor::duplicate::dup(closed.0));
    drop(closed);
    peer.send(b"hello");
    with(&epoll, |locked| {
        locked.sleepers += 1;
        locked.wake_another();
        locked.sleepers -= 1;
    });
    assert_ne!(state(&epoll, &open) & bit::PENDING, 0);
    drop(other);
}

#[test]
fn a_removed_registration_passes_its_report_on() {
    let ((first, peer), (second, _second), epoll) = (pair(), pair(), Epoll::new());
    epoll.add(first.0, IN, 1);
    epoll.add(second.0, IN | OUT, 2);
    peer.send(b"hello");
    with(&epoll, |locked| {
        locked.share();
        locked.sleepers += 1;
        locked.wake_another();
    });
    assert_ne!(state(&epoll, &first) & bit::PENDING, 0);
    epoll.remove(first.0).expect("EPOLL_CTL_DEL");
    assert_ne!(state(&epoll, &second) & bit::PENDING, 0);
    assert_eq!(kernel_reports(&epoll), 1);
    with(&epoll, |locked| locked.sleepers -= 1);
}

#[test]
fn what_the_kernel_watches_is_known_after_a_removal_and_an_addition() {
    let ((stream, _peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN | OUT, 1);
    let number = number(&epoll, &stream);
    with(&epoll, |locked| {
        assert!(locked.wake_another());
        locked.make_dormant(number);
        locked.revive(number, IN, 1);
        locked.quieten(number);
    });
    assert_eq!(kernel_reports(&epoll), 0);
}

#[test]
fn a_report_of_room_alone_ends_what_was_forced_for_an_earlier_one() {
    let ((stream, _peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN | OUT, 1);
    let number = number(&epoll, &stream);
    with(&epoll, |locked| assert!(locked.wake_another()));
    assert_eq!(kernel_reports(&epoll), 1);
    with(&epoll, |locked| locked.note_kernel_event(number, OUT));
    assert_eq!(state(&epoll, &stream) & (bit::FORCED | bit::PENDING), bit::FORCED);
    with(&epoll, |locked| locked.note_kernel_event(number, OUT));
    assert_eq!(state(&epoll, &stream) & (bit::FORCED | bit::PENDING), 0);
    assert_eq!(kernel_reports(&epoll), 0);
}

#[test]
fn a_socket_that_is_removed_while_it_is_connected_was_no_stream() {
    let ((stream, _peer), (other, _other), epoll) = (pair(), pair(), Epoll::new());
    epoll.add(other.0, IN, 1);
    let held = table::find(stream.0).expect("a stream");
    with(&epoll, |locked| {
        let number = locked.insert(SlotKind::Native, stream.0, &held, IN, 2).expect("room");
        assert_eq!(locked.watched, 1);
        locked.make_dormant(number);
        assert_eq!(locked.watched, 1);
        locked.revive(number, IN, 2);
        assert_eq!(locked.watched, 2);
    });
}

#[test]
fn a_second_thread_of_a_child_that_joins_changes_nothing() {
    let ((stream, _peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN, 1);
    with(&epoll, |locked| locked.sleepers = 1);
    set(&epoll).join();
    with(&epoll, |locked| {
        assert_eq!(std::mem::take(&mut locked.sleepers), 1);
        assert!(!locked.multi_process.is_yes());
    });
}

#[test]
fn a_thread_that_missed_the_lock_is_uncounted_as_it_was_counted() {
    let ((stream, _peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN, 1);
    let set = set(&epoll);
    with(&epoll, |locked| locked.sleepers = 3);
    for (counted, left) in [(true, 2), (false, 2), (true, 1)] {
        set.missed(counted);
        assert_eq!(set.take_missed(), Some(u32::from(counted)));
        with(&epoll, |locked| {
            locked.recover_missed(u32::from(counted));
            assert_eq!(locked.sleepers, left);
        });
    }
    assert_eq!(set.take_missed(), None);
    with(&epoll, |locked| locked.sleepers = 0);
}

/// A child of fork waits in an epoll for a stream after `first` has run. The kernel reports it to
/// the child, which is killed before it has the lock.
fn lose_a_report_with_its_receiver(epoll: &Epoll, stream: &Stream, peer: &Peer, first: impl FnOnce()) {
    let (reader, writer) = pipe();
    hooks::before_fork();
    // SAFETY: the child calls what may be called in a child of a process with threads: no
    // allocation, no lock of the C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        hooks::after_fork();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: a byte, and four entries.
        let _ = unsafe {
            libc::read(reader.as_raw_fd(), events.as_mut_ptr().cast(), 1);
            epoll::wait(epoll.0, events.as_mut_ptr(), 4, None, ptr::null())
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(1) };
    }
    first();
    // One that was killed in its sleep counts for ever.
    let sleepers = with(epoll, |locked| locked.sleepers);
    write(&writer);
    until_asleep(stream);
    while with(epoll, |locked| locked.sleepers) == sleepers {
        std::thread::yield_now();
    }
    // The kernel reports to the thread that has begun to sleep last.
    std::thread::sleep(Duration::from_millis(20));
    with(epoll, |_| {
        peer.send(b"x");
        // The kernel has a report for it until it takes it.
        let mut one = [libc::pollfd { fd: epoll.0, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one entry.
        while unsafe { libc::poll(one.as_mut_ptr(), 1, 0) } != 0 {
            std::thread::yield_now();
        }
        // SAFETY: the child of above.
        unsafe {
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(child, ptr::null_mut(), 0), child);
        }
    });
}

#[test]
fn a_report_that_was_lost_with_its_receiver_is_found_by_a_relative() {
    let ((stream, peer), (other, _other_peer), epoll) = (pair(), pair(), Epoll::new());
    epoll.add(stream.0, IN, 1);
    epoll.add(other.0, IN, 2);
    lose_a_report_with_its_receiver(&epoll, &stream, &peer, || ());
    // Also by one that never sleeps.
    let began = Instant::now();
    while epoll.wait(0) != [(1, IN)] {
        assert!(began.elapsed() < Duration::from_secs(5), "nothing is reported");
    }
    stream.receive();
    lose_a_report_with_its_receiver(&epoll, &stream, &peer, || ());
    assert_eq!(epoll.wait(5000), [(1, IN)]);
}

#[test]
fn a_report_of_a_nested_epoll_that_was_lost_is_found_by_a_relative() {
    for edge in [0, EDGE] {
        let ((stream, peer), outer, inner) = (pair(), Epoll::new(), Epoll::new());
        outer.add(inner.0, IN | edge, 1);
        inner.add(stream.0, IN, 2);
        assert_eq!(outer.wait(0), []);
        lose_a_report_with_its_receiver(&outer, &stream, &peer, || ());
        assert_eq!(outer.wait(5000), [(1, IN)]);
        assert_eq!(inner.wait(0), [(2, IN)]);
        stream.receive();
        lose_a_report_with_its_receiver(&outer, &stream, &peer, || ());
        let mut one = [libc::pollfd { fd: outer.0, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one entry.
        let ready = unsafe { crate::wait::poll::poll(one.as_mut_ptr(), 1, Some(5_000_000_000), ptr::null()) };
        assert_eq!((ready, one[0].revents), (Ok(1), libc::POLLIN));
    }
}

#[test]
fn a_thread_that_slept_before_a_child_used_its_epoll_finds_what_the_child_lost() {
    let ((stream, peer), epoll) = (pair(), Epoll::new());
    epoll.add(stream.0, IN, 1);
    let began = Instant::now();
    std::thread::scope(|threads| {
        let mut waiter = None;
        lose_a_report_with_its_receiver(&epoll, &stream, &peer, || {
            waiter = Some(threads.spawn(|| epoll.wait(5000)));
            while with(&epoll, |locked| locked.sleepers) == 0 {
                std::thread::yield_now();
            }
        });
        assert_eq!(waiter.expect("it was started").join().expect("the waiter"), [(1, IN)]);
    });
    assert!(began.elapsed() < Duration::from_secs(4), "it was not woken");
}

#[test]
fn a_nested_epoll_whose_number_was_closed_is_asked_through_another() {
    let ((stream, peer), inner, outer) = (pair(), Epoll::new(), Epoll::new());
    inner.add(stream.0, IN, 2);
    outer.add(inner.0, IN, 1);
    let other = Epoll(crate::calls::descriptor::duplicate::dup(inner.0));
    drop(inner);
    assert_eq!(outer.wait(0), []);
    peer.send(b"x");
    assert_eq!(outer.wait(1000), [(1, IN)]);
    assert_eq!(other.wait(0), [(2, IN)]);
    stream.receive();
    assert_eq!(outer.wait(0), []);
}
