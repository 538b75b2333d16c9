//! `kill -9` of the store under fifty writing connections: no acknowledged write is lost.
//!
//! 1. Each writer has keys of its own and writes increasing numbers: SET, INCR and RPUSH. Half of
//!    the writers use the VNIC, half 127.0.0.1.
//! 2. A number is *tried* before it is sent and *acknowledged* when its reply has come. A number
//!    that was tried and not acknowledged may or may not be there.
//! 3. The test kills the store at a random moment, records the acknowledged numbers, waits for the
//!    new store and reads. Each value is between the acknowledged and the tried one.
//! 4. At the end every list has all acknowledged numbers, each once and in order.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, Reply, Stop};
use crate::testbed::{Testbed, in_own_network, signal, wait_for};

const WRITERS: usize = 50;

/// The expected keys of one writer.
#[derive(Default)]
struct Account {
    /// The largest number tried, for all three keys.
    tried: AtomicU64,
    /// Acknowledged by SET.
    set: AtomicU64,
    /// The largest reply of INCR.
    incremented: AtomicU64,
    /// INCRs sent.
    increments: AtomicU64,
    /// The largest reply of RPUSH: the length of the list.
    pushed: AtomicU64,
}

/// Writes until it is stopped, on as many connections as necessary. Returns the numbers whose RPUSH
/// was acknowledged.
fn write(address: SocketAddr, index: usize, account: &Account, stop: &Stop) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    while !stop.is_set() {
        match write_on_one_connection(address, index, account, stop, &mut acknowledged) {
            Ok(()) => break,
            // The store was killed.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    acknowledged
}

fn write_on_one_connection(
    address: SocketAddr,
    index: usize,
    account: &Account,
    stop: &Stop,
    acknowledged: &mut Vec<u64>,
) -> io::Result<()> {
    let mut client = Client::connect_with(address, Duration::from_secs(2))?;
    let expect = |reply: Reply| match reply {
        error @ Reply::Error(_) => panic!("writer {index}: {error}"),
        other => other,
    };
    while !stop.is_set() {
        let number = account.tried.load(Ordering::Relaxed) + 1;
        account.tried.store(number, Ordering::SeqCst);
        expect(client.request(&format!("SET set:{index} {number}"))?);
        account.set.store(number, Ordering::SeqCst);
        account.increments.fetch_add(1, Ordering::SeqCst);
        let reply = expect(client.request(&format!("INCR incr:{index}"))?).number();
        account.incremented.store(reply, Ordering::SeqCst);
        let reply = expect(client.request(&format!("RPUSH list:{index} {number}"))?).number();
        acknowledged.push(number);
        account.pushed.store(reply, Ordering::SeqCst);
    }
    Ok(())
}

/// Reads everything back while the writers continue: at least what was acknowledged before, at most
/// what was tried.
fn verify(client: &mut Client, accounts: &[Account], round: u64) {
    for (index, account) in accounts.iter().enumerate() {
        let [set, incremented, pushed] =
            [&account.set, &account.incremented, &account.pushed].map(|cell| cell.load(Ordering::SeqCst));
        let mut read = |words: String| client.request(&words).expect("the store is back").number();
        let found = [
            read(format!("GET set:{index}")),
            read(format!("GET incr:{index}")),
            read(format!("LLEN list:{index}")),
        ];
        let least = [set, incremented, pushed];
        let most =
            [&account.tried, &account.increments, &account.tried].map(|cell| cell.load(Ordering::SeqCst));
        for key in 0..3 {
            assert!(
                least[key] <= found[key] && found[key] <= most[key],
                "kill {round}, writer {index}, key {key}: found {}, acknowledged {}, tried {}",
                found[key],
                least[key],
                most[key]
            );
        }
    }
}

/// Every acknowledged number is in the list, and the list is in order.
fn verify_list(client: &mut Client, index: usize, acknowledged: &[u64]) {
    let Reply::Array(list) = client.request(&format!("LRANGE list:{index} 0 -1")).unwrap() else {
        panic!("no list")
    };
    let list: Vec<u64> = list.iter().map(Reply::number).collect();
    assert!(list.is_sorted_by(|left, right| left < right), "writer {index}: {list:?}");
    for number in acknowledged {
        assert!(list.binary_search(number).is_ok(), "writer {index}: {number} is lost");
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_the_store_is_killed() {
    in_own_network("no_acknowledged_write_is_lost_when_the_store_is_killed", || {
        let kills = crate::number("SIETCH_KILLS", 10);
        let testbed = Testbed::new("kill-store");
        let up = testbed.up(&[]);
        let accounts: Vec<Account> = (0..WRITERS).map(|_| Account::default()).collect();
        let stop = Stop::default();
        let lists: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let guard = stop.guard();
            let writers: Vec<_> = accounts
                .iter()
                .enumerate()
                .map(|(index, account)| {
                    let address = if index % 2 == 0 { testbed.vnic() } else { testbed.kernel() };
                    let stop = &stop;
                    scope.spawn(move || write(address, index, account, stop))
                })
                .collect();
            let mut moment = 0x9e37_79b9_u64 ^ u64::from(std::process::id());
            for round in 1..=kills {
                // Some of every writer's work is in flight before the kill.
                let before: u64 = accounts.iter().map(|account| account.pushed.load(Ordering::SeqCst)).sum();
                wait_for("writers", || {
                    let now: u64 = accounts.iter().map(|account| account.pushed.load(Ordering::SeqCst)).sum();
                    (now > before + WRITERS as u64).then_some(())
                });
                moment = moment.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                std::thread::sleep(Duration::from_millis((moment >> 33) % 200));
                let store = testbed.pids()[2];
                signal(store, Signal::KILL);
                let mut client = wait_for("the store", || {
                    let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(10)).ok()?;
                    client.request("PING").ok().map(|_| client)
                });
                verify(&mut client, &accounts, round);
            }
            drop(guard);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let mut client = Client::connect(testbed.vnic()).unwrap();
        lists.iter().enumerate().for_each(|(index, list)| verify_list(&mut client, index, list));
        let writes: usize = lists.iter().map(Vec::len).sum();
        eprintln!("{kills} kills, {} acknowledged writes, none lost", 3 * writes);
        // Its output is not read meanwhile, and a pipe has room for some hundred lines.
        let reported = usize::try_from(kills.min(400)).unwrap();
        assert!(up.stop().matches("starting it again").count() >= reported);
    });
}

#[test]
fn a_store_is_restarted_while_the_output_of_up_is_not_read() {
    in_own_network("a_store_is_restarted_while_the_output_of_up_is_not_read", || {
        let testbed = Testbed::new("unread");
        let (_reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while rustix::io::write(&writer, &[b'.'; 4096]).is_ok() {}
        // `up` itself would wait.
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let mut command = testbed.up_command(&["--net", "linux"]);
        command.stdout(std::process::Stdio::null()).stderr(writer);
        let mut up = command.spawn().expect("start sietch");
        let query = || {
            let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(10)).ok()?;
            client.request("PING").ok()
        };
        wait_for("the store", query);
        let store = testbed.pids()[2];
        signal(store, Signal::KILL);
        wait_for("another store", || {
            let status = testbed.try_status()?;
            status["instance"]["store"].as_i64().filter(|pid| *pid != store)
        });
        wait_for("it to answer", query);
        signal(i64::from(up.id()), Signal::INT);
        assert!(up.wait().expect("wait").success());
    });
}
