//! From the name of a command, in any case, to its number.
//!
//! 1. A name of up to eight letters, as nearly all are, is one word: its bytes, lower-cased by one
//!    bit each. Only a letter becomes a letter by that bit, so no two names of letters are
//!    confused. A small open-addressing table of such words finds the number.
//! 2. Longer names, and those with other characters, are in a hash table; at most [`LONGEST_NAME`]
//!    bytes are lowered on the stack.

use hashbrown::HashTable;

/// Longest name of a command, in bytes. Anything longer is unknown.
const LONGEST_NAME: usize = 32;

/// Slots of the open table: four times as many as there are names, so that nearly every name is in
/// its first one.
const SLOTS: usize = 1024;

/// The bit that distinguishes lower from upper case, in each byte of a word.
const SMALL: u64 = 0x2020_2020_2020_2020;

/// A slot of the open table.
#[derive(Clone, Copy)]
struct Slot {
    /// The name as a word; 0: the slot is free.
    word: u64,
    number: u16,
}

/// Finds the number of a command by its name.
pub(crate) struct Names {
    short: Box<[Slot; SLOTS]>,
    long: HashTable<u16>,
    /// By number.
    names: Vec<&'static str>,
}

impl Names {
    /// Numbers `names` in their order.
    pub(crate) fn new(names: Vec<&'static str>) -> Self {
        let mut short = Box::new([Slot { word: 0, number: 0 }; SLOTS]);
        let mut long = HashTable::new();
        for (number, name) in names.iter().enumerate() {
            let (name, number) = (name.as_bytes(), number as u16);
            match word(name).filter(|_| name.iter().all(u8::is_ascii_lowercase)) {
                Some(word) => {
                    let mut at = first_slot(word);
                    while short[at].word != 0 {
                        at = (at + 1) % SLOTS;
                    }
                    short[at] = Slot { word, number };
                }
                None => {
                    long.insert_unique(name_hash(name), number, |&other: &u16| {
                        name_hash(names[other as usize].as_bytes())
                    });
                }
            }
        }
        Self { short, long, names }
    }

    /// The number of this name, in any case.
    #[inline(always)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<u16> {
        if let Some(word) = word(name) {
            let mut at = first_slot(word);
            // Three of four slots are free.
            while self.short[at].word != 0 {
                if self.short[at].word == word {
                    return Some(self.short[at].number);
                }
                at = (at + 1) % SLOTS;
            }
        }
        self.find_long(name)
    }

    fn find_long(&self, name: &[u8]) -> Option<u16> {
        if name.len() > LONGEST_NAME {
            return None;
        }
        let mut lowered = [0; LONGEST_NAME];
        let lowered = &mut lowered[..name.len()];
        lowered.copy_from_slice(name);
        lowered.make_ascii_lowercase();
        let same = |&number: &u16| self.names[number as usize].as_bytes() == lowered;
        self.long.find(name_hash(lowered), same).copied()
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

/// The slot in which a word is looked up first: the best bits of a product.
fn first_slot(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

/// FNV-1a: names are short, and the table is fixed, so no attacker chooses its keys.
fn name_hash(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}
