use super::{MAX_PIECES, Piece, Pieces, Untrusted};

#[test]
fn parts_are_those_of_the_whole() {
    let bytes: Vec<u8> = (0..100).collect();
    let untrusted = Untrusted::from_slice(&bytes);
    assert_eq!((untrusted.len(), untrusted.to_vec()), (100, bytes.clone()));
    assert_eq!(untrusted.skip(10).take(5).to_vec(), bytes[10..15]);
    assert_eq!(untrusted.take(10).skip(20).len(), 0);
    let mut part = [0; 4];
    untrusted.skip(3).copy_to(7, &mut part);
    assert_eq!(part, [10, 11, 12, 13]);
}

#[test]
fn nothing_can_be_copied_from_nothing() {
    assert!(Untrusted::EMPTY.is_empty());
    Untrusted::EMPTY.copy_to(0, &mut []);
    assert!(Untrusted::EMPTY.skip(7).to_vec().is_empty());
}

#[test]
#[should_panic(expected = "not within")]
fn bytes_beyond_the_end_are_not_copied() {
    Untrusted::from_slice(&[1, 2, 3]).copy_to(1, &mut [0; 3]);
}

#[test]
fn bytes_in_pieces_read_as_if_they_were_neighbours() {
    let memory: Vec<u8> = (0..=255).collect();
    let mut pieces = Pieces::default();
    let mut whole = Vec::new();
    for (offset, length) in [(200, 20), (3, 1), (90, 0), (100, 50)] {
        assert!(pieces.push(Piece { offset, length }));
        whole.extend_from_slice(&memory[offset as usize..(offset + length) as usize]);
    }
    // SAFETY: all pieces are in `memory`, which outlives the value and which nothing writes.
    let untrusted = |skip| unsafe { Untrusted::from_pieces(memory.as_ptr(), &pieces, skip) };
    for skip in 0..=whole.len() {
        assert_eq!(untrusted(skip).to_vec(), whole[skip..]);
        for take in 0..=whole.len() - skip {
            assert_eq!(untrusted(0).skip(skip).take(take).to_vec(), whole[skip..skip + take]);
            let mut part = vec![0; take];
            untrusted(0).copy_to(skip, &mut part);
            assert_eq!(part, whole[skip..skip + take]);
        }
    }
    assert!(untrusted(1000).is_empty());
}

#[test]
fn there_are_no_more_pieces_than_fit() {
    let mut pieces = Pieces::default();
    for _ in 0..MAX_PIECES {
        assert!(pieces.push(Piece { offset: 0, length: 7 }));
    }
    assert!(!pieces.push(Piece { offset: 0, length: 7 }));
    assert_eq!((pieces.total(), pieces.as_slice().len()), (7 * MAX_PIECES, MAX_PIECES));
    pieces.clear();
    assert!(pieces.push(Piece { offset: 0, length: u32::MAX }));
    assert!(!pieces.push(Piece { offset: 0, length: 1 }), "4 GiB");
}
