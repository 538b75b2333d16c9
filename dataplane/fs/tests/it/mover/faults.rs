//! Media that rot or fail while data move.

use sietch_disk::nvm::Medium as _;
use sietch_fs::inode::InodeNumber;
use sietch_fs::limits::BLOCK;
use sietch_fs::mover::Settings;
use sietch_fs::name::NameKey;

use super::driver::{Driver, mark, three, usage, used};
use super::files::{content, file, verify};
use crate::setup::{FileSystem, Media, check_whole, findings};

const BLOCKS: u64 = 200;
const BAD: u64 = 70;
/// The home is drained; the others take everything.
const DRAIN: [(u16, u16, u16); 3] = [(0, 1, 950), (700, 850, 950), (700, 850, 950)];

struct World {
    media: Media,
    client: FileSystem,
    driver: Driver,
    file: InodeNumber,
    /// Blocks in use on the home without data.
    nodes: u64,
}

/// A file of [`BLOCKS`] on the home, which is to be drained.
fn world() -> World {
    let media = three(8 << 20, 8 << 20, 8 << 20, 4 << 20);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40, ..Settings::default() });
    let nodes = used(&mut client)[0];
    let file = file(&mut client, &mut driver, "file", BLOCKS);
    assert_eq!(used(&mut client), [nodes + BLOCKS, 0, 0]);
    mark(&mut client, &DRAIN);
    World { media, client, driver, file, nodes }
}

/// Where a block is on the home.
fn place(media: &Media, file: InodeNumber, block: u64) -> usize {
    let wanted = content(file.0, block);
    let mut found = vec![0; BLOCK];
    let mut places = (0..media.pool.len()).step_by(BLOCK);
    let is_there = |at: &usize| {
        media.pool.load(*at, &mut found);
        found == wanted
    };
    places.find(is_there).expect("the block is on the home")
}

/// The extent with the bad block stays; everything else moves, and the fault names the block.
fn one_extent_stays(mut world: World) {
    let World { client, driver, file, nodes, .. } = &mut world;
    let moves = driver.settle(client);
    let faults = driver.mover.take_faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains(&format!("of inode {file}")), "{faults:?}");
    assert!(
        faults[0].contains("not moved") && faults[0].contains("nvm") || faults[0].contains("medium 0"),
        "{faults:?}"
    );
    assert_eq!((moves.damaged, moves.wasted), (1, 0));
    assert_eq!(used(client), [*nodes + 64, BLOCKS - 64, 0]);
    // Another round reports nothing again, and ends.
    super::files::file(client, driver, "other", 10);
    driver.settle(client);
    assert_eq!(driver.mover.take_faults(), Vec::<String>::new());
    verify(client, *file, BLOCKS, &[BAD]);
    let found = findings(world.client);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn a_source_that_cannot_be_read_stays_where_it_is_and_is_named() {
    let world = world();
    let at = place(&world.media, world.file, BAD);
    world.media.faults.blocks.borrow_mut().insert((at / BLOCK) as u64);
    one_extent_stays(world);
}

#[test]
fn a_source_that_has_rotted_stays_where_it_is_and_is_named() {
    let mut world = world();
    let at = place(&world.media, world.file, BAD);
    world.media.pool.store(at + 8, &[7; 8]);
    world.media.pool.fence();
    one_extent_stays(world);
}

/// Nothing moves to the faulty medium, which is named once; the next slower one takes the data.
fn the_next_one_takes_all(mut world: World) {
    let World { client, driver, file, nodes, .. } = &mut world;
    let moves = driver.settle(client);
    let faults = driver.mover.take_faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("ssd") || faults[0].contains("medium 1"), "{faults:?}");
    assert!(moves.wasted > 0);
    assert_eq!((moves.demoted, used(client)), (BLOCKS, vec![*nodes, 0, BLOCKS]));
    // The blocks that were tried are not handed out, and are free all the same.
    assert_eq!(usage(client)[1].free, usage(client)[1].blocks);
    verify(client, *file, BLOCKS, &[]);
    assert_eq!(check_whole(world.client), Ok(()));
}

#[test]
fn a_destination_that_cannot_be_written_gets_nothing() {
    let world = world();
    world.media.others[0].2.writes.set(true);
    the_next_one_takes_all(world);
}

#[test]
fn a_destination_that_cannot_be_flushed_gets_nothing() {
    let world = world();
    world.media.others[0].2.flushes.set(true);
    the_next_one_takes_all(world);
}

#[test]
fn a_copy_that_differs_is_not_made_current() {
    let world = world();
    world.media.others[0].2.rot.set(true);
    the_next_one_takes_all(world);
}

#[test]
fn a_copy_that_cannot_be_read_back_is_not_made_current() {
    let world = world();
    world.media.others[0].2.blocks.borrow_mut().extend(4..2048);
    the_next_one_takes_all(world);
}

/// Data that do not fit go as far as there is room, and to the next medium.
#[test]
fn a_destination_that_is_full_half_way_takes_what_fits() {
    let media = three(8 << 20, 1 << 20, 8 << 20, 4 << 20);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40, ..Settings::default() });
    let nodes = used(&mut client)[0];
    let file = file(&mut client, &mut driver, "file", 600);
    mark(&mut client, &[(0, 1, 950), (800, 900, 950), (700, 850, 950)]);
    driver.settle(&mut client);
    let found = used(&mut client);
    assert_eq!(found[0], nodes);
    assert!(found[1] > 100 && found[1] <= 252 * 9 / 10 && found[1] + found[2] == 600, "{found:?}");
    assert_eq!(driver.mover.take_faults(), Vec::<String>::new());
    verify(&mut client, file, 600, &[]);
    assert_eq!(check_whole(client), Ok(()));
}

/// The owner of the pool needs the blocks: what is under way is given up, and done again later.
#[test]
fn a_job_that_is_abandoned_at_any_step_loses_nothing() {
    for steps in 1..20 {
        let mut world = world();
        let World { client, driver, file, nodes, .. } = &mut world;
        for _ in 0..steps {
            driver.step(client).expect("a good tree");
        }
        driver.mover.abandon(client.service().owner());
        assert!(!client.service().owner().pool().is_holding() || driver.mover.moves().runs > 0);
        driver.settle(client);
        assert_eq!(used(client), [*nodes, BLOCKS, 0], "{steps} steps");
        verify(client, *file, BLOCKS, &[]);
        assert_eq!(check_whole(world.client), Ok(()));
    }
}
