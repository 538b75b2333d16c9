//! Several threads, and several processes of a fork, that wait at the same streams and epolls.
//!
//! A test waits until the other thread sleeps ([`until_asleep`]) before it causes the event, so
//! that the wake-up is tested and not only the check before the sleep. Tests that install signal
//! handlers run one at a time ([`HANDLERS`]).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::signal::handlers;

#[test]
fn an_epoll_within_an_epoll_and_within_poll_is_readable_when_a_stream_is() {
    let (stream, peer) = pair();
    let (inner, outer) = (Epoll::new(), Epoll::new());
    outer.add(inner.0, IN, 1);
    inner.add(stream.0, IN, 2);
    assert_eq!(outer.wait(0), []);
    std::thread::scope(|threads| {
        for _ in 0..50 {
            let waiter = threads.spawn(|| outer.wait(-1));
            until_asleep(&stream);
            peer.send(b"x");
            assert_eq!(waiter.join().expect("the waiter"), [(1, IN)]);
            assert_eq!(outer.wait(-1), [(1, IN)]);
            assert_eq!(inner.wait(-1), [(2, IN)]);
            stream.receive();
            assert_eq!(inner.wait(0), []);
            assert_eq!(outer.wait(0), []);

            let waiter = threads.spawn(|| {
                let mut one = [libc::pollfd { fd: inner.0, events: libc::POLLIN, revents: 0 }];
                // SAFETY: one entry.
                let ready = unsafe { crate::wait::poll::poll(one.as_mut_ptr(), 1, None, ptr::null()) };
                (ready, one[0].revents)
            });
            until_asleep(&stream);
            peer.send(b"x");
            assert_eq!(waiter.join().expect("the waiter"), (Ok(1), libc::POLLIN));
            stream.receive();
        }
    });
    // Kernel descriptors of the inner one count as well.
    let (reader, writer) = pipe();
    inner.add(reader.as_raw_fd(), IN, 3);
    assert_eq!(outer.wait(0), []);
    write(&writer);
    assert_eq!(outer.wait(-1), [(1, IN)]);
    assert_eq!(outer.wait(-1), [(1, IN)]);
    assert_eq!(inner.wait(-1), [(3, IN)]);
}

#[test]
fn every_watcher_of_an_epoll_is_woken() {
    let ((stream, peer), inner) = (pair(), Epoll::new());
    inner.add(stream.0, IN, 1);
    let outers = [IN, IN | EDGE].map(|events| {
        let outer = Epoll::new();
        outer.add(inner.0, events, 2);
        assert_eq!(outer.wait(0), []);
        outer
    });
    let poll = || {
        let mut one = [libc::pollfd { fd: inner.0, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one entry.
        let ready = unsafe { crate::wait::poll::poll(one.as_mut_ptr(), 1, Some(5_000_000_000), ptr::null()) };
        assert_eq!(ready, Ok(1));
    };
    for _ in 0..30 {
        let began = std::time::Instant::now();
        std::thread::scope(|threads| {
            let watchers = [threads.spawn(poll), threads.spawn(poll)];
            let epolls = outers.each_ref().map(|outer| threads.spawn(|| outer.wait(5000)));
            until_asleep(&stream);
            std::thread::sleep(std::time::Duration::from_millis(5));
            peer.send(b"x");
            watchers.into_iter().for_each(|watcher| watcher.join().expect("a watcher"));
            epolls.into_iter().for_each(|epoll| assert_eq!(epoll.join().expect("a watcher"), [(2, IN)]));
        });
        assert!(began.elapsed() < std::time::Duration::from_secs(4), "one was not woken");
        stream.receive();
        assert_eq!(inner.wait(0), []);
    }
}

#[test]
fn threads_that_share_an_epoll_get_every_event_once_with_one_shot() {
    let pairs: Vec<_> = (0..8).map(|_| pair()).collect();
    let epoll = Epoll::new();
    for (index, (stream, _)) in pairs.iter().enumerate() {
        epoll.add(stream.0, IN | ONCE, index as u64);
    }
    let (total, got) = (4000_u32, AtomicU32::new(0));
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while got.load(SeqCst) < total {
                    for (index, _) in epoll.try_wait(2, 50).unwrap_or_default() {
                        let stream = &pairs[index as usize].0;
                        got.fetch_add(stream.receive() as u32, SeqCst);
                        epoll.modify(stream.0, IN | ONCE, index);
                    }
                }
            });
        }
        for round in 0..total {
            assert_eq!(pairs[round as usize % 8].1.send(b"x"), 1);
        }
    });
    assert_eq!(got.load(SeqCst), total);
}

#[test]
fn a_change_by_another_thread_reaches_the_sleeper() {
    let (stream, peer) = pair();
    let (quiet, _quiet) = pair();
    let epoll = Epoll::new();
    epoll.add(quiet.0, IN, 1);
    peer.send(b"x");
    std::thread::scope(|threads| {
        for round in 0..50 {
            let waiter = threads.spawn(|| epoll.wait(-1));
            until_asleep(&quiet);
            if round == 0 {
                epoll.add(stream.0, IN, 2);
            } else {
                epoll.modify(stream.0, IN, 2);
            }
            assert_eq!(waiter.join().expect("the waiter"), [(2, IN)]);
            epoll.modify(stream.0, 0, 2);
        }
    });
}

#[test]
fn parent_and_child_of_a_fork_use_one_epoll() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: the child calls what may be called in a child of a process with threads: no
    // allocation, no lock of the C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        hooks::after_fork();
        // SAFETY: four entries.
        let got = unsafe { epoll::wait(epoll.0, events.as_mut_ptr(), 4, Some(5_000_000_000), ptr::null()) };
        let right = got == Ok(1) && events[0].u64 == 1;
        // SAFETY: ends the child.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    until_asleep(&stream);
    peer.send(b"x");
    let mut status = 0;
    // SAFETY: the child of above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(epoll.wait(-1), [(1, IN)], "the parent's copy of the set knows it too");
}

#[test]
fn a_call_that_a_handler_jumps_out_of_holds_nothing() {
    use std::mem::ManuallyDrop;

    use sietch_ring::stream::Want;

    let (stream, _peer) = pair();
    let held = ManuallyDrop::new(table::find(stream.0).expect("a stream"));
    for want in [Want::Data, Want::Room] {
        // As `sleep::until` has it while it sleeps. The jump leaves the frame, so nothing in it is
        // dropped.
        let held = ManuallyDrop::new((*held).clone());
        let call = ManuallyDrop::new(crate::connection::blocked::BlockedCall::begin(stream.0, &held));
        stream.end(|end| end.arm(want));
        call.armed.set(Some(want));
        call.registered.set(true);
        crate::signal::longjmp::register(&raw const *call);
        let within = std::ptr::from_ref(&*call).addr();
        crate::signal::longjmp::abandon_below(within);
        assert_eq!(held.sleepers.load(SeqCst), 1, "a jump within the handler leaves the call alone");
        crate::signal::longjmp::abandon_below(usize::MAX);
        assert_eq!((held.sleepers.load(SeqCst), stream.end(Endpoint::waiting)), (0, 0));
        crate::signal::longjmp::abandon_below(usize::MAX);
    }
    drop(ManuallyDrop::into_inner(held));
}

extern "C" fn nothing(_signal: c_int) {}

/// The threads' handlers are one process's.
static HANDLERS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn signals_end_waits_that_poll_and_waits_that_sleep() {
    let _alone = HANDLERS.lock();
    handlers::bsd_signal(libc::SIGWINCH, nothing as *const () as usize).expect("signal");
    let (stream, _peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    for round in 0..40 {
        std::thread::scope(|threads| {
            let (sender, identity) = std::sync::mpsc::channel();
            let epoll = &epoll;
            let stream = &stream;
            let waiter = threads.spawn(move || {
                // SAFETY: names this thread.
                sender.send(unsafe { libc::pthread_self() }).expect("the test listens");
                if round % 2 == 0 {
                    epoll.try_wait(4, -1).map(|_| 0)
                } else {
                    let mut one = [libc::pollfd { fd: stream.0, events: libc::POLLIN, revents: 0 }];
                    // SAFETY: one entry.
                    unsafe { crate::wait::poll::poll(one.as_mut_ptr(), 1, None, ptr::null()) }
                }
            });
            let thread = identity.recv().expect("the waiter began");
            // Again and again, as a handler may run before the call begins.
            while !waiter.is_finished() {
                // SAFETY: the thread exists: it was not joined.
                unsafe { libc::pthread_kill(thread, libc::SIGWINCH) };
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().expect("the waiter"), Err(libc::EINTR));
        });
    }
}

#[test]
fn a_mask_applies_during_the_wait_alone() {
    let _alone = HANDLERS.lock();
    handlers::bsd_signal(libc::SIGURG, nothing as *const () as usize).expect("signal");
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    // SAFETY: sets on the stack.
    unsafe {
        let mut urgent: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut urgent, libc::SIGURG);
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const urgent, &raw mut before);
        let seen = handlers::count();
        libc::raise(libc::SIGURG);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        peer.send(b"x");
        let got = epoll::wait(epoll.0, events.as_mut_ptr(), 4, None, (&raw const before).cast());
        assert_eq!((got, handlers::count()), (Ok(1), seen), "what is ready wins over what is pending");
        stream.receive();
        let got = epoll::wait(epoll.0, events.as_mut_ptr(), 4, None, (&raw const before).cast());
        assert_eq!((got, handlers::count()), (Err(libc::EINTR), seen.wrapping_add(1)));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

#[test]
fn a_wait_ends_at_its_timeout() {
    let (stream, _peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 1);
    let began = std::time::Instant::now();
    assert_eq!(epoll.wait(30), []);
    assert!(began.elapsed() >= std::time::Duration::from_millis(30));
    // SAFETY: four entries.
    unsafe {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        kernel::epoll_wait(epoll.0, events.as_mut_ptr(), 4, Some(0), ptr::null()).expect("the kernel's");
    }
}
