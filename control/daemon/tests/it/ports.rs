//! Ports of the switch: what application and service core receive, and what ends with each of them.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::scene::{PATIENCE, Scene};
use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, EndpointFds, LinkLayout};
use sietch_protocol::{
    CallError, Connection, ErrorKind, HeldGrant, Notice, PortGrant, Protection, SharedLayout, Target,
    VnicDescriptors, VnicKind,
};

fn on_switch(name: &str) -> Scene {
    let scene = Scene::own(name);
    let uid = rustix::process::geteuid().as_raw();
    scene.configure(&format!(
        "[[vnic]]\nname = \"kv\"\nkind = \"switch\"\nuid = {uid}\naddress = \"10.9.0.1/24\"\naddress6 = \"fd00::1/64\"\n\
         tcp_ports = [\"80\"]\nrate = \"1Gbit/s\"\n\
         [[vnic]]\nname = \"other\"\nkind = \"switch\"\nuid = {uid}\naddress = \"10.9.0.2/24\"\n"
    ));
    scene
}

fn notice(connection: &mut Connection) -> (Notice, Vec<OwnedFd>) {
    let end = Instant::now() + PATIENCE;
    loop {
        match connection.take_notice().unwrap() {
            // All connections of a process get the notices of its grants.
            Some((Notice::Revoked { .. }, _)) | None => {}
            Some(notice) => return notice,
        }
        assert!(Instant::now() < end, "no notice");
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, CallError>) -> (ErrorKind, String) {
    match result {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

fn endpoint(shape: SharedLayout, fds: EndpointFds, mtu: u32) -> Endpoint {
    let layout = LinkLayout { slots: shape.slots, data: shape.data };
    Endpoint::open(fds, layout, [2; 6], usize::try_from(mtu).unwrap()).unwrap()
}

/// A port as both sides have it.
fn acquire(application: &mut Connection, service: &mut Connection) -> (Box<PortGrant>, Endpoint, Endpoint) {
    let (grant, made_of) = application.acquire_vnic("kv").unwrap();
    assert_eq!((grant.kind, &grant.protection), (VnicKind::Switch, &Protection::BrokerMediated));
    let (Notice::Port(port), descriptors) = notice(service) else { panic!("a port") };
    assert_eq!((port.grant, port.generation, port.mac), (grant.grant, grant.generation, grant.mac));
    let VnicDescriptors::Shared(near) = made_of else { panic!("shared memory") };
    let near = EndpointFds::received([near.own, near.peer, near.doorbell], 0);
    let far = EndpointFds::received(<[OwnedFd; 3]>::try_from(descriptors).unwrap(), 0);
    let near = endpoint(port.layout, near, port.mtu);
    let far = endpoint(port.layout, far, port.mtu);
    (port, near, far)
}

fn is_over(endpoint: &mut Endpoint) -> bool {
    endpoint.flush().is_err() || !endpoint.is_alive()
}

#[test]
fn a_port_goes_to_its_user_and_to_the_switch_with_its_rules() {
    let scene = on_switch("port");
    let _daemon = scene.start();
    let (mut application, mut service) = (scene.connect(), scene.connect());
    let (kind, text) = refused(application.acquire_vnic("kv"));
    assert!(kind == ErrorKind::Unsupported && text.contains("sietch service"), "{text}");
    service.serve(vec![]).unwrap();
    assert_eq!(refused(application.serve(vec![])).0, ErrorKind::Busy);
    let (port, mut near, mut far) = acquire(&mut application, &mut service);
    assert_eq!(port.tcp_ports[0].first, 80);
    assert!(port.rate.is_some() && port.address6 == Some("fd00::1".parse().unwrap()));
    assert!(port.switch_mac != port.mac && port.switch_mac.is_unicast());
    let mut frame = near.allocate(60).unwrap();
    near.bytes_mut(&mut frame).fill(7);
    near.transmit(frame).unwrap();
    near.flush().unwrap();
    let mut arrived = Vec::new();
    assert_eq!(far.receive(&mut arrived, 8), 1);
    assert_eq!(scene.status().service, Some(std::process::id()));
    // Released, it ends on both sides.
    application.release(port.grant).unwrap();
    assert!(is_over(&mut near) && is_over(&mut far));
    let (ended, _) = notice(&mut service);
    assert_eq!(ended, Notice::Unplug { grant: port.grant });
}

#[test]
fn a_revoked_port_is_dropped_by_the_switch_and_a_dead_switch_ends_its_ports() {
    let scene = on_switch("revoke-port");
    let _daemon = scene.start();
    let (mut application, mut service) = (scene.connect(), scene.connect());
    service.serve(vec![]).unwrap();
    let (port, mut near, mut far) = acquire(&mut application, &mut service);
    let lines = scene.connect().revoke(Target::Name("kv".into())).unwrap();
    assert!(lines[0].contains("the switch drops its port"), "{lines:?}");
    assert!(is_over(&mut near) && is_over(&mut far));
    assert_eq!(notice(&mut service).0, Notice::Unplug { grant: port.grant });
    assert_eq!(refused(application.acquire_vnic("kv")).0, ErrorKind::Revoked);
    scene.connect().restore("kv").unwrap();
    let (_, mut near, _far) = acquire(&mut application, &mut service);
    drop(service);
    let status = scene.wait_for("the port to end", |status| status.vnics[0].holder.is_none());
    assert!(status.service.is_none() && is_over(&mut near));
}

#[test]
fn a_restarted_daemon_and_a_service_core_agree_on_their_ports() {
    let scene = on_switch("restart-port");
    let daemon = scene.start();
    let (mut application, mut service) = (scene.connect(), scene.connect());
    service.serve(vec![]).unwrap();
    let (port, mut near, _far) = acquire(&mut application, &mut service);
    daemon.crash();
    let daemon = scene.start();
    assert!(near.flush().is_ok(), "a dead daemon disturbs no port");
    let mut service = scene.connect();
    let held = HeldGrant { grant: port.grant, generation: port.generation };
    let stale = HeldGrant { grant: 999, generation: 1 };
    service.serve(vec![held, stale]).unwrap();
    assert_eq!(notice(&mut service).0, Notice::Unplug { grant: 999 });
    assert!(scene.status().vnics[0].holder.is_some(), "a port that both have continues");
    daemon.crash();
    let _daemon = scene.start();
    let mut service = scene.connect();
    service.serve(vec![]).unwrap();
    assert!(scene.status().vnics[0].holder.is_none(), "what the switch lost has ended");
}
