//! Several cores without a crash: their end, snapshots, sections, and commands about all of them.

use super::*;

#[test]
fn all_cores_stop_in_order_and_keep_everything_that_they_have_run() {
    for (seed, durability) in [(30, Durability::Always), (31, Durability::Interval), (32, Durability::Never)]
    {
        let mut ensemble = Ensemble::new(SMALL, 3, durability, seed);
        let clients: Vec<_> = (0..3).map(|core| ensemble.join(core)).collect();
        for _ in 0..300 {
            ensemble.iterate_any();
            ensemble.forward(&clients);
        }
        ensemble.reactors[0].stop_input();
        let mut iterations = 0;
        while !ensemble.reactors[0].is_caught_up() {
            let core = ensemble.random.index(3);
            ensemble.iterate(core, false);
            iterations += 1;
            assert!(iterations < 5000, "seed {seed}: it never stops");
        }
        assert!(ensemble.reactors[1..].iter().all(|member| !member.has_ended()));
        for core in 0..3 {
            ensemble.iterate(core, false);
        }
        // What has run was answered. Commands that waited for a section may not have run.
        let answered: Vec<u64> = ensemble.tags.iter().map(|tag| tag.acknowledged).collect();
        let now = ensemble.now;
        ensemble.reactors[0].close_clients(now).expect("there is no device");
        for _ in 0..100 {
            let core = 1 + ensemble.random.index(2);
            ensemble.reactors[core].iterate(now).expect("there is no device");
        }
        assert!(ensemble.reactors[1..].iter().all(Reactor::has_ended), "seed {seed}");
        let log_writer = ensemble.reactors.swap_remove(0).into_log_writer().expect("core 0 has the log");
        log_writer.into_log().close().expect("the disk works");
        ensemble.media.crash(Crash::Nothing);
        ensemble.start(2);
        let found: Vec<u64> = ensemble.tags.iter().map(|tag| tag.acknowledged).collect();
        assert_eq!(found, answered, "seed {seed}");
    }
}

#[test]
fn a_snapshot_that_begins_while_shards_are_on_their_way_dumps_each_key_once() {
    // A list that was dumped twice would be longer. The shards need several slices.
    let scale = Scale { area: 64 << 20, kept: u64::MAX >> 1, element: 400, ..SMALL };
    let mut ensemble = Ensemble::new(scale, 3, Durability::Always, 70);
    while ensemble.tags.iter().any(|tag| tag.acknowledged < 900) {
        ensemble.iterate_any();
    }
    let mut compactions = ensemble.compactions;
    for _ in 0..12 {
        for _ in 0..ensemble.random.below(40) {
            ensemble.iterate_any();
        }
        ensemble.wires.lock().expect("one thread")[3].push_back(Message::WantSnapshot);
        while ensemble.compactions == compactions {
            ensemble.iterate_any();
        }
        compactions = ensemble.compactions;
        ensemble.check_crash(2);
    }
}

#[test]
fn sections_run_while_every_core_writes_in_each_iteration() {
    let mut ensemble = Ensemble::new(SMALL, 1, Durability::Always, 71);
    ensemble.delay = 0;
    ensemble.start(3);
    let clients: Vec<_> = (0..3).map(|core| ensemble.join(core)).collect();
    for iteration in 0..3000 {
        let (core, now) = (iteration % 3, ensemble.now);
        let tag = ensemble.tags.iter().find(|tag| tag.core == core).expect("each core has one");
        if let Some(shard) = &mut ensemble.reactors[core].shard {
            shard.feed(clients[core], &tag.command(&["INCR", "written@"]), now);
        }
        ensemble.iterate(core, true);
        if let Some(shard) = &mut ensemble.reactors[core].shard {
            received(shard, clients[core], &mut Vec::new());
        }
    }
    let (alone, crossing) = (ensemble.acknowledged(), ensemble.crossing.acknowledged);
    assert!(crossing > 100, "{crossing} operations in sections beside {alone}");
}

#[test]
fn counters_may_be_reset_while_all_cores_write() {
    let mut ensemble = Ensemble::new(SMALL, 3, Durability::Always, 72);
    let clients: Vec<_> = (0..3).map(|core| ensemble.join(core)).collect();
    for (core, &client) in clients.iter().enumerate() {
        assert_eq!(ensemble.request(core, client, "CONFIG RESETSTAT"), "+OK\r\n");
        let before = ensemble.acknowledged();
        while ensemble.acknowledged() < before + 50 {
            ensemble.iterate_any();
        }
    }
    let info = ensemble.request(1, clients[1], "INFO persistence");
    let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    let changes: u64 = changes.and_then(|text| text.parse().ok()).expect("a number");
    assert!((100..100_000).contains(&changes), "{changes} changes");
}

#[test]
fn a_listing_of_the_key_view_has_the_keys_of_all_cores() {
    let mut ensemble = Ensemble::new(SMALL, 3, Durability::Always, 40);
    while ensemble.tags.iter().any(|tag| tag.acknowledged < 2 * PADDED) {
        ensemble.iterate_any();
    }
    let mut iterations = 0;
    while !ensemble.reactors[0].gather_stores() {
        ensemble.iterate_any();
        iterations += 1;
        assert!(iterations < 1000, "the shards never come");
    }
    let stores = ensemble.reactors[0].stores();
    let keys: usize = stores.iter().map(|store| store.keys()).sum();
    assert_eq!(stores.len(), 3);
    assert!(keys >= TAGS * (3 + PADDED as usize), "{keys} keys");
    let before = ensemble.acknowledged();
    for _ in 0..1000 {
        ensemble.iterate_any();
    }
    assert!(ensemble.acknowledged() > before + 100, "the shards do not come back");
}

impl Ensemble {
    /// Has a client on each core send commands for keys of other cores.
    fn forward(&mut self, clients: &[ClientId]) {
        let now = self.now;
        for (core, &client) in clients.iter().enumerate() {
            let held = self.reactors[core].is_held();
            let Some(shard) = self.reactors[core].shard.as_mut().filter(|_| !held) else { continue };
            for tag in self.tags.iter().filter(|tag| tag.core != core) {
                shard.feed(client, &tag.command(&["INCR", "forwarded@"]), now);
            }
            received(shard, client, &mut Vec::new());
        }
    }

    /// A client on a core.
    fn join(&mut self, core: usize) -> ClientId {
        let now = self.now;
        connect(self.reactors[core].shard.as_mut().expect("it is here"), now)
    }

    /// Sends a command of a client on a core once the shard is there, and returns the reply.
    fn request(&mut self, core: usize, client: ClientId, command: &str) -> String {
        let (mut sent, mut reply) = (false, Vec::new());
        for _ in 0..20_000 {
            let (held, now) = (self.reactors[core].is_held(), self.now);
            if let Some(shard) = self.reactors[core].shard.as_mut().filter(|_| !sent && !held) {
                shard.feed(client, format!("{command}\r\n").as_bytes(), now);
                sent = true;
            }
            self.iterate_any();
            let Some(shard) = &mut self.reactors[core].shard else { continue };
            let text = received(shard, client, &mut reply);
            if text.ends_with("\r\n") {
                return text;
            }
        }
        panic!("no reply to {command} on core {core}");
    }
}

#[test]
fn wait_save_and_info_concern_the_log_of_all_cores() {
    for (seed, durability) in [(50, Durability::Always), (51, Durability::Interval), (52, Durability::Never)]
    {
        let scale = Scale { patience: 60, ..SMALL };
        let mut ensemble = Ensemble::new(scale, 3, durability, seed);
        let clients: Vec<_> = (0..3).map(|core| ensemble.join(core)).collect();
        for (core, &client) in clients.iter().enumerate() {
            for _ in 0..200 {
                ensemble.iterate_any();
            }
            let before: Vec<u64> = ensemble.tags.iter().map(|tag| tag.acknowledged).collect();
            assert_eq!(ensemble.request(core, client, "WAIT 1 0"), ":0\r\n");
            for (tag, before) in std::iter::zip(&mut ensemble.tags, before) {
                tag.certain = tag.certain.max(before);
            }
            ensemble.check_crash(3);
            let before = ensemble.compactions;
            assert!(ensemble.request(core, client, "BGREWRITEAOF").starts_with('+'));
            for _ in 0..10_000 {
                if ensemble.compactions > before {
                    break;
                }
                ensemble.iterate_any();
            }
            assert!(ensemble.compactions > before, "{durability:?}, core {core}");
            // INFO has it once the first core has seen it, too.
            for _ in 0..200 {
                ensemble.iterate_any();
            }
            let info = ensemble.request(core, client, "INFO persistence");
            let field = |name: &str| -> u64 {
                let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
            };
            assert!(field("log_last_sequence") > 50, "{durability:?}, core {core}: {info}");
            assert_eq!(field("log_failed"), 0);
            assert!(field("aof_rewrites") > before, "{durability:?}, core {core}: {info}");
        }
    }
}

#[test]
fn shards_that_grow_at_the_same_time_never_exceed_the_room_of_a_snapshot() {
    let scale = Scale { area: 4 << 20, padding: 10, ..SMALL };
    let mut ensemble = Ensemble::new(scale, 3, Durability::Always, 60);
    for tag in &mut ensemble.tags {
        // These clients do nothing here.
        tag.sent = PIPELINE;
    }
    ensemble.crossing.client = None;
    let clients: Vec<_> = (0..3).map(|core| ensemble.join(core)).collect();
    let (mut stored, mut refused) = (0, 0);
    for _ in 0..150 {
        let now = ensemble.now;
        for (core, &client) in clients.iter().enumerate() {
            let tag = ensemble.tags.iter().find(|tag| tag.core == core).expect("each core has one");
            let length = ensemble.random.index(900_000);
            let key = format!("large{}@", ensemble.random.below(3));
            let command = match ensemble.random.below(3) {
                0 => tag.command(&["DEL", &key]),
                _ => tag.command(&["SET", &key, &"v".repeat(length)]),
            };
            let reactor = &mut ensemble.reactors[core];
            let held = reactor.is_held();
            if let Some(shard) = reactor.shard.as_mut().filter(|_| !held) {
                shard.feed(client, &command, now);
            }
        }
        let shards = ensemble.reactors.iter().filter_map(Reactor::shard);
        let dumped: u64 = shards.map(|shard| shard.store().weight().dumped as u64).sum();
        let room = ensemble.reactors[0].log_writer().map_or(0, LogWriter::most_dumped);
        assert!(dumped <= room + room / 32, "{dumped} bytes in {room}");
        for _ in 0..60 {
            ensemble.iterate_any();
        }
        for (core, &client) in clients.iter().enumerate() {
            let Some(shard) = &mut ensemble.reactors[core].shard else { continue };
            let text = received(shard, client, &mut Vec::new());
            stored += text.matches("+OK").count();
            refused += text.matches("-MISCONF").count();
        }
    }
    assert!(stored > 20 && refused > 10, "{stored} were stored, {refused} were refused");
}
