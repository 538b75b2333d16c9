use std::net::SocketAddr;

use rustix::net::RecvFlags;

use super::*;

fn pair(connecting: bool) -> (Link, Endpoint, OwnedFd) {
    let address = |last| SocketAddr::from(([10, 0, 0, last], 7000));
    let made = Link::make(RegionSizes::default(), address(2), address(1), connecting).expect("memory");
    let [common, page] = made.link.memory();
    let end = Endpoint::attach(common, page).expect("it was just made");
    (made.link, end, made.handout.placeholder)
}

/// Bytes that lie in a doorbell.
fn rung(placeholder: &OwnedFd) -> usize {
    recv(placeholder, &mut [0_u8; 64][..], RecvFlags::DONTWAIT).map_or(0, |(count, _)| count)
}

#[test]
fn bytes_go_both_ways_and_who_sleeps_is_rung() {
    let (mut link, end, placeholder) = pair(false);
    assert_eq!(end.names().local_length, 16);
    assert_eq!(end.send().expect("nobody else").write(b"from the application"), 20);
    let mut taken = Vec::new();
    let count = link.drain(12, |piece| {
        taken.extend(piece.to_vec());
        piece.len()
    });
    assert_eq!((count, &taken[..]), (12, &b"from the app"[..]));
    assert!(link.has_sent());
    // What is not taken stays.
    assert_eq!(link.drain(100, |_| 0), 0);
    assert_eq!(link.drain(100, |piece| piece.len()), 8);

    end.arm(Want::Data);
    assert_eq!(link.deliver(b"and back"), 8);
    link.ring(&mut NotifiedSleeps::default());
    assert_eq!(rung(&placeholder), 1);
    let mut bytes = [0; 16];
    assert_eq!(end.receive().expect("nobody else").read(&mut bytes), 8);
    link.finish();
    assert!(end.ended());
    end.finish();
    assert!(link.has_ended());
}

#[test]
fn who_sleeps_for_many_is_rung_once_a_sleep() {
    let mut rung_for = NotifiedSleeps::default();
    let mut both = [pair(false), pair(false)];
    for sleep in [7, 8] {
        for (_, end, _) in &both {
            end.disarm_among_many();
            assert!(end.arm_among_many(sleep).is_some(), "nothing else waits");
        }
        let rings = both.each_mut().map(|(link, _, placeholder)| {
            assert_eq!(link.deliver(b"some"), 4);
            link.ring(&mut rung_for);
            rung(placeholder)
        });
        assert_eq!(rings, [1, 0], "in sleep {sleep}");
    }
    // For itself alone again; and beside somebody else who waits.
    let (link, end, placeholder) = &mut both[1];
    end.number_sleep(0);
    link.deliver(b"some");
    link.ring(&mut rung_for);
    assert_eq!(rung(placeholder), 1);
    end.disarm_among_many();
    assert!(end.arm_among_many(8).is_some());
    end.arm(Want::Data);
    assert!(end.arm_among_many(8).is_none());
    link.deliver(b"some");
    link.ring(&mut rung_for);
    assert_eq!(rung(placeholder), 1, "one byte wakes all who sleep there");
    // The other way: the application looks at the number.
    for (link, _, _) in &mut both {
        link.arm_among_many(Wanted { data: true, room: false }, 9);
    }
    let mut known = 0;
    let rings = both.each_ref().map(|(_, end, _)| {
        let due = end.data_notification_unless(|sleep| sleep == known);
        if due.is_needed() {
            known = due.sleep();
        }
        due.is_needed()
    });
    assert_eq!((rings, known), ([true, false], 9));
    both.iter_mut().for_each(|(link, _, _)| link.disarm(Wanted { data: true, room: false }));
    assert!(!both[1].1.data_notification().is_needed(), "it took its request back");
}

#[test]
fn what_is_no_doorbell_on_a_placeholder_breaks_the_connection() {
    let write = |placeholder: &OwnedFd, bytes: &[u8]| {
        assert_eq!(send(placeholder, bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
    };
    let (mut link, _end, placeholder) = pair(false);
    write(&placeholder, &[0; 300]);
    link.answer();
    link.answer();
    assert!(!link.is_broken(), "these are doorbells");
    write(&placeholder, b"\0past the library");
    link.answer();
    assert!(link.is_broken());
    // Behind doorbells, by a program that closes at once.
    let (mut link, end, placeholder) = pair(false);
    write(&placeholder, &[0; 3000]);
    write(&placeholder, b"past the library");
    drop((end, placeholder));
    assert_eq!(link.departed(), Departure::Reset);
}

#[test]
fn a_full_ring_takes_the_rest_when_the_application_reads() {
    let (mut link, end, placeholder) = pair(false);
    let piece = vec![7; 1 << 20];
    let mut given = 0;
    // It grows while nothing is read.
    while link.has_room() {
        given += link.deliver(&piece);
    }
    assert!(given >= 4 << 20, "{given} bytes fit");
    link.arm(Wanted { data: false, room: true });
    let mut out = vec![0; given];
    assert_eq!(end.receive().expect("nobody else").read(&mut out), given);
    assert!(end.room_notification().is_needed());
    assert!(link.has_room() && rung(&placeholder) == 0);
}

#[test]
fn a_connection_comes_about_or_fails_on_the_applications_page() {
    let (mut link, end, placeholder) = pair(true);
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::CONNECTING);
    link.establish();
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::ESTABLISHED);
    assert_eq!(rung(&placeholder), 1);
    let (mut link, end, placeholder) = pair(true);
    link.fail(Errno::CONNREFUSED);
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::FAILED);
    assert_eq!(end.private().take_error(), Errno::CONNREFUSED.raw_os_error() as u32);
    assert_eq!(rung(&placeholder), 1);
}

#[test]
fn the_end_of_the_service_is_a_reset_and_that_of_the_application_is_what_it_left() {
    let (link, end, _placeholder) = pair(false);
    drop(link);
    assert_eq!(end.hung_up(), Hangup::Reset);

    let (mut link, end, placeholder) = pair(false);
    assert_eq!(link.deliver(b"unread"), 6);
    drop((end, placeholder));
    assert_eq!(link.departed(), Departure::Reset);
    let (mut link, end, placeholder) = pair(false);
    assert_eq!(end.send().expect("nobody else").write(b"the last"), 8);
    drop((end, placeholder));
    assert_eq!(link.departed(), Departure::Finished);
    assert_eq!(link.drain(100, |piece| piece.len()), 8);
}

/// Whatever stands in the memory that the application writes, the service only ever loses this
/// connection.
#[test]
fn scribbled_memory_costs_its_own_connection() {
    let mut random = sietch_sim::Random::new(11);
    for _ in 0..300 {
        let (mut link, end, _placeholder) = pair(false);
        assert_eq!(end.send().expect("nobody else").write(&[1; 1000]), 1000);
        assert_eq!(link.deliver(&[2; 1000]), 1000);
        let [common, _] = link.memory();
        for _ in 0..random.between(1, 40) {
            let mut bytes = [0; 8];
            random.fill(&mut bytes);
            let at = random.below(4096 / 8) * 8;
            rustix::io::pwrite(common, &bytes, at).expect("it is long enough");
        }
        for _ in 0..8 {
            let mut total = 0;
            link.drain(64 << 10, |piece| {
                total += piece.to_vec().len();
                piece.len()
            });
            assert!(total <= 64 << 10);
            link.deliver(&[3; 5000]);
            link.ring(&mut NotifiedSleeps::default());
            link.arm(Wanted { data: true, room: true });
            let _ = (link.has_sent(), link.has_ended(), link.has_room(), link.is_broken());
            link.disarm(Wanted { data: true, room: true });
        }
        link.departed();
    }
}
