use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::control::Client;
use crate::metrics::{Kind, Metrics};
use sietch_protocol::message::ClientFrame;
use sietch_protocol::{
    AdoptedGrant, FrameReader, FrameWriter, HeldGrant, PROTOCOL, Progress, Protection, Reply, Request,
    ServerFrame, VsaGrant, Welcome, frame,
};

/// A daemon that confirms the grants in `known` and reports every request.
struct Daemon {
    socket: UnixStream,
    reader: FrameReader,
    seen: Sender<Request>,
    known: Vec<u64>,
}

impl Daemon {
    /// Waits for a client.
    fn accept(listener: &UnixListener, known: &[u64]) -> (Self, Receiver<Request>) {
        let (socket, _) = listener.accept().expect("accept");
        let (seen, requests) = channel();
        (Self { socket, reader: FrameReader::new(), seen, known: known.to_vec() }, requests)
    }

    /// Answers `count` requests.
    fn answer(&mut self, count: usize) {
        for _ in 0..count {
            let Ok(Progress::Ready(arrived)) = self.reader.read(&self.socket) else { return };
            let asked: ClientFrame = frame::decode(&arrived.text).expect("a request");
            let (body, descriptors) = self.reply(&asked.request);
            self.send(&ServerFrame::Reply { id: asked.id, body }, descriptors);
            // Not every test reads the request.
            let _ = self.seen.send(asked.request);
        }
    }

    fn reply(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        match request {
            Request::Hello { .. } => {
                let daemon = "test".to_owned();
                let welcome =
                    Welcome { protocol: PROTOCOL, daemon, generation: 1, pid: 1, administrator: false };
                (Reply::Welcome(welcome), vec![])
            }
            Request::AcquireVsa { name } => {
                let grant = name.len() as u64;
                let grant = VsaGrant {
                    grant,
                    generation: 7,
                    name: name.clone(),
                    size: 4096,
                    protection: Protection::KernelEnforced,
                    path: "/nowhere".to_owned(),
                    segments: Vec::new(),
                    model: None,
                    broker: None,
                };
                let file = std::fs::File::open("/dev/null").expect("open");
                (Reply::Vsa(Box::new(grant)), vec![file.into()])
            }
            Request::Adopt { grants } => {
                let answer = |held: &HeldGrant| AdoptedGrant {
                    grant: held.grant,
                    held: self.known.contains(&held.grant),
                    reason: String::new(),
                };
                (Reply::Adopted(grants.iter().map(answer).collect()), vec![])
            }
            _ => (Reply::Done, vec![]),
        }
    }

    fn send(&self, frame: &ServerFrame, descriptors: Vec<OwnedFd>) {
        let bytes = frame::encode(frame).expect("encode");
        let mut writer = FrameWriter::<OwnedFd>::new(bytes, descriptors).expect("frame");
        assert!(matches!(writer.write(&self.socket), Ok(Progress::Ready(()))));
    }
}

/// A folder with a listener, removed when dropped.
struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl ControlSocket {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-lease-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("bind");
        Self { path, listener }
    }

    /// A client that holds the areas `names`, and its daemon. The area's grant is the length of its
    /// name.
    fn client(&self, names: &[&str]) -> (Client, Vec<Grant>, Daemon) {
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| {
                let (mut daemon, _requests) = Daemon::accept(&self.listener, &[]);
                let (seen, kept) = channel();
                daemon.seen = seen;
                daemon.answer(1 + names.len());
                drop(kept);
                daemon
            });
            let mut client = Client::connect(&self.path, "test").expect("connect");
            let grants =
                names.iter().map(|name| client.acquire_vsa_descriptors(name).expect("area").grant).collect();
            (client, grants, daemon.join().expect("daemon"))
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn wait_for_ring(lease: &Lease) {
    let mut watched = [PollFd::from_borrowed_fd(lease.doorbell(), PollFlags::IN)];
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut watched, Some(&limit)).expect("poll"), 1, "the doorbell stayed quiet");
    lease.clear_doorbell();
}

#[test]
fn a_revocation_rings_the_doorbell_and_marks_only_its_grant() {
    let place = ControlSocket::new("revoke");
    let (client, grants, mut daemon) = place.client(&["a", "bb"]);
    let lease = client.hold().expect("hold");
    daemon.answer(1);
    let (name, reason) = ("a".to_owned(), "asked".to_owned());
    // An older generation of the same number belongs to another grant.
    let stale = Notice::Revoked { grant: 2, generation: 6, name: name.clone(), reason: reason.clone() };
    daemon.send(&ServerFrame::Notice(stale), vec![]);
    daemon.send(&ServerFrame::Notice(Notice::Revoked { grant: 1, generation: 7, name, reason }), vec![]);
    while !grants[0].is_revoked() {
        wait_for_ring(&lease);
    }
    assert!(!grants[1].is_revoked());
    assert!(lease.is_connected());
}

#[test]
fn a_restarted_daemon_adopts_held_grants_and_unknown_ones_are_lost() {
    let place = ControlSocket::new("restart");
    let (mut client, grants, mut daemon) = place.client(&["a", "bb"]);
    let metrics = Metrics::new("kv", &[("x", Kind::Counter)]).expect("page");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (seen, kept) = channel();
            daemon.seen = seen;
            daemon.answer(1);
            drop(kept);
        });
        client.share_metrics(&metrics).expect("share");
    });
    let lease = client.hold().expect("hold");
    daemon.answer(1);
    drop(daemon);
    let (mut second, requests) = Daemon::accept(&place.listener, &[2]);
    second.answer(4);
    let asked: Vec<Request> = requests.try_iter().collect();
    let held = |grant| HeldGrant { grant, generation: 7 };
    assert_eq!(asked[1], Request::Adopt { grants: vec![held(1), held(2)] });
    assert_eq!(asked[2], Request::PublishMetrics { label: "kv".to_owned() });
    assert_eq!(asked[3], Request::Attend { grants: vec![2], views: vec![] });
    wait_for_ring(&lease);
    assert!(grants[0].is_revoked());
    assert!(!grants[1].is_revoked());

    // A lost grant is not requested again.
    drop(second);
    let (mut third, requests) = Daemon::accept(&place.listener, &[2]);
    third.answer(4);
    assert_eq!(requests.try_iter().nth(1), Some(Request::Adopt { grants: vec![held(2)] }));
    assert!(!grants[1].is_revoked());
}

#[test]
fn a_dropped_lease_releases_its_grants() {
    let place = ControlSocket::new("back");
    let (client, grants, mut daemon) = place.client(&["a", "bb", "ccc"]);
    let lease = client.hold().expect("hold");
    daemon.answer(1);
    grants[1].revoke();
    let (seen, requests) = channel();
    daemon.seen = seen;
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.answer(2));
        drop(lease);
    });
    let asked: Vec<Request> = requests.try_iter().collect();
    assert_eq!(asked, [Request::Release { grant: 1 }, Request::Release { grant: 3 }]);
}

#[test]
fn a_daemon_that_ends_is_announced_and_the_lease_ends_without_one() {
    let place = ControlSocket::new("end");
    let (client, grants, mut daemon) = place.client(&["a"]);
    let lease = client.hold().expect("hold");
    daemon.answer(1);
    let reason = "asked".to_owned();
    daemon.send(&ServerFrame::Notice(Notice::ShuttingDown { reason }), vec![]);
    wait_for_ring(&lease);
    assert!(lease.is_ending());
    assert!(!grants[0].is_revoked());
    drop(daemon);
    drop(lease);
}

#[test]
fn a_question_about_sockets_is_answered_by_the_loop_that_drives_the_vnic() {
    use sietch_net::{Config, Engine};
    use sietch_nic::NicQueue as _;
    let place = ControlSocket::new("question");
    let (client, grants, mut daemon) = place.client(&["a", "bb"]);
    let lease = client.hold().expect("hold");
    daemon.answer(1);
    let (mut queue, _far) = sietch_nic::wire::pair([2; 6], [4; 6], 1500, 16);
    let config = Config::new([10, 0, 0, 1].into(), 24, [7; 16]);
    let mut engine = Engine::new(&config, queue.mac(), queue.mtu());
    engine.listen(80, 5).expect("listen");
    for (id, grant) in [(1, 1), (2, 2)] {
        daemon.send(&ServerFrame::Notice(Notice::Inquiry { id, grant }), vec![]);
    }
    // The loop that drives `a` does not answer for `bb`.
    let answered = std::thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let Ok(Progress::Ready(arrived)) = daemon.reader.read(&daemon.socket) else { panic!("a frame") };
            let asked: ClientFrame = frame::decode(&arrived.text).expect("a request");
            daemon.send(&ServerFrame::Reply { id: asked.id, body: Reply::Done }, vec![]);
            (asked.request, arrived.descriptors)
        });
        while !answered.is_finished() {
            lease.answer_diagnostics(&grants[..1], &engine, &mut queue);
            std::thread::yield_now();
        }
        answered.join().expect("daemon")
    });
    let (Request::Inform { id: 1, outcome: Ok(0) }, file) = answered else { panic!("{answered:?}") };
    let reports = sietch_protocol::sockets::read(&file[0]).expect("reports");
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].local.port(), reports[0].send_queue), (80, 5));
    drop(daemon);
}
