//! Queries to applications through the daemon: access, the answers of honest ones, and the
//! treatment of others.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::scene::{PATIENCE, Scene};
use rustix::fs::{MemfdFlags, SealFlags};
use sietch_protocol::{
    CallError, Capturing, Connection, ErrorKind, Notice, SocketReport, SocketState, SocketsAnswer, Transport,
    sockets,
};

fn refused<T: std::fmt::Debug>(result: Result<T, CallError>) -> (ErrorKind, String) {
    match result {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

fn notice(connection: &mut Connection) -> (Notice, Vec<OwnedFd>) {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(notice) = connection.take_notice().unwrap() {
            return notice;
        }
        assert!(Instant::now() < end, "no notice");
    }
}

fn reports() -> Vec<SocketReport> {
    vec![SocketReport {
        transport: Transport::Udp,
        state: SocketState::Unconnected,
        local: "10.83.0.2:53".parse().unwrap(),
        peer: None,
        receive_queue: 3,
        send_queue: 0,
        tcp: None,
    }]
}

fn memory(seals: SealFlags, bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn asking(scene: &Scene) -> JoinHandle<Result<(SocketsAnswer, OwnedFd), CallError>> {
    let mut connection = scene.connect();
    std::thread::spawn(move || connection.sockets("kv"))
}

fn capturing(scene: &Scene) -> JoinHandle<(Connection, Result<Capturing, CallError>)> {
    let mut connection = scene.connect();
    std::thread::spawn(move || {
        let ring = memory(SealFlags::SHRINK | SealFlags::GROW, 65_536);
        let begun = connection.capture("kv", ring.as_fd());
        (connection, begun)
    })
}

/// An application that holds the VNIC and listens.
fn listening(scene: &Scene) -> (Connection, u64) {
    let mut connection = scene.connect();
    let (grant, _) = connection.acquire_vnic("kv").unwrap();
    connection.attend(vec![grant.grant]).unwrap();
    (connection, grant.grant)
}

#[test]
fn an_application_is_queried_and_its_answer_passes_unread() {
    let scene = Scene::own("queried");
    let _daemon = scene.start();
    let (mut application, grant) = listening(&scene);
    let answer = asking(&scene);
    let (Notice::Inquiry { id, grant: about }, _) = notice(&mut application) else { panic!("an inquiry") };
    assert_eq!(about, grant);
    let (file, _) = sockets::write(&reports()).unwrap();
    application.answer_inquiry(id, Ok(7), Some(file.as_fd())).unwrap();
    let (answer, file) = answer.join().unwrap().unwrap();
    assert_eq!((answer.pid, answer.client.as_str(), answer.omitted), (std::process::id(), "test", 7));
    assert_eq!(sockets::read(&file).unwrap(), reports());
    // A query can be answered once, and only if it was sent.
    assert_eq!(refused(application.answer_inquiry(id, Ok(0), None)).0, ErrorKind::Unknown);
    assert_eq!(refused(application.answer_inquiry(id + 1, Ok(0), None)).0, ErrorKind::Unknown);
}

#[test]
fn a_missing_or_bad_answer_is_reported_and_delays_no_other() {
    let scene = Scene::own("silent");
    let _daemon = scene.start();
    let mut requester = scene.connect();
    assert!(refused(requester.sockets("kv")).1.contains("no process holds it"));
    assert!(refused(requester.sockets("none")).1.contains("none of that name"));
    let mut application = scene.connect();
    let (grant, _) = application.acquire_vnic("kv").unwrap();
    let (kind, text) = refused(requester.sockets("kv"));
    assert!(kind == ErrorKind::Silent && text.contains("does not listen"), "{text}");
    // Another process' connection cannot take the query: only grants of its own count.
    application.attend(vec![grant.grant, 999]).unwrap();
    let (kind, text) = refused(requester.sockets("kv"));
    assert!(kind == ErrorKind::Silent && text.contains("within a second"), "{text}");
    let (Notice::Inquiry { id, .. }, _) = notice(&mut application) else { panic!("an inquiry") };
    assert_eq!(refused(application.answer_inquiry(id, Ok(0), None)).0, ErrorKind::Unknown, "too late");
    // No file, a file that can still change, a reason that would move the cursor.
    let wrong =
        [(Ok(0), None), (Ok(0), Some(memory(SealFlags::SHRINK, 64))), (Err("\x1b[2J".repeat(200)), None)];
    for (outcome, file) in wrong {
        let answer = asking(&scene);
        let (Notice::Inquiry { id, .. }, _) = notice(&mut application) else { panic!("an inquiry") };
        application.answer_inquiry(id, outcome, file.as_ref().map(AsFd::as_fd)).unwrap();
        let (kind, text) = refused(answer.join().unwrap());
        assert!(kind == ErrorKind::Failed && !text.contains('\x1b') && text.len() < 2000, "{text}");
    }
    let answer = asking(&scene);
    notice(&mut application);
    drop(application);
    let (kind, text) = refused(answer.join().unwrap());
    assert!(kind == ErrorKind::Silent, "{text}");
}

#[test]
fn only_the_holder_of_a_grant_can_answer_for_it() {
    let scene = Scene::own("impostor");
    let _daemon = scene.start();
    let mut application = scene.application(None);
    let held = application.command("vnic", "GRANT");
    let grant: u64 = held.split(' ').next().unwrap().parse().unwrap();
    let mut impostor = scene.connect();
    impostor.attend(vec![grant]).unwrap();
    let (kind, text) = refused(scene.connect().sockets("kv"));
    assert!(kind == ErrorKind::Silent && text.contains("does not listen"), "{text}");
    assert!(impostor.take_notice().unwrap().is_none());
    assert_eq!(refused(impostor.attend(vec![0; 65])).0, ErrorKind::Limit);
}

#[test]
fn a_capture_ends_with_the_connection_of_its_requester() {
    let scene = Scene::own("capture");
    let _daemon = scene.start();
    let (mut application, _) = listening(&scene);
    let begun = capturing(&scene);
    let (Notice::Capture { id, .. }, ring) = notice(&mut application) else { panic!("a capture") };
    assert_eq!(rustix::fs::fstat(&ring[0]).unwrap().st_size, 65_536);
    application.answer_inquiry(id, Ok(0), None).unwrap();
    let (requester, begun) = begun.join().unwrap();
    let begun = begun.unwrap();
    assert_eq!((begun.pid, begun.mtu), (std::process::id(), 65_264));
    let (_, second) = capturing(&scene).join().unwrap();
    assert_eq!(refused(second).0, ErrorKind::Busy);
    drop(requester);
    let (ended, _) = notice(&mut application);
    assert!(matches!(ended, Notice::EndCapture { id: other, .. } if other == id), "{ended:?}");
    // Rings that could be truncated, or that are no memory, are not passed on.
    let mut connection = scene.connect();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let huge = memory(SealFlags::SHRINK | SealFlags::GROW, 1 << 30);
    for ring in [pipe, memory(SealFlags::GROW, 4096), huge] {
        assert_eq!(refused(connection.capture("kv", ring.as_fd())).0, ErrorKind::Invalid);
    }
    // A capture that the application does not confirm in time is called off.
    let (_, late) = capturing(&scene).join().unwrap();
    assert_eq!(refused(late).0, ErrorKind::Silent);
    let (Notice::Capture { id, .. }, _) = notice(&mut application) else { panic!("a capture") };
    let (ended, _) = notice(&mut application);
    assert!(matches!(ended, Notice::EndCapture { id: other, .. } if other == id), "{ended:?}");
}
