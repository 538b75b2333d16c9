//! A store with several shards: unmodified clients see what they see with one, and nothing that was
//! acknowledged is lost when it is killed and started with another number.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;

use crate::client::{Client, Reply, Stop, encode};
use crate::testbed::{Testbed, Up, has, in_own_network, signal, text, wait_for};

/// Fewer, as many, and more than this machine may have cores.
const NUMBERS: [usize; 3] = [1, 2, 5];

/// Connections of a test: each of five cores serves some of them.
const CLIENTS: usize = 12;

fn up(testbed: &Testbed, shards: usize, more: &[&str]) -> Up {
    testbed.up(&[&["--net", "linux", "--shards", &shards.to_string()], more].concat())
}

fn clients(address: SocketAddr) -> Vec<Client> {
    (0..CLIENTS).map(|_| Client::connect(address).expect("it serves")).collect()
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn ask(client: &mut Client, words: &str) -> Reply {
    client.request(words).unwrap_or_else(|cause| panic!("{words}: {cause}"))
}

/// Runs `test` with each number of shards.
fn with_each_number(name: &'static str, test: impl Fn(&Testbed, usize) + Send + 'static) {
    in_own_network(name, move || {
        for shards in NUMBERS {
            let testbed = Testbed::new(&format!("shards-{shards}"));
            let up = up(&testbed, shards, &["--durability", "interval"]);
            test(&testbed, shards);
            up.stop();
        }
    });
}

#[test]
fn redis_benchmark_and_redis_cli_work_with_every_number_of_shards() {
    let name = "redis_benchmark_and_redis_cli_work_with_every_number_of_shards";
    if !has(name, "redis-benchmark") {
        return;
    }
    with_each_number(name, |testbed, shards| {
        let port = testbed.port.to_string();
        for options in [&["-r", "1000"][..], &["-P", "16", "-r", "1000"]] {
            let output = Command::new("redis-benchmark")
                .args(["-q", "-n", "600", "-p", &port])
                .args(options)
                .output()
                .expect("redis-benchmark");
            let printed = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{shards} {options:?}: {printed}");
            assert!(printed.matches("requests per second").count() >= 20, "{shards}: {printed}");
            for word in ["Error", "ERR", "WARN", "closed"] {
                assert!(!printed.contains(word), "{shards} {options:?}: {printed}");
            }
        }
        let cli = |words: &[&str]| {
            let output =
                Command::new("redis-cli").args(["-p", &port]).args(words).stdin(Stdio::null()).output();
            text(&output.expect("redis-cli").stdout)
        };
        assert_eq!(cli(&["config", "get", "shards"]).trim(), format!("shards\n{shards}"));
        assert!(cli(&["config", "set", "shards", "3"]).contains("immutable"));
        assert!(cli(&["info", "server"]).contains(&format!("shards:{shards}\r\n")));
        assert_eq!(cli(&["flushall"]), "OK\n");
        for number in 0..50 {
            assert_eq!(cli(&["set", &format!("key:{number}"), "x"]), "OK\n");
        }
        assert_eq!(cli(&["dbsize"]), "50\n");
        assert_eq!(cli(&["--scan"]).lines().count(), 50);
    });
}

#[test]
fn replies_of_a_pipeline_keep_their_order_with_every_number_of_shards() {
    with_each_number(
        "replies_of_a_pipeline_keep_their_order_with_every_number_of_shards",
        |testbed, shards| {
            for (number, client) in clients(testbed.kernel()).iter_mut().enumerate() {
                let mut bytes = Vec::new();
                for key in 0..200 {
                    let (key, value) = (format!("{number}:{key}"), key.to_string());
                    for words in
                        [&["SET", &key, &value][..], &["GET", &key], &["INCR", &key], &["ECHO", &key]]
                    {
                        bytes.extend(encode(words));
                    }
                }
                client.send_raw(&bytes).expect("it reads");
                for key in 0..200_u64 {
                    let replies: Vec<Reply> = (0..4).map(|_| client.receive().expect("a reply")).collect();
                    assert_eq!(replies[0], Reply::ok(), "{shards}");
                    assert_eq!((replies[1].number(), replies[2].number()), (key, key + 1), "{shards}");
                    assert_eq!(replies[3], bulk(&format!("{number}:{key}")), "{shards}");
                }
            }
        },
    );
}

#[test]
fn transactions_are_atomic_over_all_shards() {
    with_each_number("transactions_are_atomic_over_all_shards", |testbed, shards| {
        let accounts = 8_u64;
        let mut all = clients(testbed.kernel());
        for account in 0..accounts {
            ask(&mut all[0], &format!("SET account:{account} 100"));
        }
        // Transfers between accounts of different shards, while others read all of them.
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let (writers, readers) = all.split_at_mut(CLIENTS / 2);
            let guard = stop.guard();
            for reader in readers {
                let stop = &stop;
                scope.spawn(move || {
                    let keys: Vec<String> =
                        (0..accounts).map(|account| format!("account:{account}")).collect();
                    while !stop.is_set() {
                        let Reply::Array(found) = ask(reader, &format!("MGET {}", keys.join(" "))) else {
                            panic!("no array");
                        };
                        // Balances may be negative.
                        let sum: i64 = found
                            .iter()
                            .map(|value| match value {
                                Reply::Bulk(bytes) => text(bytes).parse::<i64>().expect("a number"),
                                other => panic!("{other:?}"),
                            })
                            .sum();
                        assert_eq!(sum, 100 * accounts as i64, "{shards}");
                    }
                });
            }
            let transfers: Vec<_> = writers
                .iter_mut()
                .enumerate()
                .map(|(number, writer)| {
                    scope.spawn(move || {
                        for round in 0..60 {
                            let (from, to) = ((number + round) % 8, (number + 3 * round + 1) % 8);
                            ask(writer, "MULTI");
                            ask(writer, &format!("DECRBY account:{from} 7"));
                            ask(writer, &format!("INCRBY account:{to} 7"));
                            assert!(
                                matches!(ask(writer, "EXEC"), Reply::Array(replies) if replies.len() == 2)
                            );
                        }
                    })
                })
                .collect();
            transfers.into_iter().for_each(|transfer| transfer.join().expect("every transfer succeeds"));
            drop(guard);
        });
        // A watched key of another shard that changes ends the transaction.
        let (left, right) = all.split_at_mut(1);
        for account in 0..accounts {
            ask(&mut left[0], &format!("WATCH account:{account}"));
            ask(&mut left[0], "MULTI");
            ask(&mut left[0], "INCR unrelated");
            ask(&mut right[0], &format!("INCR account:{account}"));
            assert!(matches!(ask(&mut left[0], "EXEC"), Reply::NilArray | Reply::NilBulk), "{shards}");
        }
        assert_eq!(ask(&mut left[0], "EXISTS unrelated").number(), 0);
    });
}

#[test]
fn blocked_clients_and_subscribers_are_reached_from_every_shard() {
    with_each_number("blocked_clients_and_subscribers_are_reached_from_every_shard", |testbed, shards| {
        let mut waiting = clients(testbed.kernel());
        let mut pushing = clients(testbed.kernel());
        for (number, client) in waiting.iter_mut().enumerate() {
            client.command(&[b"CLIENT", b"SETNAME", format!("waiter:{number}").as_bytes()]).expect("a name");
            let words = format!("BLPOP list:{number} other:{number} 20");
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            client.send(&words).expect("it reads");
        }
        wait_for("all clients to block", || {
            let Reply::Bulk(information) = ask(&mut pushing[0], "INFO clients") else { return None };
            text(&information).contains(&format!("blocked_clients:{CLIENTS}\r\n")).then_some(())
        });
        for (number, client) in pushing.iter_mut().enumerate() {
            assert_eq!(ask(client, &format!("RPUSH list:{number} {number}")).number(), 1, "{shards}");
        }
        for (number, client) in waiting.iter_mut().enumerate() {
            let popped = client.receive().expect("it is served");
            let expected = Reply::Array(vec![bulk(&format!("list:{number}")), bulk(&number.to_string())]);
            assert_eq!(popped, expected, "{shards}");
        }
        for client in &mut waiting {
            assert!(matches!(ask(client, "SUBSCRIBE news"), Reply::Array(_)));
        }
        for (number, client) in pushing.iter_mut().enumerate() {
            assert_eq!(ask(client, &format!("PUBLISH news {number}")).number(), CLIENTS as u64, "{shards}");
        }
        for client in &mut waiting {
            for number in 0..CLIENTS {
                let expected = Reply::Array(vec![bulk("message"), bulk("news"), bulk(&number.to_string())]);
                assert_eq!(client.receive().expect("a message"), expected, "{shards}");
            }
        }
        let Reply::Bulk(list) = ask(&mut pushing[0], "CLIENT LIST") else { panic!("no list") };
        let named = |shard: usize| text(&list).matches(&format!(" shard={shard}\n")).count();
        let shown: usize = (0..shards).map(named).sum();
        assert_eq!(shown, if shards > 1 { 2 * CLIENTS } else { 0 }, "{}", text(&list));
        // Every shard has some of the clients, and the sums have all of them.
        let number = |source: &str, name: &str| {
            let stat: serde_json::Value =
                serde_json::from_slice(&testbed.run(&["stat", "--json"]).stdout).expect("JSON");
            let groups = stat["groups"].as_array()?.clone();
            groups.iter().find(|group| group["source"] == source)?["values"][name].as_u64()
        };
        let all = Some(2 * CLIENTS as u64);
        wait_for("the counters", || (number("kv", "clients") == all).then_some(()));
        let each = || -> Vec<Option<u64>> {
            (0..=shards).map(|shard| number("shards", &format!("{shard}.clients"))).collect()
        };
        if shards > 1 {
            // Each page is published on its own.
            wait_for("those of each shard", || {
                (each().into_iter().flatten().sum::<u64>() == all?).then_some(())
            });
        }
        let each = each();
        match shards {
            1 => assert_eq!(each, [None, None]),
            _ => {
                assert!(
                    each[..shards].iter().all(|clients| clients.is_some_and(|clients| clients > 0)),
                    "{each:?}"
                );
                assert_eq!(each[shards], None);
            }
        }
    });
}

/// What a writer of the next test has done.
#[derive(Default)]
struct Account {
    tried: AtomicU64,
    acknowledged: AtomicU64,
}

#[test]
fn no_acknowledged_write_is_lost_when_a_killed_store_comes_back_with_other_shards() {
    in_own_network("no_acknowledged_write_is_lost_when_a_killed_store_comes_back_with_other_shards", || {
        let testbed = Testbed::new("shards-kill");
        let accounts: Vec<Account> = (0..CLIENTS).map(|_| Account::default()).collect();
        let rounds = crate::number("SIETCH_KILLS", 6);
        let numbers = [2, 5, 1, 3, 4, 2, 1, 5];
        for (round, shards) in (0..rounds).zip(numbers.into_iter().cycle()) {
            let up = up(&testbed, shards, &[]);
            let store = testbed.pids()[2];
            let mut client = Client::connect(testbed.kernel()).expect("it serves");
            for (number, account) in accounts.iter().enumerate() {
                verify(&mut client, number, account, round);
            }
            let before: u64 = acknowledged(&accounts);
            std::thread::scope(|scope| {
                for (number, account) in accounts.iter().enumerate() {
                    let address = testbed.kernel();
                    scope.spawn(move || write(address, number, account));
                }
                wait_for("writes", || (acknowledged(&accounts) > before + 40 * CLIENTS as u64).then_some(()));
                // The supervisor first, which would start the same store again.
                signal(up.pid(), Signal::KILL);
                signal(store, Signal::KILL);
            });
            drop(up);
            wait_for("the end of the store", || {
                (!std::path::Path::new(&format!("/proc/{store}")).exists()).then_some(())
            });
        }
        let up = up(&testbed, 2, &[]);
        let mut client = Client::connect(testbed.kernel()).expect("it serves");
        for (number, account) in accounts.iter().enumerate() {
            verify(&mut client, number, account, rounds);
        }
        up.stop();
    });
}

fn acknowledged(accounts: &[Account]) -> u64 {
    accounts.iter().map(|account| account.acknowledged.load(Ordering::SeqCst)).sum()
}

/// Writes the same number under three keys of different shards, twice in a transaction, until the
/// store is killed.
fn write(address: SocketAddr, number: usize, account: &Account) {
    let Ok(mut client) = Client::connect(address) else { return };
    loop {
        let next = account.tried.load(Ordering::SeqCst) + 1;
        account.tried.store(next, Ordering::SeqCst);
        let lines = [
            format!("SET alone:{number} {next}"),
            "MULTI".to_owned(),
            format!("SET left:{number} {next}"),
            format!("SET right:{number} {next}"),
            "EXEC".to_owned(),
        ];
        for line in lines {
            match client.request(&line) {
                Ok(Reply::Error(cause)) => panic!("{line}: {}", text(&cause)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        account.acknowledged.store(next, Ordering::SeqCst);
    }
}

/// What was acknowledged is there, and no half of a transaction.
fn verify(client: &mut Client, number: usize, account: &Account, round: u64) {
    let [alone, left, right] =
        ["alone", "left", "right"].map(|name| ask(client, &format!("GET {name}:{number}")).number());
    let (least, most) = (account.acknowledged.load(Ordering::SeqCst), account.tried.load(Ordering::SeqCst));
    assert!(least <= alone && alone <= most, "round {round}: {least} <= {alone} <= {most}");
    assert!(least <= left && left <= most && left == right, "round {round}: {least} <= {left} = {right}");
    account.acknowledged.store(alone.min(left), Ordering::SeqCst);
}
