use super::*;
use crate::readiness::polling;
use sietch_stream::limits::{COOL_AFTER, POLLS_PER_SLEEP};

/// Polls long enough for what is not ready to cool.
fn poll_in_vain(epoll: &Epoll) {
    for _ in 0..(COOL_AFTER + 1) * POLLS_PER_SLEEP {
        assert_eq!(epoll.wait(0), []);
    }
}

fn doorbells(stream: &Stream) -> usize {
    let mut bytes = [0; 64];
    crate::system::kernel::receive(stream.0, &mut bytes, libc::MSG_DONTWAIT | libc::MSG_PEEK).unwrap_or(0)
}

#[test]
fn a_stream_polled_in_vain_cools_and_is_still_reported() {
    let (quiet, quiet_peer) = pair();
    let (busy, busy_peer) = pair();
    let epoll = Epoll::new();
    epoll.add(quiet.0, IN, 7);
    epoll.add(busy.0, IN, 8);
    for _ in 0..(COOL_AFTER + 1) * POLLS_PER_SLEEP {
        assert_eq!(epoll.wait(0), []);
        busy_peer.send(b"hello");
        assert_eq!(epoll.wait(0), [(8, IN)]);
        busy.receive();
    }
    assert_eq!(busy.end(Endpoint::waiting), 0, "what was ready lately is polled, and needs no notification");
    assert_eq!(quiet.end(Endpoint::waiting), 1, "what was not is armed, and polled no more");
    for _ in 0..3 {
        quiet_peer.send(b"hello");
        assert_eq!(epoll.wait(0), [(7, IN)]);
        quiet.receive();
        poll_in_vain(&epoll);
    }
    quiet_peer.finish();
    assert_eq!(epoll.wait(0), [(7, IN)]);
}

#[test]
fn a_peer_that_answers_a_poller_need_not_notify_it() {
    let (stream, peer) = pair();
    let epoll = Epoll::new();
    epoll.add(stream.0, IN, 7);
    let write = || {
        let held = table::find(stream.0).expect("a stream");
        stream.end(|end| {
            end.send().expect("no other sender").write(b"question");
            polling::note_write(stream.0, &held, end);
        });
        peer.receive();
    };
    poll_in_vain(&epoll);
    for _ in 0..3 {
        write();
        let before = doorbells(&stream);
        peer.send(b"answer");
        assert_eq!(doorbells(&stream), before, "a notification that nothing waits for");
        assert_eq!(epoll.wait(0), [(7, IN)]);
        stream.receive();
        poll_in_vain(&epoll);
    }
    // A thread that sleeps is notified, even if the program has written meanwhile.
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| epoll.wait(-1));
        until_asleep(&stream);
        write();
        peer.send(b"answer");
        assert_eq!(waiter.join().expect("the waiter"), [(7, IN)]);
    });
}
