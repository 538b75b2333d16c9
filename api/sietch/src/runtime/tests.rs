//! Two runtimes on a wire, in virtual time.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::{Buffer, MemoryQueue, Part};
use sietch_net::Ipv6Config;
use sietch_nic::wire::{WireQueue, pair};
use sietch_persist::{FormatOptions, Log, Map, Options, Queue, QueueOptions};

use super::*;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn address(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

/// Both ends, and the time.
struct World {
    client: Runtime<WireQueue>,
    server: Runtime<WireQueue>,
    now: u64,
}

impl World {
    fn new() -> Self {
        let (a, b) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 512);
        let config = |last| {
            let mut config = Config::new(Ipv4Addr::new(10, 0, 0, last), 24, [last; 16]);
            let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into());
            config.ipv6 = Some(Ipv6Config { addresses: vec![(address, 64)], gateway: None });
            config
        };
        let client = Runtime::new(a, &config(1)).expect("there are descriptors left");
        let server = Runtime::new(b, &config(2)).expect("there are descriptors left");
        Self { client, server, now: 1_000_000 }
    }

    /// Iterates both until `task` is done and returns its value. Time jumps to the next deadline
    /// when nothing happens.
    fn until<T: 'static>(&mut self, task: &JoinHandle<T>) -> T {
        for _ in 0..1_000_000 {
            if let Some(value) = task.take() {
                return value;
            }
            self.step();
        }
        panic!("the task is not done after a million iterations");
    }

    fn step(&mut self) {
        let busy = self.client.iterate(self.now).expect("a wire does not break")
            | self.server.iterate(self.now).expect("a wire does not break");
        self.now += 1_000;
        if !busy {
            let deadlines = [self.client.next_deadline(), self.server.next_deadline()];
            let next = deadlines.into_iter().flatten().min().expect("a task waits for a deadline");
            self.now = self.now.max(next);
        }
    }

    /// Iterates both until neither has anything to do, ever. False if that does not happen.
    fn quiesce(&mut self) -> bool {
        (0..10_000).any(|_| {
            let busy = self.client.iterate(self.now).expect("a wire does not break")
                | self.server.iterate(self.now).expect("a wire does not break");
            let next = [self.client.next_deadline(), self.server.next_deadline()].into_iter().flatten().min();
            self.now = if busy { self.now + 1_000 } else { self.now.max(next.unwrap_or(0)) };
            !busy && next.is_none()
        })
    }

    fn settle(&mut self, iterations: usize) {
        for _ in 0..iterations {
            let _ = self.client.iterate(self.now);
            let _ = self.server.iterate(self.now);
            self.now += 1_000;
        }
    }

    /// A server that sends back every byte.
    fn echo(&self, port: u16) {
        let net = self.server.net();
        let mut listener = net.listen(port, 1024).expect("the port is free");
        let spawner = net.clone();
        net.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                spawner.spawn(async move {
                    let mut buffer = [0; 1000];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        stream.write_all(&buffer[..count]).await.expect("the client reads");
                    }
                });
            }
        });
    }
}

#[test]
fn written_bytes_come_back_from_an_echo() {
    let mut world = World::new();
    world.echo(7);
    let net = world.client.net();
    let task = net.clone().spawn(async move {
        let mut stream = net.connect(address(7)).await.expect("it listens");
        stream.write_all(b"ping").await.expect("it is open");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.expect("it echoes");
        stream.shutdown();
        let end = stream.read(&mut answer).await.expect("an orderly end");
        (answer, end)
    });
    assert_eq!(world.until(&task), (*b"ping", 0));
}

#[test]
fn peers_are_named_by_addresses_of_either_family() {
    let mut world = World::new();
    world.echo(7);
    let mut socket = world.server.net().bind(7).expect("the port is free");
    world.server.net().spawn(async move {
        while let Ok(datagram) = socket.receive().await {
            socket.send_to(&datagram.payload, datagram.remote).await.expect("it came from there");
        }
    });
    let net = world.client.net();
    let remote = SocketAddr::from((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), 7));
    let mut socket = net.bind(5000).expect("the port is free");
    let task = net.clone().spawn(async move {
        let mut stream = net.connect(remote).await.expect("it listens");
        assert_eq!(stream.peer(), Some(remote));
        stream.write_all(b"ping").await.expect("it is open");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.expect("it echoes");
        socket.send_to(b"ping", remote).await.expect("it is on the link");
        let datagram = socket.receive().await.expect("it is bound");
        (answer, datagram.remote, datagram.payload)
    });
    assert_eq!(world.until(&task), (*b"ping", remote, b"ping".to_vec()));
}

#[test]
fn a_hundred_connections_of_one_thread_do_not_wait_for_each_other() {
    let mut world = World::new();
    world.echo(7);
    let net = world.client.net();
    let done = Rc::new(RefCell::new(0));
    let all: Vec<_> = (0..100_u8)
        .map(|number| {
            let (net, done) = (net.clone(), Rc::clone(&done));
            net.clone().spawn(async move {
                let mut stream = net.connect(address(7)).await.expect("it listens");
                for round in 0..20 {
                    stream.write_all(&[number, round]).await.expect("it is open");
                    let mut answer = [0; 2];
                    stream.read_exact(&mut answer).await.expect("it echoes");
                    assert_eq!(answer, [number, round]);
                }
                *done.borrow_mut() += 1;
            })
        })
        .collect();
    for task in &all {
        world.until(task);
    }
    assert_eq!(*done.borrow(), 100);
}

#[test]
fn more_than_the_buffers_hold_gets_through_both_halves() {
    let mut world = World::new();
    world.echo(7);
    let net = world.client.net();
    let total = 4 << 20;
    let task = net.clone().spawn(async move {
        let (mut reader, mut writer) = net.connect(address(7)).await.expect("it listens").split();
        net.spawn(async move {
            let chunk: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
            for _ in 0..total / chunk.len() {
                writer.write_all(&chunk).await.expect("it is open");
            }
            // Dropping it ends the stream.
        });
        let mut received = 0;
        while reader.readable().await.expect("no reset") {
            let length = reader.peek(|first, second| {
                let bytes = first.iter().chain(second);
                assert!(bytes.zip(received..).all(|(byte, place)| *byte == place as u8));
                first.len() + second.len()
            });
            reader.consume(length);
            received += length;
        }
        received
    });
    assert_eq!(world.until(&task), total);
}

#[test]
fn a_large_body_is_sent_and_received_without_a_copy() {
    let mut world = World::new();
    let net = world.server.net();
    let mut listener = net.listen(7, 4).expect("the port is free");
    let spawner = net.clone();
    net.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            spawner.spawn(async move {
                // Each buffer is sent back as it arrived, and is released when the client has
                // acknowledged it.
                while let Ok(Some(buffer)) = stream.read_zero_copy().await {
                    let (first, second) = buffer.into_shared();
                    stream.write_zero_copy(first).await.expect("the client reads");
                    stream.write_zero_copy(second).await.expect("the client reads");
                }
            });
        }
    });
    let net = world.client.net();
    let body: Arc<[u8]> = (0..=255).cycle().take(30 << 20).collect();
    let (sent, kept) = (Arc::clone(&body), Arc::clone(&body));
    let task = net.clone().spawn(async move {
        let (mut reader, mut writer) = net.connect(address(7)).await.expect("it listens").split();
        net.spawn(async move {
            writer.write_all(b"head").await.expect("it is open");
            writer.write_zero_copy(sent).await.expect("it is open");
            writer.write_all(b"tail").await.expect("it is open");
        });
        let mut received = Vec::new();
        while let Some(buffer) = reader.read_zero_copy().await.expect("no reset") {
            let (first, second) = buffer.slices();
            received.extend_from_slice(first);
            received.extend_from_slice(second);
        }
        received
    });
    let received = world.until(&task);
    assert_eq!(received.len(), body.len() + 8);
    assert!(received.starts_with(b"head") && received.ends_with(b"tail"));
    assert!(received[4..4 + body.len()] == *body);
    assert_eq!(Arc::strong_count(&kept), 2, "what was acknowledged is let go of");
}

#[test]
fn a_zero_copy_write_to_an_ended_connection_fails_and_releases_the_bytes() {
    let mut world = World::new();
    let net = world.server.net();
    let mut listener = net.listen(7, 4).expect("the port is free");
    net.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let _ = stream.readable().await;
        stream.abort();
    });
    let net = world.client.net();
    let body: Arc<[u8]> = vec![7; 1 << 20].into();
    let sent = Arc::clone(&body);
    let task = net.clone().spawn(async move {
        let mut stream = net.connect(address(7)).await.expect("it listens");
        loop {
            if let Err(cause) = stream.write_zero_copy(Arc::clone(&sent)).await {
                return cause.kind();
            }
        }
    });
    assert_eq!(world.until(&task), io::ErrorKind::ConnectionReset);
    assert_eq!(Arc::strong_count(&body), 1);
}

#[test]
fn ten_silent_connections_give_the_loop_nothing_to_do() {
    let mut world = World::new();
    world.echo(7);
    let net = world.client.net();
    let task = net.clone().spawn(async move {
        let mut streams = Vec::new();
        for number in 0..10_u8 {
            let mut stream = net.connect(address(7)).await.expect("it listens");
            stream.write_all(&[number]).await.expect("it is open");
            stream.read_exact(&mut [0]).await.expect("it echoes");
            streams.push(stream);
        }
        streams
    });
    let streams = world.until(&task);
    // Delayed acknowledgements leave; after that both may sleep until something arrives.
    assert!(world.quiesce());
    drop(streams);
}

#[test]
fn a_dropped_read_loses_nothing() {
    let mut world = World::new();
    let net = world.server.net();
    let mut listener = net.listen(7, 4).expect("the port is free");
    let server = net.clone();
    net.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        server.sleep(Duration::from_millis(50)).await;
        stream.write_all(b"late").await.expect("it is open");
        let _ = stream.readable().await;
    });
    let net = world.client.net();
    let task = net.clone().spawn(async move {
        let mut stream = net.connect(address(7)).await.expect("it listens");
        let mut buffer = [0; 16];
        let early = net.timeout(Duration::from_millis(10), stream.read(&mut buffer)).await;
        let count = stream.read(&mut buffer).await.expect("it writes");
        (early.is_err(), buffer[..count].to_vec())
    });
    assert_eq!(world.until(&task), (true, b"late".to_vec()));
}

#[test]
fn connecting_to_a_port_without_a_listener_is_refused() {
    let mut world = World::new();
    let net = world.client.net();
    let task = net.clone().spawn(async move { net.connect(address(9)).await.map(drop) });
    let refused = world.until(&task).expect_err("the port has no listener");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn connections_beyond_the_backlog_are_reset_and_the_others_live() {
    let mut world = World::new();
    let listener = world.server.net().listen(7, 2).expect("the port is free");
    let net = world.client.net();
    let streams: Vec<_> = (0..4)
        .map(|_| {
            let net = net.clone();
            net.clone().spawn(async move { net.connect(address(7)).await })
        })
        .collect();
    world.settle(200);
    let mut open: Vec<TcpStream> =
        streams.iter().filter_map(JoinHandle::take).filter_map(Result::ok).collect();
    let task = net.clone().spawn(async move {
        let mut lost = 0;
        for stream in &mut open {
            // The last step of a handshake that finds no place is repeated, and then answered with
            // a reset.
            stream.write_all(b"x").await.ok();
            let outcome = net.timeout(Duration::from_secs(10), stream.readable()).await;
            lost += usize::from(outcome.is_ok_and(|outcome| outcome.is_err()));
        }
        (open.len(), lost)
    });
    let (connected, lost) = world.until(&task);
    assert_eq!(connected - lost, 2);
    drop(listener);
}

#[test]
fn datagrams_come_one_by_one_with_their_senders() {
    let mut world = World::new();
    let mut server = world.server.net().bind(7).expect("the port is free");
    world.server.net().spawn(async move {
        let mut buffer = [0; 100];
        loop {
            let (length, from) = server.recv_from(&mut buffer).await.expect("it is bound");
            server.send_to(&buffer[..length], from).await.expect("it came from there");
        }
    });
    let net = world.client.net();
    let mut client = net.bind(5000).expect("the port is free");
    let task = net.spawn(async move {
        for number in 0..50_u8 {
            client.send_to(&[number; 10], address(7)).await.expect("on the link");
        }
        for number in 0..50_u8 {
            let datagram = client.receive().await.expect("it is bound");
            assert_eq!(datagram.payload, [number; 10]);
            assert_eq!(datagram.remote, address(7));
        }
    });
    world.until(&task);
}

#[test]
fn a_connected_socket_receives_only_from_its_peer_and_gets_its_errors() {
    let mut world = World::new();
    let mut server = world.server.net().bind(7).expect("the port is free");
    let mut other = world.server.net().bind(8).expect("the port is free");
    world.server.net().spawn(async move {
        let from = server
            .receive_with(|from, payload| (payload == b"ask").then_some(from))
            .await
            .expect("it is bound");
        let from = from.expect("it received a query");
        other.send_to(b"noise", from).await.expect("it is on the link");
        server.send_to(b"answer", from).await.expect("it is on the link");
        // Dropping it releases its port.
    });
    let net = world.client.net();
    let mut client = net.bind(5000).expect("the port is free");
    let task = net.clone().spawn(async move {
        let alone = client.send(b"to whom?").await.expect_err("it is not connected");
        client.connect(address(7)).expect("it is on the link");
        client.send(b"ask").await.expect("it is connected");
        let received = client.receive().await.expect("the server answers");
        net.sleep(Duration::from_millis(10)).await;
        client.send(b"more").await.expect("it is connected");
        let refused = client.receive().await.expect_err("the peer has closed");
        (alone.kind(), received.payload, refused.kind())
    });
    let (alone, received, refused) = world.until(&task);
    assert_eq!((alone, refused), (io::ErrorKind::NotConnected, io::ErrorKind::ConnectionRefused));
    assert_eq!(received, b"answer");
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let mut world = World::new();
    let net = world.client.net();
    let order = Rc::new(RefCell::new(Vec::new()));
    for millisecond in [30, 10, 20] {
        let (sleep, order) = (net.sleep(Duration::from_millis(millisecond)), Rc::clone(&order));
        net.spawn(async move {
            sleep.await;
            order.borrow_mut().push(millisecond);
        });
    }
    let ticker = net.clone();
    let task = net.spawn(async move {
        let mut interval = ticker.interval(Duration::from_millis(15));
        let begin = ticker.now();
        interval.tick().await;
        interval.tick().await;
        interval.tick().await;
        ticker.now() - begin
    });
    let elapsed = world.until(&task);
    assert_eq!(*order.borrow(), [10, 20, 30]);
    assert!((45_000_000..46_000_000).contains(&elapsed), "{elapsed}");
    assert_eq!(world.client.next_deadline(), None, "nothing is left to wait for");
}

#[test]
fn a_task_can_be_ended_and_awaited() {
    let mut world = World::new();
    let net = world.client.net();
    let endless = net.spawn(std::future::pending::<()>());
    let quick = net.spawn(async { 7 });
    endless.abort();
    let task = net.spawn(async move { (endless.await, quick.await) });
    assert_eq!(world.until(&task), (Err(Aborted), Ok(7)));
    assert_eq!(world.client.tasks(), 0);
}

#[test]
fn disk_and_log_complete_in_the_loop() {
    let mut world = World::new();
    let net = world.client.net();
    let disk = net.disk(MemoryQueue::new(1 << 20)).expect("it has no doorbell");
    let mut area = MemoryQueue::new(1 << 20);
    Log::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (log, _) = Log::open(area, Options::default(), &mut |_| Ok(())).expect("it was just formatted");
    let log = net.log(log).expect("it has no doorbell");
    let task = net.spawn(async move {
        let mut buffer = Buffer::new(4096);
        buffer[..5].copy_from_slice(b"spice");
        let (written, buffer) = disk.write(8192, 4096, buffer, true).await;
        written.expect("it is inside");
        let (read, buffer) = disk.read(8192, 4096, buffer).await;
        read.expect("it is inside");
        assert_eq!(&buffer[..5], b"spice");
        let (outside, _) = disk.read(1 << 20, 4096, buffer).await;
        assert_eq!(outside.expect_err("it is outside").kind(), io::ErrorKind::InvalidInput);
        let parts = || {
            [1u8, 2].map(|byte| {
                let mut buffer = Buffer::new(4096);
                buffer.fill(byte);
                Part { buffer, length: 4096 }
            })
        };
        let (written, parts) = disk.write_vectored(0, parts().into(), true).await;
        written.expect("it is inside");
        disk.discard(4096, 4096).await.expect("it is inside");
        let (read, parts) = disk.read_vectored(0, parts).await;
        read.expect("it is inside");
        assert_eq!((parts[0].buffer[4095], parts[1].buffer[0]), (1, 0));
        let outside = disk.write_vectored(1 << 20, parts, true).await;
        assert_eq!((outside.0.is_err(), outside.1.len()), (true, 2));
        let first = log.append(b"one").await.expect("there is room");
        let second = log.append(b"two").await.expect("there is room");
        log.with(|log| log.durable() >= second && second > first)
    });
    assert!(world.until(&task));
}

#[test]
fn queue_and_map_complete_in_the_loop() {
    let mut world = World::new();
    let net = world.client.net();
    let mut area = MemoryQueue::new(1 << 20);
    Queue::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (queue, _) = Queue::open(area, QueueOptions::default()).expect("it was just formatted");
    let queue = net.queue(queue).expect("it has no doorbell");
    let mut area = MemoryQueue::new(1 << 20);
    Map::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (map, _) = Map::open(area, Options::default()).expect("it was just formatted");
    let map = net.map(map).expect("it has no doorbell");
    let (inbox, counts) = (queue.clone(), map.clone());
    let consumer = net.spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let entry = inbox.receive(1, 1_000_000).await.expect("the queue works");
            let first = entry.deliveries == 1;
            counts.put(&entry.payload, &entry.deliveries.to_le_bytes()).await.expect("there is room");
            if first && entry.payload == b"late" {
                // Its lease ends without an acknowledgement.
                continue;
            }
            inbox.acknowledge(&[entry.receipt]).await.expect("it is ours");
            seen.push((entry.payload, entry.deliveries));
        }
        seen
    });
    let producer = net.spawn(async move {
        for payload in [&b"one"[..], b"late", b"two"] {
            queue.send(payload).await.expect("there is room");
        }
        queue
    });
    let seen = world.until(&consumer);
    assert_eq!(seen, [(b"one".to_vec(), 1), (b"two".to_vec(), 1), (b"late".to_vec(), 2)]);
    assert!(world.until(&producer).with(|queue| queue.is_empty()));
    assert_eq!(map.with(|map| map.get(b"late").map(<[u8]>::to_vec)), Some(2u32.to_le_bytes().to_vec()));
}

#[test]
fn an_area_grows_and_shrinks_under_a_map_in_use() {
    use sietch_disk::{AreaQueue, open_area};
    use sietch_persist::{FormatOptions, Map, Options};
    const SMALL: u64 = 1 << 20;
    const LARGE: u64 = 4 << 20;
    let path = std::env::temp_dir().join(format!("sietch-resize-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("a place for files");
    // The file is deleted when the last descriptor is closed.
    std::fs::remove_file(&path).expect("it was just made");
    let queue = |size| -> AreaQueue {
        file.set_len(size).expect("room on the disk");
        open_area(file.try_clone().expect("a descriptor").into(), size).expect("a file")
    };
    let mut area = queue(SMALL);
    Map::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (map, _) = Map::open(area, Options::default()).expect("it was just formatted");
    let (wire, _other) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 16);
    let runtime = Runtime::new(wire, &Config::new(SERVER, 24, [1; 16])).expect("descriptors are left");
    let larger = queue(LARGE);
    let size = runtime.run(async move |net: Net| {
        let map = net.map(map).expect("there are descriptors left");
        // A task waits only for the last of these.
        let put = async |count: u32, keys: u32| {
            let one = |n: u32| {
                map.with(|map| map.put(&(n % keys).to_le_bytes(), &[n as u8; 3000])).expect("there is room")
            };
            let last = (0..count).fold(0, |_, n| one(n));
            map.reached(last).await.expect("a disk that works");
        };
        put(60, 3).await;
        map.replace_disk(larger).await.expect("it suits");
        map.grow(LARGE).await.expect("the area is as large");
        put(200, 200).await;
        for n in 3..200_u32 {
            map.with(|map| map.delete(&n.to_le_bytes())).expect("it always has room");
        }
        while map.shrink_to(SMALL).await.is_err() {
            // Another change lets it compact.
            map.put(b"again", b"").await.expect("there is room");
        }
        map.with(|map| map.log().area_bytes())
    });
    assert_eq!(size.expect("a wire does not break"), SMALL);
    let (map, _) = Map::open(queue(SMALL), Options::default()).expect("nothing is missing");
    assert_eq!(map.get(&2_u32.to_le_bytes()), Some(&[2; 3000][..]));
}

#[test]
fn a_map_reads_its_values_from_the_area() {
    use sietch_persist::{FormatOptions, StoredMap, StoredMapOptions};
    let mut area = MemoryQueue::new(4 << 20);
    StoredMap::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (map, _) = StoredMap::open(area, StoredMapOptions::default()).expect("it was just formatted");
    let mut world = World::new();
    let net = world.server.net();
    let map = net.stored_map(map).expect("it has no doorbell");
    let task = net.spawn(async move {
        for n in 0..40_u8 {
            map.put(&[n], &[n; 5000]).await.expect("there is room");
        }
        map.delete(&[3]).await.expect("there is room");
        let mut found = Vec::new();
        for n in [0, 3, 39, 40_u8] {
            found.push(map.get(&[n]).await.expect("nothing is damaged").map(|value| (value.len(), value[0])));
        }
        (found, map.with(|map| map.memory()))
    });
    let (found, memory) = world.until(&task);
    assert_eq!(found, [Some((5000, 0)), None, Some((5000, 39)), None]);
    assert!(memory < 40 * 500, "{memory}");
}

#[test]
fn a_waiting_task_has_a_deferred_structure_flushed() {
    use sietch_persist::{Durability, FormatOptions, Options, Queue, QueueOptions};
    let mut area = MemoryQueue::new(1 << 20);
    Queue::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let log = Options { durability: Durability::Deferred, ..Options::default() };
    let options = QueueOptions { log, ..QueueOptions::default() };
    let (queue, _) = Queue::open(area, options).expect("it was just formatted");
    let mut world = World::new();
    let net = world.server.net();
    let queue = net.queue(queue).expect("it has no doorbell");
    let task = net.spawn(async move {
        // Only the receiver waits for this one.
        queue.with(|queue| queue.send(b"one")).expect("there is room");
        let entry = queue.receive(1, 1_000_000).await.expect("the queue works");
        queue.acknowledge(&[entry.receipt]).await.expect("it is ours");
        queue.send(b"two").await.expect("there is room");
        entry.payload
    });
    assert_eq!(world.until(&task), b"one");
}

#[test]
fn another_thread_wakes_a_sleeping_loop() {
    let (queue, _other) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 16);
    let config = Config::new(SERVER, 24, [1; 16]);
    let runtime = Runtime::new(queue, &config).expect("there are descriptors left");
    let shared = std::sync::Arc::new(std::sync::Mutex::new((None::<std::task::Waker>, false)));
    let theirs = std::sync::Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        loop {
            let mut state = theirs.lock().expect("no thread panicked");
            if let Some(waker) = state.0.take() {
                state.1 = true;
                waker.wake();
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    });
    let woken = runtime.run(async move |_| {
        std::future::poll_fn(|context| {
            let mut state = shared.lock().expect("no thread panicked");
            if state.1 {
                return std::task::Poll::Ready(true);
            }
            state.0 = Some(context.waker().clone());
            std::task::Poll::Pending
        })
        .await
    });
    assert!(woken.expect("a wire does not break"));
    thread.join().expect("it does not panic");
}

#[test]
fn the_last_write_arrives_after_the_task_has_ended() {
    let mut world = World::new();
    let net = world.server.net();
    let mut listener = net.listen(7, 4).expect("the port is free");
    let task = net.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut bytes = Vec::new();
        let mut buffer = [0; 100];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..count]);
        }
        bytes
    });
    let net = world.client.net();
    net.clone().spawn(async move {
        let mut stream = net.connect(address(7)).await.expect("it listens");
        stream.write_all(b"goodbye").await.expect("it is open");
    });
    assert_eq!(world.until(&task), b"goodbye");
}
