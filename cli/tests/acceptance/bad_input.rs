//! Harmful input from the network: malformed commands, abandoned connections, ten thousand
//! connections, a flood of SYNs. Meanwhile an ordinary client continues and sees no error.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::{Client, Reply, Stop, answers, load};
use crate::testbed::{PATIENCE, Testbed, in_own_network, text, wait_for};

/// Connections at once, on each address. The rest of the test needs some descriptors too.
const CONNECTIONS: usize = 10_000;
const OTHER_DESCRIPTORS: u64 = 500;

/// The protocol of sockets that send whole IP packets.
const IPPROTO_RAW: std::num::NonZeroU32 = std::num::NonZeroU32::new(255).expect("255 is not 0");

/// The most modest of all data paths: epoll and pwritev2.
const WITHOUT_IO_URING: &[&str] = &["--net", "linux", "--without-io-uring"];

/// Invalid input, and whether the connection must end with an error for it.
fn malformed() -> Vec<(Vec<u8>, bool)> {
    let long = vec![b'a'; 70_000];
    let mut cases: Vec<(Vec<u8>, bool)> = [
        &b"*1\r\n$-2\r\n\r\n"[..],
        b"*1\r\n$99999999999999999999\r\n",
        b"*99999999999\r\n",
        b"*2147483647\r\n$3\r\nGET\r\n$4294967296\r\n",
        b"*1\r\n$2147483647\r\n",
        b"*1\r\n$abc\r\n",
        b"*x\r\n",
        b"*1\r\nPING\r\n",
        b"*3\r\n$3\r\nSET\r\n:1\r\n",
    ]
    .into_iter()
    .map(|bytes| (bytes.to_vec(), true))
    .collect();
    cases.push((long.clone(), true));
    cases.push(([b"*1\r\n$", &long[..]].concat(), true));
    // These may be answered or ignored, but nothing else.
    cases.extend(
        [
            &b"\r\n\r\n\0\0\0\r\n"[..],
            b"*0\r\n",
            b"*-1\r\n",
            b"SET \"unbalanced\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
        ]
        .map(|bytes| (bytes.to_vec(), false)),
    );
    cases.push(((0..=255).collect(), false));
    cases
}

fn send_malformed(address: SocketAddr) {
    for (bytes, fatal) in malformed() {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let mut client = Client::connect(address).expect("connect");
        // The store may close before all is sent.
        let _ = client.send_raw(&bytes);
        if fatal {
            if let Ok(reply) = client.receive() {
                assert!(reply.error().starts_with("ERR"), "{shown:?}: {reply:?}");
            }
            assert!(client.is_closed(), "{shown:?}: the connection stays open");
        }
        assert!(answers(address), "{address} after {shown:?}");
    }
}

/// Connections that end in the middle of a request, each in another way.
fn abandon(address: SocketAddr) {
    // Half a command, then no more: every complete command is answered first.
    let mut half = TcpStream::connect(address).expect("connect");
    half.set_read_timeout(Some(PATIENCE)).unwrap();
    half.write_all(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$100\r\nhalf").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let mut printed = String::new();
    half.read_to_string(&mut printed).expect("it closes too");
    assert_eq!(printed, "+PONG\r\n");
    let mut client = Client::connect(address).unwrap();
    let big = vec![b'x'; 1 << 20];
    client.command(&[b"SET", b"big", &big]).unwrap();
    for round in 0..50 {
        // Requests much data and reads nothing. Half of these clients disconnect at once, which
        // resets the connection.
        let mut greedy = TcpStream::connect(address).expect("connect");
        greedy.write_all(&b"GET big\r\n".repeat(8)).unwrap();
        if round % 2 == 0 {
            greedy.shutdown(Shutdown::Both).unwrap();
        }
        // Declares a long argument and sends little of it.
        let mut liar = TcpStream::connect(address).expect("connect");
        liar.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$500000000\r\nxyz").unwrap();
    }
    assert_eq!(client.request("STRLEN big").unwrap(), Reply::Integer(1 << 20));
}

/// Runs `hurt` against each of the addresses, while an ordinary client of each continues.
fn beside_ordinary_clients(testbed: &Testbed, addresses: &[SocketAddr], hurt: fn(SocketAddr)) {
    let before = testbed.pids();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let guard = stop.guard();
        let start = |address: &SocketAddr| {
            let (address, stop) = (*address, &stop);
            scope.spawn(move || load(address, &address.to_string(), stop))
        };
        let loads: Vec<_> = addresses.iter().map(start).collect();
        addresses.iter().for_each(|address| hurt(*address));
        drop(guard);
        for load in loads {
            assert!(load.join().expect("no error").replies > 0);
        }
    });
    assert_eq!(testbed.pids(), before, "something was restarted");
}

#[test]
fn malformed_and_abandoned_input_harms_no_other_client() {
    in_own_network("malformed_and_abandoned_input_harms_no_other_client", || {
        let testbed = Testbed::new("malformed");
        let hurt = |address| {
            send_malformed(address);
            abandon(address);
        };
        let up = testbed.up(&[]);
        beside_ordinary_clients(&testbed, &[testbed.vnic(), testbed.kernel()], hurt);
        up.stop();
        let up = testbed.up(WITHOUT_IO_URING);
        beside_ordinary_clients(&testbed, &[testbed.kernel()], hurt);
        up.stop();
    });
}

/// The most descriptors that this process may have, and the number of connections.
fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHER_DESCRIPTORS);
    let connections = CONNECTIONS.min(usize::try_from(most).unwrap_or(CONNECTIONS));
    if connections < CONNECTIONS {
        eprintln!("only {connections} connections: the hard limit of open files allows no more");
    }
    connections
}

/// All are connected at once, and each gets an answer while the others exist.
fn crowd(address: SocketAddr, count: usize) {
    let mut clients: Vec<Client> = Vec::with_capacity(count);
    for number in 0..count {
        let client = Client::connect_with(address, PATIENCE);
        clients.push(client.unwrap_or_else(|cause| panic!("{address}: connection {number}: {cause}")));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&[b"SET", format!("crowd:{number}").as_bytes(), b"1"]).unwrap();
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let reply = client.receive();
        assert_eq!(reply.unwrap_or_else(|cause| panic!("{address}: {number}: {cause}")), Reply::ok());
    }
}

#[test]
fn ten_thousand_connections_are_served_on_each_address() {
    in_own_network("ten_thousand_connections_are_served_on_each_address", || {
        // The store starts with the limits of an ordinary login, and must raise its own.
        let limit = getrlimit(Resource::Nofile);
        let soft = limit.current.map(|current| current.min(1024));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: soft, maximum: limit.maximum });
        let testbed = Testbed::new("crowd");
        let up = testbed.up(&[]);
        let count = raise_descriptors();
        for address in [testbed.vnic(), testbed.kernel()] {
            crowd_comes_and_goes(&testbed, address, count);
        }
        up.stop();
        let up = testbed.up(WITHOUT_IO_URING);
        crowd_comes_and_goes(&testbed, testbed.kernel(), count);
        up.stop();
    });
}

fn crowd_comes_and_goes(testbed: &Testbed, address: SocketAddr, count: usize) {
    let mut admin = Client::connect(testbed.kernel()).unwrap();
    // The crowd, and those who watch.
    assert_eq!(admin.request("CONFIG SET maxclients 10100").unwrap(), Reply::ok());
    crowd(address, count);
    wait_for("the crowd to leave", || {
        let Ok(Reply::Bulk(info)) = admin.request("INFO clients") else { panic!("no INFO") };
        text(&info).contains("connected_clients:1\r\n").then_some(())
    });
    assert_eq!(admin.request("DBSIZE").unwrap(), Reply::Integer(i64::try_from(count).unwrap()));
}

/// A SYN from `source`, with its checksums.
fn syn(source: SocketAddrV4, target: SocketAddrV4) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&40_u16.to_be_bytes());
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&source.ip().octets());
    packet[16..20].copy_from_slice(&target.ip().octets());
    packet[20..22].copy_from_slice(&source.port().to_be_bytes());
    packet[22..24].copy_from_slice(&target.port().to_be_bytes());
    packet[24..28].copy_from_slice(&u32::from(*source.ip()).to_be_bytes());
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
    };
    let fold = |sum: u32| {
        let once = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((once & 0xffff) + (once >> 16)).unwrap()
    };
    // The kernel fills in the header's own checksum.
    let checksum = fold(words(&packet[12..40]) + 6 + 20);
    packet[36..38].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn a_flood_of_syns_leaves_room_for_clients() {
    in_own_network("a_flood_of_syns_leaves_room_for_clients", || {
        let testbed = Testbed::new("syn-flood");
        let up = testbed.up(&[]);
        let SocketAddr::V4(target) = testbed.vnic() else { panic!("IPv4") };
        let raw =
            rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(Protocol::from_raw(IPPROTO_RAW)))
                .expect("root may send raw packets");
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let _guard = stop.guard();
            let flood = scope.spawn(|| {
                let mut sent = 0_u32;
                while !stop.is_set() {
                    let source = Ipv4Addr::from(0xc612_0000 + sent % 0x1_0000);
                    let port = 1024 + u16::try_from(sent % 60_000).unwrap();
                    let packet = syn(SocketAddrV4::new(source, port), target);
                    if rustix::net::sendto(&raw, &packet, SendFlags::empty(), &target).is_ok() {
                        sent += 1;
                    }
                }
                sent
            });
            let steady = scope.spawn(|| load(testbed.vnic(), "during the flood", &stop));
            std::thread::sleep(Duration::from_millis(500));
            // New clients are accepted while the flood continues, each at its first attempt.
            for _ in 0..20 {
                let reply = Client::connect(testbed.vnic()).and_then(|mut client| client.request("PING"));
                assert_eq!(reply.expect("there is room"), Reply::Simple(b"PONG".to_vec()));
            }
            stop.set();
            let (sent, seen) = (flood.join().unwrap(), steady.join().expect("no error"));
            eprintln!("{sent} SYNs; the slowest pair of replies took {:?}", seen.longest);
            assert!(sent > 10_000 && seen.replies > 0);
        });
        assert!(answers(testbed.kernel()));
        up.stop();
    });
}
