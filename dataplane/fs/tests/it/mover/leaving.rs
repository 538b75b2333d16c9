//! Everything leaves a medium that is leaving.

use sietch_disk::nvm::Medium as _;
use sietch_fs::check::{FileOn, files_on};
use sietch_fs::file_system::Allocation;
use sietch_fs::inode::InodeNumber;
use sietch_fs::limits::BLOCK;
use sietch_fs::mover::Settings;
use sietch_fs::name::NameKey;
use sietch_fs::pool::Class;

use super::driver::{Driver, mark, used};
use super::files::{content, file, pin, reserve, truncate, verify, write_at};
use crate::setup::{BIRTH, FileSystem, Media, check_whole, findings};

const BLOCKS: u64 = 200;
/// New data go past the home.
const MARKS: [(u16, u16, u16); 3] = [(0, 1, 2), (700, 850, 950), (700, 850, 950)];

struct World {
    media: Media,
    client: FileSystem,
    driver: Driver,
    file: InodeNumber,
}

/// A file of [`BLOCKS`] on the second medium of three; the last two are of these classes.
fn world(classes: [Class; 2]) -> World {
    let media = Media::new(8 << 20, 4 << 20).with(&[(classes[0], 8 << 20), (classes[1], 8 << 20)]);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40, ..Settings::default() });
    mark(&mut client, &MARKS);
    let file = file(&mut client, &mut driver, "file", BLOCKS);
    assert_eq!(used(&mut client)[1], BLOCKS, "on the second medium");
    World { media, client, driver, file }
}

fn leave(client: &mut FileSystem, slot: usize) {
    client.service().owner().pool().set_leaving(slot);
}

/// The medium takes part in nothing any more.
fn remove(world: World) {
    let World { media, mut client, file, .. } = world;
    client.service().owner().pool().remove_medium(1).expect("nothing is on it");
    verify(&mut client, file, BLOCKS, &[]);
    assert_eq!(check_whole(client), Ok(()));
    // As a service that has the others only.
    let mut without = media.clone();
    without.others.remove(0);
    let mut client = without.open().expect("the other media");
    verify(&mut client, file, BLOCKS, &[]);
    assert_eq!(check_whole(client), Ok(()));
}

#[test]
fn data_go_to_a_medium_of_the_same_class() {
    let mut world = world([Class::Ssd, Class::Ssd]);
    leave(&mut world.client, 1);
    let moves = world.driver.settle(&mut world.client);
    assert_eq!((moves.wasted, moves.damaged), (0, 0));
    assert_eq!(used(&mut world.client)[1..], [0, BLOCKS]);
    remove(world);
}

#[test]
fn data_go_to_a_slower_medium_and_from_the_slowest_to_a_faster_one() {
    let mut world = world([Class::Ssd, Class::Hdd]);
    leave(&mut world.client, 1);
    world.driver.settle(&mut world.client);
    assert_eq!(used(&mut world.client)[1..], [0, BLOCKS]);
    remove(world);
    let mut world = self::world([Class::Ssd, Class::Ssd]);
    mark(&mut world.client, &[(700, 850, 950); 3]);
    // The home is the only one that stays.
    leave(&mut world.client, 1);
    leave(&mut world.client, 2);
    world.driver.settle(&mut world.client);
    assert_eq!(used(&mut world.client)[1..], [0, 0]);
    remove(world);
}

#[test]
fn pinned_files_and_reserved_room_leave_too() {
    let mut world = world([Class::Ssd, Class::Hdd]);
    let World { client, driver, file: written, .. } = &mut world;
    pin(client, driver, *written, Some("ssd"));
    let reserved = file(client, driver, "reserved", 1);
    reserve(client, reserved, 100, Allocation::Reserve);
    driver.digest_all(client);
    assert_eq!(used(client)[1], BLOCKS + 100);
    leave(client, 1);
    driver.settle(client);
    assert_eq!(used(client)[1..], [0, BLOCKS + 100]);
    verify(client, reserved, 1, &[]);
    // The room reads as zeros, and is given back.
    assert_eq!(super::files::read(client, reserved, 50), Ok(vec![0; BLOCK]));
    truncate(client, reserved);
    driver.digest_all(client);
    assert_eq!(used(client)[1..], [0, BLOCKS]);
    remove(world);
}

#[test]
fn a_block_that_has_rotted_stays_and_keeps_the_medium() {
    let mut world = world([Class::Ssd, Class::Ssd]);
    let mut memory = world.media.others[0].1.clone();
    let wanted = content(world.file.0, 70);
    let mut found = vec![0; BLOCK];
    let place = (0..memory.len()).step_by(BLOCK).find(|at| {
        memory.load(*at, &mut found);
        found == wanted
    });
    memory.store(place.expect("the block") + 8, &[7; 8]);
    memory.fence();
    leave(&mut world.client, 1);
    let moves = world.driver.settle(&mut world.client);
    assert_eq!(moves.damaged, 1);
    let left = used(&mut world.client)[1];
    assert_eq!(left, 1, "the other blocks of its extent have left");
    let faults = world.driver.mover.take_faults();
    assert!(faults.len() == 1 && faults[0].contains(&format!("of inode {}", world.file)), "{faults:?}");
    let error = world.client.service().owner().pool().remove_medium(1).map(drop).expect_err("in use");
    assert!(error.to_string().contains(&format!("has {left} blocks of data")), "{error}");
    verify(&mut world.client, world.file, BLOCKS, &[70]);
    assert_eq!(findings(world.client).len(), 1);
}

/// Makes blocks of the file unreadable: each other one by a fault, the others by rot.
fn spoil(world: &World, bad: &[u64]) {
    let (_, memory, faults) = &world.media.others[0];
    let mut memory = memory.clone();
    let mut places = std::collections::HashMap::new();
    let mut bytes = vec![0; BLOCK];
    for at in (0..memory.len()).step_by(BLOCK) {
        memory.load(at, &mut bytes);
        places.insert(bytes.clone(), at);
    }
    for (index, block) in bad.iter().enumerate() {
        let place = places[&content(world.file.0, *block)];
        if index % 2 == 0 {
            faults.blocks.borrow_mut().insert((place / BLOCK) as u64);
        } else {
            memory.store(place + 8, &[7; 8]);
        }
    }
    memory.fence();
}

/// Writes all blocks of the file, as many at a time as the log has room for.
fn write_all(world: &mut World, blocks: u64) {
    let World { client, driver, file, .. } = world;
    for first in (0..blocks).step_by(BLOCKS as usize) {
        write_at(client, *file, first..blocks.min(first + BLOCKS), BIRTH).expect("room");
        driver.digest_all(client);
    }
}

/// A world whose file has so many blocks more, of which every seventh cannot be read.
fn spoilt(remembered: usize) -> (World, u64, Vec<u64>) {
    let mut world = world([Class::Ssd, Class::Hdd]);
    let blocks = 1500;
    let bad: Vec<u64> = (0..blocks).filter(|block| block % 7 == 3).collect();
    let settings = Settings { rate: 1 << 40, remembered };
    world.driver = Driver::new(&world.media, &mut world.client, settings);
    write_all(&mut world, blocks);
    assert_eq!(used(&mut world.client)[1], blocks);
    spoil(&world, &bad);
    (world, blocks, bad)
}

/// Everything that can be read leaves, block by block, also after more faults than a medium may
/// have that is not leaving.
#[test]
fn more_unreadable_blocks_than_are_named_keep_nothing_else_on_the_medium() {
    let (mut world, blocks, bad) = spoilt(1 << 10);
    leave(&mut world.client, 1);
    let World { client, driver, file, .. } = &mut world;
    driver.settle(client);
    let count = bad.len() as u64;
    assert!(count > 200, "{count}");
    assert_eq!(used(client)[1..], [count, blocks - count]);
    assert_eq!((driver.mover.unreadable_blocks(), driver.mover.is_unreadable(*file)), (Some(count), true));
    assert!(!driver.mover.is_unreadable(InodeNumber::ROOT));
    // Not more than a few of them are named.
    let faults = driver.mover.take_faults();
    assert!(faults.len() <= 65, "{}", faults.len());
    verify(client, *file, blocks, &bad);
    let pool = client.service().owner().pool();
    let found = files_on(pool, 1, 10, &|_| true).expect("a good tree");
    let expected = FileOn { path: "/file".to_owned(), blocks: count };
    assert_eq!((found.files, found.unlisted), (vec![expected], 0));
    // What was overwritten is elsewhere, and readable.
    write_all(&mut world, blocks);
    world.driver.settle(&mut world.client);
    assert_eq!(used(&mut world.client)[1], 0);
    verify(&mut world.client, world.file, blocks, &[]);
}

/// With little memory for what cannot be read, everything else leaves all the same, and it ends.
#[test]
fn unreadable_blocks_that_are_not_remembered_are_no_endless_work() {
    let (mut world, blocks, bad) = spoilt(5);
    let World { client, driver, file, .. } = &mut world;
    leave(client, 1);
    driver.settle(client);
    let count = bad.len() as u64;
    assert_eq!(used(client)[1..], [count, blocks - count]);
    assert_eq!((driver.mover.unreadable_blocks(), driver.mover.is_unreadable(*file)), (None, true));
    verify(client, *file, blocks, &bad);
}

/// Large reads of a medium fail, and small ones do not.
#[test]
fn blocks_that_can_be_read_only_alone_leave_too() {
    let mut world = world([Class::Ssd, Class::Ssd]);
    world.media.others[0].2.large_reads.set(true);
    let World { client, driver, .. } = &mut world;
    leave(client, 1);
    driver.settle(client);
    assert_eq!(used(client)[1..], [0, BLOCKS]);
    assert_eq!(driver.mover.unreadable_blocks(), Some(0));
    world.media.others[0].2.large_reads.set(false);
    remove(world);
}

/// The others take what they have room for below their high marks; the rest stays.
#[test]
fn data_without_room_elsewhere_stay_where_they_are() {
    let media = Media::new(8 << 20, 4 << 20).with(&[(Class::Ssd, 8 << 20), (Class::Ssd, 1 << 20)]);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40, ..Settings::default() });
    mark(&mut client, &MARKS);
    let file = file(&mut client, &mut driver, "file", 600);
    leave(&mut client, 1);
    driver.settle(&mut client);
    let found = used(&mut client);
    assert!(found[1] > 300 && found[2] > 100 && found[1] + found[2] == 600, "{found:?}");
    verify(&mut client, file, 600, &[]);
    assert_eq!(check_whole(client), Ok(()));
}

/// New data go elsewhere meanwhile.
#[test]
fn a_leaving_medium_gets_no_new_data() {
    let mut world = world([Class::Ssd, Class::Hdd]);
    leave(&mut world.client, 1);
    let World { client, driver, .. } = &mut world;
    let other = file(client, driver, "other", 50);
    assert_eq!(used(client)[1..], [BLOCKS, 50]);
    driver.settle(client);
    assert_eq!(used(client)[1..], [0, BLOCKS + 50]);
    verify(client, other, 50, &[]);
    remove(world);
}
