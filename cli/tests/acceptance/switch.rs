//! The store on a port of the software switch, and a client with an engine of its own on another
//! port; `sietch service` runs the switch.

use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::link::{converse, converse_at_length, user};
use crate::testbed::{Testbed, signal, wait_for};

const STORE: &str = "10.91.0.1";
const CLIENT: &str = "10.91.0.2";

/// A testbed with the store and a client on the switch. The service core runs as the test's user.
fn testbed(name: &str) -> Option<Testbed> {
    let user = user();
    let testbed = Testbed::of(name, user);
    if testbed.sietch(&["--version"]).output().is_err() {
        eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
        return None;
    }
    let own = rustix::process::geteuid().as_raw();
    let (store, port) = (user.unwrap_or(own), testbed.port);
    let vnic = |name: &str, uid: u32, address: &str, ports: &str| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nkind = \"switch\"\nuid = {uid}\naddress = \"{address}/24\"\n\
             tcp_ports = [\"{ports}\"]\n\n"
        )
    };
    testbed.configure(&format!(
        "{}{}[[vsa]]\nname = \"store\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [service]\nuid = {store}\n\n[kv]\nuid = {store}\nport = {port}\nvsa = \"store\"\n",
        vnic("kv", store, STORE, &port.to_string()),
        vnic("client", own, CLIENT, "1024-65535"),
    ));
    Some(testbed)
}

/// A service core, once it is registered with the daemon.
fn service(testbed: &Testbed) -> Running {
    let child = testbed.sietch(&["service"]).stderr(Stdio::null()).spawn().expect("start sietch");
    wait_for("the service core", || {
        testbed.try_status().filter(|status| status["daemon"]["service"] == child.id())
    });
    Running(child)
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_store_is_reached_through_the_switch_and_again_after_the_switch_has_ended() {
    let Some(testbed) = testbed("on-switch") else { return };
    let path = |name: &str| testbed.folder.join(name).display().to_string();
    let (config, data) = (path("sietch.toml"), path("data"));
    // The store requests its port when it starts, so daemon and switch run before it.
    let mut daemon = testbed.sietch(&["daemon", "--config", &config, "--data", &data]);
    let mut daemon = Running(daemon.stderr(Stdio::null()).spawn().expect("start sietch"));
    wait_for("the daemon", || testbed.try_status());
    let switch = service(&testbed);
    let up = testbed.up(&["--net", "af_xdp"]);
    let first = up.banner.lines().next().expect("a line");
    assert!(first.contains(&format!("shm VNIC kv {STORE}")) && first.contains("broker-mediated"), "{first}");
    converse_at_length(&testbed, STORE);
    // The end of a client does not change the store's port.
    assert_eq!(converse(&testbed, STORE, "INCR rounds\r\n", 4), ":1\r\n");
    // The store loses its port with the switch, and requests one until there is a switch again.
    drop(switch);
    wait_for("the port to end", || {
        let status = testbed.status();
        let vnics = status["daemon"]["vnics"].as_array().expect("a list").clone();
        vnics.iter().find(|vnic| vnic["name"] == "kv").filter(|vnic| vnic["holder"].is_null()).map(drop)
    });
    let switch = service(&testbed);
    wait_for("the store on the new switch", || {
        let status = testbed.status();
        let vnics = status["daemon"]["vnics"].as_array().expect("a list").clone();
        vnics.iter().find(|vnic| vnic["name"] == "kv").filter(|vnic| !vnic["holder"].is_null()).map(drop)
    });
    assert_eq!(converse(&testbed, STORE, "INCR rounds\r\n", 4), ":2\r\n");
    up.stop();
    drop(switch);
    signal(i64::from(daemon.0.id()), Signal::TERM);
    assert!(daemon.0.wait().expect("wait").success());
}
