//! The table against an oracle: lists that are searched from one end to the other.

use proptest::prelude::*;

use std::net::SocketAddrV6;

use super::*;

fn application(number: u8) -> Application {
    Application { uid: u32::from(number), id: [number; 16] }
}

fn listener(number: u8, name: &str) -> Listener {
    Listener {
        application: application(number),
        namespace: 1,
        name: name.parse().unwrap(),
        only_ipv6: false,
        backlog: 10,
        pid: 1,
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn the_address_itself_comes_before_a_wildcard_and_others_are_not_found() {
    let mut table = Table::default();
    let any = table.listen(listener(1, "0.0.0.0:80")).unwrap();
    let own = table.listen(listener(2, "127.0.0.1:80")).unwrap();
    let six = table.listen(listener(3, "[::1]:80")).unwrap();
    assert_eq!(table.find(1, address("127.0.0.1:80")), Some(own));
    assert_eq!(table.find(1, address("[::ffff:127.0.0.1]:80")), Some(own));
    assert_eq!(table.find(1, address("127.0.0.2:80")), Some(any));
    assert_eq!(table.find(1, address("[::1]:80")), Some(six));
    assert_eq!(table.find(1, address("[fd00::1]:80")), None);
    assert_eq!(table.find(1, address("127.0.0.1:81")), None);
    assert_eq!(table.find(2, address("127.0.0.1:80")), None);
    table.close(own);
    assert_eq!(table.find(1, address("127.0.0.1:80")), Some(any));
}

#[test]
fn an_ipv6_wildcard_takes_ipv4_unless_it_says_otherwise() {
    let mut table = Table::default();
    let both = table.listen(listener(1, "[::]:80")).unwrap();
    table.listen(Listener { only_ipv6: true, ..listener(1, "[::]:81") }).unwrap();
    assert_eq!(table.find(1, address("127.0.0.1:80")), Some(both));
    assert_eq!(table.find(1, address("127.0.0.1:81")), None);
    let id = table.connect(application(2), both, None, address("127.0.0.1:80")).unwrap();
    let connection = table.connection(id).unwrap();
    assert_eq!(connection.names.peer, address("127.0.0.1:80"));
    assert_eq!(connection.accepted.local, address("[::ffff:127.0.0.1]:80"));
    assert!(connection.accepted.peer.is_ipv6() && connection.names.local.is_ipv4());
}

#[test]
fn one_link_local_address_on_two_interfaces_is_two() {
    let mut table = Table::default();
    let scoped = |scope, port| SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, scope).into();
    let any = table.listen(listener(1, "[::]:80")).unwrap();
    let second = table.listen(Listener { name: scoped(2, 80), ..listener(1, "[::]:80") }).unwrap();
    assert_eq!(table.find(1, scoped(2, 80)), Some(second));
    assert_eq!(table.find(1, scoped(3, 80)), Some(any));
    let from = Some(address("[::]:5000"));
    for (scope, listener) in [(2, second), (3, any)] {
        let id = table.connect(application(2), listener, from, scoped(scope, 80)).unwrap();
        let Connection { names, accepted, .. } = table.connection(id).unwrap().clone();
        assert_eq!(names, Names { local: scoped(scope, 5000), peer: scoped(scope, 80) });
        assert_eq!(accepted, Names { local: names.peer, peer: names.local });
        let again = table.connect(application(2), listener, from, scoped(scope, 80));
        assert_eq!(again, Err(TableError::Taken));
    }
    // What is bound on one interface does not reach another.
    let other = table.connect(application(2), any, Some(scoped(2, 5001)), scoped(3, 80));
    assert_eq!(other, Err(TableError::Ports));
}

#[test]
fn listeners_of_one_name_take_turns() {
    let mut table = Table::default();
    let ids = [1, 2, 3].map(|number| table.listen(listener(number, "127.0.0.1:80")).unwrap());
    let found: Vec<_> = (0..6).map(|_| table.find(1, address("127.0.0.1:80")).unwrap()).collect();
    assert_eq!(found, [ids, ids].concat());
}

#[test]
fn names_match_the_kernels_and_ports_run_out_for_one_pair_alone() {
    let mut table = Table::default();
    let one = table.listen(listener(1, "0.0.0.0:80")).unwrap();
    let other = table.listen(listener(1, "0.0.0.0:81")).unwrap();
    let first = table.connect(application(2), one, None, address("127.0.0.9:80")).unwrap();
    assert_eq!(table.connection(first).unwrap().names.local.ip(), address("127.0.0.1:0").ip());
    let name = address("127.0.0.1:5000");
    let bound = Some(name);
    let second = table.connect(application(2), one, bound, address("127.0.0.9:80")).unwrap();
    assert_eq!(table.connection(second).unwrap().names.local, name);
    let again = table.connect(application(2), one, bound, address("127.0.0.9:80"));
    assert_eq!(again, Err(TableError::Taken));
    // Two applications, so that the ports run out before what one may have.
    let mut made = 0;
    while table.connect(application(3 + (made % 2) as u8), one, None, address("127.0.0.9:80")).is_ok() {
        made += 1;
    }
    // All from 32768 but the one that is taken.
    assert_eq!(made, 32_767);
    assert!(table.connect(application(3), other, None, address("127.0.0.9:81")).is_ok());
    table.disconnect(first);
    assert!(table.connect(application(3), one, None, address("127.0.0.9:80")).is_ok());
}

#[test]
fn ports_that_the_kernel_gives_as_well_are_the_last_ones() {
    let mut table = Table::default();
    let one = table.listen(listener(1, "0.0.0.0:80")).unwrap();
    let to = address("127.0.0.9:80");
    // Neighbours are taken, as by connections that stay.
    for port in limits::FIRST_EPHEMERAL..limits::FIRST_EPHEMERAL + 1000 {
        let from = Some(SocketAddr::from(([127, 0, 0, 1], port)));
        table.connect(application(2), one, from, to).unwrap();
    }
    for _ in 1000..u16::MAX - limits::FIRST_EPHEMERAL + 1 {
        let id = table.connect(application(2), one, None, to).unwrap();
        let port = table.connection(id).unwrap().names.local.port();
        assert!(port >= limits::FIRST_EPHEMERAL, "{port} may be a connection of the kernel as well");
    }
    let id = table.connect(application(2), one, None, to).unwrap();
    assert!(table.connection(id).unwrap().names.local.port() < limits::FIRST_EPHEMERAL);
}

#[test]
fn limits_of_one_application_spare_another() {
    let mut table = Table::default();
    for _ in 0..limits::LISTENERS_PER_APPLICATION {
        table.listen(listener(1, "127.0.0.1:80")).unwrap();
    }
    assert_eq!(table.listen(listener(1, "127.0.0.1:81")), Err(TableError::Listeners));
    assert!(table.listen(listener(2, "127.0.0.1:81")).is_ok());
}

#[derive(Debug, Clone)]
enum Act {
    Listen(u8, u64, usize),
    Close(usize),
    Connect(u8, u64, usize, u16),
    Disconnect(usize),
}

const NAMES: [&str; 6] =
    ["127.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::1]:80", "10.0.0.1:80", "[::ffff:10.0.0.1]:80"];
const TARGETS: [&str; 5] =
    ["127.0.0.1:80", "10.0.0.1:80", "[::1]:80", "[::ffff:10.0.0.1]:80", "[fd00::1]:80"];

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..3_u8, 1..3_u64, 0..NAMES.len()).prop_map(|(who, space, name)| Act::Listen(who, space, name)),
        any::<usize>().prop_map(Act::Close),
        (0..3_u8, 1..3_u64, 0..TARGETS.len(), prop_oneof![Just(0), 4000..4003_u16])
            .prop_map(|(who, space, target, port)| Act::Connect(who, space, target, port)),
        any::<usize>().prop_map(Act::Disconnect),
    ]
}

/// The best score of any listener, by a search through all of them.
fn best(listeners: &[(ListenerId, Listener)], namespace: u64, to: SocketAddr) -> Option<u8> {
    let fits = |listener: &Listener| listener.namespace == namespace && listener.name.port() == to.port();
    let found = listeners.iter().filter(|(_, listener)| fits(listener));
    found.filter_map(|(_, listener)| score(listener, CanonicalName::of(to))).max()
}

proptest! {
    #[test]
    fn names_are_unique_counts_are_right_and_nothing_remains(
        acts in prop::collection::vec(act(), 1..120)
    ) {
        let mut table = Table::default();
        let mut listeners: Vec<(ListenerId, Listener)> = Vec::new();
        let mut connections: Vec<(ConnectionId, u8)> = Vec::new();
        for act in acts {
            match act {
                Act::Listen(who, namespace, name) => {
                    let new = Listener { namespace, ..listener(who, NAMES[name]) };
                    listeners.push((table.listen(new.clone()).unwrap(), new));
                }
                Act::Close(at) if !listeners.is_empty() => {
                    let (id, _) = listeners.remove(at % listeners.len());
                    prop_assert!(table.close(id).is_some() && table.close(id).is_none());
                }
                Act::Connect(who, namespace, target, port) => {
                    let to = address(TARGETS[target]);
                    let found = table.find(namespace, to);
                    let best = best(&listeners, namespace, to);
                    let found_score = found.and_then(|id| score(table.listener(id).unwrap(), CanonicalName::of(to)));
                    prop_assert_eq!(found_score, best);
                    let Some(id) = found else { continue };
                    let local = (port != 0).then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
                    if let Ok(made) = table.connect(application(who), id, local, to) {
                        connections.push((made, who));
                    } else {
                        prop_assert!(port != 0);
                    }
                }
                Act::Disconnect(at) if !connections.is_empty() => {
                    let (id, _) = connections.remove(at % connections.len());
                    prop_assert!(table.disconnect(id).is_some() && table.disconnect(id).is_none());
                }
                Act::Close(_) | Act::Disconnect(_) => {}
            }
            let form = |name: SocketAddr| (name.ip().to_canonical(), name.port());
            let mut names: Vec<_> = table
                .connections()
                .map(|(_, found)| (found.namespace, form(found.names.local), form(found.names.peer)))
                .collect();
            let all = names.len();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), all);
            prop_assert_eq!(all, connections.len());
            for (application, usage) in table.applications() {
                let made = connections.iter().filter(|(_, who)| u32::from(*who) == application.uid).count();
                let listening = listeners.iter().filter(|(_, found)| found.application == application).count();
                prop_assert_eq!((usage.connections, usage.listeners), (made, listening));
            }
        }
        listeners.iter().for_each(|(id, _)| { table.close(*id); });
        connections.iter().for_each(|(id, _)| { table.disconnect(*id); });
        prop_assert!(table.applications().next().is_none());
        prop_assert!(table.by_port.is_empty() && table.by_names.is_empty() && table.used_ports.is_empty());
    }
}

fn of(uid: u32, id: usize) -> Application {
    Application { uid, id: (id as u128).to_be_bytes() }
}

#[test]
fn limits_of_a_user_hold_over_all_its_applications_and_spare_other_users() {
    let mut table = Table::default();
    let own = |application| Listener { application, ..listener(1, "127.0.0.1:80") };
    // Of listeners, under as many applications as that takes.
    let most = limits::LISTENERS_PER_USER;
    let listens =
        |table: &mut Table, at: usize| table.listen(own(of(1, at / limits::LISTENERS_PER_APPLICATION)));
    let ids: Vec<_> = (0..most).map(|at| listens(&mut table, at).unwrap()).collect();
    assert_eq!(listens(&mut table, most), Err(TableError::Listeners));
    let target = table.listen(own(of(2, 0))).unwrap();
    ids.into_iter().for_each(|id| {
        table.close(id);
    });
    assert_eq!(table.of_user(1), Usage::default());
    // Of applications.
    let first: Vec<_> =
        (0..limits::APPLICATIONS_PER_USER).map(|at| table.listen(own(of(1, at))).unwrap()).collect();
    assert_eq!(table.listen(own(of(1, limits::APPLICATIONS_PER_USER))), Err(TableError::Applications));
    table.listen(own(of(2, 1))).unwrap();
    table.close(first[0]);
    table.listen(own(of(1, limits::APPLICATIONS_PER_USER))).unwrap();
    // Of connections, from as many addresses as that takes.
    let connects = |table: &mut Table, uid: u32, at: usize| {
        let from = SocketAddr::from(([127, 1, (at >> 15) as u8, 1], 1024 + (at & 0x7fff) as u16));
        table.connect(of(uid, at % 8), target, Some(from), address("127.0.0.1:80"))
    };
    for at in 0..limits::CONNECTIONS_PER_USER {
        connects(&mut table, 3, at).unwrap();
    }
    assert_eq!(connects(&mut table, 3, limits::CONNECTIONS_PER_USER), Err(TableError::Connections));
    connects(&mut table, 4, limits::CONNECTIONS_PER_USER + 1).unwrap();
}
