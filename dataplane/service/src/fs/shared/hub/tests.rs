//! Passes of the hub, at times that a test names.

use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use sietch_fs::lease::Times;

use super::super::fence;
use super::*;
use crate::fs::media::Medium;
use crate::fs::recovery::recover;
use crate::fs::test_folder::Folder;

const LOG_BYTES: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const INODE: u64 = 1;

fn hub(folder: &Folder) -> Hub {
    let description = folder.read();
    let media: Vec<_> =
        description.media.iter().map(|medium| Medium::open(medium).expect("a medium")).collect();
    let members = media.iter().map(|medium| medium.member().expect("a queue")).collect();
    let (digest, ..) = recover(members, &description).expect("a pool");
    Hub::new(SharedDigest::new(digest, Times::default()), Arc::new(Moving::new(Box::new(|| {}))))
}

/// A client joins; what it is notified of.
fn join(hub: &mut Hub, number: u32) -> Receiver<Notice> {
    let (notices, notified) = sync_channel(100);
    let (answer, _answered) = sync_channel(1);
    let word = fence::memory().expect("memory");
    let joining = Joining {
        process: 7,
        client: ClientNumber(number),
        memory: Mapped::anonymous(LOG_BYTES as usize).expect("memory"),
        log_bytes: LOG_BYTES,
        seed: 1,
        fence: Fence::open(&word).expect("memory"),
        notices,
        hang_up: Box::new(|| {}),
        answer,
    };
    hub.handle(Event::Join(joining)).expect("a client");
    notified
}

fn say(hub: &mut Hub, client: u32, request: Request) {
    hub.handle(Event::Request(ClientNumber(client), request)).expect("a request");
}

/// The time for an answer begins with the tick, and a pass may take long. So a client is asked
/// before the tick: at the end of the pass its time could be over.
#[test]
fn a_client_is_asked_before_the_time_for_its_answer_begins() {
    let folder = Folder::new("hub");
    let mut hub = hub(&folder);
    let asked = join(&mut hub, 2);
    let _others = [join(&mut hub, 3), join(&mut hub, 4)];
    say(&mut hub, 2, Request::Room(10));
    // Client 4 has a lease that client 3 wants, and does not answer.
    for client in [4, 3] {
        say(&mut hub, client, Request::Lease { inode: INODE, exclusive: true });
    }
    for now in [SECOND, 10 * SECOND] {
        hub.shared.set_time(now);
        hub.pass(now).expect("memory");
    }
    while asked.try_recv().is_ok() {}
    // Client 4 is ended by the tick of the pass in which client 2 is asked for room.
    let notices = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&notices);
    let is_ended = Box::new(move || {
        seen.lock().unwrap_or_else(PoisonError::into_inner).extend(asked.try_iter());
    });
    hub.shared.set_fence(ClientNumber(4), is_ended);
    let now = 20 * SECOND;
    hub.shared.set_time(now);
    let most = hub.shared.digest_mut().root().free - 300;
    say(&mut hub, 3, Request::Room(most));
    hub.pass(now).expect("memory");
    assert!(!hub.shared.is_served(ClientNumber(4)));
    let notices = notices.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(notices.iter().any(|notice| matches!(notice, Notice::RecallRoom)), "{notices:?}");
}
