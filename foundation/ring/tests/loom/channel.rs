//! The channel between two threads that sleep whenever they can. A lost wake-up is a deadlock,
//! which loom reports, as it reports an access to a slot that the indices do not order.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sietch_ring::channel::channel;
use sietch_ring::thread_doorbell::{ThreadDoorbell, Wake};

/// An eventfd: a signal stays until it is taken.
#[derive(Clone)]
struct Event(Arc<(Mutex<bool>, Condvar, AtomicU32)>);

impl Event {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new(), AtomicU32::new(0))))
    }

    fn wait(&self) {
        let mut raised = self.0.0.lock().expect("no thread panics with it");
        while !*raised {
            raised = self.0.1.wait(raised).expect("no thread panics with it");
        }
        *raised = false;
    }

    fn wakes(&self) -> u32 {
        self.0.2.load(Ordering::Relaxed)
    }
}

impl Wake for Event {
    fn wake(&self) {
        self.0.2.fetch_add(1, Ordering::Relaxed);
        *self.0.0.lock().expect("no thread panics with it") = true;
        self.0.1.notify_one();
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches than a protocol without its second check takes to lose a wake-up.
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Receives `values` boxes, asleep whenever there is none. Returns how often it began to sleep.
fn receive(
    receiver: &mut sietch_ring::channel::Receiver<Box<u32>, Event>,
    doorbell: &ThreadDoorbell<Event>,
    event: &Event,
    values: u32,
) -> u32 {
    let mut armed = 0;
    let mut expected = 0;
    while expected < values {
        if let Some(value) = receiver.receive() {
            assert_eq!(*value, expected);
            expected += 1;
            continue;
        }
        doorbell.arm();
        armed += 1;
        if !receiver.is_ready() {
            event.wait();
        }
        doorbell.disarm();
    }
    armed
}

#[test]
fn a_receiver_that_sleeps_gets_every_value_and_one_wake_up_a_sleep() {
    model(|| {
        const VALUES: u32 = 2;
        let (event, to) = (Event::new(), Event::new());
        let (from, doorbell) = (ThreadDoorbell::with(event), ThreadDoorbell::with(to.clone()));
        let (mut sender, mut receiver) = channel(2, &from, &doorbell);
        let sending = thread::spawn(move || {
            for number in 0..VALUES {
                sender.send(Box::new(number));
                sender.flush();
            }
        });
        let armed = receive(&mut receiver, &doorbell, &to, VALUES);
        sending.join().expect("it never waits");
        assert!(to.wakes() <= armed, "{} wake-ups for {armed} sleeps", to.wakes());
    });
}

#[test]
fn a_sender_that_sleeps_for_room_is_woken() {
    model(|| {
        const VALUES: u32 = 3;
        let (woken, to) = (Event::new(), Event::new());
        let (from, doorbell) = (ThreadDoorbell::with(woken.clone()), ThreadDoorbell::with(to.clone()));
        let (mut sender, mut receiver) = channel(1, &from, &doorbell);
        let sending = thread::spawn(move || {
            for number in 0..VALUES {
                sender.send(Box::new(number));
                from.arm();
                // Often the first flush for which the ring is full, whose word is not armed yet.
                while sender.flush() == 0 && sender.waiting() > 0 {
                    woken.wait();
                    from.arm();
                }
                from.disarm();
            }
        });
        receive(&mut receiver, &doorbell, &to, VALUES);
        sending.join().expect("everything is sent");
    });
}

#[test]
fn two_senders_wake_a_receiver_once() {
    model(|| {
        let to = Event::new();
        let doorbell = ThreadDoorbell::with(to.clone());
        let mut receivers = Vec::new();
        doorbell.arm();
        let sending = [1_u32, 2].map(|number| {
            let (mut sender, receiver) = channel(1, &ThreadDoorbell::with(Event::new()), &doorbell);
            receivers.push(receiver);
            thread::spawn(move || {
                sender.send(number);
                sender.flush();
            })
        });
        to.wait();
        doorbell.disarm();
        for sending in sending {
            sending.join().expect("it never waits");
        }
        assert_eq!(to.wakes(), 1);
        let received: u32 = receivers.iter_mut().filter_map(|receiver| receiver.receive()).sum();
        assert_eq!(received, 3);
    });
}
