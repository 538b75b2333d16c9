//! Where data are put, and when they move.

use std::sync::Arc;

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::mover::{JOB_BLOCKS, Mover, Settings, Step};
use sietch_fs::name::NameKey;
use sietch_fs::pool::Class;

use super::driver::{Driver, mark, three, usage, used};
use super::files::{
    file, make, pin, read, rename, truncate, try_pin, verify, verify_other, write_at, write_other,
};
use crate::setup::{BIRTH, FileSystem, Media, check_whole};

const FAST: Settings = Settings { rate: 1 << 40, remembered: 1 << 10 };
const DEFAULT: [(u16, u16, u16); 3] = [(700, 850, 950); 3];

fn world(home: usize, ssd: usize, hdd: usize, settings: Settings) -> (Media, FileSystem, Driver) {
    let media = three(home, ssd, hdd, 8 << 20);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let driver = Driver::new(&media, &mut client, settings);
    (media, client, driver)
}

/// New data go to the fastest medium below its hard mark, and what is written never finds a full
/// medium while another one has room.
#[test]
fn new_data_go_to_the_fastest_medium_with_room() {
    let (media, mut client, mut driver) = world(4 << 20, 2 << 20, 4 << 20, FAST);
    let hard: Vec<u64> = usage(&mut client).iter().map(|one| one.watermarks.hard(one.blocks)).collect();
    let (mut files, mut written) = (Vec::new(), 0);
    loop {
        let made = make(&mut client, InodeNumber::ROOT, &format!("{}", files.len()), Kind::File);
        let full = (0..40).find(|block| write_at(&mut client, made, *block..block + 1, BIRTH).is_err());
        files.push((made, full.unwrap_or(40)));
        written += full.unwrap_or(40);
        if full.is_some() {
            break;
        }
        driver.digest_all(&mut client);
        let now = used(&mut client);
        for (medium, hard) in hard.iter().enumerate() {
            let slower: u64 = now[medium + 1..].iter().sum();
            assert!(slower == 0 || now[medium] >= *hard - 40, "{now:?} while {medium} has room up to {hard}");
        }
    }
    let total: u64 = usage(&mut client).iter().map(|one| one.blocks).sum();
    assert!(written * 100 > total * 85, "{written} of {total} blocks");
    assert_eq!(client.service().faults(), <&[String]>::default());
    for (made, blocks) in files {
        verify(&mut client, made, blocks, &[]);
    }
    drop(media);
    assert_eq!(check_whole(client), Ok(()));
}

/// Above high, cold data leave until the medium is at low; then nothing moves.
#[test]
fn a_medium_is_drained_from_high_to_low_and_cold_data_leave_first() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    mark(&mut client, &[(400, 600, 950), DEFAULT[1], DEFAULT[2]]);
    let home = usage(&mut client)[0];
    let mut files = Vec::new();
    // Some were written just now, some are read.
    while usage(&mut client)[0].used() < home.watermarks.high(home.blocks) - 41 {
        assert_eq!(driver.settle(&mut client).runs, 0, "nothing moves below the high mark");
        files.push(file(&mut client, &mut driver, &format!("{}", files.len()), 40));
    }
    let (read_often, written_now) = (files[0], files[1]);
    write_at(&mut client, written_now, 0..40, driver.time).expect("room");
    for _ in 0..8 {
        for block in [0, 64] {
            read(&mut client, read_often, block % 40).expect("a good block");
            read(&mut client, files[3], 0).expect("a good block");
        }
    }
    let last = file(&mut client, &mut driver, "last", 40);
    let moves = driver.settle(&mut client);
    let found = used(&mut client);
    let low = usage(&mut client)[0].watermarks.low(home.blocks);
    assert!(found[0] <= low && found[0] + 64 > low, "{found:?}, and low is {low}");
    assert!(moves.demoted > 0 && moves.promoted == 0 && found[2] == 0, "{moves:?}");
    assert_eq!(driver.settle(&mut client).runs, moves.runs, "nothing moves between low and high");
    assert_eq!(on(&mut client, read_often), vec![0], "what is read often stays");
    assert_eq!(on(&mut client, written_now), vec![0], "what was written just now stays");
    verify(&mut client, last, 40, &[]);
    for made in files {
        verify(&mut client, made, 40, &[]);
    }
    assert_eq!(check_whole(client), Ok(()));
}

/// The media that have data of a file.
fn on(client: &mut FileSystem, inode: InodeNumber) -> Vec<u8> {
    client.service().owner().media_of(inode).expect("a good tree")
}

/// What is read often on a slow medium comes back while the fast one is below its low mark, and
/// does not leave again.
#[test]
fn what_is_read_often_comes_back_and_stays() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    let files: Vec<_> = (0..20).map(|name| file(&mut client, &mut driver, &format!("{name}"), 50)).collect();
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    driver.settle(&mut client);
    assert!(files.iter().all(|inode| on(&mut client, *inode) == [1]));
    mark(&mut client, &DEFAULT);
    for _ in 0..70 {
        for inode in &files[4..8] {
            read(&mut client, *inode, 3).expect("a good block");
        }
    }
    let moves = driver.settle(&mut client);
    for (name, inode) in files.iter().enumerate() {
        assert_eq!(on(&mut client, *inode), [u8::from(!(4..8).contains(&name))], "file {name}");
        verify(&mut client, *inode, 50, &[]);
    }
    assert_eq!(moves.promoted, 200);
    // Heat fades; nothing goes back and forth.
    for _ in 0..10 {
        driver.now += 100_000_000_000;
        for block in 0..600 {
            read(&mut client, files[block as usize % 20], block % 50).expect("a good block");
        }
        driver.settle(&mut client);
    }
    assert_eq!(driver.mover.moves().demoted, moves.demoted);
    assert_eq!(check_whole(client), Ok(()));
}

/// A fast medium above its low mark gets nothing, however hot.
#[test]
fn nothing_comes_back_to_a_medium_above_its_low_mark() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    let inode = file(&mut client, &mut driver, "file", 50);
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    driver.settle(&mut client);
    mark(&mut client, &[(10, 850, 950), DEFAULT[1], DEFAULT[2]]);
    for block in 0..600 {
        read(&mut client, inode, block % 50).expect("a good block");
        read(&mut client, inode, (block + 25) % 50).expect("a good block");
    }
    assert_eq!((driver.settle(&mut client).promoted, on(&mut client, inode)), (0, vec![1]));
}

#[test]
fn a_pinned_file_goes_where_it_is_pinned_and_stays() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    let files: Vec<_> = (0..3).map(|name| file(&mut client, &mut driver, &format!("{name}"), 50)).collect();
    pin(&mut client, &mut driver, files[0], Some("hdd"));
    pin(&mut client, &mut driver, files[1], Some("nvm"));
    driver.settle(&mut client);
    let places = |client: &mut FileSystem| files.iter().map(|inode| on(client, *inode)).collect::<Vec<_>>();
    assert_eq!(places(&mut client), [vec![2], vec![0], vec![0]]);
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    driver.settle(&mut client);
    assert_eq!(places(&mut client), [vec![2], vec![0], vec![1]], "a pinned file is not drained");
    pin(&mut client, &mut driver, files[1], None);
    driver.settle(&mut client);
    assert_eq!(places(&mut client), [vec![2], vec![1], vec![1]]);
    // New data of a pinned file follow it.
    write_at(&mut client, files[0], 10..60, driver.time).expect("room");
    driver.digest_all(&mut client);
    assert_eq!(on(&mut client, files[0]), [0, 2]);
    driver.settle(&mut client);
    assert_eq!(on(&mut client, files[0]), [2]);
    for (inode, blocks) in files.into_iter().zip([60, 50, 50]) {
        verify(&mut client, inode, blocks, &[]);
    }
    assert_eq!(check_whole(client), Ok(()));
}

/// The pin of a directory counts for what is below it, where nothing nearer says something else.
#[test]
fn a_pinned_directory_pins_the_files_below() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    let outer = make(&mut client, InodeNumber::ROOT, "outer", Kind::Directory);
    let inner = make(&mut client, outer, "inner", Kind::Directory);
    let nearer = make(&mut client, outer, "nearer", Kind::Directory);
    let mut made = Vec::new();
    for directory in [InodeNumber::ROOT, outer, inner, nearer, outer] {
        let inode = make(&mut client, directory, &format!("file {}", made.len()), Kind::File);
        write_at(&mut client, inode, 0..20, BIRTH).expect("room");
        made.push(inode);
    }
    pin(&mut client, &mut driver, outer, Some("hdd"));
    pin(&mut client, &mut driver, nearer, Some("ssd"));
    pin(&mut client, &mut driver, made[4], Some("nvm"));
    driver.settle(&mut client);
    let places = |client: &mut FileSystem| made.iter().map(|inode| on(client, *inode)[0]).collect::<Vec<_>>();
    assert_eq!(places(&mut client), [0, 2, 2, 1, 0]);
    // A file that leaves the directory is not pinned any more, and one that comes is.
    rename(&mut client, (InodeNumber::ROOT, "file 0"), (inner, "came"));
    driver.digest_all(&mut client);
    driver.settle(&mut client);
    assert_eq!(places(&mut client), [2, 2, 2, 1, 0]);
    pin(&mut client, &mut driver, outer, None);
    pin(&mut client, &mut driver, outer, Some("nvm"));
    driver.settle(&mut client);
    assert_eq!(places(&mut client), [0, 0, 0, 1, 0]);
    assert_eq!(check_whole(client), Ok(()));
}

/// Extents of many files become one run.
#[test]
fn many_small_files_are_written_as_large_runs() {
    let (_, mut client, mut driver) = world(32 << 20, 16 << 20, 8 << 20, FAST);
    for name in 0..400 {
        file(&mut client, &mut driver, &format!("{name}"), 3);
    }
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    let moves = driver.settle(&mut client);
    assert!(moves.demoted == 1200 && moves.runs <= 4, "{moves:?}");
    assert_eq!(check_whole(client), Ok(()));
}

/// The rate holds over any time that is longer than a burst.
#[test]
fn the_mover_copies_no_more_than_its_rate() {
    let rate = 1 << 20;
    let (_, mut client, mut driver) =
        world(16 << 20, 32 << 20, 8 << 20, Settings { rate, ..Settings::default() });
    for name in 0..40 {
        file(&mut client, &mut driver, &format!("{name}"), 60);
    }
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    let burst = u64::from(JOB_BLOCKS) * 4096;
    let mut waits = 0;
    loop {
        match driver.step(&mut client).expect("a good tree") {
            Step::More => {}
            Step::At(later) => {
                assert!(later > driver.now && !driver.mover.is_copying());
                (driver.now, waits) = (later, waits + 1);
            }
            Step::Idle => break,
        }
        let copied = driver.mover.moves().demoted * 4096;
        let allowed = burst + (u128::from(driver.now) * u128::from(rate) / 1_000_000_000) as u64;
        assert!(copied <= allowed, "{copied} bytes of {allowed} at {} ns", driver.now);
    }
    assert_eq!(driver.mover.moves().demoted, 2400);
    assert!(waits >= 1);
}

/// A file system of one medium, or of media of one class, has no work for a mover.
#[test]
fn media_of_one_class_are_left_alone() {
    let media = Media::new(4 << 20, 1 << 20);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, FAST);
    mark(&mut client, &[(0, 1, 950)]);
    file(&mut client, &mut driver, "file", 100);
    assert_eq!(driver.step(&mut client).expect("a good tree"), Step::Idle);
    drop(Mover::new(FAST, Arc::clone(&driver.heat)));
}

/// Data that change while they are copied stay where the change put them.
#[test]
fn what_changes_while_it_is_copied_is_not_replaced() {
    let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
    let (one, two) = (file(&mut client, &mut driver, "one", 64), file(&mut client, &mut driver, "two", 64));
    mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
    while !driver.mover.is_copying() {
        driver.step(&mut client).expect("a good tree");
    }
    let now = Timestamp { seconds: BIRTH.seconds + 9, ..BIRTH };
    write_at(&mut client, one, 10..20, now).expect("room");
    let caller = sietch_fs::access::Credentials::root();
    let caller = sietch_fs::access::Caller { credentials: &caller, now };
    client.unlink(caller, InodeNumber::ROOT, b"two").expect("a name");
    driver.digest_all(&mut client);
    while driver.mover.is_copying() {
        driver.step(&mut client).expect("a good tree");
    }
    let moves = driver.mover.moves().clone();
    assert_eq!((moves.demoted, moves.wasted), (54, 74));
    assert_eq!((on(&mut client, one), on(&mut client, two)), (vec![0, 1], vec![]));
    verify(&mut client, one, 64, &[]);
    driver.settle(&mut client);
    assert_eq!(on(&mut client, one), [1]);
    assert_eq!(check_whole(client), Ok(()));
}

/// The blocks that are copied are not used again before the flip: not for another file, and not for
/// other data of the same file, which would look like what was copied.
#[test]
fn blocks_that_are_copied_are_not_used_again_meanwhile() {
    for steps in 0..6 {
        let (_, mut client, mut driver) = world(8 << 20, 8 << 20, 8 << 20, FAST);
        let files = ["one", "two", "three"].map(|name| file(&mut client, &mut driver, name, 64));
        mark(&mut client, &[(0, 1, 950), DEFAULT[1], DEFAULT[2]]);
        while !driver.mover.is_copying() {
            driver.step(&mut client).expect("a good tree");
        }
        for _ in 0..steps {
            driver.step(&mut client).expect("a good tree");
        }
        truncate(&mut client, files[1]);
        driver.digest_all(&mut client);
        // The allocator prefers a run of the right length, which is where the old data were.
        write_other(&mut client, files[1], 64);
        driver.digest_all(&mut client);
        driver.settle(&mut client);
        assert_eq!(driver.mover.take_faults(), Vec::<String>::new(), "{steps} steps");
        verify_other(&mut client, files[1], 64);
        verify(&mut client, files[0], 64, &[]);
        verify(&mut client, files[2], 64, &[]);
        assert_eq!(check_whole(client), Ok(()), "{steps} steps");
    }
}

/// A pin says where data go; without such a medium nothing could follow it.
#[test]
fn a_pin_to_a_class_without_a_medium_is_refused() {
    let (media, mut client, _) = world(16 << 20, 32 << 20, 8 << 20, FAST);
    let file = make(&mut client, InodeNumber::ROOT, "file", Kind::File);
    for class in ["nvm", "ssd", "hdd"] {
        assert_eq!(try_pin(&mut client, file, class), Ok(()), "{class}");
    }
    drop((client, media));
    let media = Media::new(8 << 20, 4 << 20).with(&[(Class::Hdd, 8 << 20)]);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let file = make(&mut client, InodeNumber::ROOT, "file", Kind::File);
    for class in ["ssd", "", "tape", "HDD", "hdd\n"] {
        assert_eq!(try_pin(&mut client, file, class), Err(Errno::INVAL), "{class:?}");
        assert_eq!(try_pin(&mut client, InodeNumber::ROOT, class), Err(Errno::INVAL), "{class:?}");
    }
    assert_eq!(try_pin(&mut client, file, "hdd"), Ok(()));
}

/// The last medium of a class leaves, and files are pinned to it: they are as all others.
#[test]
fn a_pin_to_a_class_that_is_gone_keeps_nothing_where_it_is() {
    let media = three(8 << 20, 8 << 20, 8 << 20, 4 << 20);
    media.format(NameKey([7; 16]));
    let mut client = media.open().expect("a file system");
    let mut driver = Driver::new(&media, &mut client, FAST);
    let nodes = used(&mut client)[0];
    let file = file(&mut client, &mut driver, "file", 200);
    pin(&mut client, &mut driver, file, Some("ssd"));
    driver.settle(&mut client);
    assert_eq!(used(&mut client)[1], 200);
    client.service().owner().pool().set_leaving(1);
    driver.settle(&mut client);
    assert_eq!(used(&mut client)[1..], [0, 200]);
    client.service().owner().pool().remove_medium(1).expect("nothing is on it");
    drop((driver, client));
    let mut without = media.clone();
    without.others.remove(0);
    let mut client = without.open().expect("the other media");
    let mut driver = Driver::new(&without, &mut client, FAST);
    // What it gets anew is on the home, and cold.
    write_at(&mut client, file, 0..200, BIRTH).expect("room");
    driver.digest_all(&mut client);
    assert!(used(&mut client)[0] >= 200);
    mark(&mut client, &[(0, 1, 950), (700, 850, 950), (700, 850, 950)]);
    driver.settle(&mut client);
    assert!(used(&mut client)[0] < nodes + 20, "{:?}", used(&mut client));
    verify(&mut client, file, 200, &[]);
    assert_eq!(check_whole(client), Ok(()));
}
