//! Clients that break the protocol, are slow, or come in crowds: each loses only its own
//! connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::scene::{PATIENCE, Scene};
use proptest::prelude::*;
use sietch_protocol::frame::encode;
use sietch_protocol::message::ClientFrame;
use sietch_protocol::{Connection, PROTOCOL, Request};

fn raw(scene: &Scene) -> UnixStream {
    let stream = UnixStream::connect(scene.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads until the daemon closes the connection. Returns what it sent.
fn until_closed(stream: &mut UnixStream) -> String {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the daemon keeps the connection: {error}"),
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn frame(request: Request) -> Vec<u8> {
    encode(&ClientFrame { id: 1, request }).unwrap()
}

#[test]
fn an_invalid_message_is_answered_by_an_error_and_the_end() {
    let scene = Scene::own("garbage");
    let _daemon = scene.start();
    let mut nested = vec![b'['; 60_000];
    nested.splice(0..0, 60_000_u32.to_le_bytes());
    let cases: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (&[0, 0, 0, 0], "empty frame"),
        (&[2, 0, 0, 0, b'{', b'}'], "cannot be understood"),
        (b"\x04\x00\x00\x00nono", "cannot be understood"),
        (&nested, "cannot be understood"),
    ];
    for (bytes, cause) in cases {
        let mut stream = raw(&scene);
        stream.write_all(bytes).unwrap();
        let said = until_closed(&mut stream);
        assert!(said.contains(cause), "{cause} not in: {said}");
    }
    // Before the handshake nothing is granted, but the connection stays open.
    let mut stream = raw(&scene);
    stream.write_all(&frame(Request::AcquireVnic { name: "kv".into() })).unwrap();
    stream.write_all(&frame(Request::Hello { protocol: PROTOCOL + 1, client: "x".into() })).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let said = until_closed(&mut stream);
    assert!(said.contains("send Hello first") && said.contains("programs of one version"), "{said}");
    assert!(scene.status().vnics[0].holder.is_none());
}

#[test]
fn random_bytes_never_harm_the_daemon() {
    let scene = Scene::own("random");
    let _daemon = scene.start();
    let mut config = ProptestConfig::with_cases(64);
    config.failure_persistence = None;
    proptest!(config, |(bytes in prop::collection::vec(any::<u8>(), 0..600), framed: bool)| {
        let mut stream = raw(&scene);
        let mut all = bytes.clone();
        if framed {
            all.splice(0..0, u32::try_from(bytes.len()).unwrap().to_le_bytes());
        }
        // The daemon may close before all is written.
        let _ = stream.write_all(&all);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        until_closed(&mut stream);
    });
    scene.status();
}

#[test]
fn a_slow_client_is_dropped_and_disturbs_no_other() {
    let scene = Scene::own("dawdle");
    let _daemon = scene.start();
    let mut silent = raw(&scene);
    let mut half = raw(&scene);
    half.write_all(&frame(Request::Hello { protocol: PROTOCOL, client: "half".into() })).unwrap();
    half.write_all(&100_u32.to_le_bytes()).unwrap();
    let mut idle = scene.connect();
    assert!(until_closed(&mut silent).contains("did not finish"));
    assert!(until_closed(&mut half).contains("did not finish"));
    idle.status().expect("a client that is only idle stays connected");
    let groups = idle.stat().unwrap();
    let slow = groups[0].metrics.iter().find(|metric| metric.name == "slow_clients").unwrap();
    assert!(slow.value >= 2);
}

#[test]
fn a_client_that_never_reads_is_dropped_and_disturbs_no_other() {
    let scene = Scene::own("unread");
    let _daemon = scene.start();
    let mut unread = raw(&scene);
    let mut stream = frame(Request::Hello { protocol: PROTOCOL, client: "unread".into() });
    stream.extend(frame(Request::Status).repeat(100));
    let mut other = scene.connect();
    loop {
        // It writes on and on and reads nothing: at some point the daemon has had enough.
        if unread.write_all(&stream).is_err() {
            break;
        }
        other.status().unwrap();
    }
    other.status().unwrap();
}

#[test]
fn a_crowd_is_refused_and_connected_clients_continue() {
    let scene = Scene::own("crowd");
    let _daemon = scene.start();
    let mut first = scene.connect();
    let mut crowd = Vec::new();
    let error = loop {
        match Connection::connect(&scene.socket(), "crowd", PATIENCE) {
            Ok(connection) => crowd.push(connection),
            Err(error) => break error.to_string(),
        }
        assert!(crowd.len() < 300, "there is a limit");
    };
    assert!(error.contains("too many connections"), "{error}");
    first.status().unwrap();
    drop(crowd);
    let deadline = Instant::now() + PATIENCE;
    while Connection::connect(&scene.socket(), "later", PATIENCE).is_err() {
        assert!(Instant::now() < deadline, "room is never made");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_stopped_application_delays_no_other() {
    let scene = Scene::own("stopped");
    let _daemon = scene.start();
    let mut application = scene.application(None);
    application.command("vnic", "GRANT");
    let pid = rustix::process::Pid::from_raw(i32::try_from(application.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut administrator = scene.connect();
    let lines = administrator.revoke(sietch_protocol::Target::Name("kv".into())).unwrap();
    assert!(lines[0].contains("taken from pid"), "{lines:?}");
    assert!(!scene.device().exists());
}

/// Sends bytes with descriptors, of which there may be more than a frame may carry.
fn send_with(stream: &UnixStream, bytes: &[u8], sent: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(sent)));
    let bytes = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(stream, &bytes, &mut control, rustix::net::SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Starts a frame that carries the most descriptors permitted, and sends no more.
fn half_a_frame(stream: &UnixStream) -> std::io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    let begun = &frame(Request::Hello { protocol: PROTOCOL, client: "half".into() })[..8];
    send_with(stream, begun, &[null.as_fd(); sietch_protocol::frame::MAX_DESCRIPTORS])
}

#[test]
fn half_sent_frames_of_two_users_leave_descriptors_for_acquiring_and_revoking() {
    use rustix::process::{Gid, Uid};
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "SKIPPED half_sent_frames_of_two_users_leave_descriptors_for_acquiring_and_revoking: needs root"
        );
        return;
    }
    let scene = Scene::own("half");
    // What a service is usually started with.
    let _daemon = scene.start_process_limited(1024);
    let crowd = [64_001, 64_002].map(|uid| {
        let socket = scene.socket();
        let sent = std::thread::spawn(move || {
            rustix::thread::set_thread_res_gid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid))
                .unwrap();
            rustix::thread::set_thread_res_uid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid))
                .unwrap();
            let streams = std::iter::repeat_with(|| UnixStream::connect(&socket).unwrap()).take(32);
            // A refused client accepts no more bytes.
            streams.inspect(|stream| drop(half_a_frame(stream))).collect::<Vec<_>>()
        });
        sent.join().unwrap()
    });
    let mut application = scene.application(None);
    application.command("vnic", "GRANT");
    let lines = scene.connect().revoke(sietch_protocol::Target::Name("kv".into())).unwrap();
    assert!(lines[0].contains("taken from pid"), "{lines:?}");
    assert!(!scene.device().exists());
    drop(crowd);
}

/// A socket whose last close waits for an hour, and its peer, whose close ends that.
fn lingering() -> (TcpStream, TcpStream) {
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listening.local_addr().unwrap()).unwrap();
    let (other, _) = listening.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 65536]).is_ok() {}
    one.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).unwrap();
    (one, other)
}

/// Closes the copy of a descriptor that was sent: it may be the last one by now.
fn close_aside(descriptor: TcpStream) {
    std::thread::spawn(move || drop(descriptor));
}

#[test]
fn a_descriptor_whose_close_hangs_delays_no_other_client() {
    let scene = Scene::own("lingering");
    let _daemon = scene.start();
    let mut other = scene.connect();
    let hello = frame(Request::Hello { protocol: PROTOCOL, client: "x".into() });
    let page = frame(Request::PublishMetrics { label: "x".into() });
    let garbage = b"\x04\x00\x00\x00nono".to_vec();
    let mut peers = Vec::new();
    // How often the descriptor is sent with the bytes, and whether the client then hangs up.
    let cases = [
        (frame(Request::Volumes), 1, false),
        (page, 1, false),
        (garbage.clone(), 1, false),
        (hello[..7].to_vec(), 1, true),
        // Too many, and in the middle of a frame: those are not received at all.
        (hello.clone(), 17, false),
        (hello[7..].to_vec(), 1, false),
    ];
    for (bytes, copies, ends) in cases {
        let mut client = raw(&scene);
        if bytes != hello[7..] {
            client.write_all(&hello).unwrap();
        } else {
            client.write_all(&hello[..7]).unwrap();
        }
        let (lingers, peer) = lingering();
        let sent = vec![lingers.as_fd(); copies];
        send_with(&client, &bytes, &sent).unwrap();
        close_aside(lingers);
        peers.push((peer, (!ends).then_some(client)));
        other.status().expect("the daemon serves others");
    }
    // The connection itself holds descriptors that are never read: it is refused, or the daemon has
    // not come to them.
    let mut crowd: Vec<_> = std::iter::repeat_with(|| raw(&scene)).take(40).collect();
    for client in &mut crowd {
        let (lingers, peer) = lingering();
        // The daemon may have refused the connection and closed what was in it.
        let _ = send_with(client, &garbage, &[lingers.as_fd()]);
        close_aside(lingers);
        peers.push((peer, None));
    }
    other.status().expect("the daemon serves others");
    drop(crowd);
    other.status().expect("the daemon serves others");
}
