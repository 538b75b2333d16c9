//! A host on a simulated link, its applications on one side, an engine as the peer of all on the
//! other, in virtual time.
//!
//! Applications sleep as programs do: they run only when they were notified, and the host runs for
//! them only when they notify it. A wake-up that is lost shows as a connection that never ends.

mod pipe;
mod world;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use rustix::io::Errno;
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{LinkConfig, Random};
use sietch_structures::Key;

use super::Host;
use crate::tcp::limits::CONNECTIONS_PER_APPLICATION;
use crate::tcp::ports::{BindError, BoundName};
use pipe::{Pipe, ServiceEnd};
use world::{Ending, PEER, PORT, Plan, SECOND, SERVICE, World};

fn name(port: u16, application: Key) -> BoundName {
    let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    BoundName { local, v6_only: false, reuse_address: false, reuse_port: false, uid: 1000, application }
}

fn history(seed: u64) {
    let mut random = Random::new(seed);
    let faults = if random.chance(300) { LinkConfig::perfect() } else { LinkConfig::swarm(&mut random) };
    let count = random.between(1, 10);
    let plans = (0..count).map(|_| Plan::draw(&mut random)).collect();
    let mut world = World::new(faults, plans, random);
    world.run(31 * SECOND);
    world.heal();
    assert!(world.run(2000 * SECOND), "still going on: {:#?}", world.describe());
    world.check();
}

#[test]
fn bytes_and_ends_arrive_over_any_link_and_beside_any_connections() {
    seeds::run("tcp host", &[], Budget { seeds: 2_000, seconds: 6 }, history);
}

/// One connection over a perfect link, with these plans.
fn single(plan: Plan) -> World {
    let mut world = World::new(LinkConfig::perfect(), vec![plan], Random::new(1));
    assert!(world.run(200 * SECOND), "still going on: {:#?}", world.describe());
    world
}

#[test]
fn an_application_gets_a_reset_after_the_delivered_bytes() {
    let plan = Plan { peer: 1000, application: 0, peer_ends: Ending::Reset, ..Plan::polite(false) };
    let world = single(plan);
    let pipe = world.pipe(0);
    assert_eq!((pipe.received, pipe.broken), (1000, Some(Errno::CONNRESET)));
}

#[test]
fn an_application_that_dies_with_something_unread_resets_its_peer() {
    let plan = Plan { peer: 50_000, application: 300_000, dies_at: Some(10), ..Plan::polite(false) };
    let world = single(plan);
    assert!(world.peer_was_reset(0), "{:#?}", world.describe());
}

#[test]
fn bytes_that_an_application_sent_arrive_after_its_death() {
    let plan = Plan {
        peer: 0,
        application: 300_000,
        peer_ends: Ending::Polite,
        dies_when_sent: true,
        ..Plan::polite(true)
    };
    let world = single(plan);
    assert_eq!(world.peer_received(0), 300_000, "{:#?}", world.describe());
    assert!(!world.peer_was_reset(0));
}

#[test]
fn a_connection_to_a_closed_port_is_refused() {
    let plan = Plan { to_closed_port: true, ..Plan::polite(true) };
    let world = single(plan);
    assert_eq!(world.pipe(0).failed, Some(Errno::CONNREFUSED));
}

#[test]
fn handshakes_complete_up_to_the_backlog_and_no_further() {
    let plans = (0..12).map(|_| Plan::polite(false)).collect();
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(3));
    world.accepting = false;
    world.backlog(4);
    world.run(2 * SECOND);
    assert_eq!(world.established(), 4, "so many handshakes were completed before any was accepted");
    world.accepting = true;
    assert!(world.run(300 * SECOND), "still going on: {:#?}", world.describe());
    world.check();
}

#[test]
fn idle_connections_cost_no_iteration() {
    let plans = (0..50).map(|_| Plan { silent: true, ..Plan::polite(true) }).collect();
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(4));
    world.run(5 * SECOND);
    let counters = world.host.counters();
    assert_eq!((counters.connections, counters.active), (50, 0));
    let before = world.iterations;
    world.run(1000 * SECOND);
    assert!(world.iterations - before < 20, "an idle host took {} iterations", world.iterations - before);
}

#[test]
fn an_application_with_much_to_send_leaves_room_for_others() {
    let mut plans: Vec<Plan> =
        (0..100).map(|_| Plan { application: 150_000, owner: 1, ..Plan::polite(true) }).collect();
    plans.push(Plan { application: 1000, peer: 1000, owner: 2, ..Plan::polite(true) });
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(5));
    assert!(world.run(2000 * SECOND), "still going on: {:#?}", world.describe());
    world.check();
    assert!(world.most_in_an_iteration <= crate::tcp::limits::APPLICATION_BYTES as u64);
    assert!(world.host.counters().deferred > 0);
}

#[test]
fn released_ports_and_unused_applications_are_forgotten() {
    let mut world = World::new(LinkConfig::perfect(), Vec::new(), Random::new(6));
    let host = &mut world.host;
    let application = host.application([7; 16], 1000);
    let bindings: Vec<Key> = (0..crate::tcp::limits::BINDINGS_PER_APPLICATION)
        .map(|count| host.bind(name(10_000 + count as u16, application)).expect("within its share"))
        .collect();
    assert_eq!(host.bind(name(9_999, application)), Err(BindError::TooMany));
    for binding in &bindings {
        host.listen(*binding, 5).expect("the name is free");
    }
    bindings.into_iter().for_each(|binding| host.release(binding));
    // The world's own listener is left.
    assert_eq!((host.counters().bindings, host.usages().count(), host.engine().sockets().count()), (1, 1, 1));
}

#[test]
fn an_application_gets_no_connection_beyond_its_limit_and_leaves_others_theirs() {
    let mut world = World::new(LinkConfig::perfect(), Vec::new(), Random::new(12));
    let host = &mut world.host;
    let [full, other] = [[8; 16], [9; 16]].map(|id| host.application(id, 1000));
    let begin = |host: &mut Host<ServiceEnd>, application| {
        host.begin(application, None, SocketAddr::from((PEER, PORT)), SECOND)
    };
    let attach = |host: &mut Host<ServiceEnd>, application, flow| {
        host.attach(flow, application, ServiceEnd(Rc::new(RefCell::new(Pipe::new(false))))).ok()
    };
    // All but one, without the cost of that many flows.
    let usage = &mut host.applications.get_mut(full).expect("it was added").usage;
    usage.connections = CONNECTIONS_PER_APPLICATION - 1;
    let [last, beyond] = [(); 2].map(|()| begin(host, full).expect("one is left").flow);
    let key = attach(host, full, last).expect("one is left");
    assert_eq!(attach(host, full, beyond), None, "a connection that was begun before the limit was reached");
    assert_eq!(begin(host, full), Err(Errno::NOBUFS));
    let others = begin(host, other).expect("the limit is of each application").flow;
    assert!(attach(host, other, others).is_some(), "the limit is of each application");
    host.hung_up(key);
    let next = begin(host, full).expect("a closed connection leaves room").flow;
    assert!(attach(host, full, next).is_some(), "a closed connection leaves room");
}

#[test]
fn a_revoked_vnic_ends_its_connections_and_frees_its_ports() {
    let plans =
        vec![Plan { silent: true, ..Plan::polite(true) }, Plan { silent: true, ..Plan::polite(false) }];
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(7));
    world.run(5 * SECOND);
    world.host.end(Errno::NETDOWN);
    assert_eq!((world.pipe(0).broken, world.pipe(1).broken), (Some(Errno::NETDOWN), Some(Errno::NETDOWN)));
    let counters = world.host.counters();
    assert_eq!((counters.connections, counters.bindings), (0, 0));
}

/// A channel whose application reports invalid values about itself.
#[test]
fn invalid_values_of_an_application_cost_only_its_own_connections() {
    seeds::run("tcp host hostile", &[], Budget { seeds: 300, seconds: 5 }, |seed| {
        let mut random = Random::new(seed);
        let mut plans: Vec<Plan> =
            (0..4).map(|_| Plan { owner: 2, ..Plan::draw_polite(&mut random) }).collect();
        plans.extend((0..4).map(|_| Plan { owner: 1, hostile: true, ..Plan::draw(&mut random) }));
        let mut world = World::new(LinkConfig::perfect(), plans, random);
        assert!(world.run(2000 * SECOND), "still going on: {:#?}", world.describe());
        world.check();
    });
}

#[test]
fn addresses_are_those_on_the_wire() {
    let mut world =
        World::new(LinkConfig::perfect(), vec![Plan { silent: true, ..Plan::polite(false) }], Random::new(8));
    world.run(5 * SECOND);
    let arrival = world.arrived.first().expect("one came");
    assert_eq!(arrival.local, SocketAddr::from((SERVICE, PORT)));
    assert_eq!(arrival.remote.ip(), std::net::IpAddr::from(PEER));
}

#[test]
fn bytes_before_a_reset_are_read_even_if_the_ring_was_full() {
    for opens in [false, true] {
        let plan =
            Plan { application: 0, peer: 300_000, peer_ends: Ending::ResetBehind, ..Plan::polite(opens) };
        let world = single(plan);
        let pipe = world.pipe(0);
        assert_eq!((pipe.received, pipe.broken), (300_000, Some(Errno::CONNRESET)));
        world.check();
    }
}

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_keeps_its_bytes() {
    for bytes in [5, 5000, 50_000] {
        let plan =
            Plan { application: 0, peer: bytes, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
        let mut world = World::new(LinkConfig::perfect(), vec![plan], Random::new(10));
        world.accepting = false;
        world.run(20 * SECOND);
        assert_eq!(world.established(), 0, "the engine is done with it");
        world.accepting = true;
        assert!(world.run(100 * SECOND), "still going on: {:#?}", world.describe());
        let pipe = world.pipe(0);
        assert_eq!((pipe.received, pipe.broken), (bytes, Some(Errno::CONNRESET)));
        drop(pipe);
        world.check();
    }
}

#[test]
fn undelivered_bytes_are_dropped_after_a_timeout() {
    let plan = Plan { application: 0, peer: 50_000, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
    let mut world = World::new(LinkConfig::perfect(), vec![plan], Random::new(10));
    world.asleep = true;
    world.run(20 * SECOND);
    assert_eq!(world.host.counters().connections, 1, "its application may read still");
    assert_eq!(world.pipe(0).broken, None);
    world.run(20 * SECOND + 2 * crate::tcp::limits::UNDELIVERED_TIMEOUT);
    assert_eq!((world.host.counters().connections, world.pipe(0).broken), (0, Some(Errno::CONNRESET)));
}

#[test]
fn an_arrival_that_is_not_accepted_loses_its_bytes_and_keeps_its_error() {
    let plan = Plan { application: 0, peer: 5000, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
    let mut world = World::new(LinkConfig::perfect(), vec![plan], Random::new(10));
    world.accepting = false;
    world.run(20 * SECOND);
    assert_eq!(world.host.undelivered_bytes, 5000);
    world.run(30 * SECOND + crate::tcp::limits::UNDELIVERED_TIMEOUT);
    assert_eq!(world.host.undelivered_bytes, 0);
    world.accepting = true;
    world.run(60 * SECOND + crate::tcp::limits::UNDELIVERED_TIMEOUT);
    let pipe = world.pipe(0);
    assert_eq!((pipe.received, pipe.broken), (0, Some(Errno::CONNRESET)));
}

#[test]
fn arrivals_that_ended_are_bounded_and_those_beyond_leave_the_queue() {
    let plan = Plan { application: 0, peer: 5, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
    let mut world = World::new(LinkConfig::perfect(), vec![plan; 3], Random::new(10));
    world.accepting = false;
    world.host.max_ended = 2;
    world.run(20 * SECOND);
    assert_eq!((world.host.ended.len(), world.host.binding_of_arrival.len()), (2, 2));
    world.accepting = true;
    world.run(40 * SECOND);
    assert_eq!((world.arrived.len(), world.host.binding_of_arrival.len()), (2, 0));
}

#[test]
fn deadlines_of_delivered_bytes_do_not_pile_up() {
    let plan = Plan { application: 0, peer: 60_000, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
    let plans = (0..500).map(|number| Plan { at: number * 10_000_000, ..plan }).collect();
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(11));
    // One that is never read is before all others.
    world.stop(0);
    world.run(100 * SECOND);
    assert!((1..250).contains(&world.host.undelivered_count), "most were read, and one was not");
    let (entries, kept) = (world.host.undelivered.len(), world.host.undelivered_count);
    assert!(entries <= 64 + 2 * kept, "{entries} deadlines for {kept}");
}

#[test]
fn undelivered_bytes_of_reset_connections_are_bounded() {
    use crate::tcp::limits::{UNDELIVERED_BYTES_PER_APPLICATION, UNDELIVERED_TIMEOUT};
    let plan = Plan { application: 0, peer: 60_000, peer_ends: Ending::ResetBehind, ..Plan::polite(false) };
    let plans = (0..500).map(|number| Plan { at: number * 10_000_000, ..plan }).collect();
    let mut world = World::new(LinkConfig::perfect(), plans, Random::new(11));
    world.asleep = true;
    world.run(60 * SECOND);
    let kept = world.host.undelivered_bytes;
    assert!(
        kept <= UNDELIVERED_BYTES_PER_APPLICATION && kept > UNDELIVERED_BYTES_PER_APPLICATION / 2,
        "{kept} bytes"
    );
    let broken = (0..500).filter(|case| world.pipe(*case).broken.is_some()).count();
    assert!((1..500).contains(&broken), "{broken} connections were reset at once");
    world.run(60 * SECOND + 2 * UNDELIVERED_TIMEOUT);
    assert_eq!(world.host.undelivered_bytes, 0);
    // A few peers had everything acknowledged before they could reset it.
    let reset = world.host.counters().reset as usize;
    let broken = (0..500).filter(|case| world.pipe(*case).broken == Some(Errno::CONNRESET)).count();
    assert!(broken == reset && reset > 450, "{broken} of {reset} resets were reported");
}

#[test]
fn bytes_before_a_reset_are_read_first() {
    let plan = Plan { application: 0, peer: 5000, peer_ends: Ending::ResetBehind, ..Plan::polite(true) };
    let mut world = World::new(LinkConfig::perfect(), vec![plan], Random::new(9));
    assert!(world.run(100 * SECOND), "still going on: {:#?}", world.describe());
    let pipe = world.pipe(0);
    assert_eq!((pipe.received, pipe.broken), (5000, Some(Errno::CONNRESET)));
}
