//! Everything leaves a medium that is leaving.

use sietch_disk::nvm::Medium as _;
use sietch_fs::file_system::Allocation;
use sietch_fs::inode::InodeNumber;
use sietch_fs::limits::BLOCK;
use sietch_fs::mover::Settings;
use sietch_fs::name::NameKey;
use sietch_fs::pool::Class;

use super::driver::{Driver, mark, used};
use super::files::{content, file, pin, reserve, truncate, verify};
use crate::setup::{FileSystem, Media, check_whole, findings};

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
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40 });
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
    assert!(left > 0 && left <= 64, "{left}");
    let faults = world.driver.mover.take_faults();
    assert!(faults.len() == 1 && faults[0].contains(&format!("of inode {}", world.file)), "{faults:?}");
    let error = world.client.service().owner().pool().remove_medium(1).map(drop).expect_err("in use");
    assert!(error.to_string().contains(&format!("has {left} blocks of data")), "{error}");
    verify(&mut world.client, world.file, BLOCKS, &[70]);
    assert_eq!(findings(world.client).len(), 1);
}

/// The others take what they have room for below their high marks; the rest stays.
#[test]
fn data_without_room_elsewhere_stay_where_they_are() {
    let media = Media::new(8 << 20, 4 << 20).with(&[(Class::Ssd, 8 << 20), (Class::Ssd, 1 << 20)]);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40 });
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
