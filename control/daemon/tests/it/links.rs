//! Point-to-point links: both ends meet, frames pass, and each way of ending one is felt by the
//! other.

use std::time::Instant;

use crate::scene::{PATIENCE, Scene};
use rustix::event::{PollFd, PollFlags, poll};
use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, EndpointFds, LinkLayout, OpenError};
use sietch_protocol::{
    CallError, Connection, ErrorKind, Notice, Protection, QueueLayout, SharedDescriptors, Target,
    VnicDescriptors, VnicGrant, VnicKind,
};

fn with_link(name: &str, more: &str) -> Scene {
    let scene = Scene::own(name);
    let uid = rustix::process::geteuid().as_raw();
    scene.configure(&format!(
        "[[link]]\nname = \"pair\"\n{more}\n\
         [[link.end]]\nname = \"kv\"\nuid = {uid}\naddress = \"10.9.0.1/24\"\naddress6 = \"fd00::1/64\"\n\
         [[link.end]]\nname = \"far\"\nuid = {uid}\naddress = \"10.9.0.2/24\"\n\
         [[link]]\nname = \"foreign\"\n\
         [[link.end]]\nname = \"x\"\nuid = 4242\naddress = \"10.9.0.1/24\"\n\
         [[link.end]]\nname = \"y\"\nuid = 4243\naddress = \"10.9.0.2/24\"\n"
    ));
    scene
}

fn fds(parts: SharedDescriptors) -> EndpointFds {
    EndpointFds::received([parts.own, parts.peer, parts.doorbell], 0)
}

fn open(grant: &VnicGrant, made_of: VnicDescriptors) -> Result<Endpoint, OpenError> {
    let (QueueLayout::Shared(shape), VnicDescriptors::Shared(parts)) = (grant.layout, made_of) else {
        panic!("an end of a link was requested")
    };
    let layout = LinkLayout { slots: shape.slots, data: shape.data };
    Endpoint::open(fds(parts), layout, grant.mac.0, usize::try_from(grant.mtu).unwrap())
}

fn acquire(connection: &mut Connection, name: &str) -> (VnicGrant, Endpoint) {
    let (grant, made_of) = connection.acquire_vnic(name).unwrap();
    let endpoint = open(&grant, made_of).unwrap();
    (grant, endpoint)
}

/// Sends one frame that contains `word`, and checks that it arrives.
fn pass(from: &mut Endpoint, to: &mut Endpoint, word: &[u8]) {
    let mut frame = from.allocate(14 + word.len()).unwrap();
    from.bytes_mut(&mut frame)[14..].copy_from_slice(word);
    from.transmit(frame).unwrap();
    from.flush().unwrap();
    let mut arrived = Vec::new();
    let end = Instant::now() + PATIENCE;
    while arrived.is_empty() {
        to.receive(&mut arrived, 8);
        assert!(Instant::now() < end, "the frame never arrived");
    }
    let frame = arrived.pop().unwrap();
    let mut whole = to.bytes(&frame).to_vec();
    let tail = to.tail(&frame);
    let mut rest = vec![0; tail.len()];
    tail.copy_to(0, &mut rest);
    whole.extend(rest);
    assert!(whole[14..] == *word, "another frame arrived");
    to.release(frame);
}

/// Waits for the doorbell to say that the link is over.
fn assert_link_ended(endpoint: &mut Endpoint) {
    use std::os::fd::AsFd;
    let watched = endpoint.try_clone_doorbell();
    poll(&mut [PollFd::new(&watched.as_fd(), PollFlags::IN)], None).unwrap();
    endpoint.disarm();
    let mut arrived = Vec::new();
    assert_eq!(endpoint.receive(&mut arrived, 8), 0);
    assert!(endpoint.flush().is_err(), "the link is over");
}

trait CloneDoorbell {
    fn try_clone_doorbell(&self) -> std::os::fd::OwnedFd;
}

impl CloneDoorbell for Endpoint {
    fn try_clone_doorbell(&self) -> std::os::fd::OwnedFd {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned().unwrap()
    }
}

/// Waits until the process is notified that `wanted` has ended. Returns the reason. All its
/// connections get every notice.
fn notice(connection: &mut Connection, wanted: u64) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some((notice, _)) = connection.take_notice().unwrap() {
            let Notice::Revoked { grant, reason, .. } = notice else { panic!("{notice:?}") };
            if grant == wanted {
                return reason;
            }
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

#[test]
fn two_ends_pair_in_either_order_and_frames_pass_both_ways() {
    let scene = with_link("meet", "mtu = 9000\nmemory = \"1MiB\"");
    let _daemon = scene.start();
    for order in [["kv", "far"], ["far", "kv"]] {
        let (mut one, mut two) = (scene.connect(), scene.connect());
        let (first, mut near) = acquire(&mut one, order[0]);
        assert!(near.allocate(60).is_some(), "an end can be used before the other is there");
        let (second, mut far) = acquire(&mut two, order[1]);
        assert_eq!((first.kind, &first.protection), (VnicKind::Link, &Protection::PointToPoint));
        let peer = first.peer.unwrap();
        assert_eq!((peer.name.as_str(), peer.mac, peer.address), (order[1], second.mac, second.address));
        assert_eq!((first.prefix, first.mtu, first.gateway), (24, 9000, None));
        pass(&mut near, &mut far, b"to the far side");
        pass(&mut far, &mut near, &[7; 8000]);
        one.release(first.grant).unwrap();
    }
}

#[test]
fn an_end_has_one_holder_and_its_own_user() {
    let scene = with_link("holder", "");
    let _daemon = scene.start();
    let (mut one, mut two) = (scene.connect(), scene.connect());
    let _held = acquire(&mut one, "kv");
    let (kind, text) = refused(two.acquire_vnic("kv"));
    assert!(kind == ErrorKind::Busy && text.contains("sietch revoke kv"), "{text}");
    let (kind, text) = refused(two.acquire_vnic("x"));
    assert!(kind == ErrorKind::Denied && text.contains("4242"), "{text}");
    let (kind, _) = refused(two.acquire_vnic("pair"));
    assert_eq!(kind, ErrorKind::Unknown, "a link is no VNIC, its ends are");
}

#[test]
fn each_side_reads_the_memory_of_the_other_and_cannot_write_it() {
    let scene = with_link("hostile", "");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (_, VnicDescriptors::Shared(near)) = connection.acquire_vnic("kv").unwrap() else { panic!("a link") };
    let (_, VnicDescriptors::Shared(far)) = connection.acquire_vnic("far").unwrap() else { panic!("a link") };
    assert!(rustix::io::pwrite(&near.peer, b"x", 0x100).is_err(), "the peer's region is read-only");
    rustix::io::pwrite(&near.own, b"spoilt", 0x1000).unwrap();
    let mut bytes = [0; 6];
    rustix::io::pread(&far.peer, &mut bytes, 0x1000).unwrap();
    assert_eq!(&bytes, b"spoilt", "the two are sides of one link");
    assert!(rustix::fs::ftruncate(&near.own, 0).is_err(), "no holder can shrink the memory");
    // Flags that one of them sets on its own doorbell do not affect the other's.
    let flags = rustix::fs::fcntl_getfl(&near.doorbell).unwrap();
    rustix::fs::fcntl_setfl(&near.doorbell, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(rustix::fs::fcntl_getfl(&far.doorbell).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn the_end_of_one_side_ends_the_other_and_both_pair_again_in_fresh_memory() {
    let scene = with_link("again", "");
    let _daemon = scene.start();
    let (mut one, mut two) = (scene.connect(), scene.connect());
    let (first, mut near) = acquire(&mut one, "kv");
    let (second, mut far) = acquire(&mut two, "far");
    pass(&mut near, &mut far, b"first");
    two.release(second.grant).unwrap();
    assert_link_ended(&mut near);
    let reason = notice(&mut one, first.grant);
    assert!(reason.contains("other end"), "{reason}");
    // Neither side has to release a link that has ended.
    let (third, mut near) = acquire(&mut one, "kv");
    let (_, mut far) = acquire(&mut two, "far");
    assert!(third.generation > first.generation && near.generation() == far.generation());
    pass(&mut near, &mut far, b"second");
}

#[test]
fn an_end_that_reconnects_repeatedly_notifies_its_peer_once() {
    let scene = with_link("churn", "");
    let _daemon = scene.start();
    let (mut honest, mut hostile) = (scene.connect(), scene.connect());
    let (held, mut near) = acquire(&mut honest, "kv");
    for _ in 0..100 {
        let (grant, ..) = hostile.acquire_vnic("far").unwrap();
        hostile.release(grant.grant).unwrap();
    }
    assert_link_ended(&mut near);
    notice(&mut honest, held.grant);
    assert!(honest.take_notice().unwrap().is_none());
    assert!(honest.status().is_ok(), "its connection is open");
}

#[test]
fn a_killed_peer_is_noticed_and_may_come_back() {
    let scene = with_link("killed", "");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let mut application = scene.application(None);
    application.command("vnic", "GRANT");
    let (held, mut near) = acquire(&mut connection, "far");
    application.kill();
    assert_link_ended(&mut near);
    let reason = notice(&mut connection, held.grant);
    assert!(reason.contains("has ended"), "{reason}");
    let _near = acquire(&mut connection, "far");
    let mut application = scene.application(None);
    assert!(!application.command("vnic", "GRANT").contains("refused"));
    let status = scene.status();
    let end = status.vnics.iter().find(|vnic| vnic.name == "far").unwrap();
    assert!(end.peer.as_deref() == Some("kv") && end.holder.is_some(), "{end:?}");
}

#[test]
fn a_revoked_end_stops_at_once_and_is_refused_until_it_is_restored() {
    let scene = with_link("revoked", "");
    let _daemon = scene.start();
    let (mut one, mut two, mut administrator) = (scene.connect(), scene.connect(), scene.connect());
    let (_, mut near) = acquire(&mut one, "kv");
    let (second, mut far) = acquire(&mut two, "far");
    pass(&mut near, &mut far, b"before");
    let lines = administrator.revoke(Target::Name("far".into())).unwrap();
    assert!(lines.len() == 1 && lines[0].contains("link pair is over"), "{lines:?}");
    assert_link_ended(&mut far);
    assert_link_ended(&mut near);
    notice(&mut two, second.grant);
    assert_eq!(refused(two.acquire_vnic("far")).0, ErrorKind::Revoked);
    let (_, mut near) = acquire(&mut one, "kv");
    administrator.restore("far").unwrap();
    let (_, mut far) = acquire(&mut two, "far");
    pass(&mut far, &mut near, b"after");
}

#[test]
fn a_restarted_daemon_leaves_a_link_alone_and_can_still_end_it() {
    let scene = with_link("restart", "");
    let daemon = scene.start_process();
    let mut near = scene.application(None);
    near.command("vnic", "GRANT");
    let mut connection = scene.connect();
    let (mine, mut far) = acquire(&mut connection, "far");
    daemon.kill();
    far.disarm();
    assert!(far.flush().is_ok(), "a dead daemon disturbs no link");
    let _daemon = scene.start_process();
    assert_eq!(near.command("reconnect", "ADOPTED"), "true");
    let mut connection = scene.connect();
    let claim = sietch_protocol::HeldGrant { grant: mine.grant, generation: mine.generation };
    assert!(connection.adopt(vec![claim]).unwrap()[0].held);
    let lines = scene.connect().revoke(Target::Name("kv".into())).unwrap();
    assert!(lines[0].contains("was restarted") && lines[0].contains("end pid"), "{lines:?}");
    notice(&mut connection, mine.grant);
}

#[test]
fn an_end_without_a_possible_peer_ends_with_its_daemon() {
    let scene = with_link("lonely", "");
    let daemon = scene.start_process();
    let mut near = scene.application(None);
    near.command("vnic", "GRANT");
    daemon.kill();
    let _daemon = scene.start_process();
    assert_eq!(near.command("reconnect", "ADOPTED"), "false");
    assert!(!near.command("vnic", "GRANT").contains("refused"), "it may acquire again");
}

#[test]
fn another_sietch_toml_ends_a_link_that_does_not_fit_it() {
    let scene = with_link("reload", "mtu = 1500");
    let _daemon = scene.start();
    let (mut one, mut two) = (scene.connect(), scene.connect());
    let (old, mut near) = acquire(&mut one, "kv");
    let text = std::fs::read_to_string(scene.configuration()).unwrap();
    scene.configure(&text.replace("mtu = 1500", "mtu = 9000"));
    two.reload().unwrap();
    let (grant, mut far) = acquire(&mut two, "far");
    assert_eq!(grant.mtu, 9000);
    assert_link_ended(&mut near);
    notice(&mut one, old.grant);
    let (_, mut near) = acquire(&mut one, "kv");
    pass(&mut near, &mut far, &[1; 8000]);
}
