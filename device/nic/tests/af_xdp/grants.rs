//! What may be done with a grant, and by whom.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::process::{Pid, WaitOptions, waitpid};
use sietch_nic::af_xdp::{self, CreateError, Geometry, Granted, OpenError, Queue};

use crate::namespace::{KERNEL_END, QUEUE_ADDRESS, QUEUE_END, QUEUE_MAC, ifindex, with_veth};
use crate::station::{ECHO_PORT, MTU, echo, granted, kernel_socket, opened, wait};

fn duplicate(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("a descriptor to spare")
}

fn refused(granted: Granted) -> OpenError {
    Queue::open(granted, QUEUE_MAC, MTU).expect_err("a grant that is wrong")
}

fn memory(length: u64, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&memory, length).expect("a size");
    fcntl_add_seals(&memory, seals).expect("a memfd that allows seals");
    memory
}

#[test]
fn a_wrong_grant_is_refused_by_name() {
    with_veth("a_wrong_grant_is_refused_by_name", || {
        let (granted, _redirect) = granted();
        let geometry = granted.geometry;
        let right = geometry.umem_bytes() as u64;
        let grant = |socket: &OwnedFd, umem: &OwnedFd, geometry| Granted {
            socket: duplicate(socket),
            umem: duplicate(umem),
            geometry,
        };
        let short = memory(right - 4096, SealFlags::SHRINK);
        let open_ended = memory(right, SealFlags::GROW);
        let (socket, umem) = (&granted.socket, &granted.umem);
        let udp = OwnedFd::from(kernel_socket());
        assert!(matches!(refused(grant(socket, &short, geometry)), OpenError::UmemSize { .. }));
        assert!(matches!(refused(grant(socket, &open_ended, geometry)), OpenError::NotSealed));
        assert!(matches!(refused(grant(&udp, umem, geometry)), OpenError::NotAfXdp(None)));
        assert!(matches!(refused(grant(umem, umem, geometry)), OpenError::NotAfXdp(Some(_))));
        let wild = Geometry { transmit: 0, ..geometry };
        assert!(matches!(refused(grant(socket, umem, wild)), OpenError::Geometry(_)));
        let deep = Geometry { fill: 1 << 15, ..geometry };
        assert!(matches!(refused(grant(socket, umem, deep)), OpenError::Step { .. }), "not that large");
        let too_long = Queue::open(grant(socket, umem, geometry), QUEUE_MAC, 9000);
        assert!(matches!(too_long, Err(OpenError::Geometry(_))));
        // After all that the real one still opens, and only once.
        let queue = Queue::open(grant(socket, umem, geometry), QUEUE_MAC, MTU).expect("a fresh grant");
        assert!(matches!(refused(granted), OpenError::AlreadyUsed));
        drop(queue);
    });
}

#[test]
fn a_held_queue_is_busy_and_a_closed_one_is_not() {
    with_veth("a_held_queue_is_busy_and_a_closed_one_is_not", || {
        let (queue, redirect) = opened();
        let geometry = queue.geometry();
        assert!(matches!(af_xdp::create(geometry), Err(CreateError::Busy { .. })));
        drop((queue, redirect));
        af_xdp::create(geometry).expect("the kernel lets go within the patience of `create`");
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    with_veth("an_interface_that_is_not_there_is_named", || {
        let nowhere = Geometry::for_mtu(4_000_000, 0, MTU).expect("an ordinary MTU");
        let error = af_xdp::create(nowhere).expect_err("no such interface").to_string();
        assert!(error.contains("4000000"), "{error}");
        let no_queue = Geometry::for_mtu(ifindex(QUEUE_END), 7, MTU).expect("an ordinary MTU");
        assert!(matches!(af_xdp::create(no_queue), Err(CreateError::Bind { queue: 7, .. })));
    });
}

/// What the child without privilege does; its result becomes the exit status.
fn play_application(
    granted: Granted,
    ready: OwnedFd,
    elsewhere: u32,
    echoes: usize,
) -> Result<(), &'static str> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|_| "/proc/self/status")?;
    if !status.contains("CapEff:\t0000000000000000") {
        return Err("there are capabilities left");
    }
    // What the grant must not be good for.
    let flags = SocketAddrXdpFlags::XDP_COPY;
    if rustix::net::bind(&granted.socket, &SocketAddrXdp::new(flags, elsewhere, 0)).is_ok() {
        return Err("the socket could be bound elsewhere");
    }
    if ftruncate(&granted.umem, 0).is_ok() {
        return Err("the UMEM could be shrunk");
    }
    let own = Geometry { ifindex: elsewhere, ..granted.geometry };
    if !matches!(af_xdp::create(own), Err(CreateError::Privilege(_))) {
        return Err("a queue could be made without privilege");
    }
    // What it must be good for.
    let mut queue = Queue::open(granted, QUEUE_MAC, MTU).map_err(|_| "the grant does not open")?;
    rustix::io::write(&ready, b"!").map_err(|_| "the parent is gone")?;
    let mut frames = Vec::new();
    let mut answered = 0;
    while answered < echoes {
        if !wait(&queue) {
            return Err("no frame arrives");
        }
        answered += echo(&mut queue, &mut frames);
    }
    Ok(())
}

#[test]
fn a_process_without_capabilities_uses_its_grant() {
    with_veth("a_process_without_capabilities_uses_its_grant", || {
        const ECHOES: usize = 100;
        let (granted, _redirect) = granted();
        let elsewhere = ifindex(KERNEL_END);
        let socket = kernel_socket();
        let (opened, ready) = rustix::pipe::pipe().expect("two descriptors to spare");
        // SAFETY: the child runs on a copy of this thread alone; it takes no lock that another thread could have held
        // (glibc re-arms malloc's), prints nothing, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            // SAFETY: plain system calls; in the child there is one thread, whose identity they change.
            let dropped = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) == 0
                    && libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534) == 0
                    && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
            };
            let play = || play_application(granted, ready, elsewhere, ECHOES);
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
            let (status, why) = match played {
                Ok(Ok(())) if dropped => (0, ""),
                Ok(Err(why)) => (1, why),
                _ => (2, "the child could not drop its privileges, or panicked"),
            };
            let _lost = rustix::io::write(std::io::stderr().as_fd(), why.as_bytes());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
        drop((granted, ready));
        let mut answer = [0; 64];
        // Before the queue is open there is no buffer to receive into. End of file: it never will be.
        let open = rustix::io::read(&opened, &mut [0_u8; 1]).expect("a pipe");
        for _ in 0..ECHOES * open {
            socket.send_to(b"who are you", (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
            if socket.recv(&mut answer).is_err() {
                break; // The child's status says why.
            }
        }
        let child = Pid::from_raw(child).expect("a child's pid is not zero");
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).expect("our child").expect("it ends");
        assert_eq!(status.exit_status(), Some(0));
    });
}
