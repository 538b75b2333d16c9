//! Descriptors are short. The limit is one of the process, so the test is alone in a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// The variable by which this program knows that it is alone.
const ALONE: &str = "SIETCH_TEST_ALONE";

#[test]
fn a_vnic_short_of_descriptors_rests_and_hands_over_when_there_are_some() {
    let name =
        "tcp::vnic::tests::short::a_vnic_short_of_descriptors_rests_and_hands_over_when_there_are_some";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().expect("a path"));
        let output = alone.args(["--exact", name]).env(ALONE, "").output().expect("it ran before");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let mut place = Place::new();
    let listener = place.listen(80);
    let before = getrlimit(Resource::Nofile);
    let lowest = rustix::io::dup(&listener).expect("a descriptor");
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&lowest);
    // No number that is free is below this.
    let none = Rlimit { current: u64::try_from(lowest).ok(), ..before };
    setrlimit(Resource::Nofile, none).expect("it is lowered");
    place.peer_connects(80);
    let mut busy = 0;
    let begin = place.now;
    while place.now < begin + 1_000_000_000 {
        place.now += LOOK;
        busy += u32::from(place.vnic.turn(place.now).expect("the wire is whole"));
        let due = place.vnic.next_deadline();
        assert!(due.is_none_or(|due| due > place.now), "it is due at once");
    }
    // 20 rests, and a few frames.
    assert!(busy <= 40, "{busy} turns of a second had something to do");
    setrlimit(Resource::Nofile, before).expect("within the hard limit");
    let due = place.vnic.next_deadline().expect("it asks again");
    assert!(due <= place.now + 50_000_000);
    place.now = due;
    place.run();
    accept(&listener);
}
