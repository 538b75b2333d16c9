//! A file system that is really full, a journalled ext4 of its own: an area keeps the room that it
//! was given.

use std::path::Path;
use std::process::Command;

use crate::scene::{self, Scene};
use rustix::fs::{Mode, OFlags};
use sietch_protocol::{CallError, ErrorKind};

const MIB: u64 = 1 << 20;
/// Where the image is mounted, for the test below.
const MOUNTED: &str = "SIETCH_TEST_MOUNTED";

/// Runs the test below in a mount namespace of its own. The image that is mounted there ends with
/// it.
#[test]
fn a_full_file_system_removes_nothing_from_an_area() {
    let name = "a_full_file_system_removes_nothing_from_an_area";
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root to mount a file system");
        return;
    }
    let folder = std::env::temp_dir().join(format!("sietch-full-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("mounted")).unwrap();
    let script = "mkfs.ext4 -q -O has_journal image 24M && mount -o loop image mounted || exit 77\n\
                  exec \"$0\" --ignored --exact full_volume::on_a_small_file_system --nocapture";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(MOUNTED, folder.join("mounted"))
        .current_dir(&folder);
    let status = scene::starting(|| command.spawn()).and_then(|mut child| child.wait());
    let _ = std::fs::remove_dir_all(&folder);
    match status.map(|status| status.code()) {
        Ok(Some(77)) | Err(_) => eprintln!("SKIPPED {name}: needs unshare, mkfs.ext4 and loop devices"),
        Ok(code) => assert_eq!(code, Some(0)),
    }
}

/// Occupies every block of the file system.
fn fill(mounted: &Path) {
    let path = mounted.join("filler");
    let file = rustix::fs::open(&path, OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    let mut end = 0;
    for piece in [MIB, 64 << 10, 4096, 1024] {
        while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, piece).is_ok() {
            end += piece;
        }
    }
    rustix::fs::fsync(&file).unwrap();
}

/// Extents of a file that are allocated and not written, or holes: what a durable write there would
/// have to change.
fn unwritten(path: &Path, size: u64) -> String {
    let said = scene::starting(|| Command::new("filefrag").arg("-v").arg(path).output()).unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let blocks: u64 = text
        .lines()
        .filter_map(|line| {
            let (length, _) = line
                .split(':')
                .nth(3)?
                .trim()
                .split_once(' ')
                .unwrap_or((line.split(':').nth(3)?.trim(), ""));
            length.parse::<u64>().ok()
        })
        .sum();
    let bad: Vec<&str> = text.lines().filter(|line| line.contains("unwritten")).collect();
    if bad.is_empty() && blocks * 4096 >= size { String::new() } else { text }
}

#[test]
#[ignore = "run by the test above on a file system of its own"]
fn on_a_small_file_system() {
    let Some(mounted) = std::env::var_os(MOUNTED) else { return };
    let mounted = Path::new(&mounted);
    let place = mounted.join("areas");
    let scene = Scene::new("full", 0);
    scene.configure(&format!("[[volume]]\nname = \"small\"\npath = \"{}\"\n", place.display()));
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("/small/kept", 4 * MIB, None).unwrap();
    let filefrag = scene::starting(|| Command::new("filefrag").arg("-V").output()).is_ok();
    if filefrag {
        assert_eq!(unwritten(&place.join("kept.vsa"), 4 * MIB), "", "made of blocks that are written");
    }
    fill(mounted);
    // Full is a clean error that leaves nothing.
    let before: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for refused in
        [connection.create_vsa("/small/more", 4 * MIB, None), connection.resize_vsa("/small/kept", 8 * MIB)]
    {
        match refused {
            Err(CallError::Refused(error)) => {
                assert_eq!(error.kind, ErrorKind::Full, "{error}");
                assert!(error.to_string().contains("volume small"), "{error}");
            }
            other => panic!("there is no room for that: {other:?}"),
        }
    }
    let after: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(before, after);
    assert_eq!(connection.vsas().unwrap()[0].size, 4 * MIB);
    // Trimmed by its holder, it has every block that it had: durable writes continue.
    let (_, file) = connection.acquire_vsa("/small/kept").unwrap();
    connection.trim_vsa("/small/kept", MIB, Some(2 * MIB)).unwrap();
    if filefrag {
        assert_eq!(unwritten(&place.join("kept.vsa"), 4 * MIB), "", "trimmed to blocks that are written");
    }
    let direct = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)),
        OFlags::RDWR | OFlags::DIRECT | OFlags::DSYNC,
        Mode::empty(),
    )
    .unwrap();
    let mut block = sietch_disk::Buffer::new(4096);
    for at in 0..4 * MIB / 4096 {
        block.fill(at as u8);
        assert_eq!(rustix::io::pwrite(&direct, &block, at * 4096), Ok(4096), "block {at}");
    }
    // Shrinking is how one gets out of it, and needs no room.
    assert_eq!(connection.resize_vsa("/small/kept", MIB).unwrap().size, MIB);
    assert_eq!(place.join("kept.vsa").metadata().unwrap().len(), MIB);
    connection.create_vsa("/small/more", MIB, None).unwrap();
}
