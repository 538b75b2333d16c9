//! Applications that mean harm to storage areas: they write where they may not, die and are revoked
//! with writes in flight. Nothing outside their own area is read or written, and the others do not
//! notice.

use std::os::fd::{AsFd, OwnedFd};

use crate::scene::{self, Scene};
use sietch_protocol::{CallError, ErrorKind, Protection, Target};

const MIB: u64 = 1 << 20;
const OTHER_USER: u32 = 61_897;

/// Volumes, and the descriptor of the victim on each.
type Victims = Vec<(String, OwnedFd)>;

/// Two volumes, each with the area `victim` of this process and `prey` of another user. Returns the
/// victim's descriptors.
fn two_neighbours(name: &str) -> Option<(Scene, Victims, scene::Daemon)> {
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        eprintln!("SKIPPED {name}: needs root to become another user");
        return None;
    }
    let scene = Scene::new(name, own);
    scene.configure("[[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"8MiB\"\n");
    let daemon = scene.start();
    let mut connection = scene.connect();
    let mut victims = Vec::new();
    for volume in ["main", "ram"] {
        connection.create_vsa(&format!("/{volume}/victim"), MIB, None).unwrap();
        connection.create_vsa(&format!("/{volume}/prey"), MIB, Some(OTHER_USER)).unwrap();
        let (_, file) = connection.acquire_vsa(&format!("/{volume}/victim")).unwrap();
        for block in 0..MIB / 4096 {
            assert_eq!(rustix::io::pwrite(&file, &[block as u8; 4096], block * 4096), Ok(4096));
        }
        victims.push((volume.to_owned(), file));
    }
    // The connection remains open with this process: its grants last as long as it does.
    std::mem::forget(connection);
    Some((scene, victims, daemon))
}

/// Whether the victims' areas are what they were.
fn check_victims(victims: &[(String, OwnedFd)]) {
    for (volume, file) in victims {
        assert_eq!(rustix::fs::fstat(file).unwrap().st_size.cast_unsigned(), MIB, "of volume {volume}");
        for block in 0..MIB / 4096 {
            let mut bytes = [0; 4096];
            assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes, block * 4096), Ok(4096));
            assert!(bytes == [block as u8; 4096], "block {block} of the victim on volume {volume}");
        }
    }
}

#[test]
fn a_descriptor_reaches_its_area_and_nothing_else() {
    let Some((scene, victims, _daemon)) = two_neighbours("hostile-escape") else { return };
    for (volume, _) in &victims {
        let mut application = scene.application(Some(OTHER_USER));
        assert_eq!(application.command(&format!("escape /{volume}/prey"), "DID"), "", "on volume {volume}");
    }
    check_victims(&victims);
}

#[test]
fn a_writer_killed_under_load_has_harmed_no_other_area() {
    let Some((scene, victims, _daemon)) = two_neighbours("hostile-killed") else { return };
    for (volume, _) in &victims {
        for _ in 0..3 {
            let mut application = scene.application(Some(OTHER_USER));
            application.command(&format!("storm /{volume}/prey"), "DID");
            application.kill();
            scene.wait_for("the grant to end", |status| {
                status.vsas.iter().all(|vsa| vsa.holder.as_ref().is_none_or(|holder| holder.uid == 0))
            });
            check_victims(&victims);
        }
        // Whatever it did to its own, the next holder of the same user gets an area of the size
        // that was promised.
        let mut application = scene.application(Some(OTHER_USER));
        assert_eq!(application.command(&format!("acquire /{volume}/prey"), "DID"), format!("ok {MIB}"));
        application.kill();
    }
}

#[test]
fn a_writer_revoked_under_load_writes_no_more() {
    let Some((scene, victims, _daemon)) = two_neighbours("hostile-revoked") else { return };
    let mut connection = scene.connect();
    for (volume, _) in &victims {
        let path = format!("/{volume}/prey");
        let mut application = scene.application(Some(OTHER_USER));
        application.command(&format!("storm {path}"), "DID");
        let areas = connection.vsas().unwrap();
        let prey = areas.iter().find(|area| area.path == path).unwrap();
        let fenced = !matches!(prey.protection, Protection::None(_));
        connection.revoke(Target::Name(path.clone())).unwrap();
        check_victims(&victims);
        if !fenced {
            eprintln!("SKIPPED part of a_writer_revoked_under_load_writes_no_more: needs immutable files");
            continue;
        }
        if volume == "main" {
            let refused = application.expect("STORM");
            assert!(refused.contains("PermissionDenied"), "{refused}");
        }
        connection.restore(&path).unwrap();
        if volume == "ram" {
            // It still writes, to memory that belongs to no area. The area can be granted again,
            // and does not change.
            connection.trim_vsa(&path, 0, None).unwrap();
            let mut next = scene.application(Some(OTHER_USER));
            assert_eq!(next.command(&format!("peek {path}"), "DID"), "0");
            next.kill();
        }
        application.kill();
    }
    check_victims(&victims);
}

/// Blocks that are reused carry no data over.
#[test]
fn data_of_an_area_is_not_in_the_next_one() {
    let Some((scene, victims, _daemon)) = two_neighbours("hostile-remains") else { return };
    let mut connection = scene.connect();
    for (volume, _) in &victims {
        let path = format!("/{volume}/prey");
        let mut application = scene.application(Some(OTHER_USER));
        application.command(&format!("storm {path}"), "DID");
        application.kill();
        scene.wait_for("the grant to end", |status| {
            status.vsas.iter().all(|vsa| vsa.holder.as_ref().is_none_or(|holder| holder.uid == 0))
        });
        connection.delete_vsa(&path).unwrap();
        connection.create_vsa(&path, MIB, Some(OTHER_USER)).unwrap();
        let mut next = scene.application(Some(OTHER_USER));
        assert_eq!(next.command(&format!("peek {path}"), "DID"), "0", "on volume {volume}");
        next.kill();
    }
}

/// A holder that grows and shrinks its area with its own writes in flight can harm only its own
/// data. The size that it was given remains.
#[test]
fn resizing_under_load_harms_no_other_area() {
    let Some((scene, victims, _daemon)) = two_neighbours("hostile-resize") else { return };
    scene.configure(&format!(
        "[[volume]]\nname = \"main\"\n[[volume.quota]]\nuid = {OTHER_USER}\nsize = \"3MiB\"\n\
         [[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\
         [[volume.quota]]\nuid = {OTHER_USER}\nsize = \"3MiB\"\n"
    ));
    let mut root = scene.connect();
    root.reload().unwrap();
    for (volume, _) in &victims {
        let path = format!("/{volume}/prey");
        let mut application = scene.application(Some(OTHER_USER));
        let answer = application.command(&format!("wobble {path}"), "DID");
        let size: u64 =
            answer.strip_prefix("wobbled ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
        assert!(application.command(&format!("resize {path} {}", 4 * MIB), "DID").starts_with("Limit"));
        assert!(application.command(&format!("resize /{volume}/victim 4096"), "DID").starts_with("Denied"));
        assert!(application.command(&format!("trim /{volume}/victim 0 4096"), "DID").starts_with("Denied"));
        application.kill();
        scene.wait_for("the grant to end", |status| {
            status.vsas.iter().all(|vsa| vsa.holder.as_ref().is_none_or(|holder| holder.uid == 0))
        });
        check_victims(&victims);
        let prey = root.vsas().unwrap().into_iter().find(|area| area.path == path).unwrap();
        assert_eq!(prey.size, size, "on volume {volume}");
        let mut next = scene.application(Some(OTHER_USER));
        assert_eq!(next.command(&format!("acquire {path}"), "DID"), format!("ok {size}"));
        next.kill();
    }
}

/// Two applications of one user that make requests at the same moment get no more than its quota,
/// in every round.
#[test]
fn two_concurrent_requests_share_one_quota() {
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        eprintln!("SKIPPED two_concurrent_requests_share_one_quota: needs root to become another user");
        return;
    }
    let scene = Scene::new("hostile-race", own);
    scene.configure(&format!(
        "[[volume]]\nname = \"main\"\n[[volume.quota]]\nuid = {OTHER_USER}\nsize = \"4MiB\"\n\
         [[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"16MiB\"\n\
         [[volume.quota]]\nuid = {OTHER_USER}\nsize = \"4MiB\"\n"
    ));
    let _daemon = scene.start();
    let mut applications = [scene.application(Some(OTHER_USER)), scene.application(Some(OTHER_USER))];
    let mut root = scene.connect();
    for round in 0..10 {
        for volume in ["main", "ram"] {
            let answers: Vec<String> = std::thread::scope(|scope| {
                let threads = applications.iter_mut().zip(["a", "b"]).map(|(application, name)| {
                    scope.spawn(move || {
                        application.command(&format!("create /{volume}/{name} {}", 3 * MIB), "DID")
                    })
                });
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let made = answers.iter().filter(|answer| answer.starts_with("ok")).count();
            let refused = answers.iter().filter(|answer| answer.starts_with("Limit")).count();
            assert_eq!((made, refused), (1, 1), "round {round}: {answers:?}");
            let areas = root.vsas().unwrap();
            assert_eq!(areas.len(), 1, "a refusal leaves nothing behind: {areas:?}");
            root.delete_vsa(&areas[0].path).unwrap();
        }
    }
}

/// Waits until the file of the area `name` on the volume `main` has `size` bytes again.
fn wait_until_cut(scene: &Scene, file: &OwnedFd, size: u64) {
    scene.wait_for("the file to be cut back", |_| {
        rustix::fs::fstat(file).unwrap().st_size.cast_unsigned() == size
    });
}

/// A holder that makes its file longer takes room of all: it has the area for a moment longer.
#[test]
fn a_holder_that_makes_its_file_longer_loses_its_area() {
    let scene = Scene::own("hostile-grows");
    scene.configure("");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("prey", MIB, None).unwrap();
    let (grant, file) = connection.acquire_vsa("prey").unwrap();
    let began = std::time::Instant::now();
    rustix::fs::ftruncate(&file, 64 * MIB).unwrap();
    wait_until_cut(&scene, &file, MIB);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    scene.wait_for("the grant to end", |status| status.vsas.iter().all(|vsa| vsa.holder.is_none()));
    assert!(connection.release(grant.grant).is_err(), "it has the grant still");
    if connection.vsas().unwrap()[0].protection == Protection::KernelEnforced {
        assert!(rustix::fs::ftruncate(&file, 64 * MIB).is_err());
        assert!(rustix::io::pwrite(&file, &[1; 4096], 0).is_err());
    }
    drop(file);
    let (_, file) = scene::until_done(|| connection.acquire_vsa("prey"));
    assert_eq!(rustix::io::pwrite(&file, &[1; 4096], 0), Ok(4096), "another holder has all of it");
}

/// The same of a former holder, which has no grant that could end.
#[test]
fn a_former_holder_that_keeps_its_descriptor_can_write_no_more() {
    let scene = Scene::own("hostile-former");
    scene.configure("");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("prey", MIB, None).unwrap();
    let (grant, file) = connection.acquire_vsa("prey").unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
    connection.release(grant.grant).unwrap();
    rustix::fs::ftruncate(&file, 64 * MIB).unwrap();
    wait_until_cut(&scene, &file, MIB);
    let Err(CallError::Refused(busy)) = connection.delete_vsa("prey") else {
        panic!("its blocks would count for no user");
    };
    assert_eq!(busy.kind, ErrorKind::Busy, "{busy}");
    connection.acquire_vsa("prey").expect_err("the former holder could write to it");
    let areas = connection.vsas().unwrap();
    assert_eq!((areas.len(), areas[0].size), (1, MIB), "it counts as before");
    if areas[0].protection != Protection::KernelEnforced {
        eprintln!(
            "SKIPPED part of a_former_holder_that_keeps_its_descriptor_can_write_no_more: needs immutable files"
        );
        return;
    }
    scene.wait_for("the file to be shut", |_| rustix::io::pwrite(&file, &[1; 4096], 0).is_err());
    drop(file);
    scene::until_done(|| connection.delete_vsa("prey"));
}
