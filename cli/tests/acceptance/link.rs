//! The store on one end of a link, a client with an engine of its own on the other: no root, and no
//! kernel network in between.

use std::net::{IpAddr, SocketAddr};

use crate::testbed::{Testbed, wait_for};

/// Everything runs as this user if root runs the test.
const UNPRIVILEGED: u32 = 65534;

const STORE: &str = "10.90.0.1";
const STORE6: &str = "fd90::1";

/// The user that runs everything, if not the user that runs the test.
pub(crate) fn user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(UNPRIVILEGED)
}

fn testbed(name: &str) -> Option<Testbed> {
    let (own, user) = (rustix::process::geteuid(), user());
    let testbed = Testbed::of(name, user);
    if testbed.sietch(&["--version"]).output().is_err() {
        eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
        return None;
    }
    let (store, client, port) = (user.unwrap_or(own.as_raw()), own.as_raw(), testbed.port);
    testbed.configure(&format!(
        "[[link]]\nname = \"pair\"\n\
         [[link.end]]\nname = \"kv\"\nuid = {store}\naddress = \"{STORE}/24\"\naddress6 = \"{STORE6}/64\"\n\
         [[link.end]]\nname = \"client\"\nuid = {client}\naddress = \"10.90.0.2/24\"\naddress6 = \"fd90::2/64\"\n\n\
         [[vsa]]\nname = \"store\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [kv]\nuid = {store}\nport = {port}\nvsa = \"store\"\n"
    ));
    Some(testbed)
}

/// Acquires the VNIC `client`, sends the requests, and ends. Returns the replies, one after the
/// other.
pub(crate) fn converse(testbed: &Testbed, store: &str, requests: &str, replies: usize) -> String {
    let mut client = sietch::Client::connect(&testbed.socket(), "acceptance").expect("the daemon is there");
    // The daemon may not yet know that the previous peer has ended.
    let vnic = wait_for("the client's end of the link", || client.acquire_vnic("client").ok());
    let config = vnic.engine_config([7; 16]);
    let grants = vec![vnic.grant];
    let held = sietch::HeldGrants { grants, lease: client.hold().expect("a thread is left") };
    let runtime = sietch::Runtime::new(vnic.queue, &config).expect("descriptors are left").with_grants(held);
    let store: IpAddr = store.parse().expect("an address");
    let remote = SocketAddr::from((store, testbed.port));
    let requests = requests.to_owned();
    let conversation = runtime.run(async move |net| {
        let mut stream = net.connect(remote).await.expect("the store listens");
        stream.write_all(requests.as_bytes()).await.expect("it is open");
        let mut printed = vec![0; replies];
        stream.read_exact(&mut printed).await.expect("it answers");
        String::from_utf8(printed).expect("it is text")
    });
    conversation.expect("the link is whole")
}

/// Sends and requests data of many segments.
pub(crate) fn converse_at_length(testbed: &Testbed, store: &str) {
    let large = "x".repeat(100_000);
    let reply = format!("+OK\r\n${}\r\n{large}\r\n", large.len());
    let request = format!("*3\r\n$3\r\nSET\r\n$5\r\nspice\r\n${}\r\n{large}\r\nGET spice\r\n", large.len());
    let printed = converse(testbed, store, &request, reply.len());
    assert!(printed == reply, "{} bytes, beginning {:?}", printed.len(), &printed[..40.min(printed.len())]);
}

#[test]
fn the_store_serves_on_a_link_and_its_next_peer_finds_it_again() {
    let Some(testbed) = testbed("link") else { return };
    let up = testbed.up(&["--net", "af_xdp"]);
    let first = up.banner.lines().next().expect("a line");
    assert!(first.contains(&format!("shm VNIC kv {STORE}")) && first.contains("point-to-point"), "{first}");
    assert!(up.banner.contains(&format!("[{STORE6}]:{}", testbed.port)), "{}", up.banner);
    converse_at_length(&testbed, STORE);
    // That peer has ended, and the link with it; the next one gets a fresh link.
    for (round, store) in [STORE, STORE6, STORE].into_iter().enumerate() {
        let printed = converse(&testbed, store, "INCR rounds\r\n", 4);
        assert_eq!(printed, format!(":{}\r\n", round + 1), "at {store}");
    }
    up.stop();
    // The same without a log: none of the old data is seen.
    let up = testbed.up(&["--net", "af_xdp", "--durability", "none"]);
    assert_eq!(converse(&testbed, STORE, "INCR rounds\r\n", 4), ":1\r\n");
    up.stop();
}

/// The store's log after a start that listens on the kernel's `listen`, with this password.
fn log_of_a_start(listen: &str, password: Option<&str>) -> Option<String> {
    let testbed = testbed("warned")?;
    let mut command = testbed.up_command(&["--net", "af_xdp", "--listen", listen]);
    command.env_remove("SIETCH_KV_PASSWORD_FILE");
    if let Some(password) = password {
        let file = testbed.folder.join("password");
        std::fs::write(&file, password).expect("a folder of the test's own");
        command.env("SIETCH_KV_PASSWORD_FILE", file);
    }
    let up = testbed.up_by(command);
    assert!(up.banner.contains("shm VNIC kv") && up.banner.contains(listen), "{}", up.banner);
    up.stop();
    Some(testbed.log("kv.log"))
}

#[test]
fn a_store_warns_of_a_vnic_without_a_password_and_of_an_address_that_others_reach() {
    const OPEN_VNIC: &str = "the VNIC serves without a password";
    const OPEN_ADDRESS: &str = "the store listens on 0.0.0.0:";
    let Some(log) = log_of_a_start("127.0.0.1", None) else { return };
    assert!(log.contains(OPEN_VNIC) && !log.contains("the store listens on"), "{log}");
    let log = log_of_a_start("0.0.0.0", Some("secret")).expect("the same user");
    assert!(!log.contains(OPEN_VNIC) && log.contains(OPEN_ADDRESS), "{log}");
}
