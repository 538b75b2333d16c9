//! Replies and the log.
//!
//! The bench seals and acknowledges records by hand: a test states which record is durable, and
//! which replies have left by then.

use super::*;
use crate::foundation::settings::Durability;

#[test]
fn no_reply_leaves_before_its_effects_are_durable() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let (writer, reader) = (bench.connect(), bench.connect());
    bench.shard.feed(writer, b"SET a 1\r\n", bench.now);
    assert!(bench.shard.output(writer).is_empty());
    assert!(bench.shard.journal().take().is_some());
    bench.shard.seal(7);
    // A read that saw the write waits for it, too.
    bench.shard.feed(reader, b"GET a\r\n", bench.now);
    assert!(bench.shard.journal().take().is_none());
    bench.shard.seal(7);
    let mut ready = Vec::new();
    bench.shard.take_ready(&mut ready);
    assert!(ready.is_empty());
    bench.shard.durable(6);
    assert!(bench.shard.output(writer).is_empty());
    bench.shard.durable(7);
    bench.shard.take_ready(&mut ready);
    assert_eq!(ready, [writer, reader]);
    assert_eq!(bench.shard.output(writer), b"+OK\r\n");
    assert_eq!(bench.shard.output(reader), b"$1\r\n1\r\n");
}

#[test]
fn a_failed_log_closes_waiting_clients_and_refuses_writes() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let (writer, other) = (bench.connect(), bench.connect());
    bench.shard.feed(writer, b"PING\r\n", bench.now);
    bench.shard.seal(0);
    bench.shard.feed(writer, b"SET a 1\r\n", bench.now);
    bench.shard.seal(1);
    bench.shard.fail_writes("No space left on device", true);
    // What could leave before still can; the answer to the write cannot.
    assert_eq!(bench.shard.output(writer), b"+PONG\r\n");
    bench.shard.consumed(writer, 7);
    assert!(bench.shard.wants_close(writer));
    let refused = "-MISCONF Errors writing to the AOF file: No space left on device\r\n";
    assert_eq!(bench.request(other, "SET b 1"), refused);
    // It would tell of a write that a restart undoes.
    assert!(bench.request(other, "GET a").starts_with("-MISCONF the log has failed"));
    bench.request(other, "MULTI");
    assert_eq!(bench.request(other, "SET b 1"), refused);
    assert!(bench.request(other, "EXEC").starts_with("-EXECABORT"));
    // Where all was durable, what is read is what a restart finds.
    let mut bench = Bench::new();
    let reader = bench.connect();
    bench.request(reader, "SET a 1");
    bench.shard.fail_writes("No space left on device", false);
    assert_eq!(bench.request(reader, "GET a"), "$1\r\n1\r\n");
    bench.request(reader, "MULTI");
    bench.request(reader, "GET a");
    assert_eq!(bench.request(reader, "EXEC"), "*1\r\n$1\r\n1\r\n");
    // What was queued while all was well runs by the same rules.
    for (queued, undone, refused) in
        [("GET a", false, false), ("GET a", true, true), ("SET a 2", false, true)]
    {
        let mut bench = Bench::new();
        let client = bench.connect();
        bench.request(client, "MULTI");
        bench.request(client, queued);
        bench.shard.fail_writes("No space left on device", undone);
        let reply = bench.request(client, "EXEC");
        assert_eq!(reply.starts_with("-EXECABORT"), refused, "{queued}, undone {undone}: {reply}");
    }
}

#[test]
fn no_compaction_is_reported_once_the_log_has_failed() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    bench.shard.fail_writes("No space left on device", false);
    let client = bench.connect();
    let reply = bench.request(client, "BGREWRITEAOF");
    assert_eq!(reply, "-MISCONF Errors writing to the AOF file: No space left on device\r\n");
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "BGREWRITEAOF"), "+QUEUED\r\n");
    assert!(bench.request(client, "EXEC").contains("MISCONF Errors writing"));
    assert!(!bench.shard.compaction_requested());
}

#[test]
fn a_save_that_would_write_no_file_is_refused_and_names_what_makes_a_backup() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    for command in ["SAVE", "BGSAVE", "BGSAVE SCHEDULE"] {
        let reply = bench.request(client, command);
        assert!(reply.starts_with("-ERR this store writes no RDB file"), "{command}: {reply}");
        assert!(reply.contains("`sietch kv backup`"), "{command}: {reply}");
    }
    assert_eq!(bench.request(client, "BGSAVE NOW"), "-ERR syntax error\r\n");
    assert!(!bench.shard.compaction_requested());
}

#[test]
fn a_transaction_is_one_record() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    for command in ["MULTI\r\n", "SET a 1\r\n", "SET b 2\r\n"] {
        bench.shard.feed(client, command.as_bytes(), bench.now);
        assert!(bench.shard.journal().take().is_none());
    }
    bench.shard.feed(client, b"EXEC\r\n", bench.now);
    let record = bench.shard.journal().take().expect("EXEC has effects");
    let mut again = Bench::new();
    again.shard.replay(1, &record, again.now).expect("its own record");
    again.shard.finish_recovery().expect("nothing was refused");
    let client = again.connect();
    assert_eq!(again.request(client, "MGET a b"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
}

#[test]
fn nothing_expires_by_the_clock_during_replay() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    bench.request(client, "SET a 1 PX 100");
    let record = bench.shard.journal().take().expect("a SET");
    let mut again = Bench::new();
    again.now.unix_ms += 1_000_000;
    again.shard.enable_journal(true);
    again.shard.replay(1, &record, again.now).expect("its own record");
    assert_eq!(again.shard.keys(), 1);
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(again.shard.next_deadline().is_some());
    again.pass(1);
    assert_eq!(again.shard.keys(), 0);
    assert!(again.shard.journal().take().is_some(), "the expiry is an effect");
    assert_eq!(again.shard.next_deadline(), None, "an idle shard needs no ticks");
}

#[test]
fn foreign_records_are_errors() {
    let mut bench = Bench::new();
    let now = bench.now;
    assert!(bench.shard.replay(1, b"", now).is_err());
    assert!(bench.shard.replay(1, b"\x09abc", now).is_err());
    let mut record = vec![crate::data::journal::EFFECTS];
    crate::data::journal::encode(&mut record, 0, &[b"GET", b"a"]);
    assert!(bench.shard.replay(1, &record, now).is_err(), "GET is no effect");
    let mut record = vec![crate::data::journal::EFFECTS];
    crate::data::journal::encode(&mut record, 99, &[b"DEL", b"a"]);
    assert!(bench.shard.replay(1, &record, now).is_err(), "no such database");
}

#[test]
fn a_store_without_a_log_reports_that_it_keeps_nothing() {
    use crate::foundation::settings::{Durability, Settings};
    let mut bench = Bench::with(Settings { durability: Durability::None, ..Settings::default() });
    let client = bench.connect();
    bench.shard.feed(client, b"SET key value\r\n", bench.now);
    // Nothing is recorded, and a seal behind nothing lets the reply go.
    assert!(bench.shard.journal().is_empty());
    bench.shard.seal(0);
    assert_eq!(bench.shard.output(client), b"+OK\r\n");
    bench.shard.consumed(client, 5);
    let reply = bench.request(client, "INFO persistence");
    assert!(reply.contains("durability:none\r\nkeys_outlive_process:0\r\n"), "{reply}");
    assert!(bench.request(client, "BGREWRITEAOF").starts_with("-ERR nothing is saved"));
    assert!(!bench.shard.compaction_requested());
    assert!(bench.request(client, "CONFIG GET appendonly").contains("no"));
    assert_eq!(bench.request(client, "CONFIG SET appendonly no"), "+OK\r\n");
    assert!(bench.request(client, "CONFIG SET appendonly yes").starts_with('-'));
}

#[test]
fn wait_answers_once_its_batch_is_durable() {
    let settings = Settings { durability: Durability::Interval, ..Settings::default() };
    let mut bench = Bench::with(settings);
    let client = bench.connect();
    let released = |bench: &mut Bench| {
        bench.shard.seal(0);
        let text = String::from_utf8_lossy(bench.shard.output(client)).into_owned();
        bench.shard.consumed(client, text.len());
        text
    };
    bench.shard.feed(client, b"SET a b\r\nWAIT 1 0\r\nGET a\r\n", bench.now);
    assert_eq!(released(&mut bench), "+OK\r\n");
    assert!(bench.shard.begin_syncs(7) && !bench.shard.begin_syncs(8), "new ones are noted once");
    bench.shard.durable(6);
    assert_eq!(released(&mut bench), "");
    bench.shard.durable(7);
    assert_eq!(released(&mut bench), ":0\r\n");
    assert!(!bench.shard.has_syncs());
    bench.pass(1);
    assert_eq!(released(&mut bench), "$1\r\nb\r\n");
    // The timeout ends the wait; so does a failed log, with an error.
    bench.shard.feed(client, b"WAIT 0 50\r\n", bench.now);
    bench.pass(50);
    assert_eq!(released(&mut bench), ":0\r\n");
    bench.shard.feed(client, b"MULTI\r\nWAIT 0 0\r\nEXEC\r\n", bench.now);
    assert_eq!(released(&mut bench), "+OK\r\n+QUEUED\r\n*1\r\n:0\r\n");
    bench.shard.feed(client, b"WAIT 0 0\r\n", bench.now);
    bench.shard.fail_writes("no disk", false);
    assert!(released(&mut bench).starts_with("-MISCONF the log has failed"));
    assert!(!bench.shard.has_syncs());
}
