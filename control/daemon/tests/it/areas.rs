//! Storage areas from the outside. Permitted users create, list, resize, trim and delete them;
//! others are refused.

#[path = "../../../../api/sietch/examples/area.rs"]
mod area;

use std::os::fd::{AsFd, OwnedFd};

use crate::scene::{self, Scene};
use sietch_protocol::{CallError, Connection, ErrorKind, VolumeKind};

const MIB: u64 = 1 << 20;

fn kind<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> (ErrorKind, String) {
    match outcome {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("it should be refused: {other:?}"),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn read(file: &OwnedFd, offset: u64) -> [u8; 4096] {
    let mut bytes = [0xee; 4096];
    assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes, offset), Ok(4096));
    bytes
}

fn write(file: &OwnedFd, offset: u64, byte: u8) {
    assert_eq!(rustix::io::pwrite(file.as_fd(), &[byte; 4096], offset), Ok(4096));
}

/// What holds of every kind of volume that works: one test, `path` names an area of it.
fn life_of_an_area(scene: &Scene, path: &str) {
    let mut connection = scene.connect();
    let made = connection.create_vsa(path, MIB, None).unwrap();
    assert_eq!((made.size, made.uid, made.configured), (MIB, own_uid(), false));
    assert_eq!(kind(connection.create_vsa(path, MIB, None)).0, ErrorKind::Busy);
    let (grant, file) = connection.acquire_vsa(path).unwrap();
    assert_eq!(grant.size, MIB);
    assert_eq!(read(&file, MIB - 4096), [0; 4096], "an area is zeroed when it is made");
    write(&file, 0, 1);
    write(&file, MIB - 4096, 2);
    assert_eq!(kind(connection.delete_vsa(path)).0, ErrorKind::Busy, "it is held");
    drop(file);
    connection.release(grant.grant).unwrap();

    let grown = connection.resize_vsa(path, 2 * MIB).unwrap();
    assert_eq!(grown.size, 2 * MIB);
    let (grant, file) = connection.acquire_vsa(path).unwrap();
    assert_eq!(grant.size, 2 * MIB);
    assert_eq!((read(&file, 0), read(&file, MIB - 4096)), ([1; 4096], [2; 4096]), "growing keeps the data");
    assert_eq!(read(&file, 2 * MIB - 4096), [0; 4096], "what is added is zeros");
    write(&file, 2 * MIB - 4096, 3);
    connection.trim_vsa(path, 0, Some(4096)).unwrap();
    assert_eq!((read(&file, 0), read(&file, MIB - 4096)), ([0; 4096], [2; 4096]));
    drop(file);
    connection.release(grant.grant).unwrap();

    assert_eq!(connection.resize_vsa(path, MIB).unwrap().size, MIB);
    connection.resize_vsa(path, 2 * MIB).unwrap();
    let (grant, file) = connection.acquire_vsa(path).unwrap();
    assert_eq!(read(&file, MIB - 4096), [2; 4096]);
    assert_eq!(read(&file, 2 * MIB - 4096), [0; 4096], "what was cut off does not come back");
    drop(file);
    connection.release(grant.grant).unwrap();
    assert_eq!(connection.vsas().unwrap().len(), 1);
    connection.delete_vsa(path).unwrap();
    assert!(connection.vsas().unwrap().is_empty());
    assert_eq!(kind(connection.acquire_vsa(path)).0, ErrorKind::Unknown);
}

#[test]
fn an_area_of_the_main_volume_is_created_used_and_deleted() {
    let scene = Scene::new("areas-main", own_uid());
    scene.configure("");
    let _daemon = scene.start();
    life_of_an_area(&scene, "data");
    assert_eq!(std::fs::read_dir(scene.data().join("areas")).unwrap().count(), 0, "no file remains");
}

/// The directory's files as released daemons have written them: with an owner alone, and with an
/// owner and a size. Every later daemon finds the areas.
#[test]
fn areas_that_earlier_daemons_have_made_are_found() {
    use std::os::unix::fs::DirBuilderExt as _;
    let scene = Scene::new("areas-earlier", own_uid());
    scene.configure("");
    let areas = scene.data().join("areas");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&areas).unwrap();
    for (name, owner) in
        [("old", format!("{}\n", own_uid())), ("sized", format!("{}\nsize 65536\n", own_uid()))]
    {
        std::fs::write(areas.join(format!("{name}.vsa")), vec![5; 1 << 16]).unwrap();
        std::fs::write(areas.join(format!("{name}.owner")), owner).unwrap();
    }
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let mut found: Vec<_> =
        connection.vsas().unwrap().into_iter().map(|area| (area.size, area.uid)).collect();
    found.sort_unstable();
    assert_eq!(found, [(1 << 16, own_uid()); 2]);
    let (_, file) = connection.acquire_vsa("sized").unwrap();
    assert_eq!(read(&file, 0), [5; 4096]);
}

#[test]
fn an_area_of_another_directory_is_created_used_and_deleted() {
    let scene = Scene::new("areas-directory", own_uid());
    let place = scene.root.join("elsewhere");
    scene.configure(&format!(
        "[[volume]]\nname = \"else\"\npath = \"{}\"\nsize = \"8MiB\"\n",
        place.display()
    ));
    let _daemon = scene.start();
    life_of_an_area(&scene, "/else/data");
    let mut connection = scene.connect();
    let (sort, text) = kind(connection.create_vsa("/else/big", 9 * MIB, None));
    assert_eq!(sort, ErrorKind::Full);
    for said in ["volume else", &(9 * MIB).to_string(), &(8 * MIB).to_string()] {
        assert!(text.contains(said), "{said} in {text}");
    }
    connection.create_vsa("/else/fits", 8 * MIB, None).unwrap();
    assert_eq!(kind(connection.resize_vsa("/else/fits", 9 * MIB)).0, ErrorKind::Full);
    assert_eq!(connection.vsas().unwrap()[0].size, 8 * MIB, "what did not fit changed nothing");
}

#[test]
fn a_held_area_grows_and_a_restart_finds_its_size() {
    let scene = Scene::new("areas-held", own_uid());
    scene.configure("");
    let daemon = scene.start();
    let mut holder = scene.connect();
    holder.create_vsa("data", MIB, None).unwrap();
    let (_, file) = holder.acquire_vsa("data").unwrap();
    write(&file, 0, 7);
    // The administrator's own connection is of the same process: it may shorten as well.
    assert_eq!(scene.connect().resize_vsa("data", 4 * MIB).unwrap().size, 4 * MIB);
    write(&file, 4 * MIB - 4096, 8);
    assert_eq!(scene.status().vsas[0].size, 4 * MIB);
    daemon.crash();
    let _daemon = scene.start();
    let status = scene.status();
    assert_eq!((status.vsas[0].size, status.warnings.len()), (4 * MIB, 0), "{status:?}");
    assert_eq!((read(&file, 0), read(&file, 4 * MIB - 4096)), ([7; 4096], [8; 4096]));
}

#[test]
fn a_crash_in_the_middle_of_growing_leaves_the_previous_size() {
    let scene = Scene::new("areas-growth", own_uid());
    scene.configure("");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("data", MIB, None).unwrap();
    // A crash leaves this before the owner's file has the new size.
    let path = scene.data().join("areas/data.vsa");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * MIB).unwrap();
    assert_eq!(connection.vsas().unwrap()[0].size, MIB);
    let (grant, file) = connection.acquire_vsa("data").unwrap();
    assert_eq!((grant.size, path.metadata().unwrap().len()), (MIB, MIB));
    drop(file);
    connection.release(grant.grant).unwrap();
    connection.resize_vsa("data", 2 * MIB).unwrap();
    assert_eq!(connection.acquire_vsa("data").unwrap().0.size, 2 * MIB);
}

#[test]
fn nonsense_is_refused_before_it_reaches_a_file() {
    let scene = Scene::new("areas-nonsense", own_uid());
    let own = own_uid();
    scene.configure(&format!("[[vsa]]\nname = \"kv\"\nuid = {own}\nsize = \"1MiB\"\n"));
    let _daemon = scene.start();
    let mut connection = scene.connect();
    for hostile in ["../x", "/main/../../x", "", "/main", "a b", "/main/x/y"] {
        assert_eq!(kind(connection.create_vsa(hostile, MIB, None)).0, ErrorKind::Invalid, "{hostile}");
    }
    assert_eq!(kind(connection.create_vsa("/none/x", MIB, None)).0, ErrorKind::Unknown);
    assert_eq!(
        kind(connection.create_vsa("kv", MIB, None)).0,
        ErrorKind::Invalid,
        "sietch.toml has that name"
    );
    for size in [0, 1, 4097, u64::MAX] {
        assert_eq!(kind(connection.create_vsa("x", size, None)).0, ErrorKind::Invalid, "{size}");
    }
    let (sort, _) = kind(connection.create_vsa("x", u64::MAX - 4095, None));
    assert_eq!(sort, ErrorKind::Full, "more than there is");
    connection.create_vsa("x", MIB, None).unwrap();
    for (offset, length) in [(0, 2 * MIB), (MIB, 4096), (1, 4096), (0, 1), (u64::MAX - 4095, 8192), (4096, 0)]
    {
        let refused = kind(connection.trim_vsa("x", offset, Some(length))).0;
        assert_eq!(refused, ErrorKind::Invalid, "{offset} {length}");
    }
    assert_eq!(kind(connection.resize_vsa("x", 4097)).0, ErrorKind::Invalid);
    assert_eq!(kind(connection.resize_vsa("y", MIB)).0, ErrorKind::Unknown);
    assert_eq!(kind(connection.delete_vsa("y")).0, ErrorKind::Unknown);
    connection.acquire_vsa("kv").unwrap();
}

#[test]
fn volumes_report_their_kind_and_a_broken_one_its_reason() {
    let scene = Scene::new("areas-volumes", own_uid());
    scene.configure("[[volume]]\nname = \"pmem\"\nkind = \"dax\"\npath = \"/dev/dax77.7\"\n");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let volumes = connection.volumes().unwrap();
    assert_eq!(volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["main", "pmem"]);
    assert!(volumes[0].broken.is_none() && volumes[0].free > 0 && volumes[1].kind == VolumeKind::Dax);
    assert!(volumes[1].broken.as_ref().unwrap().contains("/dev/dax77.7 is not there"));
    let (sort, text) = kind(connection.create_vsa("/pmem/x", MIB, None));
    assert!(sort == ErrorKind::Unsupported && text.contains("volume pmem"), "{text}");
}

#[test]
fn a_volume_in_use_survives_a_reload_that_forgets_it() {
    let scene = Scene::new("areas-reload", own_uid());
    let place = scene.root.join("elsewhere");
    let text = format!("[[volume]]\nname = \"else\"\npath = \"{}\"\n", place.display());
    scene.configure(&text);
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("/else/x", MIB, None).unwrap();
    let (grant, file) = connection.acquire_vsa("/else/x").unwrap();
    scene.configure("");
    assert_eq!(kind(connection.reload()).0, ErrorKind::Busy);
    scene.configure(&format!("{text}[[volume.quota]]\nuid = 77\nsize = \"1MiB\"\n"));
    connection.reload().unwrap();
    assert_eq!(connection.volumes().unwrap()[0].quotas[0].uid, 77);
    drop(file);
    connection.release(grant.grant).unwrap();
    scene.configure("");
    connection.reload().unwrap();
    assert_eq!(kind(connection.acquire_vsa("/else/x")).0, ErrorKind::Unknown);
}

/// An area on another volume is requested by the name that `sietch.toml` gives it.
#[test]
fn a_name_of_the_configuration_leads_to_its_volume() {
    let scene = Scene::new("areas-named", own_uid());
    let (place, own) = (scene.root.join("elsewhere"), own_uid());
    scene.configure(&format!(
        "[[volume]]\nname = \"else\"\npath = \"{}\"\n[[vsa]]\nname = \"log\"\nuid = {own}\nvolume = \"else\"\nsize = \"1MiB\"\n",
        place.display()
    ));
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (grant, file) = connection.acquire_vsa("log").unwrap();
    assert_eq!((grant.name.as_str(), grant.size), ("/else/log", MIB));
    assert!(place.join("log.vsa").exists());
    assert_eq!(kind(connection.acquire_vsa("/else/log")).0, ErrorKind::Busy, "one area, two names");
    assert!(scene.status().vsas[0].holder.is_some());
    let lines = connection.revoke(sietch_protocol::Target::Name("log".to_owned())).unwrap();
    assert!(lines[0].starts_with("VSA /else/log"), "{lines:?}");
    assert!(scene.status().vsas[0].revoked);
    connection.restore("/else/log").unwrap();
    drop(file);
    // What was closed to writing is open again, and can be removed.
    connection.acquire_vsa("log").unwrap();
}

#[test]
fn an_area_in_memory_is_created_used_and_deleted_and_reported_as_volatile() {
    let scene = Scene::new("areas-memory", own_uid());
    scene.configure(
        "[[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"4MiB\"\nread_ns = 300\nbytes_per_second = \"2GiB\"\n",
    );
    let _daemon = scene.start();
    life_of_an_area(&scene, "/ram/data");
    let mut connection = scene.connect();
    let ram = connection.volumes().unwrap().remove(1);
    assert!(ram.durability.contains("lost at power off"), "{ram:?}");
    assert_eq!((ram.model.unwrap().read_ns, ram.capacity, ram.free), (300, 4 * MIB, 4 * MIB));
    assert_eq!(kind(connection.create_vsa("/ram/big", 5 * MIB, None)).0, ErrorKind::Full);
    connection.create_vsa("/ram/x", MIB, None).unwrap();
    let (grant, file) = connection.acquire_vsa("/ram/x").unwrap();
    assert!(rustix::fs::ftruncate(&file, 2 * MIB).is_err(), "its holder cannot grow it");
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
    write(&file, 0, 5);
    assert_eq!((grant.model.unwrap().read_ns, grant.segments.len()), (300, 0));
    connection.revoke(sietch_protocol::Target::Grant(grant.grant)).unwrap();
    write(&file, 0, 6);
    connection.restore("/ram/x").unwrap();
    let (_, next) = connection.acquire_vsa("/ram/x").unwrap();
    assert_eq!(read(&next, 0), [5; 4096], "no other holder sees what a revoked one writes");
}

#[test]
fn an_application_grows_memory_that_it_holds_and_its_queue_has_the_speed_of_the_volume() {
    use sietch::disk::DiskQueue as _;
    let scene = Scene::new("areas-parts", own_uid());
    scene.configure(&format!(
        "[[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"8MiB\"\nread_ns = 300\nbytes_per_second = \"2GiB\"\n{}",
        scene::quota()
    ));
    let _daemon = scene.start();
    let mut client = sietch::Client::connect(&scene.socket(), "app").unwrap();
    client.create_vsa("/ram/x", MIB).unwrap();
    let mut vsa = client.acquire_vsa("/ram/x").unwrap();
    let said = vsa.queue.description();
    assert!(said.contains("model: +300 ns a read") && said.contains("2147 MB/s"), "{said}");
    assert_eq!(scene.status().vsas[0].model.unwrap().read_ns, 300);
    for size in [2 * MIB, 4 * MIB, 3 * MIB, 3 * MIB + 4096] {
        client.resize_vsa(&mut vsa, size).unwrap();
        assert_eq!(vsa.queue.capacity(), size);
        assert!(
            drive(&mut vsa.queue, 0) && drive(&mut vsa.queue, size - 4096) && !drive(&mut vsa.queue, size)
        );
    }
    // Across the border of two parts.
    let buffer = sietch::disk::Buffer::new(8192);
    let write = sietch::disk::Operation::Write { offset: MIB - 4096, length: 8192, buffer, durable: true };
    vsa.queue.submit(9, write).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        vsa.queue.wait(std::time::Duration::from_secs(1)).unwrap();
        vsa.queue.complete(&mut done);
    }
    // An administrator grows the area. The holder maps the new part at any later time.
    assert_eq!(scene.connect().resize_vsa("/ram/x", 5 * MIB).unwrap().size, 5 * MIB);
    assert!(!drive(&mut vsa.queue, 5 * MIB - 4096));
    client.resize_vsa(&mut vsa, 5 * MIB).unwrap();
    assert!(drive(&mut vsa.queue, 5 * MIB - 4096));
    let refused = client.resize_vsa(&mut vsa, 9 * MIB).unwrap_err();
    assert!(refused.to_string().contains("volume ram"), "{refused}");
    assert!(drive(&mut vsa.queue, 5 * MIB - 4096), "a refusal leaves all as it was");
    let grant = vsa.grant.clone();
    drop(vsa);
    client.release(&grant).unwrap();
    let (_, file) = scene.connect().acquire_vsa_descriptors("/ram/x").unwrap();
    assert!(file.len() > 1, "it has several parts until it is resized while no other process has it open");
}

#[test]
fn a_volume_of_extents_remembers_its_areas_and_passes_no_descriptor() {
    let scene = Scene::new("areas-extents", own_uid());
    let path = scene.root.join("volume.img");
    let text = format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"16MiB\"\n",
        path.display()
    );
    scene.configure(&text);
    let daemon = scene.start();
    let mut connection = scene.connect();
    let made = connection.create_vsa("/raw/a", MIB, Some(77)).unwrap();
    assert_eq!((made.size, made.uid, made.extents), (MIB, 77, Some(1)));
    connection.create_vsa("/raw/b", MIB, None).unwrap();
    assert_eq!(connection.resize_vsa("/raw/a", 2 * MIB).unwrap().extents, Some(2), "b is directly behind it");
    connection.trim_vsa("/raw/a", 0, None).unwrap();
    connection.create_vsa("/raw/c", MIB, None).unwrap();
    connection.delete_vsa("/raw/c").unwrap();
    let free = connection.volumes().unwrap()[1].free;
    let (sort, text_of) = kind(connection.create_vsa("/raw/d", free + 4096, None));
    assert!(sort == ErrorKind::Full && text_of.contains(&format!("{free} are free")), "{text_of}");
    let (sort, why) = kind(connection.acquire_vsa("/raw/b"));
    assert!(sort == ErrorKind::Unsupported && why.contains("sietch service"), "{why}");
    let before = connection.vsas().unwrap();
    daemon.crash();
    let _daemon = scene.start();
    let mut connection = scene.connect();
    assert_eq!(connection.vsas().unwrap(), before);
    assert_eq!(connection.volumes().unwrap()[1].free, free);
    drop(connection);
}

/// Persistent memory on a machine without any: by its name, by its kind, and by the file system's
/// answer to a synchronous mapping.
#[test]
fn a_volume_without_persistent_memory_reports_the_reason() {
    let scene = Scene::new("areas-dax", own_uid());
    let place = scene.root.join("pmem");
    std::fs::create_dir(&place).unwrap();
    let volume = |name: &str, path: &std::path::Path| {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"dax\"\npath = \"{}\"\n", path.display())
    };
    let text = volume("pmem", &place) + &volume("device", std::path::Path::new("/dev/null"));
    scene.configure(&text);
    let _daemon = scene.start();
    let mut connection = scene.connect();
    for (name, said) in [("pmem", "MAP_SYNC"), ("device", "may map all of it")] {
        let volumes = connection.volumes().unwrap();
        let volume = volumes.iter().find(|volume| volume.name == name).unwrap();
        match &volume.broken {
            Some(why) => assert!(why.contains(said), "{why}"),
            None => eprintln!("SKIPPED {name}: the temporary directory is persistent memory"),
        }
    }
    let (sort, text) = kind(connection.create_vsa("/device/x", MIB, None));
    assert!(
        sort == ErrorKind::Unsupported && text.contains("volume device") && text.contains("-o dax"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

/// Two daemons with one path: the second reports which process has it, and serves everything else.
#[test]
fn a_volume_belongs_to_one_daemon() {
    let (first, second) = (Scene::new("areas-first", own_uid()), Scene::new("areas-second", own_uid()));
    let (place, image) = (first.root.join("elsewhere"), first.root.join("volume.img"));
    let text = format!(
        "[[volume]]\nname = \"else\"\npath = \"{}\"\n\
         [[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"16MiB\"\n",
        place.display(),
        image.display()
    );
    first.configure(&text);
    second.configure(&text);
    let daemon = first.start_process();
    let _other = second.start();
    let mut connection = second.connect();
    for volume in connection.volumes().unwrap().iter().filter(|volume| volume.name != "main") {
        let why = volume.broken.as_ref().unwrap();
        assert!(why.contains(&format!("in use by pid {}", daemon.pid())), "{why}");
    }
    let (sort, why) = kind(connection.create_vsa("/else/x", MIB, None));
    assert!(sort == ErrorKind::Unsupported && why.contains("end that process"), "{why}");
    connection.create_vsa("x", MIB, None).unwrap();
    first.connect().create_vsa("/else/x", MIB, None).unwrap();
    daemon.kill();
    // The lock ended with its daemon, however that ended.
    connection.reload().unwrap();
    assert!(connection.volumes().unwrap().iter().all(|volume| volume.broken.is_none()));
    assert_eq!(connection.vsas().unwrap().len(), 2);
    // Another name and bound for a place that this daemon has already; then two names for one.
    second.configure(&text.replace("\"else\"", "\"same\"\nsize = \"8MiB\"").replace("\"raw\"", "\"coal\""));
    connection.reload().unwrap();
    let volumes = connection.volumes().unwrap();
    assert!(volumes.len() == 3 && volumes.iter().all(|volume| volume.broken.is_none()), "{volumes:?}");
    second.configure(&format!("{text}[[volume]]\nname = \"twin\"\npath = \"{}\"\n", place.display()));
    connection.reload().unwrap();
    let volumes = connection.volumes().unwrap();
    let twin = volumes.iter().find(|volume| volume.name == "twin").unwrap();
    assert!(twin.broken.as_ref().unwrap().contains("another volume of the same file"));
}

#[test]
fn a_device_with_something_else_on_it_is_never_formatted() {
    let scene = Scene::new("areas-foreign", own_uid());
    let path = scene.root.join("precious.img");
    let mut bytes = vec![0; 4 << 20];
    bytes[65_600] = 1;
    std::fs::write(&path, &bytes).unwrap();
    scene.configure(&format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\n",
        path.display()
    ));
    let _daemon = scene.start();
    let raw = scene.connect().volumes().unwrap().remove(1);
    assert!(
        raw.broken.as_ref().unwrap().contains("precious.img holds something that is no volume"),
        "{raw:?}"
    );
    assert!(std::fs::read(&path).unwrap() == bytes);
}

/// Submits a write of one block at `offset` and waits for it; `false` if the queue refuses it at
/// once.
fn drive(queue: &mut impl sietch::disk::DiskQueue, offset: u64) -> bool {
    let buffer = sietch::disk::Buffer::new(4096);
    let write = sietch::disk::Operation::Write { offset, length: 4096, buffer, durable: true };
    if queue.submit(1, write).is_err() {
        return false;
    }
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(std::time::Duration::from_secs(1)).unwrap();
        queue.complete(&mut done);
    }
    done.remove(0).result.unwrap();
    true
}

#[test]
fn an_application_grows_and_trims_its_area_by_the_native_api() {
    use sietch::disk::DiskQueue as _;
    let scene = Scene::new("areas-api", own_uid());
    scene.configure(&format!("[[volume]]\nname = \"main\"\n{}", scene::quota()));
    let _daemon = scene.start();
    let mut client = sietch::Client::connect(&scene.socket(), "app").unwrap();
    assert_eq!(client.create_vsa("log", MIB).unwrap().size, MIB);
    let mut vsa = client.acquire_vsa("log").unwrap();
    assert!(drive(&mut vsa.queue, MIB - 4096) && !drive(&mut vsa.queue, MIB));
    client.resize_vsa(&mut vsa, 2 * MIB).unwrap();
    assert!(drive(&mut vsa.queue, 2 * MIB - 4096) && !drive(&mut vsa.queue, 2 * MIB));
    vsa.queue.submit(1, sietch::disk::Operation::Flush).unwrap();
    let refused = client.resize_vsa(&mut vsa, 3 * MIB).unwrap_err();
    assert!(refused.to_string().contains("1 requests are in flight"), "{refused}");
    client.trim_vsa(&vsa, MIB, None).unwrap();
    assert_eq!(client.vsas().unwrap()[0].size, 2 * MIB);
    assert!(client.delete_vsa("log").is_err(), "it is held");
    let grant = vsa.grant.clone();
    drop(vsa);
    client.release(&grant).unwrap();
    client.delete_vsa("log").unwrap();
}

#[test]
fn the_example_of_the_native_api_runs_on_every_kind_of_volume() {
    let scene = Scene::new("areas-example", own_uid());
    let quota = scene::quota();
    scene.configure(&format!(
        "[[volume]]\nname = \"main\"\n{quota}[[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"4MiB\"\n{quota}"
    ));
    let _daemon = scene.start();
    let mut client = sietch::Client::connect(&scene.socket(), "app").unwrap();
    for name in ["data", "/ram/data"] {
        for _ in 0..2 {
            area::tour(&mut client, name, MIB).unwrap();
        }
        assert!(
            client.vsas().unwrap().iter().any(|found| found.path.ends_with("/data") && found.size == MIB)
        );
    }
}

#[test]
fn sizes_that_no_volume_has_change_nothing() {
    let scene = Scene::new("areas-sizes", own_uid());
    scene.configure(&format!(
        "[[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"4MiB\"\n\
         [[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"16MiB\"\n",
        scene.root.join("volume.img").display()
    ));
    let _daemon = scene.start();
    let mut connection = scene.connect();
    for path in ["/main/x", "/ram/x", "/raw/x"] {
        let before = connection.create_vsa(path, MIB, None).unwrap();
        for (size, sort) in [
            (0, ErrorKind::Invalid),
            (u64::MAX, ErrorKind::Invalid),
            (u64::MAX - 4095, ErrorKind::Full),
            (1 << 63, ErrorKind::Full),
            ((1 << 63) - 4096, ErrorKind::Full),
        ] {
            assert_eq!(kind(connection.resize_vsa(path, size)).0, sort, "{path} {size}");
            assert_eq!(kind(connection.create_vsa("y", size, None)).0, sort, "{path} {size}");
        }
        for (offset, length) in [(u64::MAX - 4095, None), (MIB, None), (4096, Some(u64::MAX - 4095))] {
            assert_eq!(
                kind(connection.trim_vsa(path, offset, length)).0,
                ErrorKind::Invalid,
                "{path} {offset}"
            );
        }
        let now = connection.vsas().unwrap().into_iter().find(|area| area.path == path).unwrap();
        assert_eq!((now.size, now.extents), (before.size, before.extents));
    }
    assert_eq!(connection.vsas().unwrap().len(), 3, "a refusal leaves nothing behind");
}

/// Areas by path and size.
type Model = std::collections::BTreeMap<String, u64>;

/// Creates, resizes and deletes areas until the daemon is dead. `model` is what was acknowledged.
/// The result is what the request in flight would have made of it.
fn work_until_it_dies(connection: &mut Connection, round: u64, model: &mut Model) -> Model {
    for step in round.. {
        let volume = if step % 2 == 0 { "main" } else { "raw" };
        let path = format!("/{volume}/a{}", step % 7);
        let size = (1 + (step * 31) % 64) * 4096;
        let mut next = model.clone();
        let done = match (model.contains_key(&path), step % 3) {
            (false, _) => {
                next.insert(path.clone(), size);
                connection.create_vsa(&path, size, None).map(|_| ())
            }
            (true, 0) => {
                next.remove(&path);
                connection.delete_vsa(&path)
            }
            (true, _) => {
                next.insert(path.clone(), size);
                connection.resize_vsa(&path, size).map(|_| ())
            }
        };
        match done {
            Ok(()) => *model = next,
            Err(CallError::Refused(error)) => panic!("{error}"),
            Err(_) => return next,
        }
    }
    unreachable!("a daemon that is killed")
}

/// `kill -9` of the daemon at any moment: what was acknowledged is there, what was in flight is
/// whole or not there, and nothing leaks.
#[test]
fn a_daemon_that_is_killed_at_work_loses_no_area_and_no_room() {
    let scene = Scene::new("areas-killed", own_uid());
    let path = scene.root.join("volume.img");
    scene.configure(&format!(
        "[[volume]]\nname = \"raw\"\nkind = \"extents\"\npath = \"{}\"\nsize = \"16MiB\"\n",
        path.display()
    ));
    let mut model = Model::new();
    let mut room = None;
    for round in 0..12 {
        let daemon = scene.start_process();
        let mut connection = scene.connect();
        let free = connection.volumes().unwrap()[1].free + model_bytes(&model, "/raw/");
        assert_eq!(*room.get_or_insert(free), free, "round {round}: room has leaked");
        let killer = std::thread::spawn(move || {
            // When the axe falls is the fault that is injected, not what the test waits for.
            std::thread::sleep(std::time::Duration::from_millis(5 + round * 13));
            daemon.kill();
        });
        let next = work_until_it_dies(&mut connection, round, &mut model);
        killer.join().unwrap();
        let _daemon = scene.start();
        let found: Model =
            scene.connect().vsas().unwrap().into_iter().map(|area| (area.path, area.size)).collect();
        assert!(
            found == model || found == next,
            "round {round}: {found:?} is neither {model:?} nor {next:?}"
        );
        model = found;
        let left = std::fs::read_dir(scene.data().join("areas")).unwrap().flatten();
        let left: std::collections::BTreeSet<String> =
            left.map(|entry| entry.file_name().into_string().unwrap()).collect();
        let names = model.keys().filter_map(|path| path.strip_prefix("/main/"));
        let wanted = names.flat_map(|name| [format!("{name}.owner"), format!("{name}.vsa")]).collect();
        assert_eq!(left, wanted, "round {round}: areas with their owners' files, and nothing else");
        let mut connection = scene.connect();
        for (path, size) in model.iter().filter(|(path, _)| path.starts_with("/main/")) {
            let (grant, file) = connection.acquire_vsa(path).unwrap();
            assert_eq!(
                (grant.size, rustix::fs::fstat(&file).unwrap().st_size.cast_unsigned()),
                (*size, *size)
            );
            drop(file);
            connection.release(grant.grant).unwrap();
        }
    }
}

fn model_bytes(model: &Model, volume: &str) -> u64 {
    model.iter().filter(|(path, _)| path.starts_with(volume)).map(|(_, size)| *size).sum()
}

const OTHER_USER: u32 = 61_899;

/// Runs `work` as another user, in a process of its own: the kernel's report on the connection
/// decides what a uid may do.
fn as_other_user(scene: &Scene, work: &str) -> String {
    let mut process = scene.application(Some(OTHER_USER));
    process.command(work, "DID")
}

#[test]
fn a_user_creates_areas_within_its_quota_and_changes_no_others() {
    if own_uid() != 0 {
        eprintln!(
            "SKIPPED a_user_creates_areas_within_its_quota_and_changes_no_others: needs root to become others"
        );
        return;
    }
    let scene = Scene::new("areas-quota", own_uid());
    scene.configure(&format!(
        "[[volume]]\nname = \"main\"\n[[volume.quota]]\nuid = {OTHER_USER}\nsize = \"4MiB\"\n"
    ));
    let _daemon = scene.start();
    let mut root: Connection = scene.connect();
    root.create_vsa("roots", MIB, None).unwrap();
    let (_, file) = root.acquire_vsa("roots").unwrap();
    write(&file, 0, 9);
    for refused in
        ["resize roots 2097152", "trim roots 0 4096", "delete roots", "acquire roots", "acquire /main/roots"]
    {
        let answer = as_other_user(&scene, refused);
        assert!(answer.starts_with("Denied"), "{refused}: {answer}");
    }
    assert_eq!(as_other_user(&scene, "list"), "", "another's areas are not shown");
    assert_eq!(read(&file, 0), [9; 4096]);
    assert_eq!(as_other_user(&scene, "create mine 3145728"), "ok /main/mine 3145728");
    assert_eq!(as_other_user(&scene, "list"), "/main/mine");
    let answer = as_other_user(&scene, "create more 2097152");
    assert!(answer.starts_with("Limit") && answer.contains("3145728 of 4194304"), "{answer}");
    assert!(as_other_user(&scene, "resize mine 5242880").starts_with("Limit"));
    assert_eq!(as_other_user(&scene, "resize mine 4194304"), "ok /main/mine 4194304");
    assert!(as_other_user(&scene, "create-for 0 roots2 4096").starts_with("Denied"), "for another user");
    let volumes = root.volumes().unwrap();
    assert_eq!(volumes[0].quotas[0].used, 4 * MIB);
    assert_eq!(as_other_user(&scene, "delete mine"), "ok");
    scene.configure("");
    root.reload().unwrap();
    assert!(as_other_user(&scene, "create mine 4096").starts_with("Denied"), "no quota, no area");
}
