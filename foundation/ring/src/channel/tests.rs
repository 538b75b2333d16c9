use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::{Receiver, Sender, channel};
use crate::thread_doorbell::{ThreadDoorbell, Wake};

/// Counts wake-ups.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<AtomicU32>);

impl Wake for Counted {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counted {
    fn wakes(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that counts those of its kind that live.
#[derive(Debug)]
struct Alive(u32, #[expect(dead_code, reason = "counted")] Arc<()>);

struct Ends<T> {
    sender: Sender<T, Counted>,
    receiver: Receiver<T, Counted>,
    from: (ThreadDoorbell<Counted>, Counted),
    to: (ThreadDoorbell<Counted>, Counted),
}

fn ends<T: Send>(slots: u16) -> Ends<T> {
    let doorbell = || {
        let wakes = Counted::default();
        (ThreadDoorbell::with(wakes.clone()), wakes)
    };
    let (from, to) = (doorbell(), doorbell());
    let (sender, receiver) = channel(slots, &from.0, &to.0);
    Ends { sender, receiver, from, to }
}

#[test]
fn values_arrive_in_order_also_those_that_found_the_ring_full() {
    let Ends { mut sender, mut receiver, .. } = ends(4);
    for round in 0..5_u32 {
        let numbers = round * 100..round * 100 + 23;
        numbers.clone().for_each(|number| sender.send(number.to_string()));
        assert_eq!((sender.flush(), sender.waiting()), (4, 19));
        let mut arrived = Vec::new();
        while arrived.len() < numbers.len() {
            let before = arrived.len();
            arrived.extend(std::iter::from_fn(|| receiver.receive()));
            assert!(arrived.len() > before, "values wait although the ring has room");
            sender.flush();
        }
        assert!(arrived.into_iter().eq(numbers.map(|number| number.to_string())));
        assert_eq!((sender.waiting(), receiver.receive()), (0, None));
    }
}

#[test]
fn every_value_is_dropped_once_wherever_it_is() {
    let alive = Arc::new(());
    let Ends { mut sender, mut receiver, .. } = ends(2);
    for number in 0..7 {
        sender.send(Alive(number, Arc::clone(&alive)));
    }
    sender.flush();
    let first = receiver.receive().expect("a value");
    assert_eq!((first.0, Arc::strong_count(&alive)), (0, 8));
    drop(first);
    drop(receiver);
    assert_eq!(Arc::strong_count(&alive), 7, "the ring's and the waiting ones live with the sender");
    sender.send(Alive(7, Arc::clone(&alive)));
    drop(sender);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn values_of_a_sender_that_is_gone_still_arrive() {
    let Ends { mut sender, mut receiver, .. } = ends(4);
    (0..3).for_each(|number| sender.send(Box::new(number)));
    drop(sender);
    assert!(std::iter::from_fn(|| receiver.receive()).map(|number| *number).eq(0..3));
}

#[test]
fn a_sleeping_receiver_is_woken_once_and_an_awake_one_never() {
    let Ends { mut sender, mut receiver, to: (doorbell, wakes), .. } = ends(8);
    sender.send(1);
    sender.flush();
    assert_eq!(wakes.wakes(), 0);
    assert_eq!(receiver.receive(), Some(1));
    doorbell.arm();
    assert!(!receiver.is_ready());
    let mut send = || {
        sender.send(2);
        sender.flush()
    };
    assert_eq!((send(), send(), send()), (1, 1, 1));
    assert_eq!(wakes.wakes(), 1);
    doorbell.disarm();
    assert_eq!((send(), send()), (1, 1));
    assert_eq!(wakes.wakes(), 1);
}

#[test]
fn a_sender_with_waiting_values_is_woken_for_room_and_no_other() {
    let Ends { mut sender, mut receiver, from: (doorbell, wakes), .. } = ends(2);
    sender.send(0);
    sender.flush();
    doorbell.arm();
    assert_eq!((receiver.receive(), receiver.receive()), (Some(0), None));
    assert_eq!(wakes.wakes(), 0, "nothing waits");
    doorbell.disarm();
    (0..4).for_each(|number| sender.send(number));
    assert_eq!(sender.flush(), 2);
    doorbell.arm();
    assert_eq!((sender.flush(), sender.waiting()), (0, 2));
    while receiver.receive().is_some() {}
    assert_eq!(wakes.wakes(), 1);
    doorbell.disarm();
    assert_eq!((sender.flush(), sender.waiting()), (2, 0));
    doorbell.arm();
    while receiver.receive().is_some() {}
    assert_eq!(wakes.wakes(), 1, "nothing waits any more");
}

#[test]
fn threads_pass_boxes_while_both_sleep() {
    // Miri is slow.
    const VALUES: u32 = if cfg!(miri) { 50 } else { 20_000 };
    /// Ends a park.
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(&self) {
            self.0.unpark();
        }
    }
    let (give, take) = std::sync::mpsc::channel();
    let from = ThreadDoorbell::with(Unpark(thread::current()));
    let receiving = thread::spawn(move || {
        let to = ThreadDoorbell::with(Unpark(thread::current()));
        let (sender, mut receiver) = channel::<Box<u32>, _>(4, &from, &to);
        give.send((sender, from)).expect("it waits for this");
        for expected in 0..VALUES {
            let value = loop {
                if let Some(value) = receiver.receive() {
                    break value;
                }
                to.arm();
                if !receiver.is_ready() {
                    thread::park();
                }
                to.disarm();
            };
            assert_eq!(*value, expected);
        }
    });
    let (mut sender, from) = take.recv().expect("the other thread sends it");
    for number in 0..VALUES {
        sender.send(Box::new(number));
        sender.flush();
        while sender.waiting() > 8 {
            from.arm();
            if sender.flush() == 0 {
                thread::park();
            }
            from.disarm();
        }
    }
    while sender.waiting() > 0 {
        sender.flush();
        thread::yield_now();
    }
    receiving.join().expect("every value arrived in order");
}
