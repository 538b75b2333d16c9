//! PostgreSQL, which forks a process for each connection, with pgbench and psql over TCP:
//! transactions, copies, cancelled statements.

use std::os::unix::process::CommandExt as _;

use rustix::process::Signal;

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["initdb", "postgres", "psql", "pgbench"], in CI [Sides::BOTH]);

/// PostgreSQL does not run as root, and needs a user that has a name: `nobody`.
const UNPRIVILEGED: u32 = 65534;

const TO: [&str; 8] = ["-h", "127.0.0.1", "-p", "5432", "-U", "tester", "-d", "postgres"];

fn sql(testbed: &Testbed, statement: &str) -> String {
    testbed
        .client_output("psql", &[&TO[..], &["-X", "-A", "-t", "-c", statement]].concat())
        .trim_end()
        .to_owned()
}

fn load(testbed: &Testbed) {
    let data = testbed.path("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    let fixed = ["-D", &data, "-A", "trust", "-U", "tester", "--locale=C", "-E", "UTF8", "--no-sync"];
    let mut command = testbed.kernel_command("initdb", &fixed);
    command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    testbed.start(command, "initdb").succeed();
    let settings = [
        "listen_addresses=127.0.0.1",
        "port=5432",
        "unix_socket_directories=",
        "fsync=off",
        "shared_buffers=32MB",
        // In the data folder, so that nothing remains.
        "dynamic_shared_memory_type=mmap",
    ];
    let mut arguments = vec!["-D", &data];
    settings.iter().for_each(|setting| arguments.extend(["-c", setting]));
    let mut command = testbed.server_command("postgres", &arguments);
    command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    let mut server = testbed.start(command, "postgres");
    testbed.listening(&mut server, 5432);
    testbed.wait_for("the database", || {
        testbed
            .start(testbed.client_command("psql", &[&TO[..], &["-c", "select 1"]].concat()), "first")
            .finish()
            .status
            .success()
            .then_some(())
    });
    benchmark(testbed);
    copy(testbed);
    cancel(testbed);
    server.signal(Signal::INT);
    server.succeed();
}

fn benchmark(testbed: &Testbed) {
    testbed.client("pgbench", &[&TO[..6], &["-i", "-q", "-s", "1", "postgres"]].concat());
    let (each, clients) = (testbed.size(100, 2000), 8);
    let all = each * clients;
    let (each, clients) = (each.to_string(), clients.to_string());
    for more in [&["-M", "simple"][..], &["-M", "prepared", "-S"], &["-M", "extended", "-C", "-S"]] {
        // A connection for each transaction is also a process for each transaction.
        let each = if more.contains(&"-C") { "10" } else { &each };
        let fixed = ["-c", &clients, "-j", "2", "-t", each, "-n"];
        let printed = testbed.client_output("pgbench", &[&TO[..6], &fixed, more, &["postgres"]].concat());
        let all = if more.contains(&"-C") { 80 } else { all };
        assert!(printed.contains(&format!("actually processed: {all}/{all}")), "{printed}");
        assert!(printed.contains("number of failed transactions: 0"), "{printed}");
    }
    let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), \
                (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history), \
                (select count(*) from pgbench_history)";
    assert_eq!(sql(testbed, sums), format!("t|t|{all}"));
}

/// A result of many megabytes, in both directions.
fn copy(testbed: &Testbed) {
    let rows = testbed.size(100_000, 1_000_000);
    let out = testbed.client(
        "psql",
        &[
            &TO[..],
            &[
                "-X",
                "-c",
                &format!("copy (select i, md5(i::text) from generate_series(1, {rows}) i) to stdout"),
            ],
        ]
        .concat(),
    );
    assert_eq!(out.output.iter().filter(|byte| **byte == b'\n').count(), rows);
    let file = testbed.write("rows", &out.output);
    sql(testbed, "create table rows (i int, t text)");
    testbed.client_reading("psql", &[&TO[..], &["-X", "-c", "copy rows from stdin"]].concat(), file.as_ref());
    let check = "select count(*), count(distinct i), bool_and(t = md5(i::text)) from rows";
    assert_eq!(sql(testbed, check), format!("{rows}|{rows}|t"));
}

/// A statement is ended by the server's signal to a backend, and by the client's request over a
/// second connection.
fn cancel(testbed: &Testbed) {
    let sleeping = "select count(*) from pg_stat_activity where query like 'select pg_sleep%' and wait_event = 'PgSleep'";
    for by_client in [false, true] {
        let words = [&TO[..], &["-X", "-c", "select pg_sleep(600)"]].concat();
        let statement = testbed.start(testbed.client_command("psql", &words), "sleep");
        testbed.wait_for("the statement", || (sql(testbed, sleeping) == "1").then_some(()));
        if by_client {
            statement.signal(Signal::INT);
        } else {
            let all = sql(
                testbed,
                "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'",
            );
            assert_eq!(all, "t");
        }
        let finished = statement.finish();
        assert!(finished.errors.contains("canceling statement due to user request"), "{finished:?}");
    }
}
