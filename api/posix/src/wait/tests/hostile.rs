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
fn a_lock_that_a_relative_never_releases_is_not_waited_for_forever() {
    let (stream, _peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    let word = set(&epoll).owner_among_relatives();
    // A thread that runs and is none of this process: the first of the machine.
    word.store(1, SeqCst);
    assert_eq!(epoll.try_wait(4, 0), Err(libc::EINTR));
    word.store(0, SeqCst);
    assert_eq!(epoll.wait(0), []);
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
