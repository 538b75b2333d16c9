//! A socket service of one thread, whose answers a test decides.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with, socketpair,
};
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, Descriptors, Name, REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind,
    receive_message, send_message,
};
use sietch_ring::stream::{Memory, Names, RegionSizes};
use sietch_stream::service::DirectService;
use zerocopy::IntoBytes as _;

/// A service that accepts every listener, until the test's process ends.
pub(crate) struct PlayedService {
    path: PathBuf,
    /// The service's end of each listener's placeholder, in order.
    pub(crate) listeners: Receiver<OwnedFd>,
}

/// Both ends of a pair of sockets.
fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

impl PlayedService {
    pub(crate) fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sietch-played-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 64).unwrap();
        let (made, listeners) = channel();
        std::thread::spawn(move || {
            loop {
                let client = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
                let mut bytes = [0; REQUEST_BYTES];
                let mut received = Descriptors::default();
                let flags = RecvFlags::empty();
                receive_message(client.as_fd(), &mut bytes, &mut received, flags).unwrap();
                let (_, kind) = Request::parse(&bytes).unwrap();
                let (reply, placeholder) = if kind == RequestKind::Listen {
                    let (own, theirs) = pair(SocketType::SEQPACKET);
                    // A test that has ended needs no more of them.
                    let _ = made.send(own);
                    (Reply::new(ReplyKind::Listening), Some(theirs))
                } else {
                    (Reply::new(ReplyKind::Unknown), None)
                };
                let send: Vec<_> = placeholder.iter().map(|placeholder| placeholder.as_fd()).collect();
                let _ = send_message(client.as_fd(), reply.as_bytes(), &send, SendFlags::empty());
            }
        });
        Self { path, listeners }
    }

    /// The service as a program reaches it.
    pub(crate) fn direct(&self) -> Rc<DirectService> {
        Rc::new(DirectService::new(self.path.to_str().unwrap(), [7; 16]))
    }
}

impl Drop for PlayedService {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Has a connection through memory arrive at a listener. Returns the client's descriptors: the
/// placeholder, the common memory and the private page.
pub(crate) fn arrive(listener: BorrowedFd<'_>) -> [OwnedFd; 3] {
    let sizes = RegionSizes { smallest: 14, largest: 14 };
    let memory = Memory::create(sizes, [Names::default(); 2]).unwrap();
    let (client, server) = pair(SocketType::STREAM);
    let [of_client, of_server] = memory.private;
    let send = [server.as_fd(), memory.common.as_fd(), of_server.as_fd()];
    let arrival = Arrival::new(ArrivalKind::Stream, Name::NONE, Name::NONE);
    send_message(listener, arrival.as_bytes(), &send, SendFlags::empty()).unwrap();
    [client, memory.common, of_client]
}
