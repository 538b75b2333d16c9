//! The daemon is killed under load, and no client sees an error. Its successor has every grant and
//! can revoke it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Client, Reply, Stop, answers, load};
use crate::testbed::{Testbed, in_own_network, signal, text, wait_for};

/// The last reply has arrived within this time of the command's return.
const REVOKED_WITHIN: Duration = Duration::from_millis(100);

/// A gap between replies that a user would notice. The machine's own pauses are shorter.
const STALL: Duration = Duration::from_secs(2);

/// Grant and generation of the VNIC and of the area.
fn grants(status: &serde_json::Value) -> Option<[(u64, u64); 2]> {
    let of = |holder: &serde_json::Value| Some((holder["grant"].as_u64()?, holder["generation"].as_u64()?));
    let vnics = status["daemon"]["vnics"].as_array()?;
    let vnic = vnics.iter().find(|vnic| vnic["name"] == "kv")?;
    Some([of(&vnic["holder"])?, of(&status["daemon"]["vsas"][0]["holder"])?])
}

/// Sends requests until no reply comes; returns the time of the last one.
fn last_reply(mut client: Client, stop: &Stop) -> Instant {
    let mut last = Instant::now();
    while client.request("PING").is_ok() {
        last = Instant::now();
        assert!(!stop.is_set(), "the VNIC still answers");
    }
    last
}

fn the_daemon_dies_under_load(testbed: &Testbed) {
    let stop = Stop::default();
    let before = grants(&testbed.status()).expect("held");
    std::thread::scope(|scope| {
        let guard = stop.guard();
        let loads: Vec<_> = (0..8)
            .map(|index| {
                let address = if index % 2 == 0 { testbed.vnic() } else { testbed.kernel() };
                let stop = &stop;
                scope.spawn(move || load(address, &format!("daemon-{index}"), stop))
            })
            .collect();
        for _ in 0..3 {
            let daemon = testbed.pids()[0];
            signal(daemon, Signal::KILL);
            let after = wait_for("the daemon", || {
                let status = testbed.try_status()?;
                // The store registers its grants with the new daemon asynchronously.
                let connected = status["daemon"]["vsas"][0]["holder"]["connected"] == true;
                (connected && status["daemon"]["pid"].as_i64() != Some(daemon)).then_some(status)
            });
            assert_eq!(grants(&after), Some(before), "{after}");
        }
        drop(guard);
        for load in loads {
            let seen = load.join().expect("no client sees an error");
            eprintln!("{} replies, the slowest pair in {:?}", seen.replies, seen.longest);
            assert!(seen.replies > 0 && seen.longest < STALL, "{seen:?}");
        }
    });
}

fn a_revoked_vnic_is_silent_at_once(testbed: &Testbed) {
    let stop = Stop::default();
    let connect = || Client::connect_with(testbed.vnic(), Duration::from_secs(1)).ok();
    let mut client = wait_for("the client", connect);
    assert_eq!(client.request("PING").expect("a reply"), Reply::Simple(b"PONG".to_vec()));
    std::thread::scope(|scope| {
        let guard = stop.guard();
        let requests = scope.spawn(|| last_reply(client, &stop));
        let start = Instant::now();
        let output = testbed.run(&["revoke", "kv"]);
        let returned = Instant::now();
        assert!(output.status.success(), "{output:?}");
        std::thread::sleep(REVOKED_WITHIN * 5);
        drop(guard);
        let last = requests.join().expect("silence");
        eprintln!(
            "revoke took {:?}; the last reply came {:?} after its start",
            returned - start,
            last.saturating_duration_since(start)
        );
        assert!(last < returned + REVOKED_WITHIN, "a reply came {:?} later", last - returned);
    });
}

#[test]
fn clients_do_not_notice_a_killed_daemon_and_its_successor_revokes() {
    in_own_network("clients_do_not_notice_a_killed_daemon_and_its_successor_revokes", || {
        let testbed = Testbed::new("kill-daemon");
        let up = testbed.up(&[]);
        the_daemon_dies_under_load(&testbed);
        a_revoked_vnic_is_silent_at_once(&testbed);
        assert!(answers(testbed.kernel()), "the store still serves on kernel sockets");
        assert!(!answers(testbed.vnic()));
        let vnic = || testbed.status()["daemon"]["vnics"][0].clone();
        assert!(vnic()["revoked"] == true && vnic()["holder"].is_null(), "{}", vnic());

        // A new store is refused too, until the VNIC is restored.
        let restart = || {
            signal(testbed.pids()[2], Signal::KILL);
            wait_for("the store", || answers(testbed.kernel()).then_some(()));
        };
        restart();
        assert!(!answers(testbed.vnic()));
        let output = testbed.run(&["restore", "kv"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        restart();
        assert!(answers(testbed.vnic()), "{}", testbed.status());
        up.stop();
    });
}
