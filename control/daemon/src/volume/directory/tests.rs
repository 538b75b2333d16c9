use super::*;

/// A data directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self::in_folder(&std::env::temp_dir(), name)
    }

    fn in_folder(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("sietch-area-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.0.join("areas")).into_iter().flatten().flatten() {
            let _ = unfence(&entry.path());
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SIZE: u64 = 64 << 10;

/// tmpfs does not stop writes through an open descriptor. The daemon's warning says so, and how to
/// fix it.
#[test]
fn a_file_system_where_revoking_has_no_effect_causes_a_warning() {
    let folder = std::path::PathBuf::from(format!("/dev/shm/sietch-void-{}", std::process::id()));
    let opened = Directory::open("main", folder.join("areas"), None, &mut Vec::new());
    let said = opened.as_ref().map(|areas| (areas.protection(), areas.warning())).ok();
    drop(opened);
    let _ = std::fs::remove_dir_all(&folder);
    let Some((Protection::None(why), warning)) = said else {
        eprintln!(
            "SKIPPED a_file_system_where_revoking_has_no_effect_causes_a_warning: /dev/shm is no tmpfs"
        );
        return;
    };
    if why.contains("CAP_LINUX_IMMUTABLE") {
        eprintln!("SKIPPED a_file_system_where_revoking_has_no_effect_causes_a_warning: needs root ({why})");
        return;
    }
    let warning = warning.expect("a warning");
    assert!(warning.contains(&why) && warning.contains("revoking") && warning.contains("ext4"), "{warning}");
}

#[test]
fn revoking_stops_writes_through_descriptors_that_are_open() {
    let scratch = Scratch::new("fence");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    if let Protection::None(why) = areas.protection() {
        assert!(areas.fence("a").unwrap_err().contains(&why), "the answer must say what does not hold");
        eprintln!(
            "SKIPPED revoking_stops_writes_through_descriptors_that_are_open: needs ext4 and root ({why})"
        );
        return;
    }
    let held = areas.prepare("a", 7, SIZE).unwrap();
    let direct = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held)),
        OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    let mut block = sietch_disk::Buffer::new(4096);
    block.fill(7);
    assert_eq!(rustix::io::pwrite(&held, &block, 0), Ok(4096));
    assert_eq!(rustix::io::pwrite(&direct, &block, 4096), Ok(4096));
    areas.fence("a").unwrap();
    assert_eq!(rustix::io::pwrite(&held, &block, 0), Err(Errno::PERM));
    assert_eq!(rustix::io::pwrite(&direct, &block, 4096), Err(Errno::PERM));
    assert!(rustix::fs::ftruncate(&held, 0).is_err());
    assert!(rustix::fs::fallocate(&held, rustix::fs::FallocateFlags::empty(), 0, 2 * SIZE).is_err());
    let busy = areas.prepare("a", 7, SIZE).unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy, "the previous holder is still there");
    drop(direct);
    drop(held);
    let next = areas.prepare("a", 7, SIZE).unwrap();
    assert_eq!(rustix::io::pwrite(&next, &block, 0), Ok(4096));
}

#[test]
fn an_area_of_another_size_is_refused_and_its_data_kept() {
    let scratch = Scratch::new("size");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    drop(areas.prepare("a", 7, SIZE).unwrap());
    let refused = areas.prepare("a", 7, 2 * SIZE).unwrap_err();
    assert!(refused.cause.contains("the area has 64KiB"), "{refused}");
    assert_eq!(areas.path("a").metadata().unwrap().len(), SIZE);
}

#[test]
fn blocks_reserved_beyond_the_end_are_given_back() {
    let scratch = Scratch::new("reserve");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    let held = areas.prepare("a", 7, SIZE).unwrap();
    assert_eq!(areas.check_size("a", SIZE), None);
    let beyond = rustix::fs::FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(&held, beyond, SIZE, 8 << 20).is_err() {
        eprintln!("SKIPPED blocks_reserved_beyond_the_end_are_given_back: needs fallocate");
        return;
    }
    assert!(areas.check_size("a", SIZE).unwrap().contains("cut back"));
    assert_eq!(areas.check_size("a", SIZE), None);
}

#[test]
fn areas_can_be_reached_by_the_daemon_alone() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("mode");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    drop(areas.prepare("a", 7, SIZE).unwrap());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&scratch.0.join("areas")), mode(&areas.path("a"))), (0o700, 0o600));
}

#[test]
fn only_leftovers_of_a_crash_are_removed() {
    let scratch = Scratch::new("orphans");
    let directory = scratch.0.join("areas");
    let areas = Directory::open("main", directory.clone(), None, &mut Vec::new()).unwrap();
    areas.create("a", 7, SIZE).unwrap();
    drop(areas);
    for left in [
        "b.vsa.partial",
        "c.owner.new",
        "d.owner",
        "a.owner.new",
        "a.vsa.moving",
        "e.vsa.moving.partial",
        "notes.txt",
        "..owner",
    ] {
        std::fs::write(directory.join(left), "7\n").unwrap();
    }
    let areas = Directory::open("main", directory.clone(), None, &mut Vec::new()).unwrap();
    let mut left: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["..owner", "a.owner", "a.vsa", "notes.txt"]);
    assert_eq!(areas.find("a").unwrap().size, SIZE);
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("writable");
    let path = scratch.0.join("shared");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Directory::open("shared", path, None, &mut Vec::new()).err().unwrap().to_string();
    assert!(refused.contains("mode 777") && refused.contains("chmod 700"), "{refused}");
}

#[test]
fn two_concurrent_requests_never_get_more_than_the_bound() {
    let scratch = Scratch::new("bound");
    let areas = Directory::open("main", scratch.0.join("areas"), Some(4 * SIZE), &mut Vec::new()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let areas = &areas;
            scope.spawn(move || {
                for round in 0..8 {
                    let name = format!("{thread}-{round}");
                    if areas.create(&name, 7, 2 * SIZE).is_ok() {
                        let grown = areas.resize(&name, 3 * SIZE, false).is_ok();
                        assert!(areas.list().iter().map(|area| area.size).sum::<u64>() <= 4 * SIZE);
                        assert_eq!(areas.find(&name).unwrap().size, if grown { 3 } else { 2 } * SIZE);
                        areas.delete(&name).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(areas.list().len(), 0);
    assert_eq!(std::fs::read_dir(scratch.0.join("areas")).unwrap().count(), 0, "a refusal leaves nothing");
}

/// All of a volume on persistent memory that needs none: what is refused where mappings are not
/// synchronous, and what revoking does instead.
#[test]
fn an_area_that_is_mapped_moves_when_it_is_revoked() {
    let scratch = Scratch::new("dax");
    let open = || Directory::open("pmem", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    match open().on_dax() {
        Ok(_) => eprintln!("this file system is persistent memory"),
        Err(why) => assert!(why.contains("MAP_SYNC") && why.contains("-o dax"), "{why}"),
    }
    assert_eq!(std::fs::read_dir(scratch.0.join("areas")).unwrap().count(), 0, "a refusal leaves nothing");
    let mut areas = open();
    areas.dax = true;
    assert_eq!(areas.protection(), Protection::KernelEnforced);
    let held = areas.prepare("a", 7, SIZE).unwrap();
    assert_eq!(rustix::io::pwrite(&held, &[5; 4096], SIZE - 4096), Ok(4096));
    areas.fence("a").unwrap();
    assert_eq!(rustix::io::pwrite(&held, &[6; 4096], SIZE - 4096), Ok(4096));
    let next = areas.prepare("a", 7, SIZE).expect("the previous holder has another file");
    let mut bytes = [0; 4096];
    assert_eq!(rustix::io::pread(&next, &mut bytes, SIZE - 4096), Ok(4096));
    assert_eq!(bytes, [5; 4096], "no other holder sees what a revoked one writes");
    assert!(areas.fence("none").unwrap().contains("not been made"));
}

/// A former holder that keeps its descriptor would keep the blocks of an area that counts for no
/// quota any more. Giving up the lock does not help it.
#[test]
fn an_area_that_a_former_holder_can_write_is_neither_removed_nor_resized() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let scratch = Scratch::in_folder(&parent, "former");
        let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
        areas.create("a", 7, 2 * SIZE).unwrap();
        let held = areas.prepare("a", 7, 2 * SIZE).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::Unlock).unwrap();
        assert_eq!(areas.resize("a", SIZE, false).unwrap_err().kind, ErrorKind::Busy);
        assert_eq!(areas.delete("a").unwrap_err().kind, ErrorKind::Busy);
        assert_eq!(areas.find("a").unwrap().size, 2 * SIZE, "it counts as before");
        areas.resize("a", 3 * SIZE, true).expect("its holder may use it meanwhile");
        drop(held);
        let reader = areas.reader("a").unwrap();
        areas.delete("a").expect("no process can write to it");
        let kept = rustix::fs::fstat(&reader).unwrap();
        assert_eq!((kept.st_size, kept.st_blocks), (0, 0), "a reader keeps blocks of it");
    }
}

/// What `sietch.toml` says of an area that it made is what counts, not the length of its file.
#[test]
fn an_area_has_the_size_that_it_was_made_with() {
    let scratch = Scratch::new("made");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    let held = areas.prepare("a", 7, SIZE).unwrap();
    rustix::fs::ftruncate(&held, 8 << 20).unwrap();
    let found = areas.find("a").unwrap();
    assert_eq!((found.size, found.recorded), (SIZE, false), "its holder has chosen its size");
    assert!(areas.has_grown("a", SIZE));
    drop(areas);
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_size.cast_unsigned(), SIZE, "not cut at the start");
    assert!(!areas.has_grown("a", SIZE));
    drop(held);
    assert!(areas.prepare("a", 7, 2 * SIZE).unwrap_err().cause.contains("the area has 64KiB"));
    drop(areas.prepare("a", 7, SIZE).unwrap());
}

/// A holder that makes its file longer all the time cannot do so any more when it is revoked, and
/// does not keep the length.
#[test]
fn an_area_that_grows_while_it_is_revoked_is_cut_back() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let scratch = Scratch::new("grows");
    let areas = Directory::open("main", scratch.0.join("areas"), None, &mut Vec::new()).unwrap();
    if !areas.can_shut() {
        eprintln!("SKIPPED an_area_that_grows_while_it_is_revoked_is_cut_back: needs ext4 and root");
        return;
    }
    let held = areas.prepare("a", 7, SIZE).unwrap();
    rustix::fs::ftruncate(&held, 64 << 20).unwrap();
    areas.fence("a").unwrap();
    let length = || areas.path("a").metadata().unwrap().len();
    assert_eq!(length(), SIZE, "it was made immutable at the length that its holder chose");
    assert!(rustix::fs::ftruncate(&held, 64 << 20).is_err());
    drop(held);

    let held = areas.prepare("a", 7, SIZE).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::io::pwrite(&held, &[7; 4096], 4 << 20);
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        areas.fence("a").unwrap();
        // The daemon tries again each second.
        let again =
            (0..20).take_while(|_| areas.has_grown("a", SIZE)).filter(|_| areas.shut("a").is_ok()).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(length(), SIZE, "after {again} more attempts");
    });
    assert_eq!(rustix::io::pwrite(&held, &[7; 4096], 0), Err(Errno::PERM));
}
