//! What may be done with a grant, and by whom.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::process::{Pid, WaitOptions, waitpid};
use sietch_nic::af_xdp::{self, CreateError, Granted, OpenError, Queue, XskLayout};
use sietch_nic::namespace::Namespace;

use crate::namespace::{KERNEL_END, QUEUE_ADDRESS, QUEUE_END, QUEUE_MAC, ifindex, ip, with_veth};
use crate::station::{ECHO_PORT, MTU, echo, granted, kernel_socket, open, opened, wait};

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
        let layout = granted.layout;
        let right = layout.umem_bytes() as u64;
        let grant = |socket: &OwnedFd, umem: &OwnedFd, layout| Granted {
            socket: duplicate(socket),
            umem: duplicate(umem),
            layout,
        };
        let short = memory(right - 4096, SealFlags::SHRINK);
        let open_ended = memory(right, SealFlags::GROW);
        let (socket, umem) = (&granted.socket, &granted.umem);
        let udp = OwnedFd::from(kernel_socket());
        assert!(matches!(refused(grant(socket, &short, layout)), OpenError::UmemSize { .. }));
        assert!(matches!(refused(grant(socket, &open_ended, layout)), OpenError::NotSealed));
        assert!(matches!(refused(grant(&udp, umem, layout)), OpenError::NotAfXdp(None)));
        assert!(matches!(refused(grant(umem, umem, layout)), OpenError::NotAfXdp(Some(_))));
        let wild = XskLayout { transmit: 0, ..layout };
        assert!(matches!(refused(grant(socket, umem, wild)), OpenError::Layout(_)));
        let deep = XskLayout { fill: 1 << 15, ..layout };
        assert!(matches!(refused(grant(socket, umem, deep)), OpenError::Step { .. }), "not that large");
        let too_long = Queue::open(grant(socket, umem, layout), QUEUE_MAC, 9000);
        assert!(matches!(too_long, Err(OpenError::Layout(_))));
        // After all that the real one still opens, and only once.
        let queue = open(grant(socket, umem, layout), MTU).expect("a fresh grant");
        assert!(matches!(refused(granted), OpenError::AlreadyUsed));
        drop(queue);
    });
}

#[test]
fn a_held_queue_is_busy_and_a_closed_one_is_not() {
    with_veth("a_held_queue_is_busy_and_a_closed_one_is_not", || {
        let (queue, redirect) = opened();
        let layout = queue.layout();
        let second = af_xdp::create(layout).expect("a socket that is not bound takes nothing");
        let bind = || af_xdp::bind_queue(second.socket.as_fd(), &layout);
        assert!(matches!(bind(), Err(CreateError::Busy { .. })));
        drop((queue, redirect));
        // The kernel releases the queue from a work queue.
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = bind() {
            assert!(matches!(error, CreateError::Busy { .. }) && Instant::now() < deadline, "{error}");
            std::thread::yield_now();
        }
        let twice = bind().expect_err("it is bound").to_string();
        assert!(twice.contains("bound already") && twice.contains("os error 16"), "{twice}");
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    with_veth("an_interface_that_is_not_there_is_named", || {
        let nowhere = XskLayout::for_mtu(4_000_000, 0, MTU).expect("an ordinary MTU");
        let made = af_xdp::create(nowhere).expect("a socket without an interface");
        let error = af_xdp::bind_queue(made.socket.as_fd(), &nowhere).expect_err("no such interface");
        assert!(
            error.to_string().contains("4000000") && error.to_string().contains("os error 19"),
            "{error}"
        );
        let no_queue = XskLayout::for_mtu(ifindex(QUEUE_END), 7, MTU).expect("an ordinary MTU");
        let refused = af_xdp::bind_queue(made.socket.as_fd(), &no_queue);
        assert!(matches!(refused, Err(CreateError::Bind { queue: 7, .. })));
    });
}

/// What the child without privilege does; its result becomes the exit status.
fn play_application(
    granted: Granted,
    (ready, bound): (OwnedFd, OwnedFd),
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
        return Err("the socket could be bound to the host's interface");
    }
    if ftruncate(&granted.umem, 0).is_ok() {
        return Err("the UMEM could be shrunk");
    }
    let (again, ifindex) = (duplicate(&granted.socket), granted.layout.ifindex);
    let own = XskLayout { ifindex: elsewhere, ..granted.layout };
    if !matches!(af_xdp::create(own), Err(CreateError::Privilege(_))) {
        return Err("a queue could be made without privilege");
    }
    // What it must be good for.
    let mut queue = Queue::open(granted, QUEUE_MAC, MTU).map_err(|_| "the grant does not open")?;
    rustix::io::write(&ready, b"!").map_err(|_| "the parent has ended")?;
    rustix::io::read(&bound, &mut [0_u8; 1]).map_err(|_| "the parent has ended")?;
    if rustix::net::bind(&again, &SocketAddrXdp::new(flags, ifindex, 0)).is_ok() {
        return Err("the socket could be bound again");
    }
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
        let namespace = Namespace::create().expect("a namespace of the queue's own");
        let index = ifindex(QUEUE_END);
        ip(&format!(
            "link set {QUEUE_END} netns /proc/{}/fd/{}",
            std::process::id(),
            namespace.as_fd().as_raw_fd()
        ));
        let (granted, _redirect) = namespace
            .enter(|| {
                ip(&format!("link set {QUEUE_END} up"));
                assert_eq!(ifindex(QUEUE_END), index, "an index that is free is kept");
                granted()
            })
            .expect("root enters every namespace");
        let elsewhere = ifindex(KERNEL_END);
        let socket = kernel_socket();
        let (opened, ready) = rustix::pipe::pipe().expect("two descriptors to spare");
        let (waits, bound) = rustix::pipe::pipe().expect("two descriptors to spare");
        // SAFETY: the child runs on a copy of this thread alone; it takes no lock that another
        // thread could have held (glibc re-arms malloc's), prints nothing, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            // SAFETY: plain system calls; in the child there is one thread, whose identity they
            // change.
            let dropped = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) == 0
                    && libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534) == 0
                    && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
            };
            let play = || play_application(granted, (ready, waits), elsewhere, ECHOES);
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
        drop((ready, waits));
        let mut answer = [0; 64];
        // Before the queue is open there is no buffer to receive into. End of file: it never will
        // be.
        let open = rustix::io::read(&opened, &mut [0_u8; 1]).expect("a pipe");
        if open > 0 {
            // The holder has mapped the rings, and what it holds is bound from here.
            af_xdp::bind_queue(granted.socket.as_fd(), &granted.layout).expect("no other process bound it");
        }
        drop(granted);
        rustix::io::write(&bound, b"!").expect("a pipe");
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
