use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_receive_queue_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 0usize..3000, any::<u8>()), 1..400)) {
        let (mut queue, mut oracle) = (ReceiveQueue::default(), VecDeque::new());
        for (push, length, byte) in steps {
            if push {
                let (from, bytes) = ((Address::v4(length as u32), u16::from(byte)), vec![byte; length]);
                if queue.push(from, EcnCodepoint::of(byte), Payload::from(&bytes)) {
                    oracle.push_back((from, bytes));
                } else {
                    // Half of the largest ring is never refused.
                    let used: usize = oracle.iter().map(|(_, bytes)| span(bytes.len())).sum();
                    prop_assert!(oracle.len() == UDP_RECEIVE_QUEUE || used + span(length) > UDP_RECEIVE_BYTES / 2);
                }
            } else {
                queue.pop();
                oracle.pop_front();
            }
            let ecn = oracle.front().map(|((_, port), _): &((Address, u16), _)| EcnCodepoint::of(*port as u8));
            prop_assert_eq!(queue.oldest_ecn(), ecn);
            prop_assert_eq!(queue.len(), oracle.len());
            prop_assert!(queue.bytes.len() <= UDP_RECEIVE_BYTES);
            let oldest = queue.oldest().map(|(from, bytes)| (from, bytes.to_vec()));
            prop_assert_eq!(oldest, oracle.front().cloned());
        }
    }
}
