//! A link between two threads, timed. Not a test:
//! `cargo test --release -p sietch-nic --test shm_rate -- --ignored --nocapture`.

use std::time::Instant;

use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, LinkLayout, Pair, create_pair};

fn ends(mtu: usize) -> (Endpoint, Endpoint) {
    let layout = LinkLayout::for_mtu(mtu);
    let Pair { near, far, .. } = create_pair(layout, 1).expect("memory for a link");
    let open = |fds, last| Endpoint::open(fds, layout, [2, 0, 0, 0, 0, last], mtu).expect("a fresh grant");
    (open(near, 1), open(far, 2))
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // On a machine of one core both share it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn send(queue: &mut Endpoint, length: usize) -> bool {
    let Some(mut frame) = queue.allocate(length) else { return false };
    queue.bytes_mut(&mut frame)[..14].fill(1);
    queue.transmit(frame).expect("an allocated frame has a slot");
    true
}

fn ping_pong(rounds: u32) {
    let (mut a, mut b) = ends(1500);
    let echo = std::thread::spawn(move || {
        pin(1);
        let mut frames = Vec::new();
        for _ in 0..rounds {
            while b.receive(&mut frames, 16) == 0 {
                std::hint::spin_loop();
            }
            frames.drain(..).for_each(|frame| b.transmit(frame).expect("there is room"));
            b.flush().expect("the link is whole");
        }
    });
    pin(0);
    let (mut frames, start) = (Vec::new(), Instant::now());
    for _ in 0..rounds {
        assert!(send(&mut a, 64));
        a.flush().expect("the link is whole");
        while a.receive(&mut frames, 16) == 0 {
            std::hint::spin_loop();
        }
        frames.drain(..).for_each(|frame| a.release(frame));
    }
    println!("64 B there and back: {:.0} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    echo.join().expect("the echo ends");
}

fn one_way(mtu: usize, length: usize, count: usize) {
    let (mut a, mut b) = ends(mtu);
    let sink = std::thread::spawn(move || {
        pin(1);
        let (mut frames, mut seen, mut out) = (Vec::new(), 0, vec![0; length]);
        while seen < count {
            seen += b.receive(&mut frames, 64);
            for frame in frames.drain(..) {
                let head = b.bytes(&frame).len();
                out[..head].copy_from_slice(b.bytes(&frame));
                b.tail(&frame).copy_to(0, &mut out[head..]);
                b.release(frame);
            }
        }
    });
    pin(0);
    let (start, mut sent) = (Instant::now(), 0);
    let payload = vec![7; length];
    while sent < count {
        for _ in 0..64.min(count - sent) {
            let Some(mut frame) = a.allocate(length) else { break };
            a.bytes_mut(&mut frame).copy_from_slice(&payload);
            a.transmit(frame).expect("an allocated frame has a slot");
            sent += 1;
        }
        a.flush().expect("the link is whole");
    }
    sink.join().expect("all arrive");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{length} B one way: {:.1} M/s, {:.2} GB/s (written by one side, copied out by the other)",
        count as f64 / seconds / 1e6,
        (count * length) as f64 / seconds / 1e9
    );
}

#[test]
#[ignore = "measures; run in release"]
fn rates() {
    for _ in 0..3 {
        ping_pong(1_000_000);
        one_way(1500, 64, 10_000_000);
        one_way(65_535, 65_535, 200_000);
    }
}
