//! Pools from before users were counted.

use sietch_disk::nvm::Medium as _;

use super::*;

#[test]
fn a_pool_from_before_users_were_counted_is_counted_once() {
    let files = populated();
    let media = edited(files, |pool| {
        for uid in [0, 1000, 1001, 1002] {
            assert!(pool.remove(item(USER, uid)).expect("a pool"));
        }
        assert!(pool.remove(item(COUNTED, 0)).expect("a pool"));
    });
    assert_eq!(names(&media), Vec::<String>::new());
    let client = media.open().expect("a file system");
    let mut files = Files { media, client };
    let used: Vec<_> = [0, 1000, 1001, 1002].map(|uid| files.used(uid)).into();
    assert_eq!(used, [(0, 1), (3, 1), (5, 1), (0, 1)]);
    files.limit(1001, 5, 0);
    files.end();
}

/// Bytes of the newest leaves that begin with an inode of these.
fn leaves_of(media: &Media, inodes: std::ops::Range<u64>) -> Vec<usize> {
    let leaf = |at: usize| {
        let mut head = [0; 32];
        media.pool.load(at, &mut head);
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let is_leaf = head[..4] == *b"SFTN" && head[16] == 0 && inodes.contains(&word(24));
        is_leaf.then(|| (word(8), at))
    };
    let found: Vec<_> = (0..16 << 20).step_by(BLOCK as usize).filter_map(leaf).collect();
    let newest = found.iter().map(|(generation, _)| *generation).max();
    found.iter().filter(|(generation, _)| Some(*generation) == newest).map(|(_, at)| *at).collect()
}

/// A block, with a bit that differs.
fn flipped(media: &Media, at: usize) -> [u8; BLOCK as usize] {
    let mut bytes = [0; BLOCK as usize];
    media.pool.load(at, &mut bytes);
    bytes[1027] ^= 4;
    bytes
}

/// A pool from before users were counted, with an inode that cannot be read.
#[test]
fn a_damaged_pool_from_before_users_were_counted_opens_without_limits() {
    for is_rotten in [true, false] {
        let mut files = Files::new();
        for number in 0..400 {
            files.create(1000, &number.to_string()).expect("no limit");
        }
        files.limit(1000, 0, 400);
        let mut media = edited(files, |pool| {
            assert!(pool.remove(item(COUNTED, 0)).expect("a pool"));
        });
        let leaves = leaves_of(&media, 100..200);
        assert!(!leaves.is_empty());
        // The leaves, with a bit that differs.
        let rotten: Vec<_> = leaves.iter().map(|leaf| (*leaf, flipped(&media, *leaf))).collect();
        if is_rotten {
            rotten.iter().for_each(|(leaf, bytes)| media.pool.store(*leaf, bytes));
            media.pool.fence();
        } else {
            media.faults.blocks.borrow_mut().extend(leaves.iter().map(|leaf| *leaf as u64 / BLOCK));
        }
        let client = media.open().expect("it opens");
        let mut files = Files { media: media.clone(), client };
        let cause = files.client.service().owner().uncounted().map(str::to_owned);
        let expected = if is_rotten { "is damaged" } else { "read" };
        assert!(cause.is_some_and(|cause| cause.contains(expected)));
        assert_eq!(files.set(0, 1000, 1, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(files.shown(0, 1000), Err(Errno::OPNOTSUPP));
        let file = files.create(1000, "more").expect("no limit is enforced");
        files.write(1000, file, 0, 4096).expect("no limit is enforced");
        while files.client.service().digest().expect("room").records > 0 {}
        drop(files);
        let mut pool = Pool::open(media.members()).expect("a pool");
        let report = check(&mut pool, Options { data: true }).expect("a pool without changes");
        assert!(!report.findings.is_empty() && !report.are_users_counted, "{:#?}", report.findings);
        drop(pool);
        // When all can be read again, the next start counts.
        for (leaf, _) in rotten {
            let healed = flipped(&media, leaf);
            if is_rotten {
                media.pool.store(leaf, &healed);
            }
        }
        media.pool.fence();
        media.faults.blocks.borrow_mut().clear();
        let client = media.open().expect("it opens");
        let mut files = Files { media, client };
        assert_eq!(files.client.service().owner().uncounted(), None);
        assert_eq!(files.used(1000), (1, 401));
        assert_eq!(files.create(1000, "again"), Err(Errno::DQUOT));
        files.end();
    }
}

/// A pool from before users were counted, in which not even their items have room.
#[test]
fn a_full_pool_from_before_users_were_counted_opens_and_is_counted_later() {
    let mut files = Files::sized(2 << 20, 256 << 10);
    let mut made = 0;
    while files.create(1000 + made, &made.to_string()).is_ok() {
        made += 1;
    }
    assert!(made > 500, "{made}");
    files.used(0);
    let media = edited(files, |pool| {
        for uid in std::iter::once(0).chain((0..made).map(|uid| 1000 + u64::from(uid))) {
            assert!(pool.remove(item(USER, uid)).expect("a pool"));
        }
        assert!(pool.remove(item(COUNTED, 0)).expect("a pool"));
    });
    let client = media.open().expect("a file system");
    let mut files = Files { media, client };
    assert_eq!(files.set(0, 1000, 1, 1), Err(Errno::OPNOTSUPP));
    for file in 0..made {
        files.unlink(0, &file.to_string());
    }
    while files.client.service().digest().expect("removing works").records > 0 {}
    let mut files = files.reopened();
    assert_eq!(files.used(0), (0, 1));
    files.end();
}
