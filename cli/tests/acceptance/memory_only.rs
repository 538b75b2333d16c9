//! `--durability none`: the store keeps no log, needs no area, and reports that.

use rustix::process::Signal;

use crate::client::{Client, Reply};
use crate::testbed::{Testbed, in_own_network, signal, text, wait_for};

fn information(client: &mut Client) -> String {
    match client.request("INFO persistence").expect("an answer") {
        Reply::Bulk(bytes) => text(&bytes),
        other => panic!("{other:?}"),
    }
}

fn is_missing(client: &mut Client, key: &str) -> bool {
    client.request(&format!("GET {key}")).expect("an answer") == Reply::NilBulk
}

#[test]
fn a_store_without_a_log_serves_on_all_transports_needs_no_area_and_keeps_nothing() {
    in_own_network("a_store_without_a_log_serves_on_all_transports_needs_no_area_and_keeps_nothing", || {
        let testbed = Testbed::new("without-log");
        let all = testbed.configuration();
        let area = all.find("[[vsa]]").expect("an area");
        let store = all.find("[kv]").expect("a store");
        testbed.configure(&format!("{}{}durability = \"none\"\n", &all[..area], &all[store..]));
        let up = testbed.up(&[]);
        for line in ["storage:    none: every key is lost", "durability: none"] {
            assert!(up.banner.contains(line), "{line} is not in {}", up.banner);
        }
        assert!(text(&testbed.run(&["status"]).stdout).contains("durability none"));
        assert!(!testbed.area().exists());
        let mut client = Client::connect(testbed.vnic()).expect("the VNIC answers");
        assert_eq!(client.request("SET spice flows").expect("an answer"), Reply::ok());
        let mut kernel = Client::connect(testbed.kernel()).expect("the kernel socket answers");
        assert_eq!(kernel.request("GET spice").expect("an answer"), Reply::Bulk(b"flows".to_vec()));
        let printed = information(&mut kernel);
        for line in ["durability:none\r\n", "keys_outlive_process:0\r\n", "aof_enabled:0\r\n"] {
            assert!(printed.contains(line), "{line:?} is not in {printed}");
        }
        let reply = kernel.request("BGREWRITEAOF").expect("an answer");
        assert!(reply.error().contains("--durability none"), "{reply:?}");
        let [_, _, pid] = testbed.pids();
        signal(pid, Signal::KILL);
        let mut again = wait_for("the store to come again", || {
            let mut client = Client::connect(testbed.kernel()).ok()?;
            client.request("PING").ok().map(|_| client)
        });
        assert!(is_missing(&mut again, "spice"));
        up.stop();
    });
}

#[test]
fn a_store_without_a_log_leaves_an_area_unchanged() {
    in_own_network("a_store_without_a_log_leaves_an_area_unchanged", || {
        let testbed = Testbed::new("left-alone");
        let up = testbed.up(&["--net", "linux"]);
        let mut client = Client::connect(testbed.kernel()).expect("it serves");
        assert_eq!(client.request("SET kept 1").expect("an answer"), Reply::ok());
        assert!(information(&mut client).contains("keys_outlive_process:1\r\n"));
        up.stop();
        let up = testbed.up(&["--net", "linux", "--durability", "none"]);
        let mut client = Client::connect(testbed.kernel()).expect("it serves");
        assert!(is_missing(&mut client, "kept"));
        assert_eq!(client.request("SET lost 1").expect("an answer"), Reply::ok());
        up.stop();
        let up = testbed.up(&["--net", "linux"]);
        let mut client = Client::connect(testbed.kernel()).expect("it serves");
        assert_eq!(client.request("GET kept").expect("an answer").number(), 1);
        assert!(is_missing(&mut client, "lost"));
        up.stop();
    });
}
