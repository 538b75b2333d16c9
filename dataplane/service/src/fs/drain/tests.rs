//! Media that leave, also where each of the steps was the last one before a crash.

use super::*;
use crate::fs::description::{ClassName, Migration};
use crate::fs::test_folder::{Folder, MIB, end};
use crate::fs::{add, check, grow, shared};

/// A file system of a home, a small disk and one of 24 MiB, with a file on the last one.
fn with_data(name: &str) -> Folder {
    let folder = Folder::new(name);
    add(&folder.store(), &folder.medium("new", ClassName::Ssd, 24), &mut |_| {}).expect("room");
    // New data go past the home.
    marks(&folder, (0, 1, 2));
    folder.write("data", 10);
    assert!(used(&folder, 2) > 8 * MIB, "{}", used(&folder, 2));
    marks(&folder, (70, 85, 95));
    folder
}

fn marks(folder: &Folder, (low, high, hard): (u16, u16, u16)) {
    let migration = Some(Migration { rate: 0, low, high, hard });
    Description { migration, ..folder.read() }.write(&folder.store()).expect("room");
}

/// Bytes in use on a medium.
fn used(folder: &Folder, place: usize) -> u64 {
    check(&folder.store(), false).expect("not open").media[place].1.used() * BLOCK_BYTES
}

fn leave(folder: &Folder) -> Result<u64, StoreError> {
    drain(&folder.store(), &folder.file("new"), &mut |_| {})
}

fn verify(folder: &Folder) {
    folder.verify("before", 12);
    folder.verify("data", 10);
}

#[test]
fn a_medium_leaves_with_all_data_on_the_others_and_its_slot_is_used_again() {
    let folder = with_data("leave");
    grow(&folder.store(), &folder.file("home"), 64 * MIB).expect("room");
    let before = used(&folder, 2);
    let mut seen = Vec::new();
    let moved = drain(&folder.store(), &folder.file("new"), &mut |left| seen.push(left)).expect("room");
    assert_eq!((moved, seen.last()), (before, Some(&0)));
    assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
    assert_eq!(folder.sizes(), (vec![64, 1], false));
    verify(&folder);
    // The file is there, and is none of the file system's.
    let error = leave(&folder).expect_err("it has left");
    assert!(matches!(error, StoreError::NoMedium { .. }), "{error}");
    let error = add(&folder.store(), &folder.medium("new", ClassName::Ssd, 24), &mut |_| {});
    assert!(error.expect_err("a file").to_string().contains("exists already"));
    // The first one leaves too, and another one is in its slot.
    drain(&folder.store(), &folder.file("slow"), &mut |_| {}).expect("room");
    add(&folder.store(), &folder.medium("other", ClassName::Hdd, 2), &mut |_| {}).expect("room");
    add(&folder.store(), &folder.medium("third", ClassName::Ssd, 3), &mut |_| {}).expect("room");
    assert_eq!(folder.sizes(), (vec![64, 2, 3], false));
    folder.write("after", 12);
    verify(&folder);
}

#[test]
fn a_medium_in_the_middle_leaves_a_slot_that_stays_empty() {
    let folder = with_data("middle");
    drain(&folder.store(), &folder.file("slow"), &mut |_| {}).expect("room");
    assert_eq!(folder.sizes(), (vec![16, 24], false));
    let media = check(&folder.store(), false).expect("not open").media;
    assert!(media.len() == 2 && media[1].0.ends_with("new") && media[1].1.used() > 0, "{media:?}");
    verify(&folder);
    let server = shared::serve(&folder.store(), || {}).expect("it opens");
    let attached = shared::attach(&folder.store()).expect("a client gets two media");
    drop(attached);
    assert_eq!(server.end(), Ok(()));
}

#[test]
fn a_medium_whose_data_have_no_room_elsewhere_stays() {
    let folder = with_data("no-room");
    let before = folder.read();
    let error = leave(&folder).expect_err("no room");
    let StoreError::NoRoomElsewhere { left, room, .. } = error else { panic!("{error}") };
    assert!(left > 8 * MIB && room < 4 * MIB, "{left} bytes, room for {room}");
    assert_eq!(folder.read(), before);
    let error = drain(&folder.store(), &folder.file("home"), &mut |_| {}).expect_err("the home");
    assert!(error.to_string().contains("only other media can leave"), "{error}");
    let error = drain(&folder.store(), &folder.file("nothing"), &mut |_| {}).expect_err("no medium");
    assert!(matches!(error, StoreError::NoMedium { .. }), "{error}");
    verify(&folder);
}

/// Spoils each `step`th block of a medium that has data; how many.
fn rot(path: &Path, step: usize) -> u64 {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path).expect("a medium");
    let mut block = vec![0; sietch_fs::limits::BLOCK];
    let (mut offset, mut seen, mut spoilt) = (4 * BLOCK_BYTES, 0, 0);
    while file.read_exact_at(&mut block, offset).is_ok() {
        if block.iter().any(|byte| *byte != 0) {
            seen += 1;
            if seen % step == 0 {
                file.write_all_at(&[7; 8], offset + 8).expect("room");
                spoilt += 1;
            }
        }
        offset += BLOCK_BYTES;
    }
    spoilt
}

/// More than a mount names in its log.
#[test]
fn a_medium_with_rotten_blocks_keeps_only_these_and_names_their_files() {
    let folder = with_data("rotten");
    grow(&folder.store(), &folder.file("home"), 64 * MIB).expect("room");
    marks(&folder, (0, 1, 2));
    folder.write("more", 2);
    marks(&folder, (70, 85, 95));
    let rotten = rot(&folder.file("new"), 20) * BLOCK_BYTES;
    assert!(rotten > 100 * BLOCK_BYTES, "{rotten}");
    let error = leave(&folder).expect_err("not everything can leave");
    let StoreError::NotDrained { left, .. } = &error else { panic!("{error}") };
    assert_eq!((left.bytes, left.readable), (rotten, 0));
    let paths: Vec<_> = left.unreadable.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!((paths, left.unreadable.unlisted), (vec!["/data", "/more"], 0));
    let text = error.to_string();
    assert!(text.contains("is not drained") && text.contains(": /data ("), "{text}");
    assert!(text.contains("Restore these files from a backup, or remove them"), "{text}");
    assert!(!text.contains("can be read and have no place"), "{text}");
    assert_eq!(folder.sizes(), (vec![64, 1, 24], false));
    assert_eq!(used(&folder, 2), rotten);
    // Nothing else is lost, and what the fix says works.
    let findings = check(&folder.store(), true).expect("not open").pool.totals.damaged_blocks;
    assert_eq!(findings * BLOCK_BYTES, rotten);
    folder.remove("data");
    let error = leave(&folder).expect_err("one file more");
    assert!(error.to_string().contains("cannot be read: /more ("), "{error}");
    folder.remove("more");
    leave(&folder).expect("nothing is left");
    assert_eq!(folder.sizes(), (vec![64, 1], false));
    folder.verify("before", 12);
}

/// Some data cannot be read, and others have no room elsewhere: both is said.
#[test]
fn a_medium_with_rotten_blocks_and_without_room_elsewhere_says_both() {
    let folder = with_data("rotten-full");
    // Just as much room as is there, and not for the fragments.
    grow(&folder.store(), &folder.file("home"), 64 * MIB).expect("room");
    let rotten = rot(&folder.file("new"), 40) * BLOCK_BYTES;
    let mut locked = Locked::new(&folder.store()).expect("not open");
    let change = Change::Drain { path: folder.file("new") };
    locked.begin(change.clone()).expect("room");
    // The command has verified that there is room, and the marks are others now.
    let migration = Some(Migration { rate: 0, low: 0, high: 25, hard: 95 });
    let leaving = Description { change: Some(change), migration, ..locked.description.clone() };
    let moved = move_all(&leaving, &locked.media, (&folder.file("new"), 2), &mut |_| {});
    let Err(StoreError::NotDrained { left, .. }) = moved else { panic!("{moved:?}") };
    assert!(left.readable > 0 && left.readable < left.bytes, "{left:?}");
    assert!(left.bytes - left.readable <= rotten, "{left:?}");
    assert!(left.to_string().contains("bytes can be read and have no place elsewhere"), "{left}");
    locked.end().expect("room");
    drop(locked);
    leave(&folder).expect_err("the rotten ones stay");
    assert_eq!(used(&folder, 2), rotten);
}

/// The description says that a medium is leaving; some data have moved, or all; or the pool does
/// not have it any more.
#[test]
fn a_drain_that_was_cut_short_at_any_step_opens_and_is_finished() {
    for step in 0..4 {
        let folder = with_data(&format!("cut-drain-{step}"));
        grow(&folder.store(), &folder.file("home"), 64 * MIB).expect("room");
        let path = folder.file("new");
        folder.begin(Change::Drain { path: path.clone() });
        let all = used(&folder, 2);
        if step > 0 {
            let locked = Locked::new(&folder.store()).expect("not open");
            let leaving = Description { change: locked.begun.clone(), ..locked.description.clone() };
            let mut moved = 0;
            // A panic is as good as a kill: what is written is written.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                move_all(&leaving, &locked.media, (&path, 2), &mut |left| {
                    moved = all - left;
                    assert!(step > 1 || left == 0, "killed");
                })
            }));
            assert!(moved > 0);
            assert_eq!(result.is_ok(), step > 1);
        }
        if step > 2 {
            let mut locked = Locked::new(&folder.store()).expect("not open");
            drop(locked.pool.remove_medium(2).expect("nothing is on it"));
        }
        verify(&folder);
        assert_eq!(folder.sizes(), (vec![64, 1, 24], true), "opening changes no description");
        let server = shared::serve(&folder.store(), || {}).expect("it opens");
        drop(shared::attach(&folder.store()).expect("a client"));
        assert_eq!(server.end(), Ok(()));
        leave(&folder).expect("it goes on");
        assert_eq!(folder.sizes(), (vec![64, 1], false), "step {step}");
        verify(&folder);
    }
}

/// A mount takes no new data to a medium that is leaving, and goes on with moving.
#[test]
fn a_mount_goes_on_with_a_drain() {
    let folder = with_data("mount");
    grow(&folder.store(), &folder.file("home"), 64 * MIB).expect("room");
    Description { migration: None, ..folder.read() }.write(&folder.store()).expect("room");
    folder.begin(Change::Drain { path: folder.file("new") });
    let mut running = folder.open();
    let start = Instant::now();
    // Nothing is known of the media before the first commit.
    while running.digester.totals().media.get(2).is_none_or(|medium| medium.used() > 0) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", running.digester.totals());
        running.client.advance();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    end(running);
    assert_eq!(leave(&folder).expect("nothing is left"), 0);
    assert_eq!(folder.sizes(), (vec![64, 1], false));
    verify(&folder);
}
