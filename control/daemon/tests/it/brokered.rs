//! Areas on a volume of extents, through a service core: granted, resized, revoked. Applications
//! are killed with requests in flight; a daemon and a core die.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::scene::{self, PATIENCE, Scene};
use rustix::event::{EventfdFlags, eventfd};
use sietch::disk::broker::{BrokerFds, BrokerLayout};
use sietch::disk::{AreaQueue, Buffer, DiskQueue as _, Operation};
use sietch::{Client, Error, Vsa};
use sietch_protocol::{
    AreaExtent, AreaGrant, CallError, Connection, ErrorKind, HeldArea, HeldStorage, Notice, Protection,
    Target,
};
use sietch_service::Snapshot;
use sietch_service::broker::{Command, Event, EventSink, Span, run};

const MIB: u64 = 1 << 20;
const OTHER_USER: u32 = 61_896;

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A daemon's place with a volume of extents, `raw`.
fn place(name: &str) -> Scene {
    let scene = Scene::new(name, own_uid());
    let path = scene.root.join("volume.img");
    scene.configure(&format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"32MiB\"\n{}",
        path.display(),
        scene::quota()
    ));
    scene
}

/// The thread that has the volume. It outlives connections to the daemon.
struct Broker {
    commands: Sender<Command>,
    doorbell: OwnedFd,
    events: Receiver<Event>,
    thread: JoinHandle<std::io::Result<()>>,
    held: HeldStorage,
}

impl Broker {
    fn start() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (doorbell, notify) = (eventfd(0, flags).unwrap(), eventfd(0, flags).unwrap());
        let ((commands, orders), (sender, events)) = (channel(), channel());
        let own = doorbell.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            run(&orders, &own, &EventSink { events: sender, doorbell: notify }, &Snapshot::default())
        });
        Self { commands, doorbell, events, thread, held: HeldStorage::default() }
    }

    fn send(&self, command: Command) {
        self.commands.send(command).unwrap();
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()).unwrap();
    }

    fn heed(&mut self, notice: Notice, mut descriptors: Vec<OwnedFd>) {
        let spans = |extents: &[AreaExtent]| {
            extents.iter().map(|extent| Span { start: extent.start, length: extent.length }).collect()
        };
        let (reply, answer) = channel();
        match notice {
            Notice::Volume { name, bytes } => {
                let (reply, answer) = channel();
                self.held.volumes.push(name.clone());
                let file = descriptors.remove(0);
                self.send(Command::Volume { name, file, capacity: bytes, reply });
                answer.recv().unwrap().unwrap();
            }
            Notice::Area(area) => {
                let AreaGrant { grant, generation, name, volume, extents, shape, uid } = *area;
                self.held.areas.push(HeldArea { grant, generation, name });
                let doorbell = descriptors.remove(1);
                let fds = BrokerFds { memory: descriptors.remove(0), doorbell };
                let layout = BrokerLayout { slots: shape.slots, data: shape.data, block: shape.block };
                let extents = spans(&extents);
                self.send(Command::Attach { id: grant, volume, extents, fds, layout, uid, reply });
                answer.recv().unwrap().unwrap();
            }
            Notice::Reshape { grant, extents } => {
                self.send(Command::Reshape { id: grant, extents: spans(&extents), reply });
                answer.recv().unwrap().unwrap();
            }
            Notice::Detach { grant } => self.send(Command::Detach(grant)),
            _ => {}
        }
    }

    fn end(self) {
        self.send(Command::Stop);
        self.thread.join().unwrap().unwrap();
    }
}

/// A service core's connection, on a thread.
struct Core {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Broker>>,
}

impl Core {
    fn start(scene: &Scene) -> Self {
        Self::with(scene, Broker::start())
    }

    fn with(scene: &Scene, mut broker: Broker) -> Self {
        let mut connection = scene.connect();
        connection.serve_with_storage(Vec::new(), broker.held.clone()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut serve = || -> Result<(), CallError> {
                while let Some((notice, descriptors)) = connection.take_notice()? {
                    broker.heed(notice, descriptors);
                }
                while let Ok(event) = broker.events.try_recv() {
                    match event {
                        Event::Detached(grant) => {
                            broker.held.areas.retain(|area| area.grant != grant);
                            connection.detached(grant)?;
                        }
                        Event::Reshaped(grant) => connection.reshaped(grant)?,
                        Event::Broken { volume, cause } => panic!("{volume}: {cause}"),
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            };
            // A dead daemon ends the connection, and nothing else.
            while !stopped.load(Ordering::Relaxed) && serve().is_ok() {}
            broker
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends the connection; the broker continues.
    fn disconnect(mut self) -> Broker {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().end();
        }
    }
}

fn execute(queue: &mut AreaQueue, operation: Operation) -> std::io::Result<Option<Buffer>> {
    queue.submit(1, operation).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(Duration::from_secs(1)).unwrap();
        queue.complete(&mut done);
    }
    let done = done.remove(0);
    done.result.map(|()| done.buffer)
}

fn write(vsa: &mut Vsa, offset: u64, byte: u8) -> std::io::Result<()> {
    let mut buffer = Buffer::new(4096);
    buffer.fill(byte);
    execute(&mut vsa.queue, Operation::Write { offset, length: 4096, buffer, durable: true }).map(drop)
}

fn read(vsa: &mut Vsa, offset: u64) -> u8 {
    let read = Operation::Read { offset, length: 4096, buffer: Buffer::new(4096) };
    let buffer = execute(&mut vsa.queue, read).unwrap().unwrap();
    assert!(buffer.iter().all(|byte| *byte == buffer[0]), "a block of one byte");
    buffer[0]
}

fn refused<T>(outcome: Result<T, Error>) -> (ErrorKind, String) {
    match outcome {
        Err(Error::Control(CallError::Refused(error))) => (error.kind, error.to_string()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it should be refused"),
    }
}

fn client(scene: &Scene) -> Client {
    Client::connect(&scene.socket(), "test").unwrap()
}

fn release(client: &mut Client, vsa: Vsa) {
    let grant = vsa.grant.clone();
    drop(vsa);
    client.release(&grant).unwrap();
}

#[test]
fn an_area_of_a_raw_volume_is_created_used_and_deleted() {
    let scene = place("brokered-life");
    let _daemon = scene.start();
    let mut app = client(&scene);
    app.create_vsa("/raw/x", MIB).unwrap();
    let (kind, why) = refused(app.acquire_vsa("/raw/x"));
    assert!(kind == ErrorKind::Unsupported && why.contains("sietch service"), "{why}");
    assert!(matches!(app.vsas().unwrap()[0].protection, Protection::None(_)));

    let core = Core::start(&scene);
    let mut vsa = app.acquire_vsa("/raw/x").unwrap();
    assert_eq!(scene.status().vsas[0].protection, Protection::BrokerMediated);
    assert!(matches!(vsa.queue, AreaQueue::Broker(_)), "{}", vsa.queue.description());
    assert_eq!((vsa.queue.capacity(), read(&mut vsa, MIB - 4096)), (MIB, 0));
    write(&mut vsa, 0, 1).unwrap();
    write(&mut vsa, MIB - 4096, 2).unwrap();
    // Other areas are behind it, so that it grows elsewhere.
    app.create_vsa("/raw/y", MIB).unwrap();
    let mut other = app.acquire_vsa("/raw/y").unwrap();
    write(&mut other, 0, 9).unwrap();
    app.resize_vsa(&mut vsa, 2 * MIB).unwrap();
    assert_eq!((read(&mut vsa, 0), read(&mut vsa, MIB - 4096), read(&mut vsa, MIB)), (1, 2, 0));
    write(&mut vsa, 2 * MIB - 4096, 3).unwrap();
    // By its administrator, under its holder.
    scene.connect().resize_vsa("/raw/x", 3 * MIB).unwrap();
    app.resize_vsa(&mut vsa, 3 * MIB).unwrap();
    write(&mut vsa, 3 * MIB - 4096, 4).unwrap();
    app.trim_vsa(&vsa, 0, Some(4096)).unwrap();
    assert_eq!((read(&mut vsa, 0), read(&mut vsa, MIB - 4096)), (0, 2));
    app.resize_vsa(&mut vsa, MIB).unwrap();
    app.resize_vsa(&mut vsa, 2 * MIB).unwrap();
    assert_eq!(
        (read(&mut vsa, MIB - 4096), read(&mut vsa, 2 * MIB - 4096)),
        (2, 0),
        "zeros, not what was cut off"
    );
    assert_eq!(app.delete_vsa("/raw/x").unwrap_err().to_string().matches("has it").count(), 1);
    release(&mut app, vsa);
    let mut vsa = app.acquire_vsa("/raw/x").unwrap();
    assert_eq!((read(&mut vsa, MIB - 4096), read(&mut other, 0)), (2, 9));
    release(&mut app, vsa);
    app.delete_vsa("/raw/x").unwrap();
    app.create_vsa("/raw/x", 4 * MIB).unwrap();
    let mut vsa = app.acquire_vsa("/raw/x").unwrap();
    for block in 0..4 * MIB / 4096 {
        assert_eq!(read(&mut vsa, block * 4096), 0, "block {block}");
    }
    drop(core);
    assert!(write(&mut vsa, 0, 1).is_err() && write(&mut other, 0, 1).is_err());
}

#[test]
fn a_revoked_holder_reaches_nothing_and_others_are_not_disturbed() {
    let scene = place("brokered-revoked");
    let _daemon = scene.start();
    let _core = Core::start(&scene);
    let mut app = client(&scene);
    app.create_vsa("/raw/x", MIB).unwrap();
    app.create_vsa("/raw/y", MIB).unwrap();
    let (mut vsa, mut other) = (app.acquire_vsa("/raw/x").unwrap(), app.acquire_vsa("/raw/y").unwrap());
    for round in 0..64 {
        let mut buffer = Buffer::new(4096);
        buffer.fill(7);
        vsa.queue
            .submit(round, Operation::Write { offset: round * 4096, length: 4096, buffer, durable: true })
            .unwrap();
    }
    vsa.queue.notify().unwrap();
    let lines = scene.connect().revoke(Target::Name("/raw/x".into())).unwrap();
    assert!(lines[0].contains("accepts no more requests"), "{lines:?}");
    let mut done = Vec::new();
    while vsa.queue.in_flight() > 0 {
        vsa.queue.wait(Duration::from_secs(1)).unwrap();
        vsa.queue.complete(&mut done);
    }
    assert_eq!(done.len(), 64, "each is answered, one way or the other");
    // The hang-up comes when no request is in flight. Until then, the other areas are not touched.
    let refused_with = loop {
        if let Err(error) = write(&mut vsa, MIB - 4096, 8) {
            break error;
        }
    };
    assert_eq!(refused_with.raw_os_error(), Some(107));
    write(&mut other, 0, 5).unwrap();
    assert_eq!(read(&mut other, 0), 5);
    assert_eq!(refused(app.acquire_vsa("/raw/x")).0, ErrorKind::Revoked);
    scene.connect().restore("/raw/x").unwrap();
    let mut again = app.acquire_vsa("/raw/x").unwrap();
    for completed in done.iter().filter(|done| done.result.is_ok()) {
        assert_eq!(read(&mut again, completed.token * 4096), 7, "what was acknowledged is there");
    }
}

/// What a storming application writes (`scene::application_process`, `rush`).
const STORM: u8 = 0xba;

#[test]
fn blocks_of_a_killed_holder_are_reused_only_after_its_last_write() {
    let scene = place("brokered-killed");
    let _daemon = scene.start();
    let core = Core::start(&scene);
    let mut app = client(&scene);
    let storms_as = (own_uid() == 0).then_some(OTHER_USER);
    scene.connect().create_vsa("/raw/prey", MIB, Some(storms_as.unwrap_or(own_uid()))).unwrap();
    app.create_vsa("/raw/victim", MIB).unwrap();
    let mut victim = app.acquire_vsa("/raw/victim").unwrap();
    let rounds = std::env::var("SIETCH_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    for round in 0..rounds {
        let byte = round as u8 % 100 + 1;
        for block in 0..16 {
            write(&mut victim, block * 4096, byte).unwrap();
        }
        let mut application = scene.application(storms_as);
        assert_eq!(application.command("rush /raw/prey", "DID"), "rush");
        application.expect("RUSHES");
        application.kill();
        // It waits for the last write of the killed one; then nothing of it lands any more.
        let mut admin = scene.connect();
        scene.wait_for("the grant to end", |status| {
            status.vsas.iter().all(|vsa| vsa.name != "/raw/prey" || vsa.holder.is_none())
        });
        admin.delete_vsa("/raw/prey").unwrap();
        admin.create_vsa("/raw/next", MIB, None).unwrap();
        let mut next = app.acquire_vsa("/raw/next").unwrap();
        for block in 0..MIB / 4096 {
            assert_eq!(read(&mut next, block * 4096), 0, "round {round}, block {block}");
        }
        for block in 0..16 {
            assert_eq!(read(&mut victim, block * 4096), byte, "round {round}");
        }
        release(&mut app, next);
        app.delete_vsa("/raw/next").unwrap();
        admin.create_vsa("/raw/prey", MIB, Some(storms_as.unwrap_or(own_uid()))).unwrap();
    }
    drop(core);
}

#[test]
fn a_dead_daemon_disturbs_no_holder_and_its_successor_has_all_grants() {
    let scene = place("brokered-restart");
    let daemon = scene.start();
    let core = Core::start(&scene);
    let mut app = client(&scene);
    app.create_vsa("/raw/x", MIB).unwrap();
    app.create_vsa("/raw/y", MIB).unwrap();
    let mut vsa = app.acquire_vsa("/raw/x").unwrap();
    let ended = client(&scene).acquire_vsa("/raw/y");
    write(&mut vsa, 0, 1).unwrap();
    daemon.crash();
    let broker = core.disconnect();
    write(&mut vsa, 0, 2).unwrap();
    let daemon = scene.start();
    // The daemon has no core, and the volume is locked: no area of it is granted again.
    let mut admin = scene.connect();
    let Err(CallError::Refused(busy)) = admin.resize_vsa("/raw/y", 4096) else { panic!("a refusal") };
    assert_eq!(busy.kind, ErrorKind::Busy, "{busy}");
    write(&mut vsa, 0, 3).unwrap();
    let held: BTreeMap<String, u64> =
        broker.held.areas.iter().map(|area| (area.name.clone(), area.grant)).collect();
    let core = Core::with(&scene, broker);
    let status = scene.status();
    assert!(status.vsas.iter().all(|vsa| vsa.holder.is_some()), "{status:?}");
    assert_eq!(held.len(), 2);
    write(&mut vsa, 4096, 4).unwrap();
    assert_eq!((read(&mut vsa, 0), read(&mut vsa, 4096)), (3, 4));
    drop(ended);
    // An area that was released while no daemon ran. A daemon that saw the core end would end the
    // grants.
    daemon.crash();
    let mut broker = core.disconnect();
    broker.held.areas.push(HeldArea { grant: 999, generation: 1, name: "/raw/z".into() });
    let _daemon = scene.start();
    let _core = Core::with(&scene, broker);
    write(&mut vsa, 4096, 5).unwrap();
    assert_eq!(scene.connect().create_vsa("/raw/z", MIB, None).unwrap().size, MIB);
}

#[test]
fn a_dead_core_ends_its_grants_and_loses_no_acknowledged_write() {
    let scene = place("brokered-core");
    let _daemon = scene.start();
    let mut app = client(&scene);
    app.create_vsa("/raw/x", MIB).unwrap();
    for round in 1..4 {
        let core = Core::start(&scene);
        let mut vsa = app.acquire_vsa("/raw/x").unwrap();
        if round > 1 {
            assert_eq!(read(&mut vsa, 0), round - 1);
        }
        write(&mut vsa, 0, round).unwrap();
        drop(core);
        let failed = write(&mut vsa, 0, STORM).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(107), "ENOTCONN");
        scene.wait_for("the grant to end", |status| status.vsas.is_empty());
    }
    // A core that has lost its connection and continues: no process gets an area that it may still
    // write to.
    let broker = {
        let core = Core::start(&scene);
        let mut vsa = app.acquire_vsa("/raw/x").unwrap();
        // It has the volume only once it has received the notice.
        assert_eq!(read(&mut vsa, 0), 3);
        std::mem::forget(vsa);
        core.disconnect()
    };
    scene.wait_for("the grant to end", |status| status.vsas.is_empty());
    let other = Core::start(&scene);
    let (kind, why) = refused(app.acquire_vsa("/raw/x"));
    assert!(kind == ErrorKind::Busy && why.contains("service core"), "{why}");
    broker.end();
    let mut vsa = app.acquire_vsa("/raw/x").unwrap();
    assert_eq!(read(&mut vsa, 0), 3);
    drop(other);
}

#[test]
fn another_user_cannot_be_the_service_core() {
    let scene = place("brokered-other");
    let _daemon = scene.start();
    let mut connection: Connection = scene.connect();
    let Err(CallError::Refused(refusal)) = connection.detached(1) else { panic!("a refusal") };
    assert_eq!(refusal.kind, ErrorKind::Denied);
    let core = Core::start(&scene);
    let Err(CallError::Refused(refusal)) = connection.serve_with_storage(Vec::new(), HeldStorage::default())
    else {
        panic!("a refusal")
    };
    assert_eq!(refusal.kind, ErrorKind::Busy);
    drop(core);
    let _ = PATIENCE;
}
