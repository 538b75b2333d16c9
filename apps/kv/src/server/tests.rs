//! The whole server over a link and a disk in memory, as its clients see it.
//!
//! A [`Scene`] runs client, server and disk in virtual time. `tests/programs.rs` runs random
//! programs and restarts the server at random points.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use sietch::disk::MemoryQueue;
use sietch::net::{Config, Engine, FlowId, State};
use sietch::nic::wire::{self, WireQueue};
use sietch::persist::{FormatOptions, Log, Options};

use super::{LogWriter, Reactor, VnicTransport};
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::{Durability, Settings};
use crate::shard::{Now, Shard};

mod cores;
mod programs;
mod recovery;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 2);
const PORT: u16 = 6379;
const SECOND: u64 = 1_000_000_000;

/// A reactor, and a peer at the other end of its wire.
struct Scene {
    reactor: Reactor<WireQueue, MemoryQueue>,
    peer: Engine,
    wire: WireQueue,
    now: Now,
}

fn log_writer(area: usize, durability: Durability) -> LogWriter<MemoryQueue> {
    let mut disk = MemoryQueue::new(area);
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("just formatted");
    LogWriter::new(log, durability)
}

impl Scene {
    fn new(settings: Settings, area: usize) -> Self {
        Self::with_durability(settings, area, Durability::Always)
    }

    fn with_durability(settings: Settings, area: usize, durability: Durability) -> Self {
        let (queue, wire) = wire::pair([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], 1500, 512);
        let engine = |address, mac| Engine::new(&Config::new(address, 24, [3; 16]), mac, 1500);
        let vnic =
            VnicTransport::open(queue, engine(SERVER, [2, 0, 0, 0, 0, 2]), SERVER, PORT).expect("free");
        let mut shard = Shard::new(settings, 42);
        shard.enable_journal(true);
        let reactor = Reactor::new(shard, Some(log_writer(area, durability)), Some(vnic), None);
        let peer = engine(Ipv4Addr::new(10, 83, 0, 1), [2, 0, 0, 0, 0, 1]);
        let now = Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 };
        Self { reactor, peer, wire, now }
    }

    fn shard(&mut self) -> &mut Shard {
        self.reactor.shard.as_mut().expect("one core keeps its shard")
    }

    fn iterate(&mut self) -> super::Iteration {
        self.now.monotonic_ns += 1_000_000;
        self.now.unix_ms += 1;
        self.reactor.iterate(self.now).expect("no device fails here")
    }

    /// Lets both ends talk for a while.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.iterate();
            self.peer.poll(&mut self.wire, self.now.monotonic_ns).expect("the wire is whole");
        }
    }

    fn connect(&mut self) -> FlowId {
        self.peer.connect(SocketAddrV4::new(SERVER, PORT), self.now.monotonic_ns).expect("there is a way")
    }

    fn received(&mut self, flow: FlowId) -> String {
        let mut bytes = vec![0; 1 << 16];
        let length = self.peer.read(flow, &mut bytes);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Sends a command as a client without a connection, and iterates until there is a reply.
    fn request(&mut self, client: ClientId, command: &[u8]) -> String {
        let now = self.now;
        self.shard().feed(client, command, now);
        for _ in 0..5000 {
            self.iterate();
            let reply = String::from_utf8_lossy(self.shard().output(client)).into_owned();
            if !reply.is_empty() {
                self.shard().consumed(client, reply.len());
                return reply;
            }
        }
        String::new()
    }

    fn join(&mut self) -> ClientId {
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let now = self.now;
        self.shard().connect(address, address, now).expect("fewer than maxclients")
    }
}

fn set(key: &str, length: usize) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${length}\r\n", key.len());
    [head.as_bytes(), &vec![b'v'; length], b"\r\n"].concat()
}

#[test]
fn a_refused_client_receives_the_reason_although_it_has_sent_a_command() {
    let mut scene = Scene::new(Settings { maxclients: 1, ..Settings::default() }, 1 << 20);
    scene.join();
    let flow = scene.connect();
    // The peer's request is on its way before the server has read the connection.
    for _ in 0..4 {
        scene.now.monotonic_ns += 1_000_000;
        scene.peer.poll(&mut scene.wire, scene.now.monotonic_ns).expect("the wire is whole");
        scene.peer.send(flow, b"PING\r\n");
        if scene.peer.flow_info(flow).is_some_and(|info| info.unsent_or_unacknowledged > 6) {
            break;
        }
        scene.iterate();
    }
    scene.settle();
    assert_eq!(scene.received(flow), "-ERR max number of clients reached\r\n");
}

#[test]
fn a_vanished_client_is_removed() {
    let mut scene = Scene::new(Settings::default(), 1 << 20);
    scene.connect();
    scene.settle();
    assert_eq!(scene.shard().clients(), 1);
    // From now on nothing of the peer is received.
    let limit = scene.now.monotonic_ns + 3600 * SECOND;
    while scene.shard().clients() > 0 {
        assert!(scene.now.monotonic_ns < limit, "it is remembered for ever");
        scene.now.monotonic_ns += SECOND;
        scene.iterate();
        while sietch::nic::NicQueue::receive(&mut scene.wire, &mut Vec::new(), 0) > 0 {}
    }
}

#[test]
fn shutdown_runs_no_more_commands_and_closes_connections() {
    let mut scene = Scene::new(Settings::default(), 1 << 20);
    let flow = scene.connect();
    scene.settle();
    scene.peer.send(flow, b"SET before 1\r\n");
    scene.settle();
    assert_eq!(scene.received(flow), "+OK\r\n");
    scene.reactor.stop_input();
    scene.peer.send(flow, b"SET after 1\r\n");
    let late = scene.connect();
    scene.settle();
    assert!(scene.reactor.log_writer().is_some_and(LogWriter::is_caught_up));
    assert_eq!(scene.shard().keys(), 1);
    assert_eq!(scene.received(flow), "");
    assert!(
        scene.peer.flow_info(late).is_none_or(|info| info.state == State::Closed),
        "a connection was accepted"
    );
    scene.reactor.close_clients(scene.now).expect("the wire is whole");
    scene.peer.poll(&mut scene.wire, scene.now.monotonic_ns).expect("the wire is whole");
    assert!(scene.peer.at_end(flow));
    assert_eq!(scene.shard().clients(), 0);
}

#[test]
fn a_value_that_the_area_cannot_hold_is_refused_and_nothing_else_is() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    let reply = scene.request(client, &set("huge", 40 << 20));
    assert!(reply.starts_with("-MISCONF"), "{reply}");
    assert_eq!(scene.request(client, &set("small", 10)), "+OK\r\n");
    assert_eq!(scene.request(client, b"EXISTS huge\r\n"), ":0\r\n");
    // The value is too large. The area is not full, and the refusal is counted.
    assert_eq!(persistence_info(&mut scene, client, "log_full"), "0");
    assert_eq!(persistence_info(&mut scene, client, "log_refused_writes"), "1");
    assert_eq!(scene.request(client, &set("large", 20 << 20)), "+OK\r\n");
    assert_eq!(scene.request(client, b"DEL large\r\n"), ":1\r\n");
}

#[test]
fn a_value_larger_than_one_record_is_stored() {
    let mut scene = Scene::new(Settings::default(), 256 << 20);
    let client = scene.join();
    assert_eq!(scene.request(client, &set("huge", 80 << 20)), "+OK\r\n");
    assert_eq!(scene.request(client, b"STRLEN huge\r\n"), format!(":{}\r\n", 80 << 20));
    assert_eq!(scene.request(client, &set("small", 10)), "+OK\r\n");
}

#[test]
fn a_full_area_rests_refuses_growth_and_recovers_by_deleting() {
    let mut scene = Scene::new(Settings::default(), 2 << 20);
    let client = scene.join();
    let mut stored = 0;
    let mut refused = 0;
    for number in 0..4000 {
        let reply = scene.request(client, &set(&format!("key{number}"), 2000));
        if reply == "+OK\r\n" {
            stored += 1;
        } else {
            assert!(reply.contains("storage area"), "after {stored}: {reply}");
            refused += 1;
        }
    }
    assert!(refused > 1000 && stored > 100, "{stored} stored, {refused} refused");
    let signs = |scene: &mut Scene| {
        let fields = ["log_full", "aof_last_write_status", "log_refused_writes"];
        fields.map(|field| persistence_info(scene, client, field))
    };
    let refusals = refused.to_string();
    assert_eq!(signs(&mut scene), ["1", "err", &refusals], "what an operator can see");
    // No request arrives: it must sleep, for hours.
    let mut iterations = 0;
    loop {
        let iteration = scene.iterate();
        if !iteration.busy {
            let Some(due) = iteration.deadline else { break };
            scene.now.monotonic_ns = scene.now.monotonic_ns.max(due);
        }
        iterations += 1;
        assert!(iterations < 10_000, "it never rests");
    }
    for number in 0..4000 {
        // While the area is compacted even this may have to wait.
        let command = format!("DEL key{number}\r\n");
        let tries = (0..100).find(|_| scene.request(client, command.as_bytes()).starts_with(':'));
        assert!(
            tries.is_some(),
            "key{number} cannot be deleted: {}",
            scene.request(client, command.as_bytes())
        );
    }
    scene.now.monotonic_ns += 60 * SECOND;
    for _ in 0..1000 {
        scene.iterate();
    }
    assert_eq!(signs(&mut scene), ["0", "ok", &refusals], "it has room again");
    assert_eq!(scene.request(client, &set("again", 2000)), "+OK\r\n");
}

#[test]
fn a_copy_that_the_area_cannot_hold_is_refused_and_nothing_else_is() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    assert_eq!(scene.request(client, &set("large", 20 << 20)), "+OK\r\n");
    for command in
        ["COPY large other", "BITOP NOT other large", "SETRANGE other 20000000 x", "SETBIT large 400000000 1"]
    {
        let reply = scene.request(client, format!("{command}\r\n").as_bytes());
        assert!(reply.starts_with("-MISCONF"), "{command}: {reply}");
        assert_eq!(scene.request(client, b"SET small 1\r\n"), "+OK\r\n");
    }
    // What makes the data set no larger has room after a compaction, and waits for it.
    assert_eq!(scene.request(client, b"RENAME large other\r\n"), "+OK\r\n");
    assert_eq!(scene.request(client, &set("other", 20 << 20)), "+OK\r\n");
    scene.request(client, b"MULTI\r\n");
    assert_eq!(scene.request(client, b"SET small 2\r\n"), "+QUEUED\r\n");
    scene.request(client, &set("huge", 20 << 20));
    assert!(scene.request(client, b"EXEC\r\n").starts_with("-EXECABORT"));
    assert_eq!(scene.request(client, b"GET small\r\n"), "$1\r\n1\r\n");
    assert_eq!(persistence_info(&mut scene, client, "log_failed"), "0");
}

#[test]
fn a_field_far_away_does_not_end_the_log() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    let reply = scene.request(client, b"BITFIELD x SET u8 #536870911 1\r\n");
    assert!(reply.starts_with("-MISCONF"), "{reply}");
    assert_eq!(scene.request(client, b"BITFIELD x SET u8 #10000000 1\r\n"), "*1\r\n:0\r\n");
    assert_eq!(scene.request(client, b"DEL x\r\n"), ":1\r\n");
    assert_eq!(scene.request(client, &set("small", 10)), "+OK\r\n");
}

#[test]
fn a_transaction_that_grows_its_own_values_does_not_end_the_log() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    scene.request(client, b"MULTI\r\n");
    scene.request(client, &set("a", 12 << 20));
    scene.request(client, b"COPY a b\r\n");
    scene.request(client, b"COPY a c\r\n");
    let reply = scene.request(client, b"EXEC\r\n");
    assert!(reply.starts_with("*3\r\n+OK\r\n:1\r\n-MISCONF"), "{reply}");
    assert_eq!(scene.request(client, &set("small", 10)), "+OK\r\n");
    assert_eq!(scene.request(client, b"EXISTS a b c small\r\n"), ":3\r\n");
}

/// Starts again from what is on the disk now.
fn restarted(scene: Scene) -> Shard {
    let disk = scene.reactor.into_log_writer().expect("there is a log").into_log().into_disk();
    let mut shard = Shard::new(Settings::default(), 43);
    super::recover("kv", disk, &mut shard, Durability::Always, 7, scene.now).expect("nothing is damaged");
    shard
}

#[test]
fn deletions_without_room_in_the_log_are_in_a_snapshot() {
    // Expiry, eviction, and commands: each deletes keys that together are larger than what is left
    // of the area.
    for case in ["expiry", "eviction", "DEL", "UNLINK in EXEC"] {
        let mut scene = Scene::new(Settings::default(), 64 << 20);
        let client = scene.join();
        let count = if case == "expiry" { 12 } else { 20 };
        let keys: Vec<String> =
            (0..count).map(|number| format!("{number:02}{}", "k".repeat(999_998))).collect();
        for key in &keys {
            let command = format!("*3\r\n$3\r\nSET\r\n$1000000\r\n{key}\r\n$1\r\nv\r\n");
            assert_eq!(scene.request(client, command.as_bytes()), "+OK\r\n");
            if case == "expiry" {
                let command = format!("*3\r\n$7\r\nPEXPIRE\r\n$1000000\r\n{key}\r\n$5\r\n60000\r\n");
                assert_eq!(scene.request(client, command.as_bytes()), ":1\r\n");
            }
        }
        match case {
            "expiry" => scene.now.unix_ms += 100_000,
            "eviction" => {
                scene.request(client, b"CONFIG SET maxmemory-policy allkeys-random maxmemory 1mb\r\n");
            }
            _ => {
                let mut command = format!("*{}\r\n$3\r\nDEL\r\n", keys.len() + 1);
                keys.iter().for_each(|key| command += &format!("$1000000\r\n{key}\r\n"));
                if case == "DEL" {
                    assert_eq!(scene.request(client, command.as_bytes()), ":20\r\n");
                } else {
                    scene.request(client, b"MULTI\r\n");
                    scene.request(client, command.as_bytes());
                    assert_eq!(scene.request(client, b"EXEC\r\n"), "*1\r\n:20\r\n");
                }
            }
        }
        assert_eq!(scene.request(client, &set("small", 10)), "+OK\r\n", "{case}");
        assert_eq!(persistence_info(&mut scene, client, "log_failed"), "0", "{case}");
        assert_ne!(persistence_info(&mut scene, client, "rdb_saves"), "0", "{case}");
        let left = scene.shard().keys();
        assert!(left <= 2, "{case}: {left} keys");
        assert_eq!(restarted(scene).keys(), left, "{case}");
    }
}

/// The value of a field of INFO persistence.
fn persistence_info(scene: &mut Scene, client: ClientId, field: &str) -> String {
    let text = scene.request(client, b"INFO persistence\r\n");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).to_owned()
}

#[test]
fn info_shows_a_compaction_while_it_runs_and_when_it_is_durable() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    for number in 0..20_000 {
        assert_eq!(scene.request(client, &set(&format!("key{number}"), 100)), "+OK\r\n");
    }
    assert_eq!(persistence_info(&mut scene, client, "rdb_changes_since_last_save"), "20000");
    assert_eq!(persistence_info(&mut scene, client, "aof_enabled"), "1");
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrites"), "0");
    let grown: u64 = persistence_info(&mut scene, client, "aof_current_size").parse().expect("a number");
    assert!(grown > 2_000_000, "{grown} bytes for 20000 keys");
    let saved = scene.request(client, b"LASTSAVE\r\n");
    scene.now.unix_ms += 5000;
    assert!(scene.request(client, b"BGREWRITEAOF\r\n").starts_with('+'));
    // One slice per iteration, and commands of that time are answered.
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrite_in_progress"), "1");
    assert_eq!(persistence_info(&mut scene, client, "rdb_bgsave_in_progress"), "1");
    assert_eq!(scene.request(client, b"LASTSAVE\r\n"), saved, "it is not saved before it is durable");
    assert_eq!(scene.request(client, &set("meanwhile", 100)), "+OK\r\n");
    for _ in 0..200 {
        scene.iterate();
    }
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrite_in_progress"), "0");
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrites"), "1");
    assert_eq!(persistence_info(&mut scene, client, "aof_last_bgrewrite_status"), "ok");
    assert_eq!(persistence_info(&mut scene, client, "rdb_changes_since_last_save"), "1");
    assert_ne!(scene.request(client, b"LASTSAVE\r\n"), saved);
    let base: u64 = persistence_info(&mut scene, client, "aof_base_size").parse().expect("a number");
    assert!(
        base > 0
            && base <= persistence_info(&mut scene, client, "aof_current_size").parse().expect("a number")
    );
    assert_eq!(
        persistence_info(&mut scene, client, "log_durable_sequence"),
        persistence_info(&mut scene, client, "log_last_sequence")
    );
}

#[test]
fn a_compaction_that_a_flush_ends_begins_again() {
    let mut scene = Scene::new(Settings::default(), 64 << 20);
    let client = scene.join();
    for number in 0..20_000 {
        assert_eq!(scene.request(client, &set(&format!("key{number}"), 100)), "+OK\r\n");
    }
    assert!(scene.request(client, b"BGREWRITEAOF\r\n").starts_with('+'));
    assert_eq!(scene.request(client, b"FLUSHALL\r\n"), "+OK\r\n");
    for _ in 0..200 {
        scene.iterate();
    }
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrite_in_progress"), "0");
    assert_eq!(persistence_info(&mut scene, client, "rdb_saves"), "1", "what was asked for was forgotten");
    assert_eq!(persistence_info(&mut scene, client, "aof_rewrites_consecutive_failures"), "0");
    let size: u64 = persistence_info(&mut scene, client, "aof_current_size").parse().expect("a number");
    assert!(size < 2_000_000, "{size} bytes for no keys");
}

#[test]
fn wait_has_the_log_flushed_and_is_answered_when_it_is_durable() {
    for durability in [Durability::Always, Durability::Interval, Durability::Never] {
        let settings = Settings { durability, ..Settings::default() };
        let mut scene = Scene::with_durability(settings, 64 << 20, durability);
        let client = scene.join();
        let begin = scene.now.unix_ms;
        for number in 0..5 {
            assert_eq!(scene.request(client, &set(&format!("key{number}"), 200)), "+OK\r\n");
            assert_eq!(scene.request(client, b"WAIT 1 0\r\n"), ":0\r\n");
            let log = scene.reactor.log_writer().expect("it has a log").log();
            assert_eq!((log.durable(), log.last()), (number + 1, number + 1), "{durability:?}");
        }
        assert!(scene.now.unix_ms - begin < 500, "it does not wait for the interval");
        assert_eq!(scene.request(client, b"WAIT 0 0\r\n"), ":0\r\n", "nothing is left to flush");
    }
}
