//! A log that continues while the daemon grows and shrinks its area.

use crate::scene::{self, Scene};
use sietch::persist::{FormatOptions, Log, OpenError, Options, ResizeError};

const MIB: u64 = 1 << 20;

/// Appends `count` records and makes them durable. Returns the sequence of the last one.
fn append<D: sietch::disk::DiskQueue>(log: &mut Log<D>, count: usize) -> u64 {
    let mut last = log.last();
    for _ in 0..count {
        last = log.append(&[7; 4000]).unwrap();
    }
    log.submit().unwrap();
    while log.poll().unwrap() < last {
        log.wait(std::time::Duration::from_secs(1)).unwrap();
    }
    last
}

fn settle<D: sietch::disk::DiskQueue>(log: &mut Log<D>) {
    while log.is_resizing() || log.is_snapshotting() {
        if log.should_compact() {
            log.begin_snapshot().unwrap();
            log.snapshot_append(b"state").unwrap();
            log.finish_snapshot().unwrap();
        }
        log.wait(std::time::Duration::from_secs(1)).unwrap();
    }
}

/// What holds of files and of memory.
fn grows_and_shrinks(scene: &Scene, area: &str) {
    let mut client = sietch::Client::connect(&scene.socket(), "app").unwrap();
    client.create_vsa(area, MIB).unwrap();
    let mut vsa = client.acquire_vsa(area).unwrap();
    let mut disk = vsa.another_queue().unwrap();
    Log::format(&mut disk, FormatOptions::new(5)).unwrap();
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).unwrap();
    append(&mut log, 60);
    assert!(matches!(log.grow(4 * MIB), Err(ResizeError::Area { .. })), "{area}: the area comes first");

    client.resize_vsa(&mut vsa, 4 * MIB).unwrap();
    log.replace_disk(vsa.another_queue().unwrap()).unwrap();
    log.grow(4 * MIB).unwrap();
    // No caller waits for it.
    append(&mut log, 10);
    settle(&mut log);
    assert_eq!(log.area_bytes(), 4 * MIB);
    append(&mut log, 200);
    assert!(matches!(log.shrink_to(MIB), Err(ResizeError::Live { .. })), "{area}: it is too full");

    log.begin_snapshot().unwrap();
    log.snapshot_append(b"state").unwrap();
    log.finish_snapshot().unwrap();
    settle(&mut log);
    log.shrink_to(MIB).unwrap();
    append(&mut log, 3);
    settle(&mut log);
    client.resize_vsa(&mut vsa, MIB).unwrap();
    log.replace_disk(vsa.another_queue().unwrap()).unwrap();
    let last = append(&mut log, 3);
    let disk = log.close().unwrap();
    let (log, report) = Log::open(disk, Options::default(), &mut |_| Ok(())).unwrap();
    assert_eq!((log.last(), report.formatted, report.area), (last, MIB, MIB), "{area}");
    drop(log);

    // Without shrinking the log first the records would go with the area: what is left names what
    // it lacks.
    client.resize_vsa(&mut vsa, 4 * MIB).unwrap();
    let (mut log, _) = Log::open(vsa.another_queue().unwrap(), Options::default(), &mut |_| Ok(())).unwrap();
    log.grow(4 * MIB).unwrap();
    settle(&mut log);
    append(&mut log, 300);
    drop(log);
    client.resize_vsa(&mut vsa, MIB).unwrap();
    let cut = Log::open(vsa.another_queue().unwrap(), Options::default(), &mut |_| Ok(())).map(drop);
    assert!(matches!(cut, Err(OpenError::AreaTooSmall { .. })), "{area}: {cut:?}");
}

#[test]
fn a_log_grows_and_shrinks_with_its_area() {
    let scene = Scene::new("growing-log", rustix::process::geteuid().as_raw());
    let quota = scene::quota();
    scene.configure(&format!(
        "[[volume]]\nname = \"main\"\n{quota}[[volume]]\nname = \"nvm\"\nkind = \"memory\"\nsize = \"16MiB\"\n{quota}"
    ));
    let _daemon = scene.start();
    grows_and_shrinks(&scene, "data");
    grows_and_shrinks(&scene, "/nvm/data");
}
