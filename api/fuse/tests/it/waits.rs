//! Requests that wait for a medium do not keep the threads that read requests.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::file_system::{AttributeChange, NewInode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fuse::Options;

use crate::beside::Gate;
use crate::mounted::{Mounted, eventually, options};
use crate::shared_page::SharedPage;

/// More than threads that read requests.
const PROGRAMS: usize = 8;
/// In which the kernel answers what does not wait. Otherwise a test fails.
const LIMIT: Duration = Duration::from_secs(1);

/// Opens a gate again, also where a test fails.
struct Open(Arc<Gate>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Whether a program gets the attributes of the root directory.
fn is_served(mounted: &Mounted) -> bool {
    let (directory, (done, answered)) = (mounted.directory.clone(), mpsc::channel());
    std::thread::spawn(move || {
        let _ = done.send(fs::metadata(directory.join("none")).is_err());
    });
    answered.recv_timeout(LIMIT).is_ok()
}

/// Runs `work` on a file of each program, while what it waits for is closed.
fn waiting(mounted: &Mounted, work: fn(&mut File) -> std::io::Result<()>) {
    let gate = Arc::clone(&mounted.model.inside().gate);
    let open = |number: usize| File::create(mounted.path(number.to_string())).expect("created");
    let files: Vec<_> = (0..PROGRAMS).map(open).collect();
    gate.close();
    let open = Open(Arc::clone(&gate));
    let programs: Vec<_> =
        files.into_iter().map(|mut file| std::thread::spawn(move || work(&mut file))).collect();
    let threads = Options::default().threads;
    assert!(eventually(|| gate.arrivals.load(Ordering::Relaxed) >= threads));
    assert!(is_served(mounted), "requests that wait keep all threads");
    assert!(programs.iter().all(|program| !program.is_finished()), "nothing came that they wait for");
    drop(open);
    for program in programs {
        program.join().expect("no panic").expect("it is done");
    }
}

#[test]
fn syncs_of_one_user_do_not_keep_others_from_the_mount() {
    let Some(mounted) = Mounted::new("syncs") else { return };
    waiting(&mounted, |file| file.sync_all());
    mounted.unmount().expect("its threads end");
}

#[test]
fn writes_that_wait_for_room_do_not_keep_others_from_the_mount() {
    let Some(mounted) = Mounted::new("room") else { return };
    waiting(&mounted, |file| file.write_all(b"data"));
    for number in 0..PROGRAMS {
        let file = mounted.path(number.to_string());
        assert_eq!(fs::read(file).expect("read"), b"data");
    }
    mounted.unmount().expect("its threads end");
}

/// Whatever a user looks at, others do not wait until another client gives it back.
#[test]
fn what_another_client_has_does_not_keep_others_from_the_mount() {
    let Some(mounted) = Mounted::new("elsewhere") else { return };
    let gate = Arc::clone(&mounted.model.inside().gate);
    let (directory, file) = (mounted.path("directory"), mounted.path("open"));
    fs::create_dir(&directory).expect("created");
    fs::write(&file, b"data").expect("created");
    let (listed, opened) = (File::open(&directory).expect("opened"), File::open(&file).expect("opened"));
    let made = mounted.model.client(|model, caller| {
        let new = NewInode { kind: Kind::Symlink, mode: 0o777, device: 0, target: b"target" };
        model.create(caller, InodeNumber::ROOT, b"link", &new)
    });
    mounted.model.inside().elsewhere = Some(made.inode);
    let link = mounted.path("link");
    type Look = Box<dyn FnOnce() + Send>;
    let looks: [Look; 4] = [
        Box::new(move || assert_eq!(fs::read_link(link).expect("read"), Path::new("target"))),
        Box::new({
            let opened = opened.try_clone().expect("a descriptor");
            move || {
                let mut bytes = [0; 4];
                opened.read_exact_at(&mut bytes, 0).expect("read");
                assert_eq!(&bytes, b"data");
            }
        }),
        Box::new(move || {
            let hole = rustix::fs::seek(&opened, rustix::fs::SeekFrom::Hole(0)).expect("sought");
            assert_eq!(hole, 4);
        }),
        Box::new(move || {
            let names = rustix::fs::Dir::read_from(&listed).expect("listed").count();
            assert_eq!(names, 2);
        }),
    ];
    gate.close();
    let open = Open(Arc::clone(&gate));
    let programs: Vec<_> = looks.into_iter().map(std::thread::spawn).collect();
    assert!(eventually(|| gate.arrivals.load(Ordering::Relaxed) >= programs.len()));
    assert!(is_served(&mounted), "requests that wait keep the turn");
    let finished = programs.iter().filter(|program| program.is_finished()).count();
    assert_eq!(finished, 0, "nothing came that they wait for");
    drop(open);
    programs.into_iter().for_each(|program| program.join().expect("no panic"));
    mounted.unmount().expect("its threads end");
}

/// Another client gives a name, or a file, to another user, while a request of the former owner
/// waits. The request is refused, as it would be if it came now.
#[test]
fn a_change_that_waits_is_permitted_by_what_is_there_afterwards() {
    let Some(mounted) = Mounted::new("owners") else { return };
    let gate = Arc::clone(&mounted.model.inside().gate);
    let directory = mounted.path("sticky");
    fs::create_dir(&directory).expect("created");
    fs::set_permissions(&directory, Permissions::from_mode(0o1777)).expect("set");
    let made = mounted.model.client(|model, caller| model.lookup(caller, InodeNumber::ROOT, b"sticky"));
    let make = |name: &str| {
        let path = directory.join(name);
        fs::write(&path, b"data").expect("created");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        chown(&path, Some(3000), Some(3000)).expect("owned");
    };
    ["removed", "replaced", "kept", "given"].into_iter().for_each(make);
    mounted.model.inside().delays_changes = true;
    let scripts = [
        ("rm -f sticky/removed", ""),
        ("rm -f sticky/replaced", "Operation not permitted"),
        ("chmod 640 sticky/kept", ""),
        ("chmod 777 sticky/given", "Operation not permitted"),
    ];
    gate.close();
    let open = Open(Arc::clone(&gate));
    std::thread::scope(|scope| {
        let programs = scripts.map(|(script, _)| {
            let mounted = &mounted;
            scope.spawn(move || mounted.shell_as(3000, 3000, "", script))
        });
        // The kernel locks the directory of what is removed: one of two comes.
        assert!(eventually(|| gate.arrivals.load(Ordering::Relaxed) >= scripts.len() - 1));
        mounted.model.client(|model, caller| {
            model.unlink(caller, made.inode, b"replaced")?;
            let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
            model.create(caller, made.inode, b"replaced", &new)?;
            let given = model.lookup(caller, made.inode, b"given")?.inode;
            let owner = AttributeChange { uid: Some(0), ..AttributeChange::default() };
            model.set_attributes(caller, given, None, &owner)
        });
        drop(open);
        for (program, (script, expected)) in programs.into_iter().zip(scripts) {
            let printed = program.join().expect("no panic");
            assert!(
                printed.ends_with(expected) && printed.is_empty() == expected.is_empty(),
                "{script}: {printed}"
            );
        }
    });
    let mode = |name| fs::metadata(directory.join(name)).map(|found| found.mode() & 0o7777).ok();
    assert_eq!(mode("removed"), None);
    assert_eq!(mode("replaced"), Some(0o600));
    assert_eq!(mode("kept"), Some(0o640));
    assert_eq!(mode("given"), Some(0o644));
    mounted.unmount().expect("its threads end");
}

/// As where the digest does not keep up with what is written.
#[test]
fn answers_that_wait_do_not_keep_others_from_the_mount() {
    let Some(mounted) = Mounted::new("answers") else { return };
    mounted.model.inside().pauses = true;
    waiting(&mounted, |file| file.write_all(b"data"));
    mounted.unmount().expect("its threads end");
}

/// An operation that has step after step lets requests of others through between two of them.
#[test]
fn operations_in_steps_do_not_keep_others_from_the_mount() {
    let Some(mounted) = Mounted::new("steps") else { return };
    let gate = Arc::clone(&mounted.model.inside().gate);
    // The kernel locks the directory of what it renames: others look for names in another one.
    let directory = mounted.path("directory");
    fs::create_dir(&directory).expect("created");
    let path = directory.join("file");
    fs::write(&path, b"").expect("created");
    let operations: [fn(&Path) -> rustix::io::Result<()>; 3] = [
        |path| rustix::fs::setxattr(path, "user.name", b"value", XattrFlags::CREATE),
        |path| {
            let mut names = [0_u8; 64];
            let length = rustix::fs::listxattr(path, &mut names)?;
            assert_eq!(&names[..length], b"user.name\0");
            Ok(())
        },
        |path| rustix::fs::rename(path, path.with_file_name("moved")),
    ];
    for operation in operations {
        let before = gate.arrivals.load(Ordering::Relaxed);
        gate.close();
        let open = Open(Arc::clone(&gate));
        let path = path.clone();
        let program = std::thread::spawn(move || operation(&path));
        assert!(eventually(|| gate.arrivals.load(Ordering::Relaxed) > before));
        assert!(is_served(&mounted), "all steps are one turn");
        assert!(!program.is_finished(), "its last step has not come");
        drop(open);
        program.join().expect("no panic").expect("it is done");
    }
    mounted.unmount().expect("its threads end");
}

/// No program gets the error of what the kernel writes back: it would be lost.
#[test]
fn pages_of_a_mapping_are_written_when_the_service_answers_again() {
    let Some(mounted) = Mounted::new("unanswered") else { return };
    let path = mounted.path("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("created");
    file.set_len(4096).expect("a size");
    mounted.model.inside().unanswered = 1;
    let refused = file.write_all_at(&[9], 1).expect_err("a program gets the error");
    assert_eq!(refused.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
    let page = SharedPage::of(&file);
    page.write(0, 1);
    mounted.model.inside().unanswered = 2;
    page.flush();
    assert_eq!(mounted.model.inside().unanswered, 0);
    assert_eq!(mounted.model.content("file", 2), [1, 0]);
}

/// Under the kernel's lock of the directory, so that others wait for it too.
#[test]
fn a_create_that_waits_for_its_limit_does_not_keep_the_directory_for_long() {
    let Some(mounted) = Mounted::with("limit", &options()) else { return };
    mounted.model.inside().waits_for_limit = Some(65534);
    mounted.shell_as(0, 0, "", "chmod 1777 .");
    for make in [": > new", "mkdir new", "ln -s x new"] {
        let begin = Instant::now();
        let said = mounted.shell_as(65534, 65534, "", &format!("({make}) 2>&1"));
        assert!(said.contains("quota exceeded"), "{make}: {said}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{make}: {:?}", begin.elapsed());
    }
    mounted.unmount().expect("its threads end");
}

/// What waits is kept in the mount's process, which all users share.
#[test]
fn writes_of_one_user_that_wait_are_bounded_and_pages_are_not_refused() {
    /// As long as a request may be.
    const LENGTH: usize = 1 << 20;
    const KEPT: usize = 256;
    let Some(mounted) = Mounted::new("bounded") else { return };
    // In memory, because the kernel sends what is there.
    let data: Arc<[u8]> = vec![7; LENGTH].into();
    let page_file = File::options().read(true).write(true).create_new(true).open(mounted.path("page"));
    let page_file = page_file.expect("created");
    page_file.set_len(4096).expect("a size");
    let gate = Arc::clone(&mounted.model.inside().gate);
    let files: Vec<_> = (0..KEPT + 8)
        .map(|number| File::create(mounted.path(number.to_string())).expect("created"))
        .collect();
    gate.close();
    let open = Open(Arc::clone(&gate));
    let (done, results) = mpsc::channel();
    let mut programs = Vec::new();
    for file in files {
        let (done, data) = (done.clone(), Arc::clone(&data));
        let program = std::thread::Builder::new().stack_size(1 << 16);
        let write = move || drop(done.send(file.write_at(&data, 0)));
        programs.push(program.spawn(write).expect("a thread"));
    }
    for _ in 0..8 {
        let refused = results.recv_timeout(10 * LIMIT).expect("it does not wait").expect_err("no room");
        assert_eq!(refused.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
    }
    let flushing = std::thread::spawn(move || {
        let page = SharedPage::of(&page_file);
        page.write(0, 5);
        page.try_flush()
    });
    assert!(is_served(&mounted));
    assert!(!flushing.is_finished(), "pages are kept");
    drop(open);
    assert_eq!(flushing.join().expect("no panic"), Ok(()));
    let mut refused = 0;
    for _ in 0..KEPT {
        let result = results.recv_timeout(60 * LIMIT).expect("it is done");
        refused += usize::from(result.is_err());
    }
    assert!(refused <= 1, "{refused} of them, but for what their answers take");
    // They close their files after they have said it.
    for program in programs {
        program.join().expect("no panic");
    }
    // As many as before.
    fs::write(mounted.path("last"), &data).expect("nothing is kept any more");
    mounted.unmount().expect("its threads end");
}
