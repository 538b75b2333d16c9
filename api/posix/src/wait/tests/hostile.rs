//! A relative that writes arbitrary values into the shared memory of an epoll.

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::readiness::set::{EpollSet, set_of};

fn set(epoll: &Epoll) -> &'static EpollSet {
    let held = table::find(epoll.0).expect("the epoll");
    set_of(&held).expect("an set")
}

/// Numbers that are likely to lead somewhere, and others.
fn arbitrary(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let random = (*state >> 33) as u32;
    match random % 7 {
        0 => u32::MAX,
        1 => u32::MAX - 1,
        2 => 0,
        3 => 0x0101_0101,
        4 => random % 8,
        5 => 1 << (random % 32),
        _ => random,
    }
}

#[test]
fn corrupted_memory_of_relatives_leads_nowhere() {
    let lost = OwnedFd::from(std::fs::File::open("/dev/null").expect("a file"));
    for seed in 0..25_u64 {
        let mut state = seed;
        let epoll = Epoll::new();
        let mut streams: Vec<_> = (0..6).map(|_| pair()).collect();
        for (number, (stream, _)) in streams.iter().enumerate() {
            epoll.add(stream.0, if number % 2 == 0 { IN } else { IN | OUT | EDGE }, number as u64);
        }
        // Memory that a relative may have corrupted is not used for another epoll.
        hooks::before_fork();
        for round in 0..40 {
            {
                let mut locked = set(&epoll).lock().expect("free");
                let chosen = arbitrary(&mut state) % 3;
                for word in locked.words().flatten() {
                    if chosen == 0 || arbitrary(&mut state).is_multiple_of(16) {
                        *word = arbitrary(&mut state);
                    }
                }
            }
            let (stream, peer) = &streams[round % streams.len()];
            peer.send(b"x");
            // The results may be anything.
            let _ = epoll.try_wait(4, round as c_int % 2);
            let _ = epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN, 7);
            let _ = epoll.remove(stream.0);
            let _ = epoll.control(libc::EPOLL_CTL_ADD, stream.0, IN | ONCE, 8);
            let _ = epoll.control(libc::EPOLL_CTL_ADD, lost.as_raw_fd(), IN, 9);
            if round % 8 == 7 {
                streams.remove(round % streams.len());
                streams.push(pair());
            }
        }
    }
}

#[test]
fn a_lock_that_a_relative_never_releases_is_waited_for_once() {
    let streams: Vec<_> = (0..3).map(|_| pair()).collect();
    let epoll = Epoll::new();
    epoll.add(streams[0].0.0, IN, 0);
    epoll.add(streams[1].0.0, IN | EDGE, 1);
    // Removed, so that its slot is free.
    epoll.add(streams[2].0.0, IN, 2);
    epoll.remove(streams[2].0.0).expect("it is there");
    let set = set(&epoll);
    let mut pipe = [0; 2];
    // SAFETY: the kernel writes two numbers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    hooks::before_fork();
    // SAFETY: the child calls what may be called in a child of a process with threads: no
    // allocation, no lock of the C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        hooks::after_fork();
        let _held = set.lock();
        // SAFETY: writes one byte; sleeps until it is killed; ends the child.
        unsafe {
            libc::write(pipe[1], [0_u8].as_ptr().cast(), 1);
            libc::pause();
            libc::_exit(0);
        }
    }
    // SAFETY: reads one byte.
    assert_eq!(unsafe { libc::read(pipe[0], [0_u8].as_mut_ptr().cast(), 1) }, 1);
    assert_ne!(set.owner_among_relatives().load(SeqCst), 0, "the child has the lock");
    assert_eq!(epoll.wait(0), []);
    assert_eq!(set.owner_among_relatives().load(SeqCst), 0, "it has the lock of its own memory");
    for (number, (stream, peer)) in streams.iter().enumerate().take(2) {
        peer.send(b"x");
        assert_eq!(epoll.wait(-1), [(number as u64, IN)]);
        assert_eq!(stream.receive(), 1);
    }
    epoll.add(streams[2].0.0, IN, 2);
    streams[2].1.send(b"x");
    assert_eq!(epoll.wait(-1), [(2, IN)]);
    assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, streams[0].0.0, IN, 0), Err(libc::EEXIST));
    epoll.remove(streams[0].0.0).expect("it is known");
    let mut status = 0;
    // SAFETY: the child of above; the ends of the pipe.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        pipe.iter().for_each(|end| assert_eq!(libc::close(*end), 0));
    }
}

#[test]
fn a_process_without_limits_has_room_for_a_connection_and_an_epoll_set() {
    assert!(sietch_ring::stream::is_mappable(RegionSizes::default(), EpollSet::length()));
    assert!(!sietch_ring::stream::is_mappable(RegionSizes::default(), 1 << 47));
}

#[test]
fn a_child_that_closes_an_epoll_cannot_change_it_any_more() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    let of_parent = set(&epoll);
    // SAFETY: the child calls what may be called in a child of a process with threads: no
    // allocation, no lock of the C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        hooks::after_fork();
        crate::calls::descriptor::close::close(epoll.0);
        // A compromised process finds the memory at the same place, and overwrites it.
        let own = of_parent.lock().is_some_and(|mut locked| {
            let empty = locked.slot(0).data == 0;
            locked.words().flatten().for_each(|word| *word = u32::MAX);
            empty
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(if own { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child of above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has the parent's registrations still");
    peer.send(b"x");
    assert_eq!(epoll.wait(-1), [(1, IN)]);
}
