//! The store on a raw volume, which only the service core can open: `kill -9` of the store, of the
//! core and of the daemon loses nothing that was acknowledged.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, Reply};
use crate::testbed::{STORE_USER, Testbed, signal, wait_for};

fn testbed(name: &str) -> Testbed {
    let testbed = Testbed::new(name);
    let own = rustix::process::geteuid().as_raw();
    let (store, service) = if own == 0 { (STORE_USER, 61_871) } else { (own, own) };
    let (port, path) = (testbed.port, testbed.folder.join("volume.img"));
    testbed.configure(&format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"96MiB\"\n\n\
         [[vsa]]\nname = \"store\"\nvolume = \"raw\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [kv]\nuid = {store}\nport = {port}\nvsa = \"store\"\n\n[service]\nuid = {service}\n",
        path.display()
    ));
    testbed
}

/// Writes until a write is refused or lost; returns the last acknowledged number.
fn write_until_it_breaks(testbed: &Testbed, from: u64) -> u64 {
    let mut acknowledged = from;
    let Ok(mut client) = Client::connect_with(testbed.kernel(), Duration::from_secs(5)) else { return from };
    loop {
        match client.request(&format!("SET counter {}", acknowledged + 1)) {
            Ok(Reply::Simple(_)) => acknowledged += 1,
            _ => return acknowledged,
        }
    }
}

/// The value in the store, as soon as it answers and takes writes.
fn counter(testbed: &Testbed) -> u64 {
    wait_for("the store", || {
        let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(5)).ok()?;
        let found = client.request("GET counter").ok()?;
        // A store without its area refuses writes until it is restarted.
        let writes = client.request("SET probe 1").ok()?;
        matches!(writes, Reply::Simple(_)).then(|| found.number())
    })
}

fn counted(testbed: &Testbed, name: &str) -> Option<u64> {
    let stat: serde_json::Value = serde_json::from_slice(&testbed.run(&["stat", "--json"]).stdout).ok()?;
    let groups = stat["groups"].as_array()?;
    groups.iter().find(|group| group["source"] == "vsa /raw/store")?["values"][name].as_u64()
}

#[test]
fn the_store_on_a_raw_volume_outlives_store_core_and_daemon() {
    let testbed = testbed("brokered");
    let up = testbed.up(&["--net", "linux"]);
    let status = testbed.status();
    let area = &status["daemon"]["vsas"][0];
    assert_eq!(
        (&area["name"], &area["protection"]),
        (&"/raw/store".into(), &"broker-mediated".into()),
        "{area}"
    );
    let mut acknowledged = 0;
    for victim in ["store", "service core", "daemon", "service core", "store"] {
        let before = testbed.status();
        let [daemon, _, store] = testbed.pids();
        let core = before["daemon"]["service"].as_i64().expect("a service core");
        let from = acknowledged;
        acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_it_breaks(&testbed, from));
            wait_for("writes", || counted(&testbed, "writes").filter(|writes| *writes > 0));
            std::thread::sleep(Duration::from_millis(100));
            signal(
                if victim == "store" {
                    store
                } else if victim == "daemon" {
                    daemon
                } else {
                    core
                },
                Signal::KILL,
            );
            if victim == "daemon" {
                // The store is not affected: the writer is ended later, with the store's
                // connection.
                wait_for("the daemon", || {
                    let status = testbed.try_status()?;
                    let served = status["daemon"]["service"].as_i64() == Some(core);
                    (served && status["daemon"]["pid"].as_i64() != Some(daemon)).then_some(())
                });
                assert_eq!(testbed.pids()[2], store, "the store was not restarted");
                signal(store, Signal::KILL);
            }
            writer.join().expect("no panic")
        });
        let found = counter(&testbed);
        assert!(found == acknowledged || found == acknowledged + 1, "{victim}: {found} of {acknowledged}");
        acknowledged = found;
    }
    assert!(acknowledged > 0);
    let printed = up.stop();
    assert!(printed.matches("starting it again").count() >= 5, "{printed}");
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start sietch"))
    }

    /// The same, with its output in a file.
    fn with_output_in(mut command: Command, file: &Path) -> Self {
        let file = std::fs::File::create(file).expect("a folder of the test's own");
        Self(command.stdout(Stdio::null()).stderr(file).spawn().expect("start sietch"))
    }

    fn signal(&self, kind: Signal) {
        signal(i64::from(self.0.id()), kind);
    }

    /// Its exit status and output.
    fn ended(mut self) -> (ExitStatus, String) {
        let status = wait_for("its end", || self.0.try_wait().expect("our child"));
        let mut printed = String::new();
        if let Some(pipe) = &mut self.0.stderr {
            std::io::Read::read_to_string(pipe, &mut printed).expect("text");
        }
        (status, printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Daemon, service core and store, each started by the test.
struct Alone {
    _daemon: Running,
    testbed: Testbed,
}

impl Alone {
    fn start(name: &str) -> Self {
        let testbed = testbed(name);
        let (config, data) = (testbed.folder.join("sietch.toml"), testbed.folder.join("data"));
        std::fs::create_dir_all(testbed.folder.join("run")).expect("a folder");
        let (config, data) = (config.display().to_string(), data.display().to_string());
        let line = ["daemon", "--config", &config, "--data", &data, "--without-network"];
        let daemon = Running::start(testbed.sietch(&line));
        wait_for("the daemon", || testbed.try_status());
        Self { _daemon: daemon, testbed }
    }

    fn core(&self) -> Running {
        let mut line = vec!["service"];
        line.extend(rustix::process::geteuid().is_root().then_some("--run-as=61871:61871"));
        let running = Running::start(self.testbed.sietch(&line));
        let pid = i64::from(running.0.id());
        wait_for("the core", || {
            (self.testbed.status()["daemon"]["service"].as_i64() == Some(pid)).then_some(())
        });
        running
    }

    fn store(&self) -> Command {
        let listen = format!("--listen={}", self.testbed.kernel());
        let user = format!("--run-as={STORE_USER}:{STORE_USER}");
        let mut line = vec!["kv", "--vsa=/raw/store", "--net=linux", &listen];
        line.extend(rustix::process::geteuid().is_root().then_some(user.as_str()));
        self.testbed.sietch(&line)
    }
}

/// A store that is not restarted with its service core refuses writes while there is no core. It
/// ends as soon as its area is available again, so that its supervisor starts it on the
/// acknowledged data.
#[test]
fn without_up_the_store_ends_once_its_area_is_available_again() {
    let alone = Alone::start("brokered-alone");
    let testbed = &alone.testbed;
    let core = alone.core();
    let first = Running::start(alone.store());
    assert_eq!(counter_or_zero(testbed), 0);
    let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(5)).expect("it serves");
    assert!(matches!(client.request("SET counter 7"), Ok(Reply::Simple(_))));
    drop(core);
    assert!(matches!(client.request("SET counter 8"), Ok(Reply::Error(_)) | Err(_)), "nothing keeps it");
    let _core = alone.core();
    let (status, printed) = first.ended();
    assert!(!status.success() && printed.contains("can be had again"), "{status}: {printed}");
    let _second = Running::start(alone.store());
    let found = counter_or_zero(testbed);
    assert!(found == 7 || found == 8, "{found}");
}

/// While its log cannot store the commands that have run, the store reads no further input from any
/// client. It still ends at SIGTERM.
#[test]
fn a_store_ends_at_sigterm_while_its_disk_accepts_no_write() {
    let alone = Alone::start("brokered-held");
    let testbed = &alone.testbed;
    let core = alone.core();
    let printed = testbed.folder.join("printed");
    let mut store = Running::with_output_in(alone.store(), &printed);
    assert_eq!(counter_or_zero(testbed), 0);
    let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(1)).expect("it serves");
    assert_eq!(client.request("SET counter 7").expect("there is a core"), Reply::ok());
    // The disk stores nothing more: the log fills, then the sockets.
    core.signal(Signal::STOP);
    let value = vec![b'x'; 1 << 16];
    while client.send(&[b"SET", b"filling", &value]).is_ok() {}
    store.signal(Signal::TERM);
    wait_for("the store to heed the signal", || {
        std::fs::read_to_string(&printed).expect("it is there").contains("the store ends").then_some(())
    });
    let status = wait_for("its end", || store.0.try_wait().expect("our child"));
    let printed = std::fs::read_to_string(&printed).expect("it is there");
    assert!(
        !status.success() && printed.contains("the disk has not taken the last writes"),
        "{status}: {printed}"
    );
    core.signal(Signal::CONT);
    let _second = Running::start(alone.store());
    assert_eq!(counter_or_zero(testbed), 7);
}

/// The value in the store, as soon as it answers and takes writes; 0 for a new store.
fn counter_or_zero(testbed: &Testbed) -> u64 {
    wait_for("the store", || {
        let mut client = Client::connect_with(testbed.kernel(), Duration::from_secs(5)).ok()?;
        let Ok(Reply::Integer(there)) = client.request("EXISTS counter") else { return None };
        let found = if there == 0 { 0 } else { client.request("GET counter").ok()?.number() };
        matches!(client.request("SET probe 1"), Ok(Reply::Simple(_))).then_some(found)
    })
}
