//! Many connections, and connections that end in every way there is.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sietch::Net;
use sietch_sim::link::{Direction, LinkConfig};

use super::kernel::{self, ask, connect, connect_from, reset_at_close};
use super::meeting::{self, Conditions, Family, MORE, Outcome, meet};
use super::pattern::Pattern;
use super::services;

/// Connections at once.
const CROWD: usize = 10_000;

/// How long connections come and go at full speed.
const CHURN: Duration = Duration::from_millis(1000);

/// The most that Sietch held at any time.
#[derive(Debug, Default)]
struct Peak {
    flows: AtomicUsize,
    bytes: AtomicUsize,
}

impl Peak {
    async fn watch(self: Arc<Self>, net: Net) {
        loop {
            let (flows, _, _, bytes) = net.with_engine(|engine| engine.population());
            self.flows.fetch_max(flows, Ordering::Relaxed);
            self.bytes.fetch_max(bytes, Ordering::Relaxed);
            net.sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs `work` on a thread for each of the kernel's addresses.
fn from_everywhere<T: Send>(family: Family, work: impl Fn(usize, IpAddr) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..MORE)
            .map(|which| {
                let (index, address) = (usize::from(which), family.another(which));
                scope.spawn({
                    let work = &work;
                    move || work(index, address)
                })
            })
            .collect();
        all.into_iter()
            .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Lets this process open this many descriptors, if permitted.
fn allow_descriptors(count: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(count));
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).is_ok()
}

#[test]
fn ten_thousand_connections_at_once_and_their_memory_comes_back() {
    ten_thousand("ten_thousand_connections_at_once_and_their_memory_comes_back", Family::V4);
}

#[test]
fn ten_thousand_connections_at_once_over_ipv6() {
    ten_thousand("ten_thousand_connections_at_once_over_ipv6", Family::V6);
}

fn ten_thousand(name: &str, family: Family) {
    if !allow_descriptors(CROWD as u64 + 500) {
        eprintln!("SKIPPED {name}: needs {} descriptors (ulimit -n)", CROWD + 500);
        return;
    }
    let conditions = Conditions::over(family);
    let peak = Arc::new(Peak::default());
    let (watched, at_kernel) = (Arc::clone(&peak), conditions.clone());
    let outcome = meet(
        name,
        &conditions,
        move |net| async move {
            net.spawn(watched.watch(net.clone()));
            services::all(net, family).await;
        },
        move || {
            let crowds = from_everywhere(family, |index, address| {
                let share = CROWD / usize::from(MORE);
                let mut streams: Vec<TcpStream> = (0..share)
                    .map(|_| connect_from(address, services::ECHO, &at_kernel).expect("Sietch accepts"))
                    .collect();
                for round in 0..2 {
                    let number = |place: usize| ((round * usize::from(MORE) + index) * share + place) as u32;
                    let request = |place: usize| [number(place).to_be_bytes(); 16].concat();
                    // All send a request, then all receive.
                    for (place, stream) in streams.iter_mut().enumerate() {
                        stream.write_all(&request(place)).expect("the connection is open");
                    }
                    for (place, stream) in streams.iter_mut().enumerate() {
                        let mut answer = [0; 64];
                        stream.read_exact(&mut answer).expect("Sietch answers");
                        assert_eq!(answer[..], request(place)[..], "another one's answer");
                    }
                }
                streams
            });
            drop(crowds);
        },
    );
    let Some(Outcome { metrics, .. }) = outcome else { return };
    assert_eq!(metrics.connections_accepted, CROWD as u64);
    assert_eq!(metrics.connections_reset, 0);
    let (flows, bytes) = (peak.flows.load(Ordering::Relaxed), peak.bytes.load(Ordering::Relaxed));
    assert_eq!(flows, CROWD, "they were not all there at once");
    // A request and an answer, each in the smallest buffer there is.
    assert!(bytes <= CROWD * 2 * 4096, "{bytes} bytes in buffers");
}

/// How a connection of the churn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    ClientCloses,
    ClientResets,
    ServerCloses,
}

fn churn(ending: Ending, limit: Duration, conditions: &Conditions) -> usize {
    let counts = from_everywhere(conditions.family, |index, address| {
        let (started, mut count) = (Instant::now(), 0);
        while started.elapsed() < limit {
            let port = if ending == Ending::ServerCloses { services::ONCE } else { services::ECHO };
            let mut stream = connect_from(address, port, conditions).expect("Sietch accepts");
            ask(&mut stream, (index << 24 | count) as u32).expect("Sietch answers");
            match ending {
                Ending::ClientCloses => {}
                Ending::ClientResets => reset_at_close(&stream),
                Ending::ServerCloses => {
                    assert_eq!(stream.read(&mut [0]).expect("Sietch closes"), 0);
                }
            }
            count += 1;
        }
        count
    });
    counts.into_iter().sum()
}

#[test]
fn connections_open_and_close_at_full_speed_and_end_in_every_way() {
    for (ending, family) in [
        (Ending::ClientCloses, Family::V4),
        (Ending::ClientResets, Family::V6),
        (Ending::ServerCloses, Family::V4),
        (Ending::ServerCloses, Family::V6),
    ] {
        let name = format!("connections_come_and_go {ending:?} {family:?}");
        let conditions = Conditions::over(family);
        let at_kernel = conditions.clone();
        let outcome = meet(
            &name,
            &conditions,
            move |net| services::all(net, family),
            move || {
                // Ports come round again while Sietch still remembers the connection that had them
                // before.
                meeting::set("ip_local_port_range", "20000 20099").expect("the namespace is ours");
                if ending == Ending::ClientCloses {
                    // There it is the kernel that remembers.
                    meeting::set("ip_local_port_range", "10000 60000").expect("the namespace is ours");
                }
                churn(ending, CHURN, &at_kernel)
            },
        );
        let Some(Outcome { value, metrics, .. }) = outcome else { return };
        eprintln!("{name}: {value} connections");
        assert!(value > 500, "{name}: {value} connections");
        assert_eq!(metrics.connections_accepted, value as u64, "{name}");
        let reset = if ending == Ending::ClientResets { value as u64 } else { 0 };
        assert_eq!(metrics.connections_reset, reset, "{name}: {metrics:?}");
        if ending == Ending::ServerCloses {
            assert!(metrics.time_wait_recycled > 0, "{name}: no port was used again: {metrics:?}");
        }
    }
}

#[test]
fn a_storm_of_resets_costs_a_bystander_nothing() {
    const STORM: usize = 500;
    let conditions = Conditions::default();
    let at_kernel = conditions.clone();
    let outcome = meet(
        "a_storm_of_resets_costs_a_bystander_nothing",
        &conditions,
        |net| async move {
            net.spawn(services::all(net.clone(), Family::V4));
            // A storm of the other kind: every one of these is refused.
            for _ in 0..STORM {
                let refused = net.connect(SocketAddr::new(Family::V4.kernel(), services::NO_LISTENER)).await;
                let kind = refused.expect_err("the port has no listener").kind();
                assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
            }
        },
        move || {
            let bystander = thread::spawn({
                let conditions = at_kernel.clone();
                move || kernel::transfer_with_sietch(&conditions, 10_000_000, 10_000_000)
            });
            for _ in 0..3 {
                let streams: Vec<TcpStream> = (0..STORM)
                    .map(|_| {
                        let mut stream = connect(services::ENDLESS, &at_kernel).expect("Sietch accepts");
                        stream.read_exact(&mut [0; 512]).expect("Sietch sends");
                        reset_at_close(&stream);
                        stream
                    })
                    .collect();
                drop(streams);
            }
            bystander.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        },
    );
    let Some(Outcome { metrics, .. }) = outcome else { return };
    assert_eq!(metrics.connections_reset, 3 * STORM as u64, "{metrics:?}");
    assert_eq!(metrics.connections_failed, STORM as u64, "{metrics:?}");
}

/// A path of 20 milliseconds each way.
fn far() -> Conditions {
    let delay = Direction { delay: 20_000_000, ..Direction::perfect() };
    Conditions { link: Some(LinkConfig::symmetric(delay)), ..Conditions::default() }
}

#[test]
fn both_sides_close_at_once() {
    let conditions = far();
    let at_kernel = conditions.clone();
    let outcome = meet(
        "both_sides_close_at_once",
        &conditions,
        |net| services::all(net, Family::V4),
        move || {
            thread::scope(|scope| {
                for _ in 0..30 {
                    scope.spawn(|| {
                        let mut stream = connect(services::CLOSING, &at_kernel).expect("Sietch accepts");
                        stream.read_exact(&mut [0]).expect("Sietch sends a byte");
                        // Sietch closes 30 ms after that byte, which took 20: the two FINs cross.
                        stream.shutdown(Shutdown::Write).expect("the connection is open");
                        assert_eq!(stream.read(&mut [0]).expect("Sietch closes as well"), 0);
                    });
                }
            });
        },
    );
    let Some(Outcome { metrics, .. }) = outcome else { return };
    assert_eq!((metrics.connections_closed, metrics.connections_reset), (30, 0), "{metrics:?}");
}

#[test]
fn a_server_that_has_closed_its_side_still_listens() {
    let conditions = Conditions::default();
    let at_kernel = conditions.clone();
    meet(
        "a_server_that_has_closed_its_side_still_listens",
        &conditions,
        |net| services::all(net, Family::V4),
        move || {
            let mut stream = connect(services::LISTENER, &at_kernel).expect("Sietch accepts");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("Sietch closes its side");
            assert_eq!(all, b"I listen");
            let mut bytes = vec![0; 2_000_000];
            Pattern(1).fill(0, &mut bytes);
            stream.write_all(&(bytes.len() as u64).to_be_bytes()).expect("this side is open");
            stream.write_all(&bytes).expect("this side is open");
        },
    );
}

#[test]
fn lost_handshakes_are_repeated_by_both_sides() {
    let outage = Direction { delay: 1_000_000, outages: vec![(0, 600_000_000)], ..Direction::perfect() };
    let conditions = Conditions { link: Some(outage.into()), ..Conditions::default() };
    let at_kernel = conditions.clone();
    let outcome = meet(
        "lost_handshakes_are_repeated_by_both_sides",
        &conditions,
        |net| async move {
            net.spawn(services::all(net.clone(), Family::V4));
            services::transfer_with_kernel(net, Family::V4, 7100, 10_000, 10_000).await;
        },
        move || {
            let listener = kernel::listen(7100, &at_kernel).expect("the port is free");
            thread::scope(|scope| {
                scope.spawn(|| kernel::accept_transfer(&listener));
                for _ in 0..50 {
                    scope.spawn(|| kernel::transfer_with_sietch(&at_kernel, 1000, 1000));
                }
            });
        },
    );
    let Some(Outcome { metrics, tallies, .. }) = outcome else { return };
    assert_eq!((metrics.connections_accepted, metrics.connections_opened), (50, 1), "{metrics:?}");
    assert!(tallies.iter().all(|tally| tally.lost > 0), "{tallies:?}");
}

#[test]
fn a_vanished_client_is_detected_by_missing_acknowledgements() {
    // The kernel drops everything for an address that it no longer has. A new connection from
    // another one is served.
    let conditions = Conditions::default();
    let at_kernel = conditions.clone();
    let outcome = meet(
        "a_client_that_vanishes",
        &conditions,
        |net| services::all(net, Family::V4),
        move || {
            let removed = Family::V4.another(0);
            let mut stream = connect_from(removed, services::ECHO, &at_kernel).expect("Sietch accepts");
            ask(&mut stream, 1).expect("Sietch answers");
            super::pair::ip(&format!("addr del {removed}/24 dev {}", super::pair::HOST_END))
                .expect("it is there");
            let mut other = connect(services::ECHO, &at_kernel).expect("Sietch accepts");
            ask(&mut other, 2).expect("Sietch answers");
            meeting::give(Family::V4, 0);
            // The address is back, and so is the connection.
            ask(&mut stream, 3).expect("Sietch answers");
        },
    );
    let Some(Outcome { metrics, .. }) = outcome else { return };
    assert_eq!(metrics.connections_reset, 0, "{metrics:?}");
}
