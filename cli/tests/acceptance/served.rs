//! A VNIC that the service core serves to an unmodified program: redis-server on it, redis-cli and redis-benchmark on the kernel's side.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::place::{Place, has, in_own_network, signal, text, wait_for};

const ADDRESS: &str = "10.85.0.2";
const PORT: &str = "6380";

/// Ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn place(name: &str) -> Place {
    let place = Place::new(name);
    place.configure(&format!(
        "{}\n[[vnic]]\nname = \"web\"\nuid = 0\naddress = \"{ADDRESS}/24\"\nhost_address = \"10.85.0.1\"\n\
         tcp_ports = [\"{PORT}\", \"30000-40000\"]\nserved = true\n",
        place.configuration().split("[[vsa]]").next().unwrap_or_default().to_owned()
            + "[[vsa]]"
            + place.configuration().split("[[vsa]]").nth(1).unwrap_or_default()
    ));
    place
}

fn serve(place: &Place) -> Server {
    let mut command =
        place.sietch(&["run", "--vnic", "web", "--", "redis-server", "--port", PORT, "--save", ""]);
    command.args(["--protected-mode", "no"]).stdout(Stdio::null()).stderr(Stdio::inherit());
    Server(command.spawn().expect("start sietch run"))
}

fn ask(words: &[&str]) -> Option<String> {
    let output = Command::new("redis-cli").args(["-h", ADDRESS, "-p", PORT]).args(words).output().ok()?;
    output
        .status
        .success()
        .then(|| text(&output.stdout).trim().to_owned())
        .filter(|said| !said.contains("refused"))
}

#[test]
fn an_unmodified_server_lives_on_a_vnic() {
    let name = "an_unmodified_server_lives_on_a_vnic";
    if !has(name, "redis-cli") || !has(name, "redis-server") {
        return;
    }
    in_own_network(name, || {
        let place = place("served");
        let up = place.up(&["--net", "af_xdp"]);
        let server = serve(&place);
        wait_for("redis on the VNIC", || ask(&["ping"]).filter(|said| said == "PONG"));
        assert_eq!(ask(&["set", "key", "value"]).as_deref(), Some("OK"));
        let large = "x".repeat(300_000);
        assert_eq!(ask(&["set", "large", &large[..100_000]]).as_deref(), Some("OK"));
        assert_eq!(ask(&["get", "large"]).map(|said| said.len()), Some(100_000));
        let load = Command::new("redis-benchmark")
            .args(["-h", ADDRESS, "-p", PORT, "-n", "20000", "-c", "50", "-t", "set,get,lrange_100", "-q"])
            .output()
            .expect("start redis-benchmark");
        assert!(load.status.success() && !text(&load.stdout).contains("rror"), "{load:?}");
        eprintln!("{}", text(&load.stdout).replace('\r', "\n"));
        // The service core says what it does.
        let top = text(&place.run(&["top", "--once", "--json"]).stdout);
        assert!(top.contains("\"vnic\":\"web\"") && top.contains("\"threads\":{\"0\""), "{top}");
        // Another cannot have the port; a killed program frees it, and resets who is connected.
        let mut client = Command::new("redis-cli")
            .args(["-h", ADDRESS, "-p", PORT, "blpop", "nothing", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start redis-cli");
        wait_for("a client that waits", || ask(&["client", "list"]).filter(|said| said.contains("blpop")));
        signal(i64::from(server.0.id()), Signal::KILL);
        drop(server);
        assert!(!client.wait().expect("it ends").success() || ask(&["ping"]).is_none());
        let again = serve(&place);
        wait_for("redis on the VNIC again", || ask(&["ping"]).filter(|said| said == "PONG"));
        // Taken back: the program's connections end, and it goes on.
        let revoked = place.run(&["revoke", "web"]);
        assert!(revoked.status.success(), "{revoked:?}");
        wait_for("the VNIC to be gone", || ask(&["ping"]).is_none().then_some(()));
        drop(again);
        up.stop();
    });
}
