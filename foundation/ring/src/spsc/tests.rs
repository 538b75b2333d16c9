use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::{Consumer, Inconsistent, Index, Producer, RingMemory, accepted, room};

/// A ring on the heap, whose words a test can scribble over.
#[derive(Debug)]
struct Heap {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Vec<AtomicU32>,
}

impl Heap {
    fn starting_at(index: u32, capacity: u32) -> Rc<Self> {
        Rc::new(Self {
            producer: AtomicU32::new(index),
            consumer: AtomicU32::new(index),
            flags: AtomicU32::new(0),
            slots: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
        })
    }
}

impl RingMemory<u32> for Rc<Heap> {
    fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }
    fn producer(&self) -> &AtomicU32 {
        &self.producer
    }
    fn consumer(&self) -> &AtomicU32 {
        &self.consumer
    }
    fn flags(&self) -> &AtomicU32 {
        &self.flags
    }
    fn read(&self, index: u32) -> u32 {
        self.slots[index as usize % self.slots.len()].load(Ordering::Relaxed)
    }
    fn write(&self, index: u32, entry: u32) {
        self.slots[index as usize % self.slots.len()].store(entry, Ordering::Relaxed);
    }
}

impl Index for u8 {
    fn distance_from(self, earlier: Self) -> Self {
        self.wrapping_sub(earlier)
    }
}

/// Every capacity, every place of both ends, and every word that the other side can hold. The model
/// counts on, without wrapping.
#[test]
#[cfg_attr(miri, ignore = "millions of steps take minutes")]
fn no_index_leads_out_of_the_ring_whatever_the_other_side_writes() {
    for capacity in [1_u8, 2, 4, 8, 16, 32, 64, 128] {
        for oldest in 0..=u8::MAX {
            for used in 0..=capacity {
                let newest = oldest.wrapping_add(used);
                assert_eq!(room(capacity, newest, oldest), capacity - used);
                // Every word for small rings, every seventh for large ones: the rest take minutes.
                for seen in (0..=u8::MAX).filter(|seen| capacity <= 16 || seen % 7 == 0) {
                    // The consumer may have come anywhere up to the newest entry, the producer as
                    // far as there is room.
                    let from_oldest = (0..=used).find(|step| oldest.wrapping_add(*step) == seen);
                    assert_eq!(
                        accepted(oldest, seen, newest.distance_from(oldest)),
                        from_oldest.map(|_| seen)
                    );
                    let from_newest = (0..=capacity - used).find(|step| newest.wrapping_add(*step) == seen);
                    let taken = accepted(newest, seen, room(capacity, newest, oldest));
                    assert_eq!(taken, from_newest.map(|_| seen));
                    if let Some(taken) = taken {
                        assert!(taken.distance_from(oldest) <= capacity, "entries that were overwritten");
                    }
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Submit,
    Pop,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u32>().prop_map(Step::Push),
        1 => Just(Step::Submit),
        3 => Just(Step::Pop),
        1 => Just(Step::Release),
    ]
}

/// Indices near the wrap as often as anywhere.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), (0..20_u32).prop_map(|before| u32::MAX - before), any::<u32>()]
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "random programs take minutes")]
    fn behaves_as_a_bounded_queue(
        start in start(),
        shift in 0..5_u32,
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let capacity = 1 << shift;
        let memory = Heap::starting_at(start, capacity);
        let mut producer = Producer::attach(Rc::clone(&memory)).expect("the words are equal");
        let mut consumer = Consumer::attach(memory).expect("the words are equal");
        // pushed but not submitted, submitted but not popped, popped but not released.
        let (mut pushed, mut queue, mut held) = (VecDeque::new(), VecDeque::new(), 0);
        for step in steps {
            match step {
                Step::Push(value) => {
                    let full = pushed.len() + queue.len() + held == capacity as usize;
                    prop_assert_eq!(producer.push(value), if full { Err(value) } else { Ok(()) });
                    if !full {
                        pushed.push_back(value);
                    }
                }
                Step::Submit => {
                    prop_assert_eq!(producer.submit() as usize, pushed.len());
                    queue.append(&mut pushed);
                }
                Step::Pop => {
                    let expected = queue.pop_front();
                    held += usize::from(expected.is_some());
                    prop_assert_eq!(consumer.pop(), expected);
                }
                Step::Release => {
                    prop_assert_eq!(consumer.release() as usize, held);
                    held = 0;
                }
            }
            prop_assert_eq!(producer.in_flight() as usize, queue.len() + held);
        }
        prop_assert_eq!((producer.violations(), consumer.violations()), (0, 0));
    }

    /// Whatever a hostile peer writes, a side never works more than its ring has slots, and what it
    /// writes itself stays consistent.
    #[test]
    fn a_wild_peer_gains_nothing(
        start in start(),
        words in prop::collection::vec((any::<bool>(), any::<u32>(), 0..40_u32), 1..60),
    ) {
        const CAPACITY: u32 = 8;
        let memory = Heap::starting_at(start, CAPACITY);
        let mut consumer = Consumer::attach(Rc::clone(&memory)).expect("the words are equal");
        let mut producer = Producer::attach(Rc::clone(&Heap::starting_at(start, CAPACITY))).expect("equal");
        let (mut consumed, mut produced) = (start, start);
        for (wild, word, near) in words {
            let word = if wild { word } else { start.wrapping_add(near) };
            memory.producer.store(word, Ordering::Relaxed);
            let popped = std::iter::from_fn(|| consumer.pop()).take(100).count() as u32;
            prop_assert!(popped <= CAPACITY);
            consumer.release();
            consumed = consumed.wrapping_add(popped);
            prop_assert_eq!(memory.consumer.load(Ordering::Relaxed), consumed);

            producer.memory().consumer.store(word, Ordering::Relaxed);
            let pushed = (0..100).take_while(|value| producer.push(*value).is_ok()).count() as u32;
            prop_assert!(pushed <= CAPACITY);
            producer.submit();
            produced = produced.wrapping_add(pushed);
            prop_assert_eq!(producer.memory().producer.load(Ordering::Relaxed), produced);
            prop_assert!(producer.in_flight() <= CAPACITY);
        }
    }
}

#[test]
fn own_words_are_not_read_back() {
    let memory = Heap::starting_at(0, 4);
    let mut producer = Producer::attach(Rc::clone(&memory)).expect("the words are equal");
    producer.push(7).expect("the ring is empty");
    memory.producer.store(0x8000_0000, Ordering::Relaxed);
    producer.submit();
    assert_eq!(memory.producer.load(Ordering::Relaxed), 1);
}

#[test]
fn a_peer_that_steps_back_is_counted_and_ignored() {
    let memory = Heap::starting_at(10, 4);
    let mut consumer = Consumer::attach(Rc::clone(&memory)).expect("the words are equal");
    memory.producer.store(9, Ordering::Relaxed);
    assert_eq!((consumer.ready(1), consumer.violations()), (0, 1));
    memory.producer.store(12, Ordering::Relaxed);
    assert_eq!((consumer.ready(4), consumer.violations()), (2, 1));
}

#[test]
fn a_successor_takes_up_where_the_dead_left_off() {
    let memory = Heap::starting_at(u32::MAX, 4);
    let mut producer = Producer::attach(Rc::clone(&memory)).expect("the words are equal");
    for value in [1, 2, 3] {
        producer.push(value).expect("four slots");
    }
    producer.submit();
    let mut first = Consumer::attach(Rc::clone(&memory)).expect("three entries of four");
    assert_eq!(first.pop(), Some(1));
    first.release();
    // Popped but never released: the successor sees it again.
    assert_eq!(first.pop(), Some(2));
    drop(first);
    let mut second = Consumer::attach(Rc::clone(&memory)).expect("two entries of four");
    assert_eq!((second.pop(), second.pop(), second.pop()), (Some(2), Some(3), None));
}

#[test]
fn contradicting_words_refuse_attachment() {
    let memory = Heap::starting_at(0, 4);
    memory.producer.store(5, Ordering::Relaxed);
    let expected = Inconsistent { producer: 5, consumer: 0, capacity: 4 };
    assert_eq!(Producer::attach(Rc::clone(&memory)).err(), Some(expected));
    assert_eq!(Consumer::attach(memory).err(), Some(expected));
}
