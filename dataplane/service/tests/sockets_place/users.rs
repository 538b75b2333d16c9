//! Several users at one service: what none of them may, and what none of them can take from the others.
//!
//! A thread can be another user than its process ([`as_user`]), which takes root; without it those tests say that they were skipped.

use std::thread::Scope;

use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sietch_protocol::socket_service::{Request, RequestKind};
use sietch_service::sockets::administration::Listing;

use super::*;

/// Two users that nothing else here is.
pub const ONE: u32 = 64_001;
pub const OTHER: u32 = 64_002;

/// Does something on a thread that is that user; `None`: this process may not.
pub fn as_user<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    uid: u32,
    what: impl FnOnce() -> R + Send + 'scope,
) -> Option<R> {
    let done = scope.spawn(move || {
        let (group, user) = (rustix::process::Gid::from_raw(uid), rustix::process::Uid::from_raw(uid));
        set_thread_groups(&[]).ok()?;
        set_thread_res_gid(group, group, group).ok()?;
        set_thread_res_uid(user, user, user).ok()?;
        Some(what())
    });
    done.join().expect("it passes")
}

/// Whether tests of several users can run; says so if not.
pub fn is_root(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {name}: needs root, to be several users");
    }
    root
}

fn list(found: Result<(sietch_protocol::socket_service::Reply, Descriptors), Errno>) -> Listing {
    let (reply, descriptors) = found.expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Listed);
    let file = descriptors[0].as_ref().expect("a list");
    let text = sietch_protocol::sealed::read(file, 1 << 20).expect("sealed");
    serde_json::from_slice(&text).expect("a list")
}

#[test]
fn nobody_administers_over_the_socket_for_everybody_whatever_the_uid() {
    let name = "nobody_administers_over_the_socket_for_everybody_whatever_the_uid";
    if !is_root(name) {
        return;
    }
    let _turn = one_at_a_time();
    let place = Place::new();
    let (_placeholder, address) = listen(&place, "127.0.0.1:0", 16);
    // This process is root, and started the service. A container's root has the same uid.
    let seen = list(place.call(&request(RequestKind::List), &[]));
    assert_eq!(seen, Listing::default());
    for kind in [RequestKind::Revoke, RequestKind::Succeed] {
        let (reply, _) = place.call(&request(kind), &[]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Refused, "{kind:?}");
    }
    assert_eq!(connect(&place, address).0.kind(), ReplyKind::Connected);
    assert_eq!(list(place.administer(&request(RequestKind::List))).listeners.len(), 1);
    // And administrators do nothing else over theirs.
    let (reply, _) = place.administer(&request(RequestKind::Connect)).expect("an answer");
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::OPNOTSUPP));
}

#[test]
fn a_user_sees_and_ends_its_own_and_cannot_reach_the_administrators_socket() {
    let name = "a_user_sees_and_ends_its_own_and_cannot_reach_the_administrators_socket";
    if !is_root(name) {
        return;
    }
    let _turn = one_at_a_time();
    let place = Place::new();
    let (_placeholder, address) = listen(&place, "127.0.0.1:0", 16);
    std::thread::scope(|scope| {
        let done = as_user(scope, ONE, || {
            let (mine, own) = listen(&place, "127.0.0.1:0", 16);
            let seen = list(place.call(&request(RequestKind::List), &[]));
            assert_eq!(seen.listeners.iter().map(|found| found.name).collect::<Vec<_>>(), [own]);
            assert_eq!(place.administer(&request(RequestKind::List)).err(), Some(Errno::ACCESS));
            let (reply, _) = place.call(&request(RequestKind::Succeed), &[]).expect("an answer");
            assert_eq!(reply.kind(), ReplyKind::Refused);
            let (reply, _) = place.call(&Request::new(RequestKind::Revoke, [7; 16]), &[]).expect("an answer");
            assert_eq!(reply.kind(), ReplyKind::Listed);
            drop(mine);
        });
        assert!(done.is_some(), "root may be anybody");
    });
    // The other application of the same number is as it was.
    let left = list(place.administer(&request(RequestKind::List)));
    assert_eq!(left.listeners.iter().map(|found| found.name).collect::<Vec<_>>(), [address]);
}
