//! Services that do not answer.

use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;
use crate::fs::shared::serve;
use crate::fs::test_folder;

const SHORT: Duration = Duration::from_millis(300);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-remote-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// The error of a client, and how long it took.
    fn attach(&self) -> (String, Duration) {
        let begin = Instant::now();
        let opening = Opening { is_within: false, descriptors: Vec::new() };
        match attach_by(&self.0, opening, SHORT) {
            Ok(_) => panic!("nothing serves it"),
            Err(error) => (error.to_string(), begin.elapsed()),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn an_operation_ends_if_the_service_does_not_run_and_the_next_one_goes_on_if_it_does() {
    let folder = test_folder::Folder::new("stopped");
    let server = serve(&folder.store(), || {}).expect("a service");
    let mut remote = attach_reader(&folder.store()).expect("a client").0;
    remote.probes_after = Duration::from_millis(1);
    // The service gets nothing of what the client says, as if it were stopped.
    let (said, mut heard) = UnixStream::pair().expect("sockets");
    let socket = std::mem::replace(&mut remote.socket, said);
    let inode = InodeNumber(1);
    remote.request_lease(inode, Mode::Shared).expect("it is asked for");
    assert_eq!(remote.wait_message(), Err(Errno::TIMEDOUT));
    assert_eq!(remote.inode_numbers(), Err(Errno::TIMEDOUT));
    // More than its socket takes: no operation waits for room.
    for _ in 0..2000 {
        assert_eq!(remote.request_lease(inode, Mode::Shared), Err(Errno::TIMEDOUT));
        remote.unreferenced(inode);
    }
    assert!(remote.ended().is_none() && !remote.unsent.is_empty());
    // It runs again, reads what there is, and answers.
    heard.set_nonblocking(true).expect("a socket");
    while heard.read(&mut [0; 1 << 16]).is_ok() {}
    remote.inbox.deliver(Notice::Numbers { start: 7, end: 9 });
    assert_eq!(remote.inode_numbers(), Ok(7..9));
    remote.inbox.deliver(Notice::Granted { inode: 1, exclusive: false, serial: 1, sole: false });
    assert_eq!(remote.wait_message(), Ok(()));
    assert!(matches!(remote.message(), Some(Message::Granted(grant)) if grant.inode == inode));
    assert!(remote.unsent.is_empty());
    remote.socket = socket;
    drop(remote);
    server.end().expect("everything is digested");
}

/// An operation of a mount waits for room without the client, and is tried again.
#[test]
fn operations_that_wait_without_the_client_end_if_the_service_does_not_run() {
    let folder = test_folder::Folder::new("without");
    let server = serve(&folder.store(), || {}).expect("a service");
    let mut remote = attach_reader(&folder.store()).expect("a client").0;
    remote.probes_after = Duration::from_millis(1);
    let (said, _heard) = UnixStream::pair().expect("sockets");
    let socket = std::mem::replace(&mut remote.socket, said);
    remote.logged += 4096;
    let mut waits = 0;
    let error = loop {
        match remote.begin_wait() {
            Ok(DigestWait::Pending(mut pending)) => {
                // Two operations wait at the same time: it counts once.
                assert!(remote.begin_wait().is_ok() || waits > SILENCE);
                pending.wait();
                waits += 1;
            }
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error == Errno::TIMEDOUT && waits > SILENCE, "{error} after {waits}");
    remote.inbox.deliver(Notice::Runs);
    assert!(matches!(remote.begin_wait(), Ok(DigestWait::Pending(_))));
    remote.logged -= 4096;
    remote.socket = socket;
    drop(remote);
    server.end().expect("everything is digested");
}

/// What it waits for may take long, as a digest on a slow disk does.
#[test]
fn a_service_that_answers_probes_is_waited_for() {
    let folder = test_folder::Folder::new("probed");
    let server = serve(&folder.store(), || {}).expect("a service");
    let mut remote = attach_reader(&folder.store()).expect("a client").0;
    remote.probes_after = Duration::from_millis(20);
    let inbox = Arc::clone(&remote.inbox);
    let waiting = std::thread::spawn(move || {
        let waited = remote.wait_message();
        (waited, remote)
    });
    // More answers than there are silent waits.
    let begun = inbox.arrivals();
    while inbox.arrivals() < begun + 2 * u64::from(SILENCE) {
        assert!(!waiting.is_finished(), "it does not wait for a service that runs");
        std::thread::yield_now();
    }
    inbox.deliver(Notice::RecallRoom);
    let (waited, remote) = waiting.join().expect("no panic");
    assert_eq!(waited, Ok(()));
    drop(remote);
    server.end().expect("everything is digested");
}

/// The service may use blocks again as soon as the word is set. A notice may come later, to a check
/// that was stopped meanwhile.
#[test]
fn a_check_that_is_fenced_leaves_before_the_notice_comes() {
    let folder = test_folder::Folder::new("fenced");
    let server = serve(&folder.store(), || {}).expect("a service");
    let (mut remote, _root) = attach_reader(&folder.store()).expect("a client");
    assert_eq!(remote.must_leave(), None);
    remote.fence.set();
    assert!(remote.ended().is_none(), "no notice has come");
    assert_eq!(remote.must_leave().as_deref(), Some(NEEDED));
    drop(remote);
    server.end().expect("everything is digested");
}

#[test]
fn a_service_that_does_not_answer_is_waited_for_until_a_deadline() {
    let folder = Folder::new("silent");
    // As one that is stopped: the kernel takes the connection.
    let _listener = UnixListener::bind(folder.0.join(SOCKET)).expect("a socket");
    assert!(is_served(&folder.0));
    let (error, elapsed) = folder.attach();
    let named = [folder.0.join(SOCKET).display().to_string(), format!("kill -CONT {}", std::process::id())];
    assert!(named.iter().all(|part| error.contains(part)), "{error}");
    assert!(elapsed >= SHORT, "{elapsed:?}");
}

#[test]
fn a_service_that_answers_in_pieces_is_waited_for_until_the_same_deadline() {
    let folder = Folder::new("slow");
    let listener = UnixListener::bind(folder.0.join(SOCKET)).expect("a socket");
    let slow = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        // A whole frame, some time: it would be refused as one.
        for byte in [200, 0, 0, 0].into_iter().chain([b'{'; 200]) {
            std::thread::sleep(SHORT / 4);
            if stream.write_all(&[byte]).is_err() {
                break;
            }
        }
    });
    let (error, elapsed) = folder.attach();
    assert!(error.contains("does not answer") && elapsed >= SHORT, "{error} after {elapsed:?}");
    slow.join().expect("it ends");
}

/// Connections that a stopped process does not take are few: then the kernel takes no more.
#[test]
fn a_service_whose_queue_is_full_does_not_block_a_client() {
    let folder = Folder::new("queue");
    let path = folder.0.join(SOCKET);
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("a path")).expect("it has its path");
    rustix::net::listen(&listener, 1).expect("it listens");
    let mut waiting = Vec::new();
    while let Ok(socket) = try_connect(&path) {
        waiting.push(socket);
    }
    assert!(is_served(&folder.0));
    let (error, elapsed) = folder.attach();
    assert!(error.contains("does not answer") && error.contains("SIGCONT"), "{error}");
    assert!(elapsed >= SHORT, "{elapsed:?}");
    drop(listener);
    assert!(!is_served(&folder.0));
    let (error, _) = folder.attach();
    assert!(error.contains("refused"), "{error}");
}
