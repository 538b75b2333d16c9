//! From a name, in whatever case, to a row of the command table.
//!
//! 1. A name of up to eight letters, as nearly all are, is one word: its bytes, lower-cased by one
//!    bit each. Only a letter becomes a letter by that bit, so no two names of letters are taken
//!    for each other. A small open table of such words finds the row.
//! 2. Longer names, and those with other characters, are in a hash table; at most [`LONGEST_NAME`]
//!    bytes are lowered on the stack.

use hashbrown::HashTable;

use super::{Command, FAMILIES, grows, subcommands};

/// Longest name of a command, in bytes. Anything longer is unknown.
const LONGEST_NAME: usize = 32;

/// Places of the open table: four times as many as there are names, so that nearly every one is at
/// its own.
const PLACES: usize = 1024;

/// The bit that tells a small letter from a capital one, in each byte of a word.
const SMALL: u64 = 0x2020_2020_2020_2020;

/// A row and what is known of it beside.
#[derive(Clone, Copy)]
struct Place {
    /// The name as a word; 0: nothing is here.
    word: u64,
    number: u16,
}

/// The command table.
pub struct Table {
    short: Box<[Place; PLACES]>,
    long: HashTable<u16>,
    commands: Vec<&'static Command>,
    /// By number: whether what the command brings may stay in the data set.
    grows: Vec<bool>,
    /// By number: whether it has subcommands.
    containers: Vec<bool>,
}

impl Table {
    /// The table of all families.
    pub fn new() -> Self {
        let commands: Vec<&'static Command> = FAMILIES.iter().flat_map(|family| family.iter()).collect();
        let mut short = Box::new([Place { word: 0, number: 0 }; PLACES]);
        let mut long = HashTable::new();
        for (number, command) in commands.iter().enumerate() {
            let (name, number) = (command.name.as_bytes(), number as u16);
            match word(name).filter(|_| name.iter().all(u8::is_ascii_lowercase)) {
                Some(word) => {
                    let mut at = place(word);
                    while short[at].word != 0 {
                        at = (at + 1) % PLACES;
                    }
                    short[at] = Place { word, number };
                }
                None => {
                    long.insert_unique(name_hash(name), number, |&other: &u16| {
                        name_hash(commands[other as usize].name.as_bytes())
                    });
                }
            }
        }
        let grows = commands.iter().map(|command| grows(command)).collect();
        let containers = commands.iter().map(|command| subcommands(command).next().is_some()).collect();
        Self { short, long, commands, grows, containers }
    }

    /// The number and the row of this name, in whatever case.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<(u16, &'static Command)> {
        if let Some(word) = word(name) {
            let mut at = place(word);
            // Three of four places are free.
            while self.short[at].word != 0 {
                if self.short[at].word == word {
                    let number = self.short[at].number;
                    return Some((number, self.commands[number as usize]));
                }
                at = (at + 1) % PLACES;
            }
        }
        self.find_long(name)
    }

    fn find_long(&self, name: &[u8]) -> Option<(u16, &'static Command)> {
        if name.len() > LONGEST_NAME {
            return None;
        }
        let mut lowered = [0; LONGEST_NAME];
        let lowered = &mut lowered[..name.len()];
        lowered.copy_from_slice(name);
        lowered.make_ascii_lowercase();
        let same = |&number: &u16| self.commands[number as usize].name.as_bytes() == lowered;
        let number = *self.long.find(name_hash(lowered), same)?;
        Some((number, self.commands[number as usize]))
    }

    /// All rows, by their numbers.
    pub fn commands(&self) -> &[&'static Command] {
        &self.commands
    }

    /// Whether this row has subcommands.
    #[inline]
    pub fn is_container(&self, number: u16) -> bool {
        self.containers[number as usize]
    }

    /// Whether what a command of this row brings may stay in the data set.
    pub fn grows(&self, number: u16) -> bool {
        self.grows[number as usize]
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// A name of one to eight bytes as a word, every byte with the bit of small letters.
#[inline]
fn word(name: &[u8]) -> Option<u64> {
    let length = name.len();
    let raw = match *name {
        [] => return None,
        [one] => u64::from(one),
        [one, two] => u64::from(one) | u64::from(two) << 8,
        [one, two, three] => u64::from(one) | u64::from(two) << 8 | u64::from(three) << 16,
        _ if length > 8 => return None,
        // Two halves that overlap where the name is shorter than both.
        _ => {
            let first = u32::from_le_bytes(*name.first_chunk::<4>()?);
            let last = u32::from_le_bytes(*name.last_chunk::<4>()?);
            u64::from(first) | u64::from(last) << (8 * (length - 4))
        }
    };
    Some(raw | SMALL >> (64 - 8 * length))
}

/// Where a word is looked for first: the best bits of a product.
fn place(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

/// FNV-1a: names are short, and the table is fixed, so no attacker chooses its keys.
fn name_hash(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_name_is_found_in_every_case() {
        let table = Table::new();
        for (number, command) in table.commands().iter().enumerate() {
            let mixed: String = command
                .name
                .chars()
                .enumerate()
                .map(|(at, c)| if at % 2 == 0 { c.to_ascii_uppercase() } else { c })
                .collect();
            for name in [command.name.to_owned(), command.name.to_ascii_uppercase(), mixed] {
                let found = table.find(name.as_bytes()).map(|(number, _)| usize::from(number));
                assert_eq!(found, Some(number), "{name}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_name_that_is_none_is_not_found(name in prop::collection::vec(any::<u8>(), 0..12), flip in 0usize..12, bit in 0u8..8) {
            let table = Table::new();
            let known = |name: &[u8]| table.commands().iter().any(|command| command.name.as_bytes().eq_ignore_ascii_case(name));
            prop_assert_eq!(table.find(&name).is_some(), known(&name));
            // Names that differ from one by a bit.
            let command = table.commands()[name.len() * 17 % table.commands().len()];
            let mut near = command.name.as_bytes().to_vec();
            let at = flip % near.len();
            near[at] ^= 1 << bit;
            prop_assert_eq!(table.find(&near).is_some(), known(&near), "{:?}", near);
        }
    }
}
