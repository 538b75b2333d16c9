//! Listeners whose service crashes, or whose process is short of descriptors.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sietch_stream::Listener;
use sietch_stream::poller::Poller;

use crate::played_service::{PlayedService, arrive};

const LOCAL: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

#[test]
fn a_service_that_crashes_in_a_loop_is_asked_at_a_pace() {
    const MILLISECOND: u64 = 1_000_000;
    let service = PlayedService::start();
    let listener = Rc::new(Listener::bind(&service.direct(), LOCAL.into(), 8).unwrap());
    let mut poller = Poller::new().unwrap();
    poller.add_listener(&listener).unwrap();
    // Another thread waits for the service's answers, in real time.
    let answer_time = Duration::from_micros(200);
    let mut asked = 0;
    // A second, in which it ends as soon as it has the listener.
    for now in (1_000 * MILLISECOND..2_000 * MILLISECOND).step_by(MILLISECOND as usize) {
        asked += usize::from(service.listeners.recv_timeout(answer_time).is_ok());
        poller.poll(now, &mut Vec::new()).unwrap();
    }
    assert!((5..=100).contains(&asked), "asked {asked} times in a second");
    // One that stays has it again.
    let mut held: Vec<OwnedFd> = Vec::new();
    for now in 2_000.. {
        poller.poll(now * MILLISECOND, &mut Vec::new()).unwrap();
        held.extend(service.listeners.recv_timeout(answer_time));
        if !held.is_empty() && listener.is_registered() {
            break;
        }
        assert!(now < 60_000, "it is not asked again");
    }
}

#[test]
fn no_connection_is_lost_where_another_thread_takes_the_last_descriptors() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["listener::short_of_descriptors", "--exact", "--ignored", "--nocapture"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("accepted all"), "{output:?}");
}

#[test]
#[ignore = "lowers its process's limit of descriptors; the test above starts it"]
fn short_of_descriptors() {
    const CONNECTIONS: usize = 300;
    /// All numbers up to this one are in use.
    const FILLED: i32 = 64;
    let service = PlayedService::start();
    let listener = Listener::bind(&service.direct(), LOCAL.into(), 8).unwrap();
    let placeholder = service.listeners.recv().unwrap();
    let mut filling = vec![fcntl_dupfd_cloexec(&placeholder, 0).unwrap()];
    while filling.last().is_some_and(|last| last.as_raw_fd() < FILLED) {
        filling.push(fcntl_dupfd_cloexec(&placeholder, 0).unwrap());
    }
    let limits = getrlimit(Resource::Nofile);
    let limit = |free: u64| {
        let current = Some(FILLED as u64 + 1 + free);
        setrlimit(Resource::Nofile, Rlimit { current, ..limits }).unwrap();
    };
    let done = AtomicBool::new(false);
    // What goes on in this thread has an end, also where it fails.
    struct AtEnd<'a>(&'a AtomicBool);
    impl Drop for AtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut sent, mut accepted, mut refused) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Takes every number as soon as it is free.
                let dup = |_| fcntl_dupfd_cloexec(&placeholder, 0).ok();
                let taken: Vec<_> = (0..100).filter_map(dup).take(4).collect();
                drop(taken);
                // Leaves them free for about as long as it has them.
                for _ in 0..2_000 {
                    std::hint::spin_loop();
                }
            }
        });
        let _at_end = AtEnd(&done);
        // The other thread has to have had the numbers once at least.
        while accepted < CONNECTIONS || refused == 0 {
            if sent == accepted {
                limit(64);
                drop(arrive(placeholder.as_fd()));
                sent += 1;
                limit(4);
            }
            match listener.try_accept() {
                Ok(_) => accepted += 1,
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => refused += 1,
                Err(error) => panic!("connection {accepted} of {sent} is lost: {error}"),
            }
        }
    });
    setrlimit(Resource::Nofile, limits).unwrap();
    println!("accepted all, after {refused} times without room");
}
