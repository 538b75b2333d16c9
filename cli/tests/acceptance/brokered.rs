//! The store on a raw volume, which only the service core has: `kill -9` of the store, of the core and of the daemon loses nothing that was acknowledged.

use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, Reply};
use crate::place::{Place, STORE_USER, signal, wait_for};

fn place(name: &str) -> Place {
    let place = Place::new(name);
    let own = rustix::process::geteuid().as_raw();
    let (store, service) = if own == 0 { (STORE_USER, 61_871) } else { (own, own) };
    let (port, path) = (place.port, place.folder.join("volume.img"));
    place.configure(&format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"96MiB\"\n\n\
         [[vsa]]\nname = \"store\"\nvolume = \"raw\"\nuid = {store}\nsize = \"64MiB\"\n\n\
         [kv]\nuid = {store}\nport = {port}\nvsa = \"store\"\n\n[service]\nuid = {service}\n",
        path.display()
    ));
    place
}

/// Writes until a write is refused or lost; the last number that was acknowledged.
fn write_until_it_breaks(place: &Place, from: u64) -> u64 {
    let mut acknowledged = from;
    let Ok(mut client) = Client::connect_with(place.kernel(), Duration::from_secs(5)) else { return from };
    loop {
        match client.ask(&format!("SET counter {}", acknowledged + 1)) {
            Ok(Reply::Status(_)) => acknowledged += 1,
            _ => return acknowledged,
        }
    }
}

/// What the store has, as soon as it answers and takes writes.
fn counter(place: &Place) -> u64 {
    wait_for("the store", || {
        let mut client = Client::connect_with(place.kernel(), Duration::from_secs(5)).ok()?;
        let found = client.ask("GET counter").ok()?;
        // Whose area has gone refuses writes until it is started again.
        let writes = client.ask("SET probe 1").ok()?;
        matches!(writes, Reply::Status(_)).then(|| found.number())
    })
}

fn counted(place: &Place, name: &str) -> Option<u64> {
    let stat: serde_json::Value = serde_json::from_slice(&place.run(&["stat", "--json"]).stdout).ok()?;
    let groups = stat["groups"].as_array()?;
    groups.iter().find(|group| group["source"] == "vsa /raw/store")?["values"][name].as_u64()
}

#[test]
fn the_store_on_a_raw_volume_outlives_store_core_and_daemon() {
    let place = place("brokered");
    let up = place.up(&["--net", "linux"]);
    let status = place.status();
    let area = &status["daemon"]["vsas"][0];
    assert_eq!(
        (&area["name"], &area["protection"]),
        (&"/raw/store".into(), &"broker-mediated".into()),
        "{area}"
    );
    let mut acknowledged = 0;
    for victim in ["store", "service core", "daemon", "service core", "store"] {
        let before = place.status();
        let [daemon, _, store] = place.pids();
        let core = before["daemon"]["service"].as_i64().expect("a service core");
        let from = acknowledged;
        acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_it_breaks(&place, from));
            wait_for("writes", || counted(&place, "writes").filter(|writes| *writes > 0));
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
                // Nobody notices: the writer is ended with the store's connection, later.
                wait_for("the daemon", || {
                    let status = place.try_status()?;
                    let served = status["daemon"]["service"].as_i64() == Some(core);
                    (served && status["daemon"]["pid"].as_i64() != Some(daemon)).then_some(())
                });
                assert_eq!(place.pids()[2], store, "the store was not restarted");
                signal(store, Signal::KILL);
            }
            writer.join().expect("no panic")
        });
        let found = counter(&place);
        assert!(found == acknowledged || found == acknowledged + 1, "{victim}: {found} of {acknowledged}");
        acknowledged = found;
    }
    assert!(acknowledged > 0);
    let said = up.stop();
    assert!(said.matches("starting it again").count() >= 5, "{said}");
}
