//! A reload refuses what the next start would refuse, and says how to put it right.

use sietch_protocol::{CallError, ErrorKind};

use crate::scene::{FileDevices, Scene};

const MIB: u64 = 1 << 20;

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn kind(outcome: Result<(), CallError>) -> (ErrorKind, String) {
    match outcome {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("it should be refused: {other:?}"),
    }
}

/// `sietch.toml` with the area `kv` of this user and size.
fn area(uid: u32, size: &str) -> String {
    format!("[[vsa]]\nname = \"kv\"\nuid = {uid}\nsize = \"{size}\"\n")
}

#[test]
fn an_area_of_another_size_or_user_is_refused_before_its_holder_needs_it() {
    let (own, scene) = (own_uid(), Scene::own("reload-areas"));
    let daemon = scene.start();
    let mut connection = scene.connect();
    let (grant, file) = connection.acquire_vsa("kv").unwrap();
    let refused = |text: String| {
        scene.configure(&text);
        kind(scene.connect().reload())
    };
    let (sort, why) = refused(area(own, "2MiB"));
    assert_eq!(sort, ErrorKind::Invalid);
    for part in ["VSA kv", "the area has 1MiB", "says 2MiB", "set size = \"1MiB\" back", "vsa resize kv 2MiB"]
    {
        assert!(why.contains(part), "{part} is not in {why}");
    }
    assert!(why.contains("previous configuration") && !why.contains("remove"), "{why}");
    // Shortening would cut data off, and is not offered.
    let (_, why) = refused(area(own, "512KiB"));
    assert!(why.contains("set size = \"1MiB\" back") && !why.contains("resize"), "{why}");
    let (sort, why) = refused(area(4242, "1MiB"));
    assert!(sort == ErrorKind::Denied && why.contains(&format!("set uid = {own} back")), "{why}");
    let more = "[[vsa]]\nname = \"more\"\nuid = 1\nsize = \"1000000TiB\"\n";
    assert_eq!(refused(area(own, "1MiB") + more).0, ErrorKind::Full);
    // The cure works while the area is held, and the reload after it.
    connection.resize_vsa("kv", 2 * MIB).unwrap();
    scene.configure(&area(own, "2MiB"));
    connection.reload().unwrap();
    // The size of an area that was resized is no less binding, once the file names another one.
    assert_eq!(refused(area(own, "3MiB")).0, ErrorKind::Invalid);
    drop(file);
    connection.release(grant.grant).unwrap();
    drop(daemon);

    // A start refuses nothing: it serves the other areas, and says what does not fit.
    scene.configure(&area(4242, "2MiB"));
    let _daemon = scene.start();
    let warnings = scene.status().warnings;
    assert!(warnings.iter().any(|line| line.contains("VSA kv: its data belongs to uid")), "{warnings:?}");
    scene.configure(&area(own, "2MiB"));
    let mut connection = scene.connect();
    connection.reload().unwrap();
    assert!(!scene.status().warnings.iter().any(|line| line.contains("VSA kv")));
    connection.acquire_vsa("kv").unwrap();
}

#[test]
fn what_the_daemon_stands_on_does_not_change_under_it() {
    let scene = Scene::own("reload-daemon");
    let _daemon = scene.start();
    for key in ["data", "socket"] {
        scene.configure(&format!("[daemon]\n{key} = \"{}/other\"\n", scene.root.display()));
        let (sort, why) = kind(scene.connect().reload());
        assert!(sort == ErrorKind::Busy && why.contains("[daemon]"), "{why}");
    }
}

/// Everything in `[kv]` with which the store would not start again.
#[test]
fn a_store_that_runs_could_start_again_after_each_reload() {
    // Root's store runs as the user of its area, any other one as the user of the daemon.
    let root = rustix::process::geteuid().is_root();
    let uid = if root { 4242 } else { own_uid() };
    let scene = Scene::new("reload-store", uid);
    let _daemon = scene.start_with(|mut options, devices| async move {
        options.starts_store = true;
        sietch_daemon::run_with(options, |_| FileDevices::new(devices)).await
    });
    let kv = area(uid, "1MiB");
    let mut cases = vec![
        (String::new(), "VSA kv: the store needs it"),
        (format!("{kv}[kv]\nvsa = \"other\"\n"), "VSA other: the store needs it"),
        (format!("{kv}[kv]\nlisten = [\"192.0.2.1\"]\n"), "nothing can listen on 192.0.2.1"),
        (format!("{kv}[kv]\nlisten = [\"127.0.0.1\", \"::1\"]\n"), "listens on one address"),
        (format!("{kv}[kv]\nport = 0\n"), "0 is no port"),
        (format!("{kv}[kv]\nshards = 65\n"), "no number of shards"),
        (format!("{kv}[kv]\nmaxmemory_policy = \"lru\"\n"), "no maxmemory_policy"),
        (format!("{kv}[kv]\ndurability = \"some\"\n"), "no durability"),
    ];
    if root {
        cases.push((format!("{kv}[kv]\nuid = 0\n"), "root"));
        cases.push((format!("{kv}[kv]\nuid = 4243\n"), "it is for uid 4242, and the store runs as uid 4243"));
        let unprivileged = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
        if unprivileged.trim().parse::<u16>().unwrap() > 1 {
            cases.push((format!("{kv}[kv]\nport = 1\n"), "may not listen on port 1"));
        }
    }
    for (text, fragment) in cases {
        scene.configure(&text);
        let (sort, why) = kind(scene.connect().reload());
        assert!(sort == ErrorKind::Invalid && why.contains(fragment), "{fragment} is not in {why}");
    }
    scene.configure("[kv]\ndurability = \"none\"\n");
    scene.connect().reload().unwrap();
}

/// What only `sietch up` reads takes no effect, and that is said until it is set back.
#[test]
fn what_a_reload_does_not_change_is_named() {
    let scene = Scene::new("reload-named", own_uid());
    let started = |starts_store| {
        let named = scene.start_with(move |mut options, devices| async move {
            options.starts_store = starts_store;
            sietch_daemon::run_with(options, |_| FileDevices::new(devices)).await
        });
        (named, scene.connect())
    };
    let warned = |connection: &mut sietch_protocol::Connection| {
        let warnings = connection.status().unwrap().warnings;
        warnings.into_iter().find(|warning| warning.contains("starts again"))
    };
    let kv = |table: &str| format!("{}[kv]\ndurability = \"none\"\n{table}", area(own_uid(), "1MiB"));
    scene.configure(&kv(""));
    let (daemon, mut connection) = started(true);
    assert_eq!(warned(&mut connection), None);
    let fs = "[[fs]]\nname = \"mail\"\nfolder = \"/srv/mail\"\ndirectory = \"/mnt\"\n";
    scene.configure(&(kv("maxmemory = \"64MiB\"\nport = 16379\n") + fs));
    connection.reload().unwrap();
    let warning = warned(&mut connection).unwrap();
    assert!(warning.contains("[kv] port, maxmemory; [[fs]]; this takes effect"), "{warning}");
    // An unrelated reload does not hide it.
    connection.reload().unwrap();
    assert_eq!(warned(&mut connection), Some(warning));
    scene.configure(&kv(""));
    connection.reload().unwrap();
    assert_eq!(warned(&mut connection), None);
    drop((connection, daemon));

    // Without `up` there is no store that would need it.
    let (_daemon, mut connection) = started(false);
    scene.configure(&kv("port = 16379\n"));
    connection.reload().unwrap();
    assert_eq!(warned(&mut connection), None);
}

/// Changes a text in one place: a line, a character, a number, or its end.
fn mutated(text: &str, mut draw: impl FnMut(usize) -> usize) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = draw(lines.len());
    match draw(7) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(draw(text.lines().count()), lines[at].clone()),
        2 => lines.truncate(at),
        3 => {
            let numbers = ["-1", "0", "1", "65535", "65536", "4294967296", "1e400", "[]", "{}", "\"\""];
            let value = numbers[draw(numbers.len())];
            lines[at] =
                lines[at].split_once('=').map_or(lines[at].clone(), |(key, _)| format!("{key}= {value}"));
        }
        4 => {
            let place = draw(lines[at].len() + 1);
            lines[at].insert_str(place, ["\0", "\"", "\u{202e}", "\u{e9}", "[", "=", "\n"][draw(7)]);
        }
        5 => {
            let other = draw(lines.len());
            lines.swap(at, other);
        }
        _ => {
            let length = lines[at].len();
            if length > 0 {
                lines[at].remove(draw(length));
            }
        }
    }
    lines.join("\n")
}

/// Malformed files neither end the daemon nor change what it serves, and none that it takes keeps
/// the next one from starting.
#[test]
fn a_mutated_file_is_refused_or_starts_again() {
    let scene = Scene::own("reload-mutated");
    let own = own_uid();
    let whole = format!(
        "{}[[vnic]]\nname = \"web\"\nuid = {own}\naddress = \"10.83.0.2/24\"\nhost_address = \"10.83.0.1\"\n\
         tcp_ports = [\"80\"]\nrate = \"1Gbit/s\"\nmtu = 1500\n\
         [[link]]\nname = \"pair\"\n[[link.end]]\nname = \"one\"\nuid = {own}\naddress = \"10.9.0.1/24\"\n\
         [[link.end]]\nname = \"two\"\nuid = {own}\naddress = \"10.9.0.2/24\"\n\
         [kv]\nport = 6379\nshards = 1\ndurability = \"none\"\n",
        area(own, "1MiB")
    );
    scene.configure(&whole);
    let mut daemon = scene.start();
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        usize::try_from(word % below.max(1) as u64).unwrap()
    };
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..200 {
        let mut text = mutated(&whole, &mut draw);
        if draw(2) == 0 && !text.is_empty() {
            text = mutated(&text, &mut draw);
        }
        scene.configure(&text);
        match scene.connect().reload() {
            // The scene's own options replace what the file says of them.
            Ok(()) if taken < 20 => {
                taken += 1;
                drop(daemon);
                daemon = scene.start();
                assert!(daemon.started, "reload has taken what the start refuses:\n{text}");
            }
            Ok(()) => {}
            Err(CallError::Refused(error)) => {
                refused += 1;
                assert!(!error.cause.is_empty() && !error.fix.is_empty(), "{error:?}");
            }
            Err(error) => panic!("{error:?} of\n{text}"),
        }
    }
    assert!(taken > 5 && refused > 20, "{taken} taken, {refused} refused");
    scene.configure(&whole);
    scene.connect().reload().unwrap();
    assert_eq!(scene.status().vnics.len(), 3);
}
