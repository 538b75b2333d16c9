use super::*;

/// The first numbers of each generator for the seed 7, worked out from the published algorithms.
#[test]
fn the_sequence_of_a_seed_never_changes() {
    let first = |mut word: Box<dyn FnMut() -> u64>| [word(), word(), word()];
    let mut random = Random::new(7);
    assert_eq!(
        first(Box::new(move || random.word())),
        [0xb358_faf7_4ef9_765a, 0x475c_3d96_4f48_2cd2, 0xd6f1_d349_952c_7996]
    );
    let mut split_mix = SplitMix64::new(7);
    assert_eq!(
        first(Box::new(move || split_mix.word())),
        [0x63cb_e1e4_5932_0dd7, 0x044c_3cd7_f43c_661c, 0xe698_4080_bab1_2a02]
    );
    let mut xor_shift = XorShift64::new(7);
    assert_eq!(
        first(Box::new(move || xor_shift.word())),
        [0x0000_0001_c38e_e1c7, 0x7001_c712_2401_6dc4, 0xc158_1fc0_1194_9e1f]
    );
    let mut xor_shift_star = XorShift64Star::new(7);
    assert_eq!(
        first(Box::new(move || xor_shift_star.word())),
        [0xd1fb_af7f_728d_2eae, 0xeda4_6c77_629d_a6ae, 0x16df_9d6a_c76b_d322]
    );
}

#[test]
fn seeds_differ_and_forks_do_not_follow_their_parent() {
    let draw = |random: &mut Random| (0..8).map(|_| random.word()).collect::<Vec<_>>();
    assert_ne!(draw(&mut Random::new(7)), draw(&mut Random::new(8)));
    let mut parent = Random::new(7);
    let mut fork = parent.fork();
    assert_ne!(draw(&mut fork), draw(&mut parent));
}

#[test]
fn draws_stay_in_their_bounds_and_reach_them() {
    let mut random = Random::new(1);
    let draws: Vec<u64> = (0..1000).map(|_| random.between(3, 6)).collect();
    for value in 3..=6 {
        assert!(draws.contains(&value));
    }
    assert!(draws.iter().all(|draw| (3..=6).contains(draw)));
    let hits = (0..10_000).filter(|_| random.chance(100)).count();
    assert!((800..1200).contains(&hits), "{hits} of 10000 at 100 permille");
}
