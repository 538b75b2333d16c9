//! What ends a wait.

use std::time::Duration;

use super::*;

/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(24 * 3600);

fn progress(digested: u64) -> Progress {
    Progress { root: Vec::new(), digested, read: digested, budget: 0, returns: 0, speed: 7 }
}

#[test]
fn a_pause_ends_when_more_is_digested() {
    let inbox = Inbox::new(progress(64));
    assert_eq!(inbox.pace(), (64, 7));
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.deliver(Notice::Progress(progress(128))));
        inbox.pause(64, LONG);
    });
    assert_eq!(inbox.pace(), (128, 7));
}

#[test]
fn a_pause_ends_when_there_is_something_to_answer() {
    let inbox = Inbox::new(progress(64));
    let revoked = Notice::Revoked { inode: 5, serial: 1, may_share: false, is_urgent: false };
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.deliver(revoked));
        inbox.pause(64, LONG);
    });
    // It is there for the operation that comes.
    assert!(matches!(inbox.message(), Some(Message::Revoked(_))));
}

#[test]
fn a_pause_ends_when_the_service_does() {
    let inbox = Inbox::new(progress(64));
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.end("it has ended".to_owned()));
        inbox.pause(64, LONG);
    });
    assert!(inbox.has_ended());
}

#[test]
fn a_pause_ends_by_itself() {
    Inbox::new(progress(64)).pause(64, Duration::from_millis(1));
}

#[test]
fn a_wait_for_the_digest_ends_when_a_revocation_is_urgent() {
    let inbox = Inbox::new(progress(64));
    let revoked = |is_urgent| Notice::Revoked { inode: 5, serial: 1, may_share: false, is_urgent };
    inbox.deliver(revoked(false));
    let seen = inbox.progress(0).expect("the first one").0;
    assert_eq!(inbox.wait_digest(seen, Instant::now() + Duration::from_millis(1)), Ok(None));
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.deliver(revoked(true)));
        assert_eq!(inbox.wait_digest(seen, Instant::now() + LONG), Ok(Some(())));
    });
}

#[test]
fn a_wait_for_the_next_message_ends_with_it_also_if_it_was_taken_meanwhile() {
    let inbox = Inbox::new(progress(64));
    let granted = || Notice::Granted { inode: 5, exclusive: true, serial: 1, sole: true };
    inbox.deliver(granted());
    let seen = inbox.delivered();
    let soon = || Instant::now() + Duration::from_millis(1);
    assert_eq!(inbox.wait_next_message(seen, soon()), Ok(None), "it was there before");
    inbox.deliver(Notice::Runs);
    assert_eq!(inbox.wait_next_message(seen, soon()), Ok(None), "it says nothing");
    inbox.deliver(granted());
    while inbox.message().is_some() {}
    assert_eq!(inbox.wait_next_message(seen, Instant::now() + LONG), Ok(Some(())));
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.end("it has ended".to_owned()));
        assert_eq!(inbox.wait_next_message(inbox.delivered(), Instant::now() + LONG), Err(Errno::IO));
    });
}

#[test]
fn a_refusal_without_an_error_number_is_an_error() {
    let inbox = Inbox::new(progress(64));
    for (errno, expected) in [(37, Errno::NOLCK), (0, Errno::IO), (-1, Errno::IO), (4096, Errno::IO)] {
        inbox.deliver(Notice::Refused { inode: 5, errno });
        assert!(matches!(inbox.message(), Some(Message::Refused { errno, .. }) if errno == expected));
    }
}
