//! Changes of the media, also where each of their steps was the last one before a crash.

use super::*;
use crate::fs::description::{ClassName, FILE};
use crate::fs::test_folder::{Folder, MIB, end};
use crate::fs::{check, drain, open, shared};

#[test]
fn a_medium_grows_and_has_room() {
    let folder = Folder::new("grow");
    for (name, mib) in [("home", 32), ("slow", 8)] {
        grow(&folder.store(), &folder.file(name), mib * MIB).expect("room");
        folder.verify("before", 12);
    }
    assert_eq!(folder.sizes(), (vec![32, 8], false));
    folder.write("after", 12);
    folder.verify("after", 12);
    let media = check(&folder.store(), false).expect("not open").media;
    assert_eq!(media.iter().map(|(_, medium)| medium.blocks + 4).collect::<Vec<_>>(), [8192, 2048]);
}

#[test]
fn what_a_medium_cannot_be_is_refused_and_changes_nothing() {
    let folder = Folder::new("refused");
    let before = folder.read();
    let store = folder.store();
    let refused = |result: Result<(), StoreError>| {
        assert_eq!(folder.read(), before);
        result.expect_err("it cannot be").to_string()
    };
    let error = refused(grow(&store, &folder.file("home"), 15 * MIB));
    assert!(error.contains("has 16777216 bytes, and a medium only gets larger"), "{error}");
    let error = refused(grow(&store, &folder.file("home"), 17 * MIB + 1));
    assert!(error.contains("name a multiple of 4096"), "{error}");
    let error = refused(grow(&store, &folder.file("other"), 64 * MIB));
    assert!(error.contains("has no medium") && error.contains("/home, "), "{error}");
    let error = refused(grow(&store, &folder.file("home"), 1 << 60));
    assert!(error.contains("less than 16tib"), "{error}");
    let error = refused(grow(&store, &folder.file("home"), 15 << 40));
    assert!(error.contains("free"), "{error}");
    let error = refused(add(&store, &folder.medium("slow", ClassName::Ssd, 4), &mut |_| {}));
    assert!(error.contains("exists already"), "{error}");
    let tiny = MediumDescription { bytes: 8192, ..folder.medium("tiny", ClassName::Ssd, 4) };
    let error = refused(add(&store, &tiny, &mut |_| {}));
    assert!(error.contains("needs 16") && !folder.file("tiny").exists(), "{error}");
    let error = refused(add(&store, &folder.medium("huge", ClassName::Ssd, 15 << 20), &mut |_| {}));
    assert!(error.contains("free") && !folder.file("huge").exists(), "{error}");
    let running = folder.open();
    let error = refused(grow(&store, &folder.file("home"), 32 * MIB));
    assert!(error.contains("unmount it, or end `sietch fs serve`"), "{error}");
    end(running);
    folder.verify("before", 12);
}

/// The description says that growth is begun; the file is as it was, or longer, or the pool has it.
#[test]
fn growth_that_was_cut_short_at_any_step_opens_and_is_finished() {
    for name in ["home", "slow"] {
        for step in 0..3 {
            let folder = Folder::new(&format!("cut-{name}-{step}"));
            let (path, bytes) = (folder.file(name), 24 * MIB);
            let old = folder.read();
            folder.begin(Change::Grow { path: path.clone(), bytes });
            let place = old.place(&path).expect("a medium");
            if step > 0 {
                area::extend(&path, old.media[place].bytes, bytes).expect("room");
            }
            if step > 1 {
                let mut description = folder.read();
                let mut pool = open_pool(&media::open_all(&folder.store(), &mut description).expect("media"))
                    .expect("a pool");
                pool.grow_medium(place, (bytes / BLOCK as u64) as u32).expect("room");
            }
            folder.verify("before", 12);
            assert_eq!(folder.sizes(), (vec![16, 1], true), "opening changes no description");
            // A service passes the media on.
            let server = shared::serve(&folder.store(), || {}).expect("it opens");
            drop(shared::attach(&folder.store()).expect("a client"));
            assert_eq!(server.end(), Ok(()));
            grow(&folder.store(), &path, bytes).expect("room");
            assert_eq!(folder.read().media[place].bytes, bytes);
            assert_eq!(folder.read().change, None);
            folder.write("after", 3);
            folder.verify("before", 12);
        }
    }
}

/// Another command takes growth back that was begun and that the pool does not have.
#[test]
fn another_command_takes_back_what_was_begun() {
    let folder = Folder::new("back");
    let path = folder.file("home");
    folder.begin(Change::Grow { path: path.clone(), bytes: 64 * MIB });
    area::extend(&path, 16 * MIB, 64 * MIB).expect("room");
    grow(&folder.store(), &folder.file("slow"), 2 * MIB).expect("room");
    assert_eq!(folder.sizes(), (vec![16, 2], false));
    assert_eq!(path.metadata().expect("a file").len(), 16 * MIB);
    folder.verify("before", 12);
    // Of an addition nothing is in the pool.
    let medium = folder.medium("new", ClassName::Ssd, 4);
    folder.begin(Change::Add(medium.clone()));
    area::create(&medium.path, medium.bytes, &mut |_| {}).expect("room");
    grow(&folder.store(), &path, 32 * MIB).expect("room");
    assert_eq!(folder.sizes(), (vec![32, 2], false));
    assert!(!medium.path.exists());
    add(&folder.store(), &medium, &mut |_| {}).expect("nothing is in the way");
    assert_eq!(folder.sizes(), (vec![32, 2, 4], false));
    folder.verify("before", 12);
}

/// Whatever another command does, and however far the addition came.
#[test]
fn another_command_removes_the_file_of_an_addition_that_was_cut_short() {
    for (step, name) in [(0, "new.partial"), (1, "new"), (2, "new")] {
        let folder = Folder::new(&format!("left-{step}"));
        let medium = folder.medium("new", ClassName::Ssd, 4);
        let (store, file) = (folder.store(), folder.file(name));
        folder.begin(Change::Add(medium.clone()));
        area::create(&file, medium.bytes / (2 - step.min(1)), &mut |_| {}).expect("room");
        if step > 1 {
            // Its superblocks are written, and the home's was not.
            let home = std::fs::read(folder.file("home")).expect("a medium");
            let mut locked = Locked::new(&store).expect("not open");
            let opened = Medium::open(&medium).expect("a file");
            locked.pool.add_medium(opened.member().expect("a queue"), 99).expect("room");
            drop((locked, opened));
            std::fs::write(folder.file("home"), home).expect("room");
        }
        // The same file with another size, another file, another kind of change.
        match step {
            0 => add(&store, &MediumDescription { bytes: 2 * MIB, ..medium.clone() }, &mut |_| {}),
            1 => drain(&store, &folder.file("slow"), &mut |_| {}).map(drop),
            _ => grow(&store, &folder.file("home"), 32 * MIB),
        }
        .expect("it has nothing to do with it");
        assert!(!file.exists(), "{name}");
        assert_eq!(medium.path.exists(), step == 0);
        assert_eq!(folder.read().change, None);
        folder.verify("before", 12);
    }
}

/// There a queue reads past the cache.
#[test]
fn a_file_that_is_left_on_a_disk_is_removed_too() {
    let folder = Folder::new("left-disk");
    let program = std::env::current_exe().expect("a program");
    let path = program.with_file_name(format!("sietch-left-{}", std::process::id()));
    let medium = MediumDescription { path, ..folder.medium("", ClassName::Ssd, 4) };
    folder.begin(Change::Add(medium.clone()));
    area::create(&medium.path, medium.bytes, &mut |_| {}).expect("room");
    let grown = grow(&folder.store(), &folder.file("home"), 32 * MIB);
    let is_there = medium.path.exists();
    drop(std::fs::remove_file(&medium.path));
    grown.expect("it has nothing to do with it");
    assert!(!is_there);
}

/// What a user has put where an addition was begun is not ours to remove, or to write.
#[test]
fn a_file_with_other_data_is_no_leftover() {
    let folder = Folder::new("left-user");
    let medium = folder.medium("new", ClassName::Ssd, 4);
    let mut data = vec![0; 4 << 20];
    data[(4 << 20) - 1] = 1;
    for name in ["new", "new.partial"] {
        folder.begin(Change::Add(medium.clone()));
        let file = folder.file(name);
        area::create(&file, medium.bytes, &mut |_| {}).expect("room");
        std::fs::write(&file, &data).expect("room");
        if name == "new" {
            let error = add(&folder.store(), &medium, &mut |_| {}).expect_err("a file of a user");
            assert!(error.to_string().contains("exists already"), "{error}");
        }
        grow(&folder.store(), &folder.file("home"), folder.read().media[0].bytes + MIB).expect("room");
        assert!(std::fs::read(&file).expect("it is there") == data);
        assert_eq!(folder.read().change, None);
    }
    folder.verify("before", 12);
}

#[test]
fn media_are_added_and_used() {
    let folder = Folder::new("add");
    let mut expected = vec![16, 1];
    for at in 2..8 {
        let medium = folder.medium(&format!("new {at}"), ClassName::Ssd, at);
        let mut written = 0;
        add(&folder.store(), &medium, &mut |bytes| written = bytes).expect("room");
        assert_eq!(written, at * MIB);
        expected.push(at);
        assert_eq!(folder.sizes(), (expected.clone(), false));
    }
    let error = add(&folder.store(), &folder.medium("more", ClassName::Ssd, 4), &mut |_| {});
    assert!(error.expect_err("eight").to_string().contains("may not have more"));
    assert!(!folder.file("more").exists());
    folder.write("after", 12);
    folder.verify("after", 12);
    folder.verify("before", 12);
    let media = check(&folder.store(), false).expect("not open").media;
    let used: u64 = media[2..].iter().map(|(_, medium)| medium.used()).sum();
    assert!(used > 1000, "{media:?}");
    assert!(media[7].0.ends_with("new 7") && media[7].1.blocks == 7 * 256 - 4, "{media:?}");
}

#[test]
fn an_addition_that_was_cut_short_at_any_step_opens_and_is_finished() {
    for step in 0..3 {
        let folder = Folder::new(&format!("cut-add-{step}"));
        let medium = folder.medium("new", ClassName::Ssd, 4);
        folder.begin(Change::Add(medium.clone()));
        if step > 0 {
            area::create(&medium.path, medium.bytes, &mut |_| {}).expect("room");
        }
        if step > 1 {
            let mut description = folder.read();
            let mut pool = open_pool(&media::open_all(&folder.store(), &mut description).expect("media"))
                .expect("a pool");
            let opened = Medium::open(&medium).expect("a file");
            assert_eq!(pool.add_medium(opened.member().expect("a queue"), 99).expect("room"), 2);
        }
        folder.verify("before", 12);
        let server = shared::serve(&folder.store(), || {}).expect("it opens");
        drop(shared::attach(&folder.store()).expect("a client"));
        assert_eq!(server.end(), Ok(()));
        add(&folder.store(), &medium, &mut |_| {}).expect("it goes on");
        assert_eq!(folder.sizes(), (vec![16, 1, 4], false), "step {step}");
        folder.write("after", 3);
        folder.verify("before", 12);
    }
}

/// Power was lost while the file got longer: the kernel does that in steps.
#[test]
fn growth_that_made_a_part_of_the_file_opens_and_is_finished() {
    let folder = Folder::new("cut-part");
    let path = folder.file("home");
    folder.begin(Change::Grow { path: path.clone(), bytes: 24 * MIB });
    area::extend(&path, 16 * MIB, 20 * MIB).expect("room");
    folder.verify("before", 12);
    grow(&folder.store(), &path, 24 * MIB).expect("it goes on");
    assert_eq!(folder.sizes(), (vec![24, 1], false));
    folder.verify("before", 12);
}

/// A copy of the description from before other growth, with a change that is begun.
#[test]
fn an_old_description_takes_nothing_from_the_pool() {
    let folder = Folder::new("cut-old");
    let (path, store) = (folder.file("home"), folder.store());
    folder.begin(Change::Grow { path: path.clone(), bytes: 32 * MIB });
    let old = folder.read();
    grow(&store, &path, 24 * MIB).expect("room");
    folder.write("after", 3);
    area::extend(&path, 24 * MIB, 32 * MIB).expect("room");
    old.write(&store).expect("room");
    grow(&store, &path, 28 * MIB).expect("room");
    assert_eq!(folder.sizes(), (vec![28, 1], false));
    folder.verify("before", 12);
    folder.verify("after", 3);
    // What is there already is no error.
    grow(&store, &path, 28 * MIB).expect("it has that size");
}

/// A description without changes is as it was before there were any.
#[test]
fn a_description_of_an_earlier_version_is_read() {
    let folder = Folder::new("old");
    let text = std::fs::read_to_string(folder.store().join(FILE)).expect("a description");
    assert!(!text.contains("change"), "{text}");
    let more = format!("{text}\n[change]\nkind = \"shrink\"\n");
    std::fs::write(folder.store().join(FILE), more).expect("a file");
    let error = open(&folder.store()).map(drop).expect_err("an unknown change").to_string();
    assert!(error.contains("shrink"), "{error}");
}
