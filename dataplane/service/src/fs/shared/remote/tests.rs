//! Services that do not answer.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;

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
fn a_service_that_does_not_answer_is_waited_for_until_a_deadline() {
    let folder = Folder::new("silent");
    // As one that is stopped: the kernel takes the connection.
    let _listener = UnixListener::bind(folder.0.join(SOCKET)).expect("a socket");
    assert!(is_served(&folder.0));
    let (error, elapsed) = folder.attach();
    let named = [folder.0.join(SOCKET).display().to_string(), format!("kill -CONT {}", std::process::id())];
    assert!(named.iter().all(|part| error.contains(part)), "{error}");
    assert!((SHORT..10 * SHORT).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn a_service_that_answers_in_pieces_is_waited_for_until_the_same_deadline() {
    let folder = Folder::new("slow");
    let listener = UnixListener::bind(folder.0.join(SOCKET)).expect("a socket");
    let slow = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        for byte in [200, 0, 0, 0, b'{', b'{', b'{', b'{'] {
            std::thread::sleep(SHORT / 4);
            if stream.write_all(&[byte]).is_err() {
                break;
            }
        }
    });
    let (error, elapsed) = folder.attach();
    assert!(error.contains("does not answer"), "{error}");
    assert!((SHORT..3 * SHORT).contains(&elapsed), "{elapsed:?}");
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
    assert!((SHORT..10 * SHORT).contains(&elapsed), "{elapsed:?}");
    drop(listener);
    assert!(!is_served(&folder.0));
    let (error, elapsed) = folder.attach();
    assert!(error.contains("refused") && elapsed < SHORT, "{error}");
}
