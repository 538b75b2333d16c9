//! The broker over a device in memory that completes on command, with honest applications
//! and with others.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use sietch_disk::broker::layout::{
    COMPLETION_CONSUMER, COMPLETION_PRODUCER, SUBMISSION_CONSUMER, SUBMISSION_PRODUCER, SUBMISSIONS,
};
use sietch_disk::broker::{
    BrokerFds, BrokerHost, BrokerLayout, BrokerPair, BrokerQueue, MAX_PIECE, create_pair,
};
use sietch_disk::{Buffer, Completion, DiskQueue, Operation, Part, Priority, SubmitError};
use sietch_ring::Mapping;

use super::*;

const BLOCK: usize = 4096;
const VOLUME: usize = 256 * BLOCK;
/// The content of blocks that no area has.
const STRANGE: u8 = 0xee;

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    queued: VecDeque<(u64, Operation)>,
    done: VecDeque<Completion>,
    /// How many may finish.
    allowed: usize,
    flushes: usize,
    /// Reads fail after they have filled half of their buffer.
    bad: bool,
    /// The queue itself fails.
    broken: bool,
    longest_discard: u64,
}

/// A device that finishes requests when it is allowed to. Clones are the same device.
#[derive(Clone, Default)]
struct Device(Rc<RefCell<State>>);

impl Device {
    fn new() -> Self {
        let device = Self::default();
        device.0.borrow_mut().bytes = vec![STRANGE; VOLUME];
        device.allow(usize::MAX);
        device
    }

    fn allow(&self, count: usize) {
        self.0.borrow_mut().allowed = count;
    }

    fn bytes(&self, span: Span) -> Vec<u8> {
        self.0.borrow().bytes[span.start as usize..(span.start + span.length) as usize].to_vec()
    }

    fn queued(&self) -> usize {
        self.0.borrow().queued.len()
    }

    fn grow(&self, length: usize) {
        self.0.borrow_mut().bytes.resize(length, STRANGE);
    }

    fn longest_discard(&self) -> u64 {
        self.0.borrow().longest_discard
    }
}

impl DiskQueue for Device {
    fn capacity(&self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    fn block_size(&self) -> usize {
        512
    }

    fn depth(&self) -> usize {
        limits::DEVICE_DEPTH
    }

    fn submit_with(&mut self, token: u64, operation: Operation, _: Priority) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity(), 512) {
            return Err(SubmitError::OutOfRange(operation));
        }
        let mut state = self.0.borrow_mut();
        if state.queued.len() + state.done.len() >= limits::DEVICE_DEPTH {
            return Err(SubmitError::Full(operation));
        }
        state.queued.push_back((token, operation));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        if state.broken {
            return Err(io::Error::from_raw_os_error(19));
        }
        while state.allowed > 0 {
            let Some((token, mut operation)) = state.queued.pop_front() else { break };
            state.allowed -= 1;
            let mut result = Ok(());
            let at = operation.offset() as usize;
            match &mut operation {
                Operation::Read { length, buffer, .. } => {
                    let length = if state.bad { *length / 2 } else { *length };
                    buffer[..length].copy_from_slice(&state.bytes[at..at + length]);
                    if state.bad {
                        result = Err(io::Error::from_raw_os_error(5));
                    }
                }
                Operation::Write { length, buffer, .. } => {
                    state.bytes[at..at + *length].copy_from_slice(&buffer[..*length]);
                }
                Operation::Discard { length, .. } => {
                    state.longest_discard = state.longest_discard.max(*length);
                    state.bytes[at..at + *length as usize].fill(0);
                }
                Operation::Flush => state.flushes += 1,
                _ => panic!("the broker sends no vectors"),
            }
            state.done.push_back(Completion::of(token, operation, result));
        }
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut state = self.0.borrow_mut();
        let taken = state.done.len();
        out.extend(state.done.drain(..));
        taken
    }

    fn wait(&mut self, _: Duration) -> io::Result<()> {
        self.notify()
    }

    fn in_flight(&self) -> usize {
        let state = self.0.borrow();
        state.queued.len() + state.done.len()
    }
}

fn span(block: usize, blocks: usize) -> Span {
    Span { start: (block * BLOCK) as u64, length: (blocks * BLOCK) as u64 }
}

fn bytes_of(extents: &[Span]) -> u64 {
    extents.iter().map(|span| span.length).sum()
}

const LAYOUT: BrokerLayout = BrokerLayout { slots: 8, data: MAX_PIECE as u32, block: 512 };

/// A broker with its device.
struct Scene {
    device: Device,
    broker: Broker<Device>,
}

impl Scene {
    fn new() -> Self {
        let (device, mut broker) = (Device::new(), Broker::default());
        assert!(broker.add_volume("raw", device.clone()).is_ok());
        Self { device, broker }
    }

    fn pair(&mut self, id: AreaId, extents: &[Span]) -> BrokerFds {
        let BrokerPair { application, host } = create_pair(LAYOUT, id).expect("memory");
        let host = BrokerHost::open(host, LAYOUT, 1000).expect("fresh memory");
        self.broker.attach(id, "raw", extents, host).expect("room");
        application
    }

    /// An honest application.
    fn attach(&mut self, id: AreaId, extents: &[Span]) -> BrokerQueue {
        let fds = self.pair(id, extents);
        BrokerQueue::open(fds, LAYOUT, bytes_of(extents)).expect("fresh memory")
    }

    /// Attaches an application that writes its rings itself.
    fn attach_raw(&mut self, id: AreaId, extents: &[Span]) -> Raw {
        let fds = self.pair(id, extents);
        let memory = Mapping::of_file(&fds.memory, 0, LAYOUT.bytes()).expect("a mapping");
        Raw { memory, _fds: fds }
    }

    fn poll(&mut self, count: usize) {
        for _ in 0..count {
            self.broker.poll();
        }
    }

    fn events(&mut self) -> Vec<Event> {
        self.broker.take_events().collect()
    }

    fn counters(&self, id: AreaId) -> AreaCounters {
        self.broker.counters().find(|(other, _)| *other == id).expect("it is served").1
    }

    /// Does one request for an honest application.
    fn execute(&mut self, queue: &mut BrokerQueue, operation: Operation) -> Completion {
        queue.submit(1, operation).expect("an idle queue");
        self.finish(queue)
    }

    fn finish(&mut self, queue: &mut BrokerQueue) -> Completion {
        queue.notify().expect("it cannot fail");
        let mut done = Vec::new();
        for _ in 0..200 {
            self.poll(1);
            if queue.complete(&mut done) > 0 {
                return done.remove(0);
            }
        }
        panic!("no completion within 200 iterations");
    }
}

/// The memory of an application that follows no rule.
struct Raw {
    memory: Mapping,
    /// Keeps the doorbell from hanging up.
    _fds: BrokerFds,
}

impl Raw {
    fn store(&self, offset: usize, value: u32) {
        self.memory.word(offset).expect("inside").store(value, Ordering::Release);
    }

    fn load(&self, offset: usize) -> u32 {
        self.memory.word(offset).expect("inside").load(Ordering::Acquire)
    }

    fn submit(&self, words: [u32; 8]) {
        let index = self.load(SUBMISSION_PRODUCER);
        let slot = SUBMISSIONS + (index % LAYOUT.slots) as usize * 32;
        words.iter().enumerate().for_each(|(number, word)| self.store(slot + 4 * number, *word));
        self.store(SUBMISSION_PRODUCER, index.wrapping_add(1));
    }

    /// A request as it should be, or nearly so.
    fn request(&self, operation: u32, offset: u64, length: u32, data: u32) {
        let (low, high) = (offset as u32, (offset >> 32) as u32);
        self.submit([7, 0, low, high, length, data, operation, 0]);
    }

    /// The status of the oldest completion.
    fn status(&self) -> Option<i32> {
        let (producer, consumer) = (self.load(COMPLETION_PRODUCER), self.load(COMPLETION_CONSUMER));
        if producer == consumer {
            return None;
        }
        let slot = LAYOUT.completions() + (consumer % LAYOUT.slots) as usize * 16;
        self.store(COMPLETION_CONSUMER, consumer.wrapping_add(1));
        Some(self.load(slot + 8).cast_signed())
    }

    fn fill(&self, byte: u8) {
        let word = u32::from_ne_bytes([byte; 4]);
        (LAYOUT.data_start()..LAYOUT.bytes()).step_by(4).for_each(|at| self.store(at, word));
    }
}

fn buffer(length: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(length);
    buffer[..length].fill(byte);
    buffer
}

fn write(offset: u64, length: usize, byte: u8) -> Operation {
    Operation::Write { offset, length, buffer: buffer(length, byte), durable: true }
}

fn read(offset: u64, length: usize) -> Operation {
    Operation::Read { offset, length, buffer: buffer(length, 0x77) }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, u8),
    WriteVectored(usize, Vec<usize>, u8),
    Read(usize, usize),
    Discard(usize, usize),
    Flush,
}

fn step(units: usize) -> impl Strategy<Value = Step> {
    let place = (0..units, 1..units + 2);
    prop_oneof![
        3 => (place.clone(), any::<u8>()).prop_map(|((at, length), byte)| Step::Write(at, length, byte)),
        1 => (0..units, prop::collection::vec(1..4_usize, 1..6), any::<u8>())
            .prop_map(|(at, lengths, byte)| Step::WriteVectored(at, lengths, byte)),
        3 => place.clone().prop_map(|(at, length)| Step::Read(at, length)),
        1 => place.prop_map(|(at, length)| Step::Discard(at, length)),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any requests of an application: its area holds what a plain one would, and
    /// blocks of no area stay as they were.
    #[test]
    fn an_area_of_extents_is_like_any_other(
        steps in prop::collection::vec(step(200 * BLOCK / 512), 1..30),
        allowed in 1..20_usize,
    ) {
        let mut scene = Scene::new();
        // In another order than on the volume, with gaps.
        let extents = [span(120, 70), span(2, 1), span(4, 100), span(200, 29)];
        let mut queue = scene.attach(1, &extents);
        let mut model = vec![STRANGE; bytes_of(&extents) as usize];
        for step in steps {
            scene.device.allow(usize::MAX);
            let operation = match step.clone() {
                Step::Write(at, length, byte) => write((at * 512) as u64, length * 512, byte),
                Step::WriteVectored(at, lengths, byte) => {
                    let part = |(index, units): (usize, &usize)| Part {
                        buffer: buffer(units * 512, byte.wrapping_add(index as u8)),
                        length: units * 512,
                    };
                    let parts = lengths.iter().enumerate().map(part).collect();
                    Operation::WriteVectored { offset: (at * 512) as u64, parts, durable: false }
                }
                Step::Read(at, length) => read((at * 512) as u64, length * 512),
                Step::Discard(at, length) => {
                    Operation::Discard { offset: (at * 512) as u64, length: (length * 512) as u64 }
                }
                Step::Flush => Operation::Flush,
            };
            let inside = operation.is_within(model.len() as u64, 512);
            let (at, length) = (operation.offset() as usize, operation.bytes() as usize);
            if !inside {
                prop_assert!(matches!(queue.submit(1, operation), Err(SubmitError::OutOfRange(_))));
                continue;
            }
            scene.device.allow(allowed);
            queue.submit(1, operation).expect("an idle queue");
            queue.notify().expect("it cannot fail");
            scene.poll(2);
            scene.device.allow(usize::MAX);
            let done = scene.finish(&mut queue);
            prop_assert!(done.result.is_ok(), "{:?}", done.result);
            match step {
                Step::Write(_, _, byte) => model[at..at + length].fill(byte),
                Step::WriteVectored(_, lengths, byte) => {
                    let mut at = at;
                    for (index, units) in lengths.iter().enumerate() {
                        model[at..at + units * 512].fill(byte.wrapping_add(index as u8));
                        at += units * 512;
                    }
                }
                Step::Read(..) => {
                    let buffer = done.buffer.expect("it comes back");
                    prop_assert!(buffer[..length] == model[at..at + length]);
                }
                Step::Discard(..) => model[at..at + length].fill(0),
                Step::Flush => {}
            }
        }
        let held: Vec<u8> = extents.iter().flat_map(|span| scene.device.bytes(*span)).collect();
        prop_assert!(held == model);
        for gap in [span(0, 2), span(3, 1), span(104, 16), span(190, 10), span(229, 27)] {
            prop_assert!(scene.device.bytes(gap).iter().all(|byte| *byte == STRANGE));
        }
    }

    /// An attacker that writes anything anywhere in its memory, while a neighbour works: the
    /// neighbour's data are right, each of its requests is done within a few iterations, and
    /// nothing outside the attacker's own area changes.
    #[test]
    fn scribbling_harms_no_other_area(
        writes in prop::collection::vec((0..8_u8, any::<u32>(), any::<u32>(), any::<u32>()), 1..150)
    ) {
        let mut scene = Scene::new();
        let (prey, victims) = (span(8, 16), [span(32, 8), span(4, 2)]);
        let mut attacker = scene.attach_raw(1, &[prey]);
        let mut victim = scene.attach(2, &victims);
        let mut is_attached = true;
        for (round, (what, place, value, other)) in writes.into_iter().enumerate() {
            let near = |value: u32| u64::from(value % 40) * 2048;
            match what {
                0 => attacker.store((place as usize % LAYOUT.bytes()) & !3, value),
                1 => attacker.store((place as usize % 0x400) & !3, value),
                2 => attacker.store(SUBMISSION_PRODUCER, attacker.load(SUBMISSION_PRODUCER).wrapping_add(value % 12)),
                3 => attacker.store(COMPLETION_CONSUMER, attacker.load(COMPLETION_CONSUMER).wrapping_add(value % 3)),
                4 => attacker.store(SUBMISSION_CONSUMER, value),
                5 => attacker.submit([place, 0, value, value % 3, other, place, value % 6, other % 2]),
                6 => attacker.request(place % 5, near(value), other % 8 * 4096, place % 300 * 4096),
                _ => while attacker.status().is_some() {
                    if attacker.load(COMPLETION_CONSUMER) > 4096 { break }
                },
            }
            let offset = (round % 20 * 512) as u64;
            let done = scene.execute(&mut victim, write(offset, 512, round as u8));
            prop_assert!(done.result.is_ok());
            let done = scene.execute(&mut victim, read(offset, 512));
            prop_assert!(done.buffer.expect("it comes back")[..512].iter().all(|byte| *byte == round as u8));
            if is_attached && scene.broker.counters().all(|(id, _)| id != 1) {
                // It broke its ring and was released: it begins again with fresh memory.
                is_attached = false;
                prop_assert!(scene.events().contains(&Event::Detached(1)));
                attacker = scene.attach_raw(3, &[prey]);
            }
        }
        for untouched in [span(0, 4), span(6, 2), span(24, 8), span(40, 216)] {
            prop_assert!(scene.device.bytes(untouched).iter().all(|byte| *byte == STRANGE));
        }
    }
}

#[test]
fn an_invalid_request_is_refused_by_its_reason() {
    let mut scene = Scene::new();
    let raw = scene.attach_raw(1, &[span(8, 4)]);
    let other = span(16, 4);
    let mut neighbour = scene.attach(2, &[other]);
    assert!(scene.execute(&mut neighbour, write(0, 4 * BLOCK, 9)).result.is_ok());
    let end = 4 * BLOCK as u64;
    let data = LAYOUT.data;
    let wrong: [(u32, u64, u32, u32, Refusal); 14] = [
        (1, end, 512, 0, Refusal::Range),
        (2, end - 512, 1024, 0, Refusal::Range),
        (2, other.start, 4096, 0, Refusal::Range),
        (4, end, 512, 0, Refusal::Range),
        (4, 0, 0, 1 << 20, Refusal::Range),
        (2, u64::MAX - 511, 512, 0, Refusal::Range),
        (1, 100, 512, 0, Refusal::Alignment),
        (1, 0, 100, 0, Refusal::Alignment),
        (1, 0, 0, 0, Refusal::Alignment),
        (2, 0, MAX_PIECE as u32 + 512, 0, Refusal::Alignment),
        (2, 0, 512, data, Refusal::Data),
        (1, 0, 512, u32::MAX, Refusal::Data),
        (0, 0, 512, 0, Refusal::Operation),
        // An undefined flag.
        (2 | 0x0200, 0, 512, 0, Refusal::Operation),
    ];
    for (operation, offset, length, data, refusal) in wrong {
        let before = scene.counters(1).refused[refusal as usize];
        raw.request(operation, offset, length, data);
        scene.poll(2);
        assert_eq!(raw.status(), Some(-refusal.error()), "{operation} {offset} {length} {data}");
        assert_eq!(scene.counters(1).refused[refusal as usize], before + 1);
    }
    let state = scene.device.0.borrow();
    assert!(state.bytes[..16 * BLOCK].iter().all(|byte| *byte == STRANGE));
    assert!(state.bytes[16 * BLOCK..20 * BLOCK].iter().all(|byte| *byte == 9));
}

#[test]
fn a_write_stores_the_bytes_that_were_copied_though_they_change() {
    let mut scene = Scene::new();
    let raw = scene.attach_raw(1, &[span(8, 4)]);
    raw.fill(5);
    scene.device.allow(0);
    raw.request(2, 0, 4096, 0);
    scene.poll(2);
    assert_eq!(scene.device.queued(), 1);
    raw.fill(6);
    scene.device.allow(usize::MAX);
    scene.poll(2);
    assert_eq!(raw.status(), Some(0));
    assert!(scene.device.bytes(span(8, 1)).iter().all(|byte| *byte == 5));
}

#[test]
fn a_failed_read_shows_no_stale_bytes_of_a_buffer() {
    let mut scene = Scene::new();
    let mut neighbour = scene.attach(2, &[span(16, 4)]);
    assert!(scene.execute(&mut neighbour, write(0, BLOCK, 9)).result.is_ok());
    let raw = scene.attach_raw(1, &[span(8, 4)]);
    raw.fill(3);
    scene.device.0.borrow_mut().bad = true;
    raw.request(1, 0, 4096, 0);
    scene.poll(2);
    assert_eq!(raw.status(), Some(-5));
    let word = u32::from_ne_bytes([3; 4]);
    assert!((LAYOUT.data_start()..LAYOUT.bytes()).step_by(4).all(|at| raw.load(at) == word));
    assert_eq!(scene.counters(1).failed, 1);
}

#[test]
fn an_application_that_takes_no_completions_delays_only_itself() {
    let mut scene = Scene::new();
    let raw = scene.attach_raw(1, &[span(8, 4)]);
    let mut neighbour = scene.attach(2, &[span(16, 4)]);
    for _ in 0..8 {
        raw.request(1, 0, 512, 0);
    }
    scene.poll(4);
    raw.request(1, 0, 512, 0);
    for round in 0..50 {
        assert!(scene.execute(&mut neighbour, write(0, BLOCK, round)).result.is_ok());
    }
    assert_eq!(scene.counters(1).reads, 8, "the ninth has no room for its completion");
    assert_eq!(raw.status(), Some(0));
    scene.poll(2);
    assert_eq!(scene.counters(1).reads, 9);
}

#[test]
fn a_detached_area_finishes_its_requests_at_the_device_and_takes_no_more() {
    let mut scene = Scene::new();
    let mut queue = scene.attach(1, &[span(8, 64)]);
    scene.device.allow(0);
    for token in 0..3 {
        queue.submit(token, write(token * 4096, 4096, 1)).expect("room");
    }
    queue.notify().expect("it cannot fail");
    scene.poll(2);
    assert_eq!(scene.device.queued(), 3);
    scene.broker.detach(1);
    queue.submit(3, write(3 * 4096, 4096, 1)).expect("room");
    queue.notify().expect("it cannot fail");
    scene.poll(5);
    assert_eq!((scene.device.queued(), scene.events()), (3, vec![]), "nothing new, and it is not over");
    scene.device.allow(usize::MAX);
    scene.poll(3);
    assert_eq!(scene.events(), [Event::Detached(1)]);
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(Duration::from_secs(1)).expect("it cannot fail");
        queue.complete(&mut done);
    }
    let failed: Vec<u64> = done.iter().filter(|one| one.result.is_err()).map(|one| one.token).collect();
    assert_eq!(failed, [3], "what was at the device was answered");
    assert!(queue.is_over());
    queue.submit(9, Operation::Flush).expect("room");
    assert_eq!(queue.complete(&mut done), 1);
    assert_eq!(done[4].result.as_ref().map_err(io::Error::raw_os_error), Err(Some(107)), "ENOTCONN");
    assert!(scene.device.bytes(span(11, 61)).iter().all(|byte| *byte == STRANGE));
    // An unknown area counts as removed.
    scene.broker.detach(1);
    assert_eq!(scene.events(), [Event::Detached(1)]);
}

/// How often an application is killed: a few times, or as often as `SIETCH_KILL_ROUNDS` says.
fn rounds() -> u64 {
    std::env::var("SIETCH_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn the_area_of_a_killed_application_is_released_when_nothing_is_in_flight() {
    let mut scene = Scene::new();
    let mut neighbour = scene.attach(1, &[span(128, 4)]);
    for round in 0..rounds() {
        let (id, byte) = (round + 2, round as u8);
        let raw = scene.attach_raw(id, &[span(8, 64)]);
        raw.fill(byte);
        scene.device.allow((round % 5) as usize);
        for request in 0..round % 8 {
            raw.request(2, request * 32768, 32768, 0);
        }
        scene.poll(1);
        assert!(scene.device.queued() <= 8);
        let busy = scene.device.queued() > 0;
        // The kernel closes what a killed process had.
        drop(raw);
        scene.broker.hosts_mut().for_each(|host| {
            host.poll_hang_up();
        });
        scene.poll(2);
        assert_eq!(scene.events().is_empty(), busy, "round {round}");
        scene.device.allow(usize::MAX);
        assert!(scene.execute(&mut neighbour, write(0, 4 * BLOCK, byte)).result.is_ok());
        scene.poll(2);
        if busy {
            assert_eq!(scene.events(), [Event::Detached(id)], "round {round}");
        }
        assert!(scene.device.bytes(span(128, 4)).iter().all(|found| *found == byte));
    }
    assert!(scene.device.bytes(span(72, 56)).iter().all(|byte| *byte == STRANGE));
}

#[test]
fn a_small_request_waits_for_no_more_than_a_share_of_large_ones() {
    let mut scene = Scene::new();
    let hog = scene.attach_raw(1, &[span(64, 64)]);
    let mut small = scene.attach(2, &[span(8, 4)]);
    for round in 0..100 {
        // It always has as much waiting as its ring takes.
        while hog.status().is_some() {}
        while hog.load(SUBMISSION_PRODUCER).wrapping_sub(hog.load(SUBMISSION_CONSUMER)) < LAYOUT.slots {
            hog.request(2, 0, MAX_PIECE as u32, 0);
        }
        small.submit(1, write(0, 512, round)).expect("an idle queue");
        small.notify().expect("it cannot fail");
        let before = scene.device.0.borrow().queued.len();
        assert!(before as u64 * MAX_PIECE as u64 <= limits::BYTES, "the device has {before} of them");
        let (mut done, mut iterations) = (Vec::new(), 0);
        while small.complete(&mut done) == 0 {
            // The device finishes one request an iteration.
            scene.device.allow(1);
            scene.poll(1);
            iterations += 1;
            assert!(iterations <= 4 + limits::BYTES as usize / MAX_PIECE, "round {round}");
        }
    }
    assert!(scene.counters(1).writes >= 100, "the large ones move too");
}

#[test]
fn concurrent_flushes_share_one() {
    let mut scene = Scene::new();
    let mut queues: Vec<BrokerQueue> =
        (0..4).map(|id| scene.attach(id, &[span(8 + 8 * id as usize, 4)])).collect();
    scene.device.allow(0);
    for queue in &mut queues {
        queue.submit(1, Operation::Flush).expect("an idle queue");
        queue.notify().expect("it cannot fail");
    }
    scene.poll(1);
    // Flushes that are requested while one is in flight share the next one.
    for queue in &mut queues {
        queue.submit(2, Operation::Flush).expect("room");
        queue.notify().expect("it cannot fail");
    }
    scene.poll(3);
    scene.device.allow(usize::MAX);
    scene.poll(4);
    for queue in &mut queues {
        let mut done = Vec::new();
        assert_eq!(queue.complete(&mut done), 2);
        assert!(done.iter().all(|done| done.result.is_ok()));
    }
    assert_eq!(scene.device.0.borrow().flushes, 2);
}

#[test]
fn an_area_grows_at_once_and_shrinks_when_nothing_is_in_flight() {
    let mut scene = Scene::new();
    let mut queue = scene.attach(1, &[span(8, 4)]);
    scene.broker.reshape(1, &[span(8, 4), span(64, 4)]).expect("sound extents");
    assert_eq!(scene.events(), [Event::Reshaped(1)]);
    queue.set_capacity(8 * BLOCK as u64);
    assert!(scene.execute(&mut queue, write(3 * BLOCK as u64, 2 * BLOCK, 4)).result.is_ok());
    assert!(
        scene.device.bytes(span(11, 1)).iter().chain(&scene.device.bytes(span(64, 1))).all(|byte| *byte == 4)
    );
    scene.device.allow(0);
    queue.submit(1, write(7 * BLOCK as u64, BLOCK, 5)).expect("room");
    queue.notify().expect("it cannot fail");
    scene.poll(2);
    scene.broker.reshape(1, &[span(8, 4)]).expect("sound extents");
    queue.submit(2, write(7 * BLOCK as u64, BLOCK, 6)).expect("room");
    queue.notify().expect("it cannot fail");
    scene.poll(2);
    assert_eq!((scene.events(), scene.device.queued()), (vec![], 1));
    scene.device.allow(usize::MAX);
    scene.poll(4);
    assert_eq!(scene.events(), [Event::Reshaped(1)]);
    let mut done = Vec::new();
    queue.complete(&mut done);
    done.sort_by_key(|done| done.token);
    assert!(done[0].result.is_ok() && done[1].result.is_err(), "what is not its own any more is refused");
    assert!(scene.device.bytes(span(67, 1)).iter().all(|byte| *byte == 5));
    assert!(scene.broker.reshape(1, &[span(8, 400)]).is_err());
}

#[test]
fn an_area_that_cannot_be_served_is_refused_by_name() {
    let mut scene = Scene::new();
    let host = |layout| {
        let BrokerPair { application, host } = create_pair(layout, 1).expect("memory");
        std::mem::forget(application);
        BrokerHost::open(host, layout, 1000).expect("fresh memory")
    };
    let _served = scene.attach(1, &[span(8, 4)]);
    let refused = |scene: &mut Scene, id, volume: &str, extents: &[Span], layout| {
        scene.broker.attach(id, volume, extents, host(layout)).expect_err("refused").to_string()
    };
    let coarse = BrokerLayout { block: 4096, ..LAYOUT };
    for (id, volume, extents, layout, said) in [
        (1, "raw", span(20, 1), LAYOUT, "served already"),
        (2, "other", span(20, 1), LAYOUT, "no volume other"),
        (2, "raw", span(256, 1), LAYOUT, "beyond the 1048576 bytes"),
        (2, "raw", span(20, 1), coarse, "blocks of 4096"),
    ] {
        let text = refused(&mut scene, id, volume, &[extents], layout);
        assert!(text.contains(said), "{text}");
    }
    assert!(scene.broker.add_volume("raw", Device::new()).is_err(), "its queue is in use");
}

/// A discard of everything is cut into slices that wait for each other, so that others are served
/// in between.
#[test]
fn a_long_discard_is_cut_and_paid_for() {
    let mut scene = Scene::new();
    scene.device.grow(64 << 20);
    let mut queue = scene.attach(1, &[Span { start: 1 << 20, length: 48 << 20 }]);
    let mut other = scene.attach(2, &[span(0, 16)]);
    queue.submit(1, Operation::Discard { offset: 0, length: 48 << 20 }).expect("an idle queue");
    queue.notify().expect("it cannot fail");
    let mut done = Vec::new();
    let (mut iterations, mut served) = (0_i32, 0);
    while queue.complete(&mut done) == 0 {
        if other.in_flight() == 0 {
            other.submit(2, write(0, 4096, 7)).expect("an idle queue");
        }
        other.notify().expect("it cannot fail");
        scene.poll(2);
        assert!(scene.device.longest_discard() <= limits::DISCARD_SLICE);
        served += other.complete(&mut done);
        done.clear();
        iterations += 2;
        assert!(iterations < 10_000, "it never ends");
    }
    // As many iterations as writes of so many bytes would take.
    let moved = (48 << 20) - limits::DISCARD_SLICE as i64;
    assert!(i64::from(iterations) >= moved / limits::QUANTUM, "{iterations} iterations");
    assert!(served as i32 * 8 >= iterations, "{served} writes in {iterations} iterations");
}

/// One device's queue breaks: its areas get errors, and are never released; those of other
/// volumes notice nothing.
#[test]
fn a_broken_device_fails_its_own_areas_alone() {
    let mut scene = Scene::new();
    let whole = Device::new();
    assert!(scene.broker.add_volume("whole", whole.clone()).is_ok());
    let mut lost = scene.attach(1, &[span(0, 4)]);
    let BrokerPair { application, host } = create_pair(LAYOUT, 2).expect("memory");
    let host = BrokerHost::open(host, LAYOUT, 1000).expect("fresh memory");
    scene.broker.attach(2, "whole", &[span(0, 4)], host).expect("room");
    let mut kept = BrokerQueue::open(application, LAYOUT, 4 * BLOCK as u64).expect("fresh memory");
    scene.device.0.borrow_mut().broken = true;
    for _ in 0..3 {
        let failed = scene.execute(&mut lost, write(0, 4096, 1));
        assert_eq!(failed.result.expect_err("the device is broken").raw_os_error(), Some(5));
        assert!(scene.execute(&mut kept, write(0, 4096, 2)).result.is_ok());
    }
    let events = scene.events();
    assert!(matches!(&events[..], [Event::Broken { volume, .. }] if volume == "raw"), "{events:?}");
    drop(lost);
    scene.broker.detach(1);
    scene.broker.detach(2);
    scene.poll(3);
    assert_eq!(scene.events(), [Event::Detached(2)], "requests of the broken one may still reach the device");
}

/// The longest vector of the smallest parts, and a request longer than the data region: written,
/// and read back.
#[test]
fn the_longest_requests_fit_the_rings() {
    let mut scene = Scene::new();
    scene.device.grow(8 << 20);
    let extents = [span(1, 1), span(4, 130), span(200, 1024)];
    let mut queue = scene.attach(1, &extents);
    let parts = |fill: bool| -> Vec<Part> {
        let byte = |index: usize| if fill { index as u8 } else { 0x77 };
        (0..sietch_disk::queue::MAX_PARTS)
            .map(|index| Part { buffer: buffer(512, byte(index)), length: 512 })
            .collect()
    };
    let written = scene
        .execute(&mut queue, Operation::WriteVectored { offset: 512, parts: parts(true), durable: true });
    assert!(written.result.is_ok());
    let found = scene.execute(&mut queue, Operation::ReadVectored { offset: 512, parts: parts(false) });
    assert!(found.parts.iter().enumerate().all(|(index, part)| part.buffer[..512] == [index as u8; 512]));
    let length = 4 << 20;
    assert!(length > LAYOUT.data as usize);
    assert!(scene.execute(&mut queue, write(4096, length, 9)).result.is_ok());
    let found = scene.execute(&mut queue, read(4096, length)).buffer.expect("a read");
    assert!(found[..length].iter().all(|byte| *byte == 9));
}
