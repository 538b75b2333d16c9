//! The examples do what they say: each runs here, on hosts joined by a switch, in virtual time.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use sietch::net::Config;
use sietch::nic::wire::{WireQueue, WireTap, tapped};
use sietch::{JoinHandle, Net, Runtime, Stack, VnicQueue};

#[path = "../../examples/durable_log.rs"]
mod durable_log;
#[path = "../../examples/http_balancer.rs"]
mod http_balancer;
#[path = "../../examples/http_server.rs"]
mod http_server;
#[path = "../../examples/middlebox.rs"]
mod middlebox;
#[path = "../../examples/rpc_client.rs"]
mod rpc_client;
#[path = "../../examples/rpc_server.rs"]
mod rpc_server;
#[path = "../../examples/udp_echo.rs"]
mod udp_echo;

/// One iteration of a host: whether anything happened, and when its next iteration is due.
type HostStep = Box<dyn FnMut(u64) -> (bool, Option<u64>)>;

/// Hosts 10.0.0.1, 10.0.0.2 and so on, joined by a switch.
#[derive(Default)]
struct Lan {
    taps: Vec<WireTap>,
    hosts: Vec<HostStep>,
    now: u64,
}

fn address(host: usize, port: u16) -> SocketAddr {
    v4(host, port).into()
}

fn v4(host: usize, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host as u8), port)
}

fn config(host: usize) -> Config {
    Config::new(*v4(host, 0).ip(), 24, [host as u8; 16])
}

impl Lan {
    /// Adds one more host; returns its index.
    fn plug(&mut self) -> (usize, WireQueue) {
        let host = self.taps.len() + 1;
        let (queue, tap) = tapped([2, 0, 0, 0, 0, host as u8], 1500, 512);
        self.taps.push(tap);
        (host, queue)
    }

    /// A host with tasks.
    fn host(&mut self) -> (usize, Net) {
        let (host, queue) = self.plug();
        let mut runtime = Runtime::new(queue, &config(host)).expect("there are descriptors left");
        let net = runtime.net();
        self.hosts.push(Box::new(move |now| {
            (runtime.iterate(now).expect("a wire does not break"), runtime.next_deadline())
        }));
        (host, net)
    }

    /// Delivers frames to their destinations.
    fn switch(&self) -> bool {
        let mut busy = false;
        for (from, tap) in self.taps.iter().enumerate() {
            while let Some(frame) = tap.take_transmitted() {
                busy = true;
                let all = self.taps.iter().enumerate().filter(|(to, _)| *to != from);
                for (to, tap) in all {
                    if frame[0] & 1 == 1 || frame[5] == to as u8 + 1 {
                        tap.deliver(&frame);
                    }
                }
            }
        }
        busy
    }

    fn step(&mut self) {
        let steps: Vec<_> = self.hosts.iter_mut().map(|host| host(self.now)).collect();
        let busy = self.switch() | steps.iter().any(|step| step.0);
        self.now += 1_000;
        if !busy {
            let next = steps.iter().filter_map(|step| step.1).min();
            self.now = self.now.max(next.expect("a host waits for a deadline"));
        }
    }

    fn until<T: 'static>(&mut self, mut task: JoinHandle<T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..1_000_000 {
            if let std::task::Poll::Ready(value) = std::pin::Pin::new(&mut task).poll(&mut context) {
                return value.expect("the task is not aborted");
            }
            self.step();
        }
        panic!("the task is not done after a million iterations");
    }
}

/// Gets `path` over a connection of its own; the whole answer.
async fn get(net: &Net, server: SocketAddr, path: &str) -> String {
    let mut stream = net.connect(server).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is open");
    let (mut answer, mut buffer) = (Vec::new(), [0; 1000]);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(answer).expect("it is text")
}

fn files(text: &str) -> http_server::Files {
    [("/index.html".to_owned(), text.as_bytes().into())].into()
}

#[test]
fn udp_echo_sends_datagrams_back() {
    let mut lan = Lan::default();
    let (server, queue) = lan.plug();
    let mut stack = Stack::new(queue, &config(server));
    stack.engine.udp_bind(7).expect("the port is free");
    lan.hosts.push(Box::new(move |now| {
        let busy = stack.iterate(now).expect("a wire does not break");
        udp_echo::answer(&mut stack);
        (busy, stack.next_deadline())
    }));
    let (_, net) = lan.host();
    let mut socket = net.bind(5000).expect("the port is free");
    let task = net.spawn(async move {
        let mut buffer = [0; 100];
        for number in 0..100_u8 {
            socket.send_to(&[number; 64], address(server, 7)).await.expect("on the link");
            let (length, from) = socket.recv_from(&mut buffer).await.expect("it is bound");
            assert_eq!((&buffer[..length], from), (&[number; 64][..], address(server, 7)));
        }
    });
    lan.until(task);
}

#[test]
fn rpc_calls_are_answered_pipelined_or_not() {
    let mut lan = Lan::default();
    let (server, net) = lan.host();
    net.spawn(rpc_server::serve(net.clone(), 7000));
    let (_, net) = lan.host();
    for (calls, pipeline) in [(50, 1), (5000, 64)] {
        let task = net.spawn(rpc_client::call(net.clone(), address(server, 7000), calls, pipeline));
        assert_eq!(lan.until(task).expect("all calls are answered").calls, calls);
    }
}

#[test]
fn http_server_answers_for_existing_and_missing_files() {
    let mut lan = Lan::default();
    let (server, net) = lan.host();
    net.spawn(http_server::serve(net.clone(), 80, files("spice")));
    let (_, net) = lan.host();
    let task = net.clone().spawn(async move {
        let found = get(&net, address(server, 80), "/").await;
        (found, get(&net, address(server, 80), "/sand").await)
    });
    let (found, missing) = lan.until(task);
    assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\nspice"), "{found}");
    assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
}

#[test]
fn http_balancer_rotates_over_the_live_backends() {
    let mut lan = Lan::default();
    let (one, first) = lan.host();
    first.spawn(http_server::serve(first.clone(), 80, files("one")));
    let (two, second) = lan.host();
    let second_server = second.spawn(http_server::serve(second.clone(), 80, files("two")));
    let (balancer, net) = lan.host();
    net.spawn(http_balancer::serve(net.clone(), 80, vec![address(one, 80), address(two, 80)]));
    let (_, net) = lan.host();
    let task = net.clone().spawn(async move {
        let mut bodies = Vec::new();
        for _ in 0..4 {
            bodies.push(get(&net, address(balancer, 80), "/").await);
        }
        // One of the backends stops, and comes back later.
        second_server.abort();
        net.sleep(Duration::from_millis(10)).await;
        for _ in 0..4 {
            bodies.push(get(&net, address(balancer, 80), "/").await);
        }
        second.spawn(http_server::serve(second.clone(), 80, files("two")));
        net.sleep(Duration::from_secs(5)).await;
        for _ in 0..4 {
            bodies.push(get(&net, address(balancer, 80), "/").await);
        }
        bodies
    });
    let bodies = lan.until(task);
    let of = |range: std::ops::Range<usize>, text: &str| {
        bodies[range].iter().filter(|body| body.ends_with(text)).count()
    };
    assert_eq!((of(0..4, "one"), of(0..4, "two")), (2, 2));
    assert_eq!(of(4..8, "one"), 4, "the dead one is left out, and no request is lost: {bodies:?}");
    assert_eq!((of(8..12, "one"), of(8..12, "two")), (2, 2), "it gets requests again");
}

#[test]
fn middlebox_spreads_flows_over_servers_without_a_connection_of_its_own() {
    let mut lan = Lan::default();
    let counts: Rc<RefCell<[u32; 2]>> = Rc::default();
    let mut servers = Vec::new();
    for place in 0..2 {
        let (host, net) = lan.host();
        servers.push(v4(host, 80));
        let counts = Rc::clone(&counts);
        net.clone().spawn(async move {
            let mut listener = net.listen(80, 16).expect("the port is free");
            while let Ok((mut stream, _)) = listener.accept().await {
                counts.borrow_mut()[place] += 1;
                net.spawn(async move {
                    let mut buffer = [0; 1000];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        stream.write_all(&buffer[..count]).await.expect("the client reads");
                    }
                });
            }
        });
    }
    let (host, mut queue) = lan.plug();
    let mut middlebox = middlebox::Middlebox::new(v4(host, 80), &servers);
    lan.hosts.push(Box::new(move |now| {
        (middlebox.iterate(&mut queue, now).expect("a wire does not break"), Some(now + 1_000_000_000))
    }));
    let (_, net) = lan.host();
    let task = net.clone().spawn(async move {
        net.sleep(Duration::from_millis(1)).await;
        for number in 0..6_u8 {
            let mut stream = net.connect(address(host, 80)).await.expect("a server listens");
            let sent = vec![number; 50_000];
            stream.write_all(&sent).await.expect("it is open");
            let mut received = vec![0; sent.len()];
            stream.read_exact(&mut received).await.expect("it echoes");
            assert_eq!(received, sent);
        }
    });
    lan.until(task);
    assert_eq!(*counts.borrow(), [3, 3]);
}

#[test]
fn rpc_runs_over_shared_memory_between_two_threads_that_sleep() {
    use sietch::nic::shm::{Endpoint, EndpointFds, LinkLayout, create_pair};
    let layout = LinkLayout::for_mtu(1500);
    let pair = create_pair(layout, 1).expect("memory and descriptors are left");
    let runtime = move |fds: EndpointFds, host: usize| {
        let queue = Endpoint::open(fds, layout, [2, 0, 0, 0, 0, host as u8], 1500).expect("it is new");
        // Without spinning every pause is a sleep, and every frame has to ring.
        Runtime::new(VnicQueue::from(queue), &config(host))
            .expect("there are descriptors left")
            .with_spin(sietch::Spin::up_to(0))
    };
    let (near, far) = (pair.near, pair.far);
    let server = std::thread::spawn(move || {
        // It serves until its peer has ended, or the link is revoked.
        runtime(far, 2).run(|net| rpc_server::serve(net, 7000))
    });
    let report = runtime(near, 1).run(|net| rpc_client::call(net, address(2, 7000), 2000, 8));
    assert_eq!(report.expect("the link is whole").expect("all calls are answered").calls, 2000);
    pair.revocation.revoke().expect("the regions are there");
    let ended = server.join().expect("it does not panic");
    assert!(ended.is_err(), "a revoked link ends the loop");
}

#[test]
fn the_durable_log_finds_its_lines_again() {
    let disk = sietch::disk::MemoryQueue::new(1 << 20);
    let (mut log, lines) = durable_log::open(disk).expect("the area is unused");
    assert!(lines.is_empty());
    durable_log::append(&mut log, "first").expect("the log has room");
    durable_log::append(&mut log, "second").expect("the log has room");
    let (_, lines) = durable_log::open(log.into_disk()).expect("the log is whole");
    assert_eq!(lines, ["first", "second"]);
}
