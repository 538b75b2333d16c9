use super::*;
use crate::limits::SECOND;

const HONEST: [u8; 6] = [2, 0, 0, 0, 0, 9];
const THIEF: [u8; 6] = [2, 0, 0, 0, 0, 66];

fn address(last: u8) -> Address {
    let mut octets = [0xfd; 16];
    octets[15] = last;
    Address::from_octets(octets)
}

fn advertisement(mac: [u8; 6], solicited: bool, replaces: bool) -> Advertisement {
    Advertisement { mac: Some(mac), solicited, replaces }
}

fn ask(cache: &mut Neighbours, now: u64) -> (Vec<NeighbourRequest>, Vec<Address>) {
    let (mut ask, mut failed) = (Vec::new(), Vec::new());
    cache.due(now, &mut ask, &mut failed);
    (ask, failed)
}

#[test]
fn an_answered_request_makes_an_entry_that_is_fresh_for_its_lifetime() {
    let (mut cache, peer) = (Neighbours::new(NEVER), address(1));
    assert_eq!(cache.resolve(peer, SECOND), Resolution::Pending);
    assert_eq!(ask(&mut cache, SECOND).0, [NeighbourRequest { address: peer, mac: None }]);
    assert!(cache.advertised(peer, &advertisement(HONEST, true, true), SECOND));
    assert_eq!(cache.resolve(peer, 2 * SECOND), Resolution::Known(HONEST));
    assert_eq!(cache.deadline(), 2 * SECOND, "the deadline may be early");
    assert_eq!(ask(&mut cache, 2 * SECOND).0, []);
    assert_eq!(cache.deadline(), NEVER);
    // Past its lifetime the entry is still used, and the request goes to its owner only.
    let later = 2 * SECOND + NEIGHBOUR_LIFETIME;
    assert_eq!(cache.resolve(peer, later), Resolution::Known(HONEST));
    assert_eq!(ask(&mut cache, later).0, [NeighbourRequest { address: peer, mac: Some(HONEST) }]);
    assert!(!cache.advertised(peer, &advertisement(HONEST, true, true), later));
    assert_eq!(ask(&mut cache, later + 2 * SECOND), (vec![], vec![]));
}

#[test]
fn a_neighbour_that_does_not_answer_is_removed() {
    let (mut cache, peer) = (Neighbours::new(NEVER), address(1));
    cache.resolve(peer, SECOND);
    for second in 1..=3 {
        assert_eq!(ask(&mut cache, second * SECOND).0.len(), 1);
    }
    assert_eq!(ask(&mut cache, 4 * SECOND), (vec![], vec![peer]));
    assert_eq!(cache.deadline(), NEVER);
}

#[test]
fn unsolicited_packets_create_and_confirm_no_entry() {
    let (mut cache, peer) = (Neighbours::new(NEVER), address(1));
    assert!(!cache.advertised(peer, &advertisement(THIEF, true, true), SECOND));
    assert!(cache.solicited_by(peer, HONEST));
    // Without the override flag nothing changes; with it the address does, but it will be asked
    // about.
    assert!(!cache.advertised(peer, &advertisement(THIEF, true, false), SECOND));
    assert_eq!(cache.resolve(peer, SECOND), Resolution::Known(HONEST));
    assert!(cache.advertised(peer, &advertisement(THIEF, true, true), SECOND));
    assert_eq!(cache.resolve(peer, SECOND), Resolution::Known(THIEF));
    let (requests, _) = ask(&mut cache, SECOND + DELAY_FIRST_PROBE);
    assert_eq!(requests, [NeighbourRequest { address: peer, mac: Some(THIEF) }]);
    // The owner itself answers.
    assert!(cache.advertised(peer, &advertisement(HONEST, true, true), 7 * SECOND));
    assert_eq!(cache.resolve(peer, 8 * SECOND), Resolution::Known(HONEST));
}

#[test]
fn a_flood_of_solicitations_displaces_itself() {
    let (mut cache, peer) = (Neighbours::new(NEVER), address(1));
    cache.resolve(peer, SECOND);
    ask(&mut cache, SECOND);
    cache.advertised(peer, &advertisement(HONEST, true, true), SECOND);
    for number in 0..3 * NEIGHBOURS as u128 {
        cache.solicited_by(Address::from_octets((0xfd01 << 112 | number).to_be_bytes()), THIEF);
    }
    assert_eq!(cache.entries.len(), NEIGHBOURS);
    assert_eq!(cache.resolve(peer, 2 * SECOND), Resolution::Known(HONEST));
}
