use std::net::{IpAddr, SocketAddr};

use super::{BindError, BoundName, Ports};

fn ports() -> Ports {
    let addresses: [IpAddr; 2] = [[10, 0, 0, 2].into(), "fd00::2".parse().expect("an address")];
    Ports::new(addresses.to_vec(), vec![80..=80, 8000..=8002])
}

fn name(local: &str) -> BoundName {
    let local: SocketAddr = local.parse().expect("an address and a port");
    let application = sietch_structures::Key::from_word(1 << 32).expect("a generation");
    BoundName { local, v6_only: false, reuse_address: false, reuse_port: false, uid: 1000, application }
}

#[test]
fn an_address_of_another_host_cannot_be_bound() {
    let mut ports = ports();
    assert_eq!(ports.bind(name("10.0.0.3:80")), Err(BindError::NotOurs([10, 0, 0, 3].into())));
    assert_eq!(ports.bind(name("10.0.0.2:81")), Err(BindError::Filtered(81)));
    assert!(ports.bind(name("10.0.0.2:80")).is_ok());
}

#[test]
fn one_name_belongs_to_one_application() {
    let mut ports = ports();
    let first = ports.bind(name("0.0.0.0:80")).expect("the name is free");
    assert_eq!(ports.bind(name("10.0.0.2:80")), Err(BindError::InUse(80)));
    assert_eq!(ports.bind(name("[::]:80")), Err(BindError::InUse(80)));
    let six = BoundName { v6_only: true, ..name("[::]:80") };
    let second = ports.bind(six).expect("another family");
    assert!(ports.release(first).is_some());
    assert_eq!(ports.bind(name("[fd00::2]:80")), Err(BindError::InUse(80)));
    assert!(ports.release(second).is_some());
    assert!(ports.bind(name("[::]:80")).is_ok());
    assert_eq!(ports.release(second), None);
}

#[test]
fn names_may_be_shared_as_on_linux() {
    let mut ports = ports();
    let bound = BoundName { reuse_address: true, ..name("10.0.0.2:80") };
    let (one, two) = (ports.bind(bound).expect("free"), ports.bind(bound).expect("both allow it"));
    assert_eq!(ports.listen(one, 8), Ok(()));
    assert_eq!(ports.listen(two, 8), Err(BindError::InUse(80)));
    assert_eq!(ports.bind(bound), Err(BindError::InUse(80)));
    let several = BoundName { reuse_port: true, ..name("0.0.0.0:8000") };
    let (one, two) = (ports.bind(several).expect("free"), ports.bind(several).expect("both allow it"));
    assert_eq!((ports.listen(one, 8), ports.listen(two, 8)), (Ok(()), Ok(())));
    assert_eq!(ports.bind(BoundName { uid: 1001, ..several }), Err(BindError::InUse(8000)));
    let to: SocketAddr = "10.0.0.2:8000".parse().expect("an address");
    let picked: Vec<_> = (0..2).filter_map(|hash| ports.listener(to, hash)).collect();
    assert_eq!(picked, [one, two]);
    assert_eq!(ports.room(8000), 16);
}

#[test]
fn the_most_specific_listener_is_selected() {
    let mut ports = ports();
    let four = ports.bind(name("10.0.0.2:8001")).expect("free");
    assert_eq!(ports.listener("10.0.0.2:8001".parse().expect("an address"), 0), None);
    ports.listen(four, 1).expect("no other listener");
    let any = ports.bind(BoundName { v6_only: true, ..name("[::]:8001") }).expect("another family");
    ports.listen(any, 1).expect("no other listener");
    assert_eq!(ports.listener("10.0.0.2:8001".parse().expect("an address"), 7), Some(four));
    assert_eq!(ports.listener("[fd00::2]:8001".parse().expect("an address"), 7), Some(any));
    ports.release(four);
    assert_eq!(ports.listener("10.0.0.2:8001".parse().expect("an address"), 7), None);
}

#[test]
fn port_zero_selects_a_free_port_while_there_is_one() {
    let mut ports = ports();
    let mut got: Vec<u16> = (0..4)
        .map(|_| {
            let key = ports.bind(name("0.0.0.0:0")).expect("one is free");
            ports.get(key).expect("it was just bound").name.local.port()
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [80, 8000, 8001, 8002]);
    assert_eq!(ports.bind(name("0.0.0.0:0")), Err(BindError::NoneFree));
}
