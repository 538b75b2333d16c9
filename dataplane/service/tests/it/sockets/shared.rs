//! A kernel's listening socket that another process has too, which is not under Sietch: one that
//! was refused, or a child that is linked statically.

use std::io::ErrorKind;

use super::*;

#[test]
fn a_process_that_shares_a_listening_socket_waits_in_accept_as_before() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    // The same open socket, as a child has it.
    let shared = kernel.try_clone().unwrap();
    // The child may end before the last client comes.
    let _kept = kernel.try_clone().unwrap();
    let placeholder = service.listen_on(kernel, 64);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let over = std::sync::Arc::clone(&stop);
    let child = std::thread::spawn(move || {
        let mut accepted = 0;
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            match shared.accept() {
                Ok(_) => accepted += 1,
                Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is a blocking socket"),
            }
        }
        accepted
    });
    let (mut sent, mut taken) = (0, 0);
    // The child and the service each accept some.
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_millis(500) || taken == 0 {
        let client = TcpStream::connect(address).unwrap();
        sent += 1;
        let mut descriptors = Descriptors::default();
        while let Ok(Incoming::Arrived(_)) =
            receive_arrival(placeholder.as_fd(), RecvFlags::DONTWAIT, &mut descriptors)
        {
            descriptors = Descriptors::default();
            taken += 1;
        }
        drop(client);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    drop(placeholder);
    service.until(|shown| shown.listeners == 0);
    // The service has released the socket: the child accepts the last client.
    let _last = TcpStream::connect(address).unwrap();
    let accepted = child.join().expect("the child does nothing else");
    assert!(accepted >= 1 && accepted + taken <= sent + 1, "{accepted} and {taken} of {sent}");
}

#[test]
fn the_kernels_socket_is_restored() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    rustix::net::listen(&kernel, 64).unwrap();
    let shared = kernel.try_clone().unwrap();
    let placeholder = service.listen_on(kernel, 64);
    let _client = TcpStream::connect(address).unwrap();
    arrival(&placeholder);
    let flags = rustix::fs::fcntl_getfl(&shared).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
    drop(placeholder);
    service.until(|shown| shown.listeners == 0);
    let queue = sietch_socket::kernel::accept_queue(&shared).unwrap().expect("it listens");
    assert_eq!(queue.backlog, 64);
}

/// The variable by which this program knows that it is the process that was refused.
const REFUSED: &str = "SIETCH_TEST_REFUSED";

#[test]
fn a_process_that_was_refused_waits_in_accept_as_before() {
    let name = "sockets::shared::a_process_that_was_refused_waits_in_accept_as_before";
    if std::env::var_os(REFUSED).is_some() {
        let listener = TcpListener::from(rustix::io::dup(std::io::stdin()).unwrap());
        for _ in 0..10 {
            listener.accept().expect("it waits until a client connects");
        }
        return;
    }
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    // As many listeners as one socket may have, and one more.
    let placeholders: Vec<OwnedFd> = (0..limits::LISTENERS_OF_ONE_SOCKET)
        .map(|_| service.listen_on(kernel.try_clone().unwrap(), 64))
        .collect();
    let mut query = request(RequestKind::Listen);
    query.backlog = 64;
    let (reply, _) = service.call(&query, &[kernel.as_fd()]).unwrap();
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::NOBUFS));
    let mut refused = std::process::Command::new(std::env::current_exe().unwrap());
    refused.args(["--exact", name]).env(REFUSED, "").stdin(OwnedFd::from(kernel));
    let mut refused = refused.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // The other listeners take most of the clients.
    let ended = loop {
        if let Some(ended) = refused.try_wait().unwrap() {
            break ended;
        }
        let _client = TcpStream::connect(address).unwrap();
        for placeholder in &placeholders {
            let _ = receive_arrival(placeholder.as_fd(), RecvFlags::DONTWAIT, &mut Descriptors::default());
        }
    };
    let mut said = String::new();
    refused.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended.success() && said.contains("1 passed"), "{said}");
}
