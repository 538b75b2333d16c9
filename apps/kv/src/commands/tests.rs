//! The command table.

use proptest::prelude::*;

use super::*;

#[test]
fn every_name_is_found_in_every_case() {
    let table = table();
    for (number, command) in table.commands().iter().enumerate() {
        let mixed: String = command
            .spec
            .name
            .chars()
            .enumerate()
            .map(|(at, c)| if at % 2 == 0 { c.to_ascii_uppercase() } else { c })
            .collect();
        for name in [command.spec.name.to_owned(), command.spec.name.to_ascii_uppercase(), mixed] {
            let found = table.find(name.as_bytes()).map(|(number, _)| usize::from(number));
            assert_eq!(found, Some(number), "{name}");
        }
    }
}

proptest! {
    #[test]
    fn a_name_that_is_none_is_not_found(name in prop::collection::vec(any::<u8>(), 0..12), flip in 0usize..12, bit in 0u8..8) {
        let table = table();
        let known = |name: &[u8]| table.commands().iter().any(|command| command.spec.name.as_bytes().eq_ignore_ascii_case(name));
        prop_assert_eq!(table.find(&name).is_some(), known(&name));
        // Names that differ from one by a bit.
        let command = table.commands()[name.len() * 17 % table.commands().len()];
        let mut near = command.spec.name.as_bytes().to_vec();
        let at = flip % near.len();
        near[at] ^= 1 << bit;
        prop_assert_eq!(table.find(&near).is_some(), known(&near), "{:?}", near);
    }
}
