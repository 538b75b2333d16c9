//! The filters on real interfaces, in a namespace of the test's own.

use std::os::fd::AsFd;

use super::frames::{self, HOST_MAC, MAC, OTHER_MAC};
use super::machine::{Raw, Socket, eventually, in_namespace, remove, veth};
use crate::xdp::frame::Direction;
use crate::xdp::netlink::{self, Expect};
use crate::xdp::{Buffers, Reason, Uplink, VnicPrograms, VnicSpec, XdpError, offload, pass};

struct Vnic {
    application: u32,
    peer: u32,
    programs: VnicPrograms,
    socket: Socket,
}

fn vnic(spec: &VnicSpec) -> Vnic {
    let (application, peer) = veth(("application", MAC), ("peer", HOST_MAC));
    let socket = Socket::new();
    let programs = VnicPrograms::install(spec, application, peer, (socket.fd(), 0), Buffers::One).unwrap();
    Vnic { application, peer, programs, socket }
}

fn judged(programs: &VnicPrograms, direction: Direction, frames: u64) -> (u64, u64) {
    eventually("every frame is counted", || {
        let counters = programs.counters().unwrap();
        let one = match direction {
            Direction::Receive => counters.received,
            Direction::Transmit => counters.transmitted,
        };
        let passed = one.passed.frames;
        let dropped: u64 = Reason::ALL.iter().map(|&reason| one.dropped(reason).frames).sum();
        (passed + dropped >= frames).then_some((passed, dropped))
    })
}

#[test]
fn only_legal_frames_cross_the_veth() {
    in_namespace("only_legal_frames_cross_the_veth", || {
        let vnic = vnic(&frames::spec());
        let (inside, outside) = (Raw::at(vnic.application), Raw::at(vnic.peer));
        let legal = frames::legal(Direction::Transmit);
        let hostile = frames::hostile(Direction::Transmit);
        for (_, frame, _) in &hostile {
            inside.send(frame);
        }
        for frame in &legal {
            inside.send(frame);
        }
        let counts = (legal.len() as u64, hostile.len() as u64);
        let sent = judged(&vnic.programs, Direction::Transmit, counts.0 + counts.1);
        assert_eq!(sent, counts);
        let mut arrived = Vec::new();
        eventually("every legal frame arrives", || {
            arrived.extend(outside.received());
            (arrived.len() >= legal.len()).then_some(())
        });
        assert_eq!(arrived, legal);

        let (legal, hostile) = (frames::legal(Direction::Receive), frames::hostile(Direction::Receive));
        for frame in legal.iter().chain(hostile.iter().map(|(_, frame, _)| frame)) {
            outside.send(frame);
        }
        let counts = (legal.len() as u64, hostile.len() as u64);
        let received = judged(&vnic.programs, Direction::Receive, counts.0 + counts.1);
        assert_eq!(received, counts);
        assert_eq!(inside.received(), Vec::<Vec<u8>>::new(), "past the socket");
    });
}

#[test]
fn filters_outlive_their_daemon_and_are_found_again() {
    in_namespace("filters_outlive_their_daemon_and_are_found_again", || {
        let mut spec = frames::spec();
        spec.peers = frames::prefixes();
        let Vnic { application, peer, programs, socket } = vnic(&spec);
        let inside = Raw::at(application);
        let legal = frames::talk(Direction::Transmit, 6, 6379, 0);
        let foreign = frames::talk(Direction::Transmit, 6, 6380, 0);
        inside.send(&legal);
        judged(&programs, Direction::Transmit, 1);
        // The daemon ends.
        drop(programs);
        inside.send(&foreign);
        inside.send(&legal);

        let mut found = VnicPrograms::adopt((application, None), peer).unwrap();
        assert_eq!(judged(&found, Direction::Transmit, 3), (2, 1));
        assert!(found.is_enabled());
        assert_eq!((found.generation(), found.mac(), found.address()), (7, MAC, frames::ADDRESS));
        // Rules still change in place, revocation still works.
        spec.tcp_ports = vec![6380..=6380];
        found.update(&spec).unwrap();
        found.set_socket(socket.fd()).unwrap();
        inside.send(&legal);
        inside.send(&foreign);
        assert_eq!(judged(&found, Direction::Transmit, 5), (3, 2));
        found.set_enabled(false).unwrap();
        drop(found);
        inside.send(&foreign);
        let found = VnicPrograms::adopt((application, None), peer).unwrap();
        assert!(!found.is_enabled());
        assert_eq!(judged(&found, Direction::Transmit, 6), (3, 3));
        let counters = found.counters().unwrap();
        assert_eq!(counters.transmitted.dropped(Reason::Disabled).frames, 1);

        found.detach().unwrap();
        assert_eq!(netlink::attached(application).unwrap(), None);
        assert_eq!(netlink::attached(peer).unwrap(), None);
        assert!(matches!(VnicPrograms::adopt((application, None), peer), Err(XdpError::Foreign { .. })));
    });
}

#[test]
fn foreign_programs_are_left_alone() {
    in_namespace("foreign_programs_are_left_alone", || {
        let (application, peer) = veth(("application", MAC), ("peer", HOST_MAC));
        let foreign = pass::attach(application).unwrap();
        let id = foreign.info().unwrap().id;
        let socket = Socket::new();
        let installed =
            VnicPrograms::install(&frames::spec(), application, peer, (socket.fd(), 0), Buffers::One);
        assert!(
            matches!(installed, Err(XdpError::Occupied { program, .. }) if program == id),
            "{installed:?}"
        );
        assert_eq!(netlink::attached(peer).unwrap(), None, "nothing stays");
        assert_eq!(netlink::attached(application).unwrap(), Some(id));
        for error in [
            VnicPrograms::adopt((application, None), peer).unwrap_err(),
            Uplink::adopt(application).unwrap_err(),
        ] {
            assert!(matches!(error, XdpError::Foreign { .. }), "{error}");
        }
        let other = pass::attach(peer).unwrap();
        let removed = netlink::detach(application, other.as_fd());
        assert!(matches!(removed, Err(XdpError::Occupied { .. })));
        assert_eq!(netlink::attached(application).unwrap(), Some(id));
        netlink::attach(application, other.as_fd(), Expect::Program(foreign.as_fd())).unwrap();
        netlink::detach(application, other.as_fd()).unwrap();
        assert!(netlink::attached(9_999).is_err());
        assert!(pass::attach(9_999).is_err());
    });
}

#[test]
fn two_vnics_filters_are_not_mixed_up() {
    in_namespace("two_vnics_filters_are_not_mixed_up", || {
        let first = vnic(&frames::spec());
        let (application, peer) = veth(("second", OTHER_MAC), ("second_peer", HOST_MAC));
        let socket = Socket::new();
        let second =
            VnicPrograms::install(&frames::spec(), application, peer, (socket.fd(), 0), Buffers::One);
        assert!(second.is_ok());
        for (one, other) in
            [(first.application, peer), (application, first.peer), (first.peer, first.application)]
        {
            let adopted = VnicPrograms::adopt((one, None), other);
            assert!(matches!(adopted, Err(XdpError::Foreign { .. })));
        }
    });
}

#[test]
fn a_vnic_reaches_the_wire_and_is_reached() {
    in_namespace("a_vnic_reaches_the_wire_and_is_reached", || {
        // The uplink, and the other end of its wire. A veth takes redirected frames if its other
        // end has a program.
        let (wire, far) = veth(("wire", [2, 0, 0, 0, 1, 1]), ("far", [2, 0, 0, 0, 1, 2]));
        let _pass = pass::attach(far).unwrap();
        let mut uplink = Uplink::attach(wire).unwrap();
        let vnic = vnic(&VnicSpec { uplink: Some(wire), ..frames::ipv6::spec6() });
        uplink.add(frames::ADDRESS, MAC, vnic.peer).unwrap();
        uplink.add6(frames::ipv6::ADDRESS, MAC, frames::ADDRESS).unwrap();

        let (inside, far_end) = (Raw::at(vnic.application), Raw::at(far));
        let at_host = Raw::at(vnic.peer);
        let mut legal = frames::talk(Direction::Transmit, 6, 6379, 0);
        legal[..6].copy_from_slice(&OTHER_MAC);
        let request =
            frames::legal(Direction::Transmit).into_iter().find(|frame| frame[..6] == [0xff; 6]).unwrap();
        let mut forged = legal.clone();
        forged[26..30].copy_from_slice(&frames::NON_PEER.octets());
        for frame in [&forged, &legal, &request] {
            inside.send(frame);
        }
        assert_eq!(judged(&vnic.programs, Direction::Transmit, 3), (2, 1));
        let mut arrived = Vec::new();
        eventually("both frames reach the far end", || {
            arrived.extend(far_end.received());
            (arrived.len() >= 2).then_some(())
        });
        assert_eq!(arrived, [legal, request]);
        assert_eq!(at_host.received().len(), 0, "the host saw nothing");

        // The other way: the VNIC's frames go to the VNIC, even after the daemon died; the host's
        // go to the host.
        drop(uplink);
        let mut uplink = Uplink::adopt(wire).unwrap();
        assert_eq!(uplink.vnics().unwrap(), [(frames::ADDRESS, MAC)]);
        let at_wire = Raw::at(wire);
        // Broadcast announcements of others are the host's, and so are frames to other addresses
        // than the granted one.
        let about_us = |frame: &Vec<u8>| match (frame[0], frame[12..14] == [0x86, 0xdd]) {
            (0x33, true) => frame[62..78] == frames::ipv6::ADDRESS.octets(),
            (_, true) => frame[38..54] == frames::ipv6::ADDRESS.octets(),
            (_, false) => frame[12..14] == [8, 0] || frame[38..42] == frames::ADDRESS.octets(),
        };
        let legal = [frames::legal(Direction::Receive), frames::ipv6::legal(Direction::Receive)].concat();
        let legal: Vec<_> = legal.into_iter().filter(about_us).collect();
        assert!(legal.len() > 20);
        for frame in &legal {
            far_end.send(frame);
        }
        let mut for_host = frames::talk(Direction::Receive, 6, 6379, 0);
        for_host[30..34].copy_from_slice(&frames::NON_PEER.octets());
        far_end.send(&for_host);
        let received = judged(&vnic.programs, Direction::Receive, legal.len() as u64);
        assert_eq!(received, (legal.len() as u64, 0));
        eventually("the host's frame reaches the host", || {
            (at_wire.received() == [for_host.clone()]).then_some(())
        });
        assert!(uplink.remove(frames::ADDRESS).unwrap() && uplink.remove6(frames::ipv6::ADDRESS).unwrap());
        far_end.send(&legal[0]);
        eventually("without the VNIC its frames are the host's", || {
            (at_wire.received() == [legal[0].clone()]).then_some(())
        });
        let counters = uplink.counters().unwrap();
        assert_eq!(counters.redirected.frames, legal.len() as u64);
        uplink.detach().unwrap();
        assert_eq!(netlink::attached(wire).unwrap(), None);
    });
}

#[test]
fn frames_for_deleted_interfaces_are_lost_and_counted() {
    in_namespace("frames_for_deleted_interfaces_are_lost_and_counted", || {
        let (wire, far) = veth(("wire", [2, 0, 0, 0, 1, 1]), ("far", [2, 0, 0, 0, 1, 2]));
        let mut uplink = Uplink::attach(wire).unwrap();
        let (other_wire, _) = veth(("other", [2, 0, 0, 0, 1, 3]), ("end", [2, 0, 0, 0, 1, 4]));
        let vnic = vnic(&VnicSpec { uplink: Some(other_wire), ..frames::spec() });
        uplink.add(frames::ADDRESS, MAC, vnic.peer).unwrap();
        remove(other_wire);
        let mut outward = frames::talk(Direction::Transmit, 6, 6379, 0);
        outward[..6].copy_from_slice(&OTHER_MAC);
        Raw::at(vnic.application).send(&outward);
        assert_eq!(judged(&vnic.programs, Direction::Transmit, 1), (0, 1));
        let counters = vnic.programs.counters().unwrap();
        assert_eq!(counters.transmitted.dropped(Reason::Target).frames, 1);

        remove(vnic.application);
        // A deleted veth leaves nothing to detach, which is no error.
        vnic.programs.detach().unwrap();
        Raw::at(far).send(&frames::talk(Direction::Receive, 6, 6379, 0));
        eventually("the frame is counted as lost", || {
            (uplink.counters().unwrap().lost.frames == 1).then_some(())
        });
    });
}

#[test]
fn checksums_are_finished_by_the_kernel_when_configured_so() {
    in_namespace("checksums_are_finished_by_the_kernel_when_configured_so", || {
        let (_, peer) = veth(("application", MAC), ("peer", HOST_MAC));
        assert!(offload::transmit_checksum(peer).unwrap());
        offload::disable_transmit_checksum(peer).unwrap();
        assert!(!offload::transmit_checksum(peer).unwrap());
        let missing = offload::disable_transmit_checksum(9_999).unwrap_err();
        assert!(missing.to_string().contains("9999"), "{missing}");
    });
}
