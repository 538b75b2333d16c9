//! The table against a model of what may not happen, with clients that answer late, cross their
//! messages, die, or do not answer at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{
    ClientNumber, Event, Grant, Judge as _, LeaseTable, MAX_HELD, MAX_WAITING, Mode, Refused, Release,
    Replay, Revocation, Times,
};
use crate::inode::InodeNumber;

const TIMES: Times = Times { hold: 10, answer: 1000 };

const A: ClientNumber = ClientNumber(1);
const B: ClientNumber = ClientNumber(2);
const C: ClientNumber = ClientNumber(3);
const N: InodeNumber = InodeNumber(50);

fn table() -> LeaseTable {
    let mut table = LeaseTable::new(TIMES);
    for client in [A, B, C] {
        table.join(client, 0);
    }
    table
}

fn granted(table: &mut LeaseTable, client: ClientNumber) -> Grant {
    match table.event() {
        Some((to, Event::Granted(grant))) if to == client => grant,
        other => panic!("no grant for {client:?}: {other:?}"),
    }
}

fn revoked(table: &mut LeaseTable, client: ClientNumber) -> Revocation {
    match table.event() {
        Some((to, Event::Revoked(revocation))) if to == client => revocation,
        other => panic!("no revocation for {client:?}: {other:?}"),
    }
}

fn release(serial: u64, position: u64) -> Release {
    Release { inode: N, serial, shares: false, position, is_referenced: false }
}

#[test]
fn a_lease_passes_when_the_log_of_its_holder_is_digested_up_to_the_release() {
    let mut table = table();
    table.acquire(A, N, Mode::Exclusive, 0).expect("a request");
    let grant = granted(&mut table, A);
    assert!(table.may_change(A, N, 64) && !table.may_change(B, N, 64));
    table.acquire(B, N, Mode::Shared, 20).expect("a request");
    let revocation = revoked(&mut table, A);
    assert!(revocation.may_share);
    assert_eq!(table.owed(A), None);
    assert!(table.release(A, release(grant.serial, 640), 30));
    // Records from before the release are still good, later ones are not.
    assert!(table.may_change(A, N, 576) && !table.may_change(A, N, 640));
    assert_eq!((table.event(), table.owed(A)), (None, Some(640)));
    table.digested(A, 639, 40);
    assert_eq!(table.event(), None);
    table.digested(A, 640, 50);
    assert_eq!(granted(&mut table, B).mode, Mode::Shared);
    assert!(!table.may_change(A, N, 576) && !table.may_change(B, N, 0));
}

/// A client that keeps too many leases releases one on an inode that it made, which has no entry
/// here. Its records are not digested when it asks for the lease again, to read.
#[test]
fn records_from_before_the_maker_of_an_inode_released_it_stay_good() {
    let mut table = table();
    table.own(A, 40..60);
    assert!(table.release(A, release(0, 640), 10));
    table.acquire(A, N, Mode::Shared, 20).expect("a request");
    granted(&mut table, A);
    assert!(table.may_change(A, N, 576) && !table.may_change(B, N, 0));
}

#[test]
fn an_inode_that_its_maker_gave_up_passes_without_a_question() {
    let mut table = table();
    table.own(A, 40..60);
    assert!(table.release(A, release(0, 640), 10));
    table.acquire(B, N, Mode::Exclusive, 20).expect("a request");
    assert_eq!((table.event(), table.owed(A)), (None, Some(640)));
    table.digested(A, 640, 30);
    assert_eq!(granted(&mut table, B).mode, Mode::Exclusive);
    // A release of an inode that is another client's, or was asked for since, says nothing.
    assert!(table.release(A, release(0, 900), 40) && table.release(B, release(0, 900), 40));
    assert!(table.may_change(B, N, 1000) && table.owed(A).is_none() && table.owed(B).is_none());
}

/// Its log is digested up to an earlier release when the later one still waits.
#[test]
fn a_client_that_gave_up_a_lease_gets_it_again_at_once() {
    let mut table = table();
    table.acquire(A, N, Mode::Exclusive, 0).expect("a request");
    let first = granted(&mut table, A);
    assert!(table.release(A, release(first.serial, 640), 10));
    table.acquire(A, N, Mode::Exclusive, 20).expect("a request");
    let second = granted(&mut table, A);
    assert!(table.release(A, release(second.serial, 1280), 30));
    table.acquire(B, N, Mode::Shared, 40).expect("a request");
    table.digested(A, 640, 50);
    assert_eq!((table.event(), table.owed(A)), (None, Some(1280)));
    assert!(table.may_change(A, N, 1216));
    table.digested(A, 1280, 60);
    granted(&mut table, B);
}

#[test]
fn a_shared_lease_that_the_writer_keeps_passes_by_position_too() {
    let mut table = table();
    table.acquire(A, N, Mode::Exclusive, 0).expect("a request");
    let grant = granted(&mut table, A);
    table.acquire(B, N, Mode::Shared, 20).expect("a request");
    revoked(&mut table, A);
    assert!(table.release(A, Release { shares: true, ..release(grant.serial, 640) }, 30));
    assert_eq!(table.event(), None);
    table.digested(A, 700, 50);
    assert_eq!(granted(&mut table, B).mode, Mode::Shared);
    // Then both read; a third one that writes has both revoked.
    table.acquire(C, N, Mode::Exclusive, 100).expect("a request");
    let asked = BTreeSet::from([table.event().expect("one").0, table.event().expect("two").0]);
    assert_eq!(asked, BTreeSet::from([A, B]));
}

#[test]
fn a_writer_that_waits_stops_new_readers() {
    let mut table = table();
    table.acquire(A, N, Mode::Shared, 0).expect("a request");
    let first = granted(&mut table, A);
    table.acquire(B, N, Mode::Exclusive, 50).expect("a request");
    revoked(&mut table, A);
    table.acquire(C, N, Mode::Shared, 60).expect("a request");
    assert_eq!(table.event(), None);
    assert!(table.release(A, release(first.serial, 0), 70));
    assert_eq!(granted(&mut table, B).mode, Mode::Exclusive);
    assert_eq!(table.event(), None);
}

#[test]
fn a_holder_keeps_a_lease_for_a_while() {
    let mut table = table();
    table.acquire(A, N, Mode::Exclusive, 100).expect("a request");
    granted(&mut table, A);
    table.acquire(B, N, Mode::Exclusive, 101).expect("a request");
    assert_eq!((table.event(), table.next_time()), (None, Some(110)));
    assert_eq!(table.tick(109), []);
    assert_eq!(table.event(), None);
    assert_eq!(table.tick(110), []);
    revoked(&mut table, A);
    assert_eq!(table.next_time(), Some(610));
}

#[test]
fn a_client_that_does_not_answer_is_fenced() {
    let mut table = table();
    table.acquire(A, N, Mode::Exclusive, 0).expect("a request");
    granted(&mut table, A);
    table.acquire(B, N, Mode::Shared, 100).expect("a request");
    revoked(&mut table, A);
    assert_eq!(table.tick(599), []);
    assert_eq!(table.event(), None);
    assert_eq!(table.tick(600), []);
    assert!(revoked(&mut table, A).is_urgent);
    assert_eq!(table.tick(1099), []);
    assert_eq!(table.tick(1100), [A]);
    table.gone(A, 1100);
    granted(&mut table, B);
    assert_eq!(table.acquire(A, N, Mode::Shared, 1200), Err(Refused::Unknown));
    assert_eq!(table.counts().late, 1);
}

#[test]
fn a_new_inode_belongs_to_the_client_that_has_its_number() {
    let mut table = table();
    table.own(A, 40..60);
    table.own(A, 60..70);
    assert!(table.may_change(A, N, 0) && !table.may_change(B, N, 0));
    assert_eq!(table.owner(InodeNumber(69)), Some(A));
    assert_eq!(table.owner(InodeNumber(70)), None);
    assert!(table.is_empty());
    table.acquire(B, N, Mode::Shared, 100).expect("a request");
    // It had the lease for ever.
    let revocation = revoked(&mut table, A);
    assert!(table.release(A, release(revocation.serial, 128), 105));
    table.digested(A, 128, 106);
    let grant = granted(&mut table, B);
    assert!(!table.may_change(A, N, 64));
    // When no client has it, it is A's again; A asks nevertheless.
    assert!(table.release(B, release(grant.serial, 0), 107));
    assert!(table.is_empty());
    table.acquire(A, N, Mode::Exclusive, 108).expect("a request");
    granted(&mut table, A);
}

/// The client forgot a lease of its own, and asks; the revocation for the lease that it does not
/// know is on its way.
#[test]
fn an_answer_that_crosses_a_grant_has_no_effect() {
    let mut table = table();
    table.own(A, 40..60);
    table.acquire(B, N, Mode::Shared, 100).expect("a request");
    let crossing = revoked(&mut table, A);
    table.acquire(A, N, Mode::Exclusive, 101).expect("a request");
    let grant = granted(&mut table, A);
    assert!(grant.serial > crossing.serial);
    let again = revoked(&mut table, A);
    assert_eq!(again.serial, grant.serial);
    assert!(table.release(A, release(crossing.serial, 0), 102));
    assert_eq!(table.event(), None);
    assert!(table.may_change(A, N, 0));
    assert!(table.release(A, release(again.serial, 0), 103));
    granted(&mut table, B);
}

#[test]
fn two_readers_that_both_want_to_write_get_on() {
    let mut table = table();
    table.acquire(A, N, Mode::Shared, 0).expect("a request");
    table.acquire(B, N, Mode::Shared, 0).expect("a request");
    let (a, b) = (granted(&mut table, A), granted(&mut table, B));
    table.acquire(A, N, Mode::Exclusive, 50).expect("a request");
    table.acquire(B, N, Mode::Exclusive, 50).expect("a request");
    // A's own shared lease is not in A's way.
    assert_eq!(revoked(&mut table, B).serial, b.serial);
    assert_eq!(table.event(), None);
    assert!(table.release(B, release(b.serial, 0), 51));
    let upgraded = granted(&mut table, A);
    assert_eq!(upgraded.mode, Mode::Exclusive);
    assert!(upgraded.serial > a.serial);
    table.tick(70);
    revoked(&mut table, A);
    assert!(table.release(A, release(upgraded.serial, 0), 71));
    assert_eq!(granted(&mut table, B).mode, Mode::Exclusive);
}

#[test]
fn references_outlive_leases() {
    let mut table = table();
    table.acquire(A, N, Mode::Shared, 0).expect("a request");
    let grant = granted(&mut table, A);
    assert!(grant.is_sole);
    assert!(table.release(A, Release { is_referenced: true, ..release(grant.serial, 0) }, 1));
    table.acquire(B, N, Mode::Exclusive, 2).expect("a request");
    assert!(!granted(&mut table, B).is_sole);
    assert!(table.is_referenced(N) && !table.has_sole_holder(N));
    assert_eq!(table.next_unreferenced(), None);
    table.unreferenced(A, N);
    assert_eq!(table.next_unreferenced(), Some(N));
    // B does not know: the service frees the inode.
    assert!(!table.is_referenced(N) && !table.has_sole_holder(N));
}

#[test]
fn references_of_a_client_that_is_gone_end() {
    let mut table = table();
    table.acquire(A, N, Mode::Shared, 0).expect("a request");
    let grant = granted(&mut table, A);
    assert!(table.release(A, Release { is_referenced: true, ..release(grant.serial, 0) }, 1));
    table.gone(A, 2);
    assert!(!table.is_referenced(N) && table.is_empty());
}

#[test]
fn one_client_does_not_take_all_memory() {
    let mut table = table();
    for number in 0..MAX_HELD as u64 {
        table.acquire(A, InodeNumber(1000 + number), Mode::Shared, 0).expect("a request");
        granted(&mut table, A);
    }
    assert_eq!(table.acquire(A, N, Mode::Shared, 0), Err(Refused::Held));
    for number in 0..MAX_WAITING as u64 {
        table.acquire(B, InodeNumber(1000 + number), Mode::Exclusive, 0).expect("a request");
    }
    assert_eq!(table.acquire(B, InodeNumber(5000), Mode::Exclusive, 0), Err(Refused::Waiting));
    table.cancel(B, InodeNumber(1000), 0);
    table.acquire(B, InodeNumber(5000), Mode::Exclusive, 0).expect("a request");
}

#[test]
fn a_replay_refuses_what_another_log_changed() {
    let mut replay = Replay::default();
    assert!(replay.of(A).may_change(N, 0) && replay.of(A).may_change(N, 64));
    assert!(!replay.of(B).may_change(N, 0) && !replay.of(B).may_create(N, 0));
    let other = InodeNumber(51);
    assert!(replay.of(B).may_create(other, 0) && !replay.of(A).may_change(other, 128));
}

/// A client as the tests have it.
#[derive(Default)]
struct Peer {
    events: VecDeque<Event>,
    /// Mode and serial; 0: of an inode that it created.
    held: BTreeMap<InodeNumber, (Mode, u64)>,
    wants: Option<(InodeNumber, Mode)>,
    log_end: u64,
    digested: u64,
    is_gone: bool,
}

impl Peer {
    /// Takes one event, and perhaps answers.
    fn take(&mut self) -> Option<Release> {
        match self.events.pop_front()? {
            Event::Granted(Grant { inode, mode, serial, .. }) => {
                self.held.insert(inode, (mode, serial));
                if self.wants.is_some_and(|(wanted, least)| wanted == inode && mode >= least) {
                    self.wants = None;
                }
                None
            }
            Event::Revoked(Revocation { inode, serial, may_share, .. }) => {
                let held = self.held.get(&inode).copied();
                if held.is_some_and(|(_, other)| other != 0 && other != serial) {
                    return None;
                }
                let shares = may_share && held.is_some() && self.log_end.is_multiple_of(3);
                if shares {
                    self.held.insert(inode, (Mode::Shared, serial));
                } else {
                    self.held.remove(&inode);
                }
                Some(Release { inode, serial, shares, position: self.log_end, is_referenced: false })
            }
        }
    }
}

/// The last exclusive holder of each inode that left it, and where.
type Left = BTreeMap<InodeNumber, (usize, u64)>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Want(usize, u64, bool),
    Write(usize),
    Take(usize),
    Digest(usize, u64),
    Evict(usize, u64),
    Die(usize),
    Tick(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_usize, 0..6_u64, any::<bool>()).prop_map(|(c, i, m)| Step::Want(c, i, m)),
        4 => (0..4_usize).prop_map(Step::Write),
        12 => (0..4_usize).prop_map(Step::Take),
        6 => (0..4_usize, 0..100_u64).prop_map(|(c, p)| Step::Digest(c, p)),
        2 => (0..4_usize, 0..6_u64).prop_map(|(c, i)| Step::Evict(c, i)),
        1 => (0..4_usize).prop_map(Step::Die),
        6 => (0..30_u64).prop_map(Step::Tick),
    ]
}

struct World {
    table: LeaseTable,
    peers: Vec<Peer>,
    left: Left,
    now: u64,
}

impl World {
    fn new() -> Self {
        let mut table = LeaseTable::new(TIMES);
        let mut peers = Vec::new();
        for number in 1..=4 {
            table.join(ClientNumber(number), 0);
            peers.push(Peer::default());
        }
        // Inodes 2 and 3 were made by the first two clients; 1, 4, 5 and the tree by no client.
        table.own(ClientNumber(1), 2..3);
        table.own(ClientNumber(2), 3..4);
        peers[0].held.insert(InodeNumber(2), (Mode::Exclusive, 0));
        peers[1].held.insert(InodeNumber(3), (Mode::Exclusive, 0));
        Self { table, peers, left: Left::new(), now: 0 }
    }

    fn client(index: usize) -> ClientNumber {
        ClientNumber(index as u32 + 1)
    }

    /// Delivers what the table says; a grant must respect what others believe.
    fn deliver(&mut self) {
        while let Some((client, event)) = self.table.event() {
            let index = client.0 as usize - 1;
            if let Event::Granted(grant) = event {
                for (other, peer) in self.peers.iter().enumerate() {
                    let held = peer.held.get(&grant.inode).filter(|_| other != index && !peer.is_gone);
                    let conflicts = held.is_some_and(|(mode, _)| grant.mode.max(*mode) == Mode::Exclusive);
                    assert!(!conflicts, "{other} believes that it holds {grant:?} of {index}");
                }
                if let Some((last, position)) = self.left.get(&grant.inode).copied()
                    && last != index
                    && !self.peers[last].is_gone
                {
                    let digested = self.peers[last].digested;
                    assert!(digested >= position, "{grant:?}: {last} is at {digested} of {position}");
                }
            }
            self.peers[index].events.push_back(event);
        }
    }

    fn release(&mut self, index: usize, release: Release, was: Option<Mode>) {
        if was == Some(Mode::Exclusive) {
            self.left.insert(release.inode, (index, release.position));
        }
        assert!(self.table.release(Self::client(index), release, self.now));
    }

    fn take(&mut self, index: usize) {
        let before = self.peers[index].held.clone();
        if let Some(release) = self.peers[index].take() {
            let was = before.get(&release.inode).map(|(mode, _)| *mode);
            self.release(index, release, was);
        }
    }

    fn die(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        (peer.is_gone, peer.wants) = (true, None);
        peer.events.clear();
        peer.digested = peer.log_end;
        self.table.gone(Self::client(index), self.now);
    }

    fn digest(&mut self, index: usize, position: u64) {
        let peer = &mut self.peers[index];
        peer.digested = peer.digested.max(position.min(peer.log_end));
        self.table.digested(Self::client(index), peer.digested, self.now);
    }

    fn run(&mut self, step: Step) {
        let index = match step {
            Step::Want(index, ..)
            | Step::Write(index)
            | Step::Take(index)
            | Step::Digest(index, _)
            | Step::Evict(index, _)
            | Step::Die(index) => index,
            Step::Tick(passed) => {
                self.now += passed;
                for client in self.table.tick(self.now) {
                    self.die(client.0 as usize - 1);
                }
                return;
            }
        };
        if self.peers[index].is_gone {
            return;
        }
        match step {
            Step::Want(_, inode, exclusive) => {
                let (inode, mode) =
                    (InodeNumber(inode), if exclusive { Mode::Exclusive } else { Mode::Shared });
                let peer = &mut self.peers[index];
                let has = peer.held.get(&inode).is_some_and(|(held, _)| *held >= mode);
                if peer.wants.is_none() && !has {
                    peer.wants = Some((inode, mode));
                    self.table.acquire(Self::client(index), inode, mode, self.now).expect("a request");
                }
            }
            Step::Write(_) => {
                let peer = &mut self.peers[index];
                for (inode, (mode, _)) in &peer.held {
                    let may = self.table.may_change(Self::client(index), *inode, peer.log_end);
                    assert!(may || *mode == Mode::Shared, "{index} may not change {inode}");
                }
                peer.log_end += 10;
            }
            Step::Take(_) => self.take(index),
            Step::Digest(_, more) => {
                let position = self.peers[index].digested + more;
                self.digest(index, position);
            }
            Step::Evict(_, inode) => {
                let inode = InodeNumber(inode);
                let peer = &mut self.peers[index];
                if peer.wants.is_some_and(|(wanted, _)| wanted == inode) {
                    return;
                }
                if let Some((mode, serial)) = peer.held.remove(&inode) {
                    let position = peer.log_end;
                    let release = Release { inode, serial, shares: false, position, is_referenced: false };
                    self.release(index, release, Some(mode));
                }
            }
            Step::Die(_) => self.die(index),
            Step::Tick(_) => {}
        }
    }

    /// Everybody answers, and all logs are digested: everybody gets what it wants.
    fn finish(&mut self) {
        for _ in 0..200 {
            self.deliver();
            for index in 0..self.peers.len() {
                if self.peers[index].is_gone {
                    continue;
                }
                while !self.peers[index].events.is_empty() {
                    self.take(index);
                }
                if self.table.owed(Self::client(index)).is_some() {
                    self.digest(index, u64::MAX);
                }
            }
            self.now += 1;
            assert!(self.table.tick(self.now).is_empty(), "all have answered");
        }
        for (index, peer) in self.peers.iter().enumerate() {
            assert_eq!(peer.wants, None, "{index} starves");
        }
        for index in 0..self.peers.len() {
            if !self.peers[index].is_gone {
                self.die(index);
            }
        }
        assert!(self.table.is_empty(), "{:?}", self.table);
        assert_eq!(self.table.next_time(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// No client holds what another has exclusively, as the clients see it; a lease never passes
    /// before the log is digested; and no client starves.
    #[test]
    fn leases_exclude_each_other_and_no_client_starves(steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.deliver();
        }
        world.finish();
    }
}
