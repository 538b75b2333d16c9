//! A check beside a client.

use std::time::Instant;

use sietch_disk::nvm::Mapped;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::{Client, FileSystem as _};

use super::*;
use crate::fs::shared::{Attached, Remote, attach, serve};
use crate::fs::test_folder::{Folder, MIB};

/// Writes the first MiB of the folder's file again and again.
fn overwrite(client: &mut Client<Remote, Mapped>, rounds: u32) {
    let credentials = Credentials::root();
    let caller = Caller { credentials: &credentials, now: Timestamp { seconds: 1, nanoseconds: 0 } };
    let found = client.lookup(caller, InodeNumber::ROOT, b"before").expect("a name");
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let handle = client.open(caller, found.inode, mode).expect("a file");
    for round in 0..rounds {
        let bytes = vec![round as u8; MIB as usize];
        client.write(caller, handle, WriteAt::Offset(0), &bytes).expect("room");
    }
    client.close(handle);
}

#[test]
fn a_check_leaves_when_the_blocks_that_it_reads_are_needed() {
    let folder = Folder::new("leaves");
    let server = serve(&folder.store(), || {}).expect("it is served");
    let Attached { mut client, .. } = attach(&folder.store()).expect("a client");
    let (mut remote, _) = attach_reader(&folder.store()).expect("a reader");
    assert_eq!(remote.must_leave(), None);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| overwrite(&mut client, 16));
        let begin = Instant::now();
        let cause = loop {
            if let Some(cause) = remote.must_leave() {
                break cause;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is asked of it");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(cause.contains("are needed"), "{cause}");
        drop(remote);
        writer.join().expect("it goes on");
    });
    drop(client);
    assert_eq!(server.end(), Ok(()));
    assert!(crate::fs::check(&folder.store(), true).expect("not open").is_whole());
}

#[test]
fn what_is_damaged_is_found_while_it_is_served() {
    let folder = Folder::new("served");
    let server = serve(&folder.store(), || {}).expect("it is served");
    let checked = check(&folder.store(), true).expect("it is served");
    assert!(checked.is_whole() && checked.log.is_none(), "{:?}", checked.pool.findings);
    assert_eq!(checked.pool.totals.data_blocks * 4096, 12 * MIB);
    assert_eq!(checked.pool.totals.verified_blocks, checked.pool.totals.data_blocks);
    let home = folder.file("home");
    let mut bytes = std::fs::read(&home).expect("a medium");
    // The first word of the file's third block.
    let word = (2_u64 << 8 | 5).to_le_bytes();
    let place = bytes.chunks(4096).position(|block| block.starts_with(&word)).expect("its block");
    bytes[place * 4096] ^= 1;
    let medium = std::fs::File::options().write(true).open(&home).expect("a medium");
    std::os::unix::fs::FileExt::write_all_at(&medium, &bytes[place * 4096..][..1], place as u64 * 4096)
        .expect("a byte");
    let checked = check(&folder.store(), true).expect("it is served");
    assert_eq!(checked.pool.totals.damaged_blocks, 1);
    assert!(checked.pool.findings.iter().any(|finding| finding.contains("/before")), "{checked:?}");
    assert_eq!(server.end(), Ok(()));
}
