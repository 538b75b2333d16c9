use super::*;

const MIB: u64 = 1 << 20;

fn write(file: &OwnedFd, at: u64, byte: u8) {
    assert_eq!(rustix::io::pwrite(file, &[byte; 4096], at), Ok(4096));
}

fn read(file: &OwnedFd, at: u64) -> u8 {
    let mut bytes = [0xee; 4096];
    assert_eq!(rustix::io::pread(file, &mut bytes, at), Ok(4096));
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn pages(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks.cast_unsigned() * 512
}

#[test]
fn it_grows_under_its_holder_part_by_part() {
    let memory = Memory::new("ram", 8 * MIB);
    memory.create("a", 7, MIB).unwrap();
    let held = memory.prepare("a", 7, MIB).unwrap();
    write(&held.files[0], MIB - 4096, 1);
    for parts in 2..=4 {
        memory.resize("a", parts * MIB).unwrap();
        let now = memory.remap("a").unwrap();
        assert_eq!(now.lengths, vec![MIB; parts as usize]);
        assert_eq!(read(&now.files[0], MIB - 4096), 1, "its mapping keeps its place");
        assert_eq!(read(now.files.last().unwrap(), 0), 0, "what is added is zeros");
        write(now.files.last().unwrap(), 0, parts as u8);
    }
    assert!(memory.prepare("a", 7, MIB).is_err(), "it is held");
    drop(held);
    let next = memory.prepare("a", 7, MIB).unwrap();
    let found: Vec<u8> = next.files.iter().map(|file| read(file, 0)).collect();
    assert_eq!(found, [0, 2, 3, 4]);
    assert_eq!(memory.room(), (8 * MIB, 4 * MIB));
}

#[test]
fn its_holder_can_neither_resize_it_nor_keep_released_memory() {
    let memory = Memory::new("ram", 8 * MIB);
    memory.create("a", 7, 2 * MIB).unwrap();
    let held = memory.prepare("a", 7, 2 * MIB).unwrap();
    memory.resize("a", 3 * MIB).unwrap();
    let both = memory.remap("a").unwrap();
    for file in &both.files {
        let length = rustix::fs::fstat(file).unwrap().st_size.cast_unsigned();
        for size in [0, length - 4096, length + 4096, u64::MAX >> 1] {
            assert!(rustix::fs::ftruncate(file, size).is_err(), "{size}");
        }
        assert!(rustix::fs::fallocate(file, FallocateFlags::empty(), length, 4096).is_err());
    }
    write(&both.files[1], 0, 9);
    write(&both.files[0], 2 * MIB - 4096, 9);
    memory.resize("a", MIB).unwrap();
    assert_eq!((pages(&both.files[0]), pages(&both.files[1])), (MIB, 0), "what was cut off is freed at once");
    // It touches what is no longer its: that is counted where it can be had again, and is its own
    // memory elsewhere.
    write(&both.files[1], 0, 8);
    write(&both.files[0], 2 * MIB - 4096, 8);
    let found = memory.find("a").unwrap();
    assert_eq!((found.size, found.charge), (MIB, 2 * MIB));
    memory.resize("a", 2 * MIB).unwrap();
    assert_eq!(
        read(&both.files[0], 2 * MIB - 4096),
        0,
        "the added memory is zero, even if the previous holder touched it"
    );
    memory.resize("a", MIB).unwrap();
    drop((both, held));
    // Another area needs the room.
    memory.create("b", 8, 7 * MIB).unwrap();
    assert_eq!(memory.find("a").unwrap().charge, MIB);
    assert_eq!(memory.room().1, 0);
}

#[test]
fn the_most_parts_are_refused_and_joined_when_it_is_released() {
    let memory = Memory::new("ram", 8 * MIB);
    memory.create("a", 7, 4096).unwrap();
    let held = memory.prepare("a", 7, 4096).unwrap();
    let most = MAX_PARTS as u64;
    for blocks in 2..=most {
        memory.resize("a", blocks * 4096).unwrap();
    }
    let refused = memory.resize("a", (most + 1) * 4096).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Limit);
    assert!(refused.to_string().contains("release it"), "{refused}");
    assert_eq!(memory.find("a").unwrap().size, most * 4096, "a refusal changes nothing");
    assert_eq!(memory.remap("a").unwrap().files.len(), MAX_PARTS);
    drop(held);
    memory.resize("a", (most + 1) * 4096).unwrap();
    assert_eq!(memory.prepare("a", 7, 0).unwrap().files.len(), 1);
}

#[test]
fn two_concurrent_requests_never_get_more_than_the_volume_has() {
    let memory = Memory::new("ram", 8 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("{thread}-{round}");
                    if memory.create(&name, 7, 3 * MIB).is_ok() {
                        assert!(memory.list().iter().map(|area| area.size).sum::<u64>() <= 8 * MIB);
                        // A full volume refuses, and the area is as it was.
                        let grown = memory.resize(&name, 5 * MIB).is_ok();
                        assert_eq!(memory.find(&name).unwrap().size, if grown { 5 } else { 3 } * MIB);
                        assert!(memory.list().iter().map(|area| area.size).sum::<u64>() <= 8 * MIB);
                        memory.delete(&name).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(memory.room(), (8 * MIB, 8 * MIB), "nothing leaks");
}

#[test]
fn trimming_keeps_the_memory() {
    let memory = Memory::new("ram", 8 * MIB);
    memory.create("a", 7, MIB).unwrap();
    let held = memory.prepare("a", 7, MIB).unwrap();
    memory.resize("a", 2 * MIB).unwrap();
    let now = memory.remap("a").unwrap();
    for file in &now.files {
        (0..MIB / 4096).for_each(|block| write(file, block * 4096, 5));
    }
    // Across the border of two parts.
    memory.trim("a", MIB - 4096, 8192).unwrap();
    let read = |part: usize, block: u64| read(&now.files[part], block * 4096);
    assert_eq!((read(0, 254), read(0, 255), read(1, 0), read(1, 1)), (5, 0, 0, 5));
    assert!(now.files.iter().all(|file| pages(file) == MIB), "a later write needs no new page");
    drop(held);
}

#[test]
fn a_revoked_area_moves_and_a_deleted_one_is_emptied() {
    let memory = Memory::new("ram", 8 * MIB);
    memory.create("a", 7, MIB).unwrap();
    let held = memory.prepare("a", 7, MIB).unwrap();
    write(&held.files[0], 0, 5);
    memory.resize("a", 2 * MIB).unwrap();
    memory.fence("a").unwrap();
    write(&held.files[0], 0, 6);
    let next = memory.prepare("a", 7, MIB).unwrap();
    assert_eq!(next.files.len(), 1);
    assert_eq!(read(&next.files[0], 0), 5, "no other holder sees what a revoked one writes");
    // A holder that hides by unlocking cannot keep the memory of an area that is deleted.
    rustix::fs::flock(&next.files[0], FlockOperation::Unlock).unwrap();
    memory.delete("a").unwrap();
    assert_eq!(pages(&next.files[0]), 0);
}
