use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use super::*;
use crate::message::ErrorKind;

/// Answers each request as `script` says, over one end of a pair.
fn serve(
    mut script: impl FnMut(ClientFrame) -> Vec<ServerFrame> + Send + 'static,
) -> (OwnedFd, JoinHandle<()>) {
    let (client, server) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut reader = FrameReader::new();
        while let Ok(Progress::Ready(arrived)) = reader.read(&server) {
            for answer in script(frame::decode(&arrived.text).unwrap()) {
                let bytes = frame::encode(&answer).unwrap();
                let _ = FrameWriter::<OwnedFd>::new(bytes, vec![]).unwrap().write(&server);
            }
        }
    });
    (client.into(), thread)
}

fn welcome(protocol: u32) -> Reply {
    let daemon = "test".to_owned();
    Reply::Welcome(Welcome { protocol, daemon, generation: 3, pid: 1, administrator: false })
}

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn notices_between_a_request_and_its_reply_are_kept_in_order() {
    let notice = |grant| Notice::Revoked { grant, generation: 1, name: "kv".into(), reason: "frame".into() };
    let (socket, thread) = serve(move |frame| {
        let id = frame.id;
        match frame.request {
            Request::Hello { .. } => vec![ServerFrame::Reply { id, body: welcome(PROTOCOL) }],
            _ => vec![
                ServerFrame::Notice(notice(1)),
                ServerFrame::Notice(notice(2)),
                ServerFrame::Reply { id, body: Reply::Done },
            ],
        }
    });
    let mut connection = Connection::handshake(socket, "test", LIMIT).unwrap();
    assert_eq!(connection.welcome().generation, 3);
    connection.release(9).unwrap();
    assert_eq!(connection.take_notice().unwrap().unwrap().0, notice(1));
    assert_eq!(connection.take_notice().unwrap().unwrap().0, notice(2));
    assert!(connection.take_notice().unwrap().is_none());
    drop(connection);
    thread.join().unwrap();
}

#[test]
fn a_refusal_leaves_the_connection_usable_and_names_cause_and_fix() {
    let (socket, thread) = serve(|frame| {
        let body = match frame.request {
            Request::Hello { .. } => welcome(PROTOCOL),
            Request::AcquireVnic { name } => Reply::Error(ErrorReply {
                kind: ErrorKind::Busy,
                what: format!("VNIC {name}"),
                cause: "held by pid 7".into(),
                fix: "end it".into(),
            }),
            _ => Reply::Done,
        };
        vec![ServerFrame::Reply { id: frame.id, body }]
    });
    let mut connection = Connection::handshake(socket, "test", LIMIT).unwrap();
    let error = connection.acquire_vnic("kv").unwrap_err();
    assert_eq!(error.to_string(), "VNIC kv: held by pid 7; end it");
    connection.release(1).unwrap();
    drop(connection);
    thread.join().unwrap();
}

#[test]
fn another_version_a_silent_daemon_and_a_closed_one_give_different_errors() {
    let (socket, thread) =
        serve(|frame| vec![ServerFrame::Reply { id: frame.id, body: welcome(PROTOCOL + 1) }]);
    assert!(matches!(Connection::handshake(socket, "test", LIMIT), Err(CallError::Version { .. })));
    thread.join().unwrap();

    let (socket, thread) = serve(|_| vec![]);
    let short = Duration::from_millis(1);
    assert!(matches!(Connection::handshake(socket, "test", short), Err(CallError::Timeout(_))));
    thread.join().unwrap();

    let (client, server) = UnixStream::pair().unwrap();
    drop(server);
    assert!(matches!(Connection::handshake(client.into(), "test", LIMIT), Err(CallError::Closed)));

    let nowhere = Path::new("/nonexistent/sietch.sock");
    let error = Connection::connect(nowhere, "test", LIMIT).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/sietch.sock") && error.contains("sietch up"), "{error}");
}

#[test]
fn a_refusal_is_read_even_if_the_daemon_closed_before_the_request() {
    let (client, server) = UnixStream::pair().unwrap();
    let error = ErrorReply {
        kind: ErrorKind::Limit,
        what: "connection".to_owned(),
        cause: "too many connections".to_owned(),
        fix: "close some".to_owned(),
    };
    let refusal = frame::encode(&ServerFrame::Reply { id: 0, body: Reply::Error(error) }).unwrap();
    FrameWriter::<OwnedFd>::new(refusal, vec![]).unwrap().write(&server).unwrap();
    drop(server);
    let Err(CallError::Refused(error)) = Connection::handshake(client.into(), "test", LIMIT) else {
        panic!("another answer than the refusal");
    };
    assert_eq!(error.cause, "too many connections");
}
