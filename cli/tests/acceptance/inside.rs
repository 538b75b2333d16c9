//! `ss` and `capture` while the store runs, as the user who started it. The store is at one end of
//! a link, this test at the other, and `sietch ss` and `sietch capture` run beside them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use sietch::{Arguments, Runtime};

use crate::testbed::{STORE_USER, Testbed, Up, signal, text, wait_for};

/// The test's end of the link, and the store's.
const FRONT: &str = "10.90.0.1";
const BACK: &str = "10.90.0.2";

/// A testbed whose store is at one end of a link.
fn linked(name: &str) -> Testbed {
    let testbed = Testbed::new(name);
    let own = rustix::process::geteuid().as_raw();
    let store = if own == 0 { STORE_USER } else { own };
    let port = testbed.port;
    testbed.configure(&format!(
        "[[link]]\nname = \"wire\"\n\
         [[link.end]]\nname = \"front\"\nuid = {own}\naddress = \"{FRONT}/24\"\n\
         [[link.end]]\nname = \"back\"\nuid = {store}\naddress = \"{BACK}/24\"\n\n\
         [[vsa]]\nname = \"store\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [kv]\nuid = {store}\nport = {port}\nvnic = \"back\"\nvsa = \"store\"\n"
    ));
    testbed
}

/// A connection to the store over the link, with some traffic on it, until dropped.
struct RemoteClient {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RemoteClient {
    fn start(testbed: &Testbed) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let replies = Arc::new(AtomicU32::new(0));
        let answered = replies.clone();
        let words = ["--vnic", "front", "--socket", testbed.socket().to_str().unwrap()].map(str::to_owned);
        let server = format!("{BACK}:{}", testbed.port).parse::<std::net::SocketAddr>().unwrap();
        let thread = std::thread::spawn(move || {
            let runtime = Runtime::open(&Arguments::parse(words).unwrap()).expect("our end of the link");
            let talk = move |net: sietch::Net| async move {
                let mut stream = net.connect(server).await.expect("the store listens");
                while !stopped.load(Ordering::Relaxed) {
                    stream.write_all(b"PING\r\n").await.expect("write");
                    let mut reply = [0; 7];
                    stream.read_exact(&mut reply).await.expect("read");
                    assert_eq!(&reply, b"+PONG\r\n");
                    replies.fetch_add(1, Ordering::Relaxed);
                    net.sleep(Duration::from_millis(5)).await;
                }
            };
            runtime.run(talk).expect("the link is open");
        });
        // The third request acknowledges the second reply at the latest.
        wait_for("answers over the link", || (answered.load(Ordering::Relaxed) > 2).then_some(()));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for RemoteClient {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the client failed");
        }
    }
}

fn up(testbed: &Testbed) -> Up {
    let up = testbed.up(&[]);
    assert!(up.banner.contains(BACK), "the store is not on its VNIC: {}", up.banner);
    up
}

/// A testbed with two VNICs on the software switch.
fn switched(name: &str) -> Testbed {
    let testbed = linked(name);
    let (own, port) = (rustix::process::geteuid().as_raw(), testbed.port);
    testbed.configure(&format!(
        "[[vnic]]\nname = \"front\"\nkind = \"switch\"\nuid = {own}\naddress = \"{FRONT}/24\"\ntcp_ports = [\"1024-65535\"]\n\
         [[vnic]]\nname = \"back\"\nkind = \"switch\"\nuid = {own}\naddress = \"{BACK}/24\"\ntcp_ports = [\"{port}\"]\n"
    ));
    testbed
}

/// A server that answers every ping on the VNIC `back`, until the VNIC is revoked.
fn pong(testbed: &Testbed) -> JoinHandle<std::io::Result<()>> {
    let words = ["--vnic", "back", "--socket", testbed.socket().to_str().unwrap()].map(str::to_owned);
    let (port, (ready, is_ready)) = (testbed.port, std::sync::mpsc::channel());
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::open(&Arguments::parse(words).unwrap()).expect("a port of the switch");
        let serve = move |net: sietch::Net| async move {
            let mut listener = net.listen(port, 8)?;
            ready.send(()).expect("the test waits");
            let (mut stream, _) = listener.accept().await?;
            while stream.read_exact(&mut [0; 6]).await.is_ok() {
                stream.write_all(b"+PONG\r\n").await?;
            }
            net.sleep(Duration::from_secs(600)).await;
            Ok(())
        };
        runtime.run(serve)?
    });
    is_ready.recv().expect("it listens");
    thread
}

#[test]
fn the_switch_joins_vnics_on_a_service_core_and_is_missed_when_it_ends() {
    let testbed = switched("switch");
    // First a daemon alone, because the store needs a switch when it starts.
    let path = |name: &str| testbed.folder.join(name).display().to_string();
    let (config, data) = (path("sietch.toml"), path("data"));
    let mut daemon = testbed.sietch(&["daemon", "--config", &config, "--data", &data, "--without-network"]);
    let mut daemon = daemon.stderr(Stdio::null()).spawn().expect("start sietch");
    let front = |status: &serde_json::Value| {
        let vnics = status["daemon"]["vnics"].as_array().unwrap().clone();
        vnics.into_iter().find(|vnic| vnic["name"] == "front").unwrap()
    };
    let status = wait_for("the daemon", || testbed.try_status());
    assert!(front(&status)["protection"]["none"].as_str().unwrap().contains("sietch service"), "{status:#}");
    let mut service = testbed.sietch(&["service"]).stderr(Stdio::null()).spawn().expect("start sietch");
    let status = wait_for("the service core", || {
        testbed.try_status().filter(|status| status["daemon"]["service"] == service.id())
    });
    assert_eq!(front(&status)["protection"], "broker-mediated");
    let mut back = sietch::Client::connect(&testbed.socket(), "tester").expect("the daemon listens");
    let near = back.acquire_vnic("front").expect("a port of the switch");
    assert_eq!(near.queue.medium(), "shm");
    let grant = near.grant.clone();
    drop(near);
    back.release(&grant).expect("released");
    // A server on one port, a client on the other, and the switch between them.
    let server = pong(&testbed);
    let client = RemoteClient::start(&testbed);
    let answers = json(&testbed, &["ss", "--json"]);
    assert_eq!(sockets(&answers, "back", "established")[0]["local"], format!("{BACK}:{}", testbed.port));
    drop(client);
    let mut near = back.acquire_vnic("front").expect("a port of the switch");
    // Two service cores could not switch between these ports.
    let second = testbed.run(&["service"]);
    assert!(!second.status.success(), "{second:?}");
    service.kill().expect("kill");
    service.wait().expect("wait");
    wait_for("the port to end", || {
        use sietch::nic::NicQueue as _;
        let is_closed = near.queue.flush().is_err();
        is_closed.then_some(())
    });
    let status = wait_for("the status without a holder", || {
        testbed.try_status().filter(|status| front(status)["holder"].is_null())
    });
    assert!(status["daemon"]["service"].is_null());
    let ended = server.join().expect("the server").expect_err("its port was removed");
    eprintln!("{ended}");
    assert!(back.acquire_vnic("front").is_err(), "there is no switch any more");
    signal(i64::from(daemon.id()), Signal::TERM);
    assert!(daemon.wait().expect("wait").success());
}

fn json(testbed: &Testbed, arguments: &[&str]) -> serde_json::Value {
    let output = testbed.run(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The sockets of `vnic` in that state.
fn sockets(answers: &serde_json::Value, vnic: &str, state: &str) -> Vec<serde_json::Value> {
    let answer = answers.as_array().unwrap().iter().find(|answer| answer["vnic"] == vnic).expect("an answer");
    assert!(answer["error"].is_null(), "{answer}");
    let sockets = answer["sockets"].as_array().unwrap();
    sockets.iter().filter(|socket| socket["state"] == state).cloned().collect()
}

#[test]
fn ss_shows_both_ends_of_a_connection_and_names_silent_holders() {
    let testbed = linked("ss");
    let up = up(&testbed);
    let client = RemoteClient::start(&testbed);
    let answers = json(&testbed, &["ss", "--json"]);
    let server = format!("{BACK}:{}", testbed.port);
    let (ours, theirs) =
        (sockets(&answers, "front", "established"), sockets(&answers, "back", "established"));
    assert!(ours.len() == 1 && theirs.len() == 1, "{answers:#}");
    assert_eq!((&ours[0]["peer"], &theirs[0]["local"]), (&server.as_str().into(), &server.as_str().into()));
    assert_eq!(ours[0]["local"], theirs[0]["peer"]);
    let tcp = &theirs[0]["tcp"];
    assert_eq!((&tcp["algorithm"], &tcp["recovery"]), (&"cubic".into(), &"open".into()));
    for known in ["srtt", "congestion_window", "segment_size", "received_bytes", "acknowledged_bytes"] {
        assert!(tcp[known].as_u64().unwrap() > 0, "{known} in {tcp:#}");
    }
    assert_eq!(sockets(&answers, "back", "listen")[0]["local"], server.as_str());
    let printed = text(&testbed.run(&["ss", "back"]).stdout);
    for word in ["LISTEN", "ESTAB", &server, "cubic ts sack", "cwnd:", "bytes_received:", "kv pid"] {
        assert!(printed.contains(word), "{word} is not in:\n{printed}");
    }
    // A store that is stopped is named; the other end answers as before.
    let [_, _, store] = testbed.pids();
    signal(store, Signal::STOP);
    let answers = json(&testbed, &["ss", "--json"]);
    let named = testbed.run(&["ss", "back"]);
    signal(store, Signal::CONT);
    assert_eq!(sockets(&answers, "front", "established").len(), 1);
    let silent = answers.as_array().unwrap().iter().find(|answer| answer["vnic"] == "back").unwrap();
    assert!(silent["error"].as_str().unwrap().contains("within a second"), "{silent}");
    assert!(!named.status.success() && text(&named.stderr).contains(&format!("pid {store}")), "{named:?}");
    drop(client);
    let missing = testbed.run(&["ss", "nothing"]);
    assert!(text(&missing.stderr).contains("there is none of that name"), "{missing:?}");
    up.stop();
}

/// The frames of a pcapng file, with their directions, and the dropped frames in its statistics.
fn read_pcapng(file: &[u8]) -> (Vec<(u32, Vec<u8>)>, Option<u64>) {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    let (mut frames, mut dropped, mut rest) = (Vec::new(), None, file);
    while !rest.is_empty() {
        let (kind, length) = (word(rest), word(&rest[4..]) as usize);
        assert_eq!(word(&rest[length - 4..]) as usize, length, "a block ends as it begins");
        let body = &rest[8..length - 4];
        if kind == 6 {
            let stored = word(&body[12..]) as usize;
            let options = &body[20 + stored.next_multiple_of(4)..];
            frames.push((word(&options[4..]), body[20..20 + stored].to_vec()));
        } else if kind == 5 {
            let place = body.windows(4).position(|option| option == [5, 0, 8, 0]).expect("ifdrop");
            dropped = Some(u64::from_le_bytes(body[place + 4..place + 12].try_into().unwrap()));
        }
        rest = &rest[length..];
    }
    (frames, dropped)
}

/// A capture that has begun, as soon as the VNIC has a holder that can make one.
fn begin_capture(testbed: &Testbed, vnic: &str, path: &str, more: &[&str]) -> Child {
    wait_for("a capture to begin", || try_begin_capture(testbed, vnic, path, more))
}

/// A capture, unless the holder is just acquiring the VNIC again.
fn try_begin_capture(testbed: &Testbed, vnic: &str, path: &str, more: &[&str]) -> Option<Child> {
    let mut command = testbed.sietch(&[&["capture", vnic, "-w", path], more].concat());
    let mut capture = command.stderr(Stdio::piped()).spawn().expect("start sietch");
    let mut line = String::new();
    BufReader::new(capture.stderr.as_mut().expect("a pipe")).read_line(&mut line).expect("read");
    if line.contains("capturing") {
        return Some(capture);
    }
    let output = capture.wait_with_output().expect("wait");
    let printed = line + &text(&output.stderr);
    assert!(printed.contains("try again"), "{printed}");
    None
}

#[test]
fn a_capture_holds_the_frames_both_ways_and_other_programs_read_it() {
    let name = "a_capture_holds_the_frames_both_ways_and_other_programs_read_it";
    let testbed = linked("capture");
    let up = up(&testbed);
    let client = RemoteClient::start(&testbed);
    let file = testbed.folder.join("back.pcapng");
    let path = file.display().to_string();
    let output = testbed.run(&["capture", "back", "-w", &path, "--count", "40"]);
    assert!(
        output.status.success() && text(&output.stderr).contains("40 frames captured, 0 dropped"),
        "{output:?}"
    );
    let (frames, dropped) = read_pcapng(&std::fs::read(&file).unwrap());
    assert_eq!((frames.len(), dropped), (40, Some(0)));
    for (direction, word) in [(1, &b"PING\r\n"[..]), (2, b"+PONG\r\n")] {
        assert!(frames.iter().any(|(way, frame)| *way == direction && frame.ends_with(word)), "{direction}");
        assert!(!frames.iter().any(|(way, frame)| *way != direction && frame.ends_with(word)));
    }
    if crate::testbed::has(name, "tcpdump") {
        let read = std::process::Command::new("tcpdump").args(["-nr", &path]).output().expect("tcpdump");
        let printed = text(&read.stdout);
        assert!(
            printed.lines().count() == 40 && printed.contains(&format!("{BACK}.{}", testbed.port)),
            "{read:?}"
        );
    }
    // Only the first bytes, until an interrupt.
    let file = testbed.folder.join("front.pcapng");
    let path = file.display().to_string();
    let mut running = begin_capture(&testbed, "front", &path, &["--snap", "60"]);
    let some = || std::fs::read(&file).is_ok_and(|file| file.len() > 4096).then_some(());
    wait_for("frames in the file", some);
    signal(i64::from(running.id()), Signal::INT);
    assert!(running.wait().expect("wait").success());
    let (frames, dropped) = read_pcapng(&std::fs::read(&file).unwrap());
    assert!(dropped.is_some() && frames.iter().all(|(_, frame)| frame.len() <= 60));
    // One capture at a time; the end of the connection ends the capture.
    let mut busy = begin_capture(&testbed, "back", "/dev/null", &[]);
    let output = testbed.run(&["capture", "back", "-w", "/dev/null", "--seconds", "1"]);
    assert!(!output.status.success() && text(&output.stderr).contains("captured already"), "{output:?}");
    busy.kill().expect("kill");
    busy.wait().expect("wait");
    wait_for("the capture to be allowed again", || {
        testbed.run(&["capture", "back", "-w", "/dev/null", "--count", "3"]).status.success().then_some(())
    });
    drop(client);
    // The end of the holder ends the capture.
    let mut last = begin_capture(&testbed, "back", "/dev/null", &[]);
    up.stop();
    assert!(last.wait().expect("wait").success());
}
