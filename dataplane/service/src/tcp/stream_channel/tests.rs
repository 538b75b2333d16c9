use std::net::SocketAddr;

use rustix::net::{RecvFlags, recv};

use super::*;

fn pair(opening: Opening) -> (StreamChannel, Endpoint, OwnedFd) {
    let address = |last| SocketAddr::from(([10, 0, 0, last], 7000));
    let made =
        StreamChannel::make(RegionSizes::default(), address(2), address(1), (opening, 1000)).expect("memory");
    let [common, page] = made.channel.memory();
    let end = Endpoint::attach(common, page).expect("it was just made");
    (made.channel, end, made.application_end.placeholder)
}

/// Unread notifications in a doorbell, one byte each.
fn notifications(placeholder: &OwnedFd) -> usize {
    recv(placeholder, &mut [0_u8; 64][..], RecvFlags::DONTWAIT).map_or(0, |(count, _)| count)
}

#[test]
fn bytes_go_both_ways_and_a_sleeper_is_notified() {
    let (mut channel, end, placeholder) = pair(Opening::Accepted);
    assert_eq!(end.names().local_length, 16);
    assert_eq!(end.send().expect("no other user").write(b"from the application"), 20);
    let mut taken = Vec::new();
    let count = channel.drain(12, |piece| {
        taken.extend(piece.to_vec());
        piece.len()
    });
    assert_eq!((count, &taken[..]), (12, &b"from the app"[..]));
    assert!(channel.has_sent());
    // What is not taken stays.
    assert_eq!(channel.drain(100, |_| 0), 0);
    assert_eq!(channel.drain(100, |piece| piece.len()), 8);

    end.arm(Want::Data);
    assert_eq!(channel.deliver(b"and back"), 8);
    channel.notify(&mut NotifiedSleeps::default());
    assert_eq!(notifications(&placeholder), 1);
    let mut bytes = [0; 16];
    assert_eq!(end.receive().expect("no other user").read(&mut bytes), 8);
    channel.finish();
    assert!(end.ended());
    end.finish();
    assert!(channel.has_ended());
}

#[test]
fn a_sleeper_for_many_channels_is_notified_once_a_sleep() {
    let mut notified = NotifiedSleeps::default();
    let mut both = [pair(Opening::Accepted), pair(Opening::Accepted)];
    for sleep in [7, 8] {
        for (_, end, _) in &both {
            end.disarm_among_many();
            assert!(end.arm_among_many(sleep).is_some(), "nothing else waits");
        }
        let counts = both.each_mut().map(|(channel, _, placeholder)| {
            assert_eq!(channel.deliver(b"some"), 4);
            channel.notify(&mut notified);
            notifications(placeholder)
        });
        assert_eq!(counts, [1, 0], "in sleep {sleep}");
    }
    // Again with one waiter, then with two.
    let (channel, end, placeholder) = &mut both[1];
    end.number_sleep(0);
    channel.deliver(b"some");
    channel.notify(&mut notified);
    assert_eq!(notifications(placeholder), 1);
    end.disarm_among_many();
    assert!(end.arm_among_many(8).is_some());
    end.arm(Want::Data);
    assert!(end.arm_among_many(8).is_none());
    channel.deliver(b"some");
    channel.notify(&mut notified);
    assert_eq!(notifications(placeholder), 1, "one byte wakes all that sleep there");
    // The other way: the application reads the number.
    for (channel, _, _) in &mut both {
        channel.arm_among_many(WakeOn { data: true, room: false }, 9);
    }
    let mut known = 0;
    let due = both.each_ref().map(|(_, end, _)| {
        let due = end.data_notification_unless(|sleep| sleep == known);
        if due.is_needed() {
            known = due.sleep();
        }
        due.is_needed()
    });
    assert_eq!((due, known), ([true, false], 9));
    both.iter_mut().for_each(|(channel, _, _)| channel.disarm(WakeOn { data: true, room: false }));
    assert!(!both[1].1.data_notification().is_needed(), "it took its request back");
}

#[test]
fn data_on_a_placeholder_breaks_the_connection() {
    let write = |placeholder: &OwnedFd, bytes: &[u8]| {
        assert_eq!(send(placeholder, bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
    };
    let (mut channel, _end, placeholder) = pair(Opening::Accepted);
    write(&placeholder, &[0; 300]);
    channel.clear_notification();
    channel.clear_notification();
    assert!(!channel.is_broken(), "these are doorbells");
    write(&placeholder, b"\0past the library");
    channel.clear_notification();
    assert!(channel.is_broken());
    // Behind doorbells, by a program that closes at once.
    let (mut channel, end, placeholder) = pair(Opening::Accepted);
    write(&placeholder, &[0; 3000]);
    write(&placeholder, b"past the library");
    drop((end, placeholder));
    assert_eq!(channel.hung_up(), Hangup::Reset);
}

#[test]
fn a_full_ring_takes_the_rest_when_the_application_reads() {
    let (mut channel, end, placeholder) = pair(Opening::Accepted);
    let piece = vec![7; 1 << 20];
    let mut given = 0;
    // It grows while nothing is read.
    while channel.has_room() {
        given += channel.deliver(&piece);
    }
    assert!(given >= 4 << 20, "{given} bytes fit");
    channel.arm(WakeOn { data: false, room: true });
    let mut out = vec![0; given];
    assert_eq!(end.receive().expect("no other user").read(&mut out), given);
    assert!(end.room_notification().is_needed());
    assert!(channel.has_room() && notifications(&placeholder) == 0);
}

#[test]
fn the_applications_page_shows_whether_a_connection_succeeds() {
    let (mut channel, end, placeholder) = pair(Opening::Connecting);
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::CONNECTING);
    channel.establish();
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::ESTABLISHED);
    assert_eq!(notifications(&placeholder), 1);
    let (mut channel, end, placeholder) = pair(Opening::Connecting);
    channel.fail(Errno::CONNREFUSED);
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), state::FAILED);
    assert_eq!(end.private().take_error(), Errno::CONNREFUSED.raw_os_error() as u32);
    assert_eq!(notifications(&placeholder), 1);
}

#[test]
fn the_end_of_the_service_is_a_reset_and_that_of_the_application_depends_on_unread_bytes() {
    let (channel, end, _placeholder) = pair(Opening::Accepted);
    drop(channel);
    assert_eq!(end.hung_up(), Hangup::Reset);

    let (mut channel, end, placeholder) = pair(Opening::Accepted);
    assert_eq!(channel.deliver(b"unread"), 6);
    drop((end, placeholder));
    assert_eq!(channel.hung_up(), Hangup::Reset);
    let (mut channel, end, placeholder) = pair(Opening::Accepted);
    assert_eq!(end.send().expect("no other user").write(b"the last"), 8);
    drop((end, placeholder));
    assert_eq!(channel.hung_up(), Hangup::Finished);
    assert_eq!(channel.drain(100, |piece| piece.len()), 8);
}

/// Any bytes in the memory that the application writes cost the service this one connection at
/// most.
#[test]
fn scribbled_memory_costs_its_own_connection() {
    let mut random = sietch_sim::Random::new(11);
    for _ in 0..300 {
        let (mut channel, end, _placeholder) = pair(Opening::Accepted);
        assert_eq!(end.send().expect("no other user").write(&[1; 1000]), 1000);
        assert_eq!(channel.deliver(&[2; 1000]), 1000);
        let [common, _] = channel.memory();
        for _ in 0..random.between(1, 40) {
            let mut bytes = [0; 8];
            random.fill(&mut bytes);
            let at = random.below(4096 / 8) * 8;
            rustix::io::pwrite(common, &bytes, at).expect("it is long enough");
        }
        for _ in 0..8 {
            let mut total = 0;
            channel.drain(64 << 10, |piece| {
                total += piece.to_vec().len();
                piece.len()
            });
            assert!(total <= 64 << 10);
            channel.deliver(&[3; 5000]);
            channel.notify(&mut NotifiedSleeps::default());
            channel.arm(WakeOn { data: true, room: true });
            let _ = (channel.has_sent(), channel.has_ended(), channel.has_room(), channel.is_broken());
            channel.disarm(WakeOn { data: true, room: true });
        }
        channel.hung_up();
    }
}
