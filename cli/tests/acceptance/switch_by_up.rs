//! The store behind the software switch that `sietch up` starts: both families, counters, and the
//! death of the service core.

use std::net::{IpAddr, SocketAddr};

use rustix::process::Signal;

use crate::testbed::{STORE_USER, Testbed, signal, wait_for};

const STORE: &str = "10.91.0.1";
const STORE6: &str = "fd91::1";

fn testbed(name: &str) -> Testbed {
    let testbed = Testbed::new(name);
    let own = rustix::process::geteuid().as_raw();
    let store = if own == 0 { STORE_USER } else { own };
    let port = testbed.port;
    testbed.configure(&format!(
        "[[vnic]]\nname = \"kv\"\nkind = \"switch\"\nuid = {store}\naddress = \"{STORE}/24\"\naddress6 = \"{STORE6}/64\"\n\
         tcp_ports = [\"{port}\"]\n\
         [[vnic]]\nname = \"client\"\nkind = \"switch\"\nuid = {own}\naddress = \"10.91.0.2/24\"\n\
         address6 = \"fd91::2/64\"\ntcp_ports = [\"1024-65535\"]\n\n\
         [[vsa]]\nname = \"store\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [kv]\nuid = {store}\nport = {port}\nvsa = \"store\"\n\n[service]\nuid = {service}\n",
        service = if own == 0 { 61871 } else { own },
    ));
    testbed
}

/// Connects from the client's port, sends a request and returns the reply. `None` if there is no
/// port or no route yet.
fn try_converse(testbed: &Testbed, store: &str, request: &str, reply: usize) -> Option<String> {
    let mut client = sietch::Client::connect(&testbed.socket(), "acceptance").expect("the daemon is there");
    let vnic = client.acquire_vnic("client").ok()?;
    let config = vnic.engine_config([7; 16]);
    let grants = vec![vnic.grant];
    let held = sietch::HeldGrants { grants, lease: client.hold().expect("a thread is left") };
    let runtime = sietch::Runtime::new(vnic.queue, &config).expect("descriptors are left").with_grants(held);
    let store: IpAddr = store.parse().expect("an address");
    let remote = SocketAddr::from((store, testbed.port));
    let request = request.to_owned();
    let conversation = runtime.run(async move |net| {
        let mut stream = net.connect(remote).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut printed = vec![0; reply];
        stream.read_exact(&mut printed).await.ok()?;
        String::from_utf8(printed).ok()
    });
    conversation.ok().flatten()
}

/// The same, as soon as it works.
fn converse(testbed: &Testbed, store: &str, request: &str, reply: usize) -> String {
    wait_for("an answer over the switch", || try_converse(testbed, store, request, reply))
}

fn counter(testbed: &Testbed, vnic: &str, name: &str) -> Option<u64> {
    let stat: serde_json::Value = serde_json::from_slice(&testbed.run(&["stat", "--json"]).stdout).ok()?;
    let source = format!("vnic {vnic}");
    let group = stat["groups"].as_array()?.iter().find(|group| group["source"] == source.as_str())?.clone();
    group["values"][name].as_u64()
}

#[test]
fn up_starts_the_switch_and_starts_it_again_when_it_dies() {
    let testbed = testbed("switched");
    let up = testbed.up(&["--net", "af_xdp"]);
    assert!(up.banner.contains(&format!("shm VNIC kv {STORE}")), "{}", up.banner);
    assert!(up.banner.contains("(broker-mediated)") && up.banner.contains("\nservice:"), "{}", up.banner);
    assert_eq!(converse(&testbed, STORE, "SET a 1\r\n", 5), "+OK\r\n");
    // Neighbours are found through the switch: the client requests an address for which only the
    // store may answer.
    assert_eq!(converse(&testbed, STORE6, "GET a\r\n", 7), "$1\r\n1\r\n");
    // The core publishes its counters periodically.
    for (name, least) in [("transmitted.frames", 3), ("received.bytes", 201)] {
        wait_for("the counters", || counter(&testbed, "kv", name).filter(|value| *value >= least));
    }
    assert_eq!(counter(&testbed, "kv", "transmitted.dropped.address"), Some(0));
    // The client has ended, and its counters were removed.
    wait_for("the client's port to end", || {
        counter(&testbed, "client", "received.frames").is_none().then_some(())
    });

    let pids = testbed.pids();
    let service = testbed.status()["daemon"]["service"].as_i64().expect("a service core");
    signal(service, Signal::KILL);
    wait_for("another service core", || {
        testbed.try_status()?["daemon"]["service"].as_i64().filter(|pid| *pid != service)
    });
    assert_eq!(converse(&testbed, STORE6, "GET a\r\n", 7), "$1\r\n1\r\n");
    assert_eq!(converse(&testbed, STORE, "GET a\r\n", 7), "$1\r\n1\r\n");
    assert_eq!(testbed.pids(), pids, "neither store nor daemon was restarted");
    let printed = up.stop();
    assert!(printed.contains("the service core ended"), "{printed}");
}

#[test]
fn a_reload_may_add_the_first_vnic_of_the_switch() {
    let testbed = Testbed::new("core-later");
    let own = rustix::process::geteuid().as_raw();
    let up = testbed.up(&["--net", "linux"]);
    let core = testbed.status()["daemon"]["service"].as_i64();
    assert!(core.is_some(), "programs under `sietch run` need one always");
    let service = if own == 0 { 61871 } else { own };
    testbed.configure(&format!(
        "{}\n[[vnic]]\nname = \"late\"\nkind = \"switch\"\nuid = {own}\naddress = \"10.91.0.2/24\"\n\n[service]\nuid = {service}\n",
        testbed.configuration()
    ));
    let pids = testbed.pids();
    assert!(testbed.run(&["reload"]).status.success());
    assert_eq!(
        (testbed.pids(), testbed.status()["daemon"]["service"].as_i64()),
        (pids, core),
        "nothing was restarted"
    );
    up.stop();
}
