use super::Foreign;

#[test]
fn parts_are_those_of_the_whole() {
    let bytes: Vec<u8> = (0..100).collect();
    let foreign = Foreign::from_slice(&bytes);
    assert_eq!((foreign.len(), foreign.to_vec()), (100, bytes.clone()));
    assert_eq!(foreign.skip(10).take(5).to_vec(), bytes[10..15]);
    assert_eq!(foreign.take(10).skip(20).len(), 0);
    let mut part = [0; 4];
    foreign.skip(3).copy_to(7, &mut part);
    assert_eq!(part, [10, 11, 12, 13]);
}

#[test]
fn nothing_can_be_copied_from_nothing() {
    assert!(Foreign::EMPTY.is_empty());
    Foreign::EMPTY.copy_to(0, &mut []);
    assert!(Foreign::EMPTY.skip(7).to_vec().is_empty());
}

#[test]
#[should_panic(expected = "not within")]
fn bytes_beyond_the_end_are_not_copied() {
    Foreign::from_slice(&[1, 2, 3]).copy_to(1, &mut [0; 3]);
}
