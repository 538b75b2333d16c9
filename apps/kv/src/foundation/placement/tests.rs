use super::*;

/// The check value of CRC-16/XMODEM in the catalogue of parametrised CRC algorithms.
#[test]
fn the_checksum_is_that_of_xmodem() {
    assert_eq!(crc16(b"123456789"), 0x31c3);
    assert_eq!(crc16(b""), 0);
}

/// Slots that CLUSTER KEYSLOT of Redis returns.
#[test]
fn keys_have_the_slots_of_redis_cluster() {
    let known: [(&[u8], usize); 7] = [
        (b"foo", 12182),
        (b"bar", 5061),
        (b"hello", 866),
        (b"somekey", 11058),
        (b"foo{hash_tag}", 2515),
        (b"bar{hash_tag}", 2515),
        (b"", 0),
    ];
    for (key, expected) in known {
        assert_eq!(slot(key), expected, "{}", String::from_utf8_lossy(key));
    }
}

/// The examples of the specification of Redis Cluster.
#[test]
fn the_first_tag_that_is_not_empty_is_hashed() {
    let known: [(&[u8], &[u8]); 9] = [
        (b"{user1000}.following", b"user1000"),
        (b"foo{}{bar}", b"foo{}{bar}"),
        (b"foo{{bar}}zap", b"{bar"),
        (b"foo{bar}{zap}", b"bar"),
        (b"foo{bar", b"foo{bar"),
        (b"foo}bar{", b"foo}bar{"),
        (b"}{a}", b"a"),
        (b"{}", b"{}"),
        (b"{", b"{"),
    ];
    for (key, expected) in known {
        assert_eq!(hash_tag(key), expected, "{}", String::from_utf8_lossy(key));
    }
}

#[test]
fn each_shard_owns_about_as_many_slots_and_each_key_has_one_owner() {
    for count in [1, 2, 3, 7, 64] {
        let shards: Vec<Placement> = (0..count).map(|own| Placement::new(own, count)).collect();
        let mut owned = vec![0; count];
        for number in 0..10_000_u32 {
            let key = number.to_string();
            let owner = shards[0].shard_of(key.as_bytes());
            owned[owner] += 1;
            for shard in &shards {
                assert_eq!(shard.shard_of(key.as_bytes()), owner);
                assert_eq!(shard.is_own(key.as_bytes()), shard.own() == owner);
            }
        }
        let fair = 10_000 / count;
        assert!(owned.iter().all(|&keys| keys > fair / 2 && keys < fair * 2), "{count}: {owned:?}");
    }
}

#[test]
fn the_slots_are_divided_in_order() {
    let three = Placement::new(1, 3);
    assert_eq!((three.own(), three.count()), (1, 3));
    // Slots 866, 5061 and 12182 of 16384.
    assert_eq!(three.shard_of(b"hello"), 0);
    assert_eq!(three.shard_of(b"bar"), 0);
    assert_eq!(three.shard_of(b"foo"), 2);
    assert_eq!(Placement::new(0, SLOTS).shard_of(b"foo"), 12182);
    assert_eq!(Placement::single().shard_of(b"foo"), 0);
    assert!(Placement::single().is_own(b"foo"));
}

#[test]
#[should_panic(expected = "a shard is one of")]
fn there_is_no_shard_behind_the_last_one() {
    let _ = Placement::new(3, 3);
}
