//! Descriptors are exhausted. The limit is the whole process's, so the test runs in a process of
//! its own.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// The variable by which this program knows that it runs this test alone.
const ALONE: &str = "SIETCH_TEST_ALONE";

#[test]
fn a_vnic_without_descriptors_pauses_and_delivers_when_there_are_some() {
    let name =
        "tcp::vnic::tests::exhaustion::a_vnic_without_descriptors_pauses_and_delivers_when_there_are_some";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().expect("a path"));
        let output = alone.args(["--exact", name]).env(ALONE, "").output().expect("it ran before");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let before = getrlimit(Resource::Nofile);
    let lowest = rustix::io::dup(&listener).expect("a descriptor");
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&lowest);
    // No free number is below this.
    let none = Rlimit { current: u64::try_from(lowest).ok(), ..before };
    setrlimit(Resource::Nofile, none).expect("it is lowered");
    scene.peer_connects(80);
    let mut busy = 0;
    let begin = scene.now;
    while scene.now < begin + 1_000_000_000 {
        scene.now += POLL_INTERVAL;
        busy += u32::from(scene.vnic.poll(scene.now).expect("the wire is whole"));
        let due = scene.vnic.next_deadline();
        assert!(due.is_none_or(|due| due > scene.now), "it is due at once");
    }
    // 20 pauses, and a few frames.
    assert!(busy <= 40, "{busy} iterations of a second had something to do");
    setrlimit(Resource::Nofile, before).expect("within the hard limit");
    let due = scene.vnic.next_deadline().expect("it tries again");
    assert!(due <= scene.now + 50_000_000);
    scene.now = due;
    scene.run();
    accept(&listener);
}
