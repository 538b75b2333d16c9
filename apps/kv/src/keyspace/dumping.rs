//! A value that a snapshot hands out piece by piece while commands change it.
//!
//! 1. A collection that changes is disturbed: its dump begins again.
//! 2. Of a string the effects that change it in place are noted. They go into the snapshot between
//!    the pieces, and the dump goes on: the snapshot's string has the same length, and the same
//!    bytes but for those that follow.
//! 3. A field of BITFIELD may span bytes that are there and bytes that follow. What it makes of the
//!    former can be wrong, and what a further field makes of these. So `margin` counts the bytes
//!    that have to be handed out again.
//! 4. A string that is replaced is disturbed. To do that took as long as to dump it.

use super::Place;
use crate::commands::is;
use crate::journal;

/// Bytes before a field that it can spoil: it spans nine at most.
const FIELD: usize = 8;

/// See the module's account.
#[derive(Debug)]
pub struct Dumping {
    pub(crate) place: Place,
    /// Whether it is a string that is handed out in pieces.
    pub(crate) string: bool,
    /// Whether the dump has to begin again.
    pub(crate) disturbed: bool,
    /// Effects since the last piece, as the journal encodes them.
    pub(crate) effects: Vec<u8>,
    pub(crate) margin: usize,
}

impl Dumping {
    pub(crate) fn new(place: Place, string: bool) -> Self {
        Self { place, string, disturbed: false, effects: Vec::new(), margin: 0 }
    }

    pub(super) fn is(&self, database: usize, key: &[u8]) -> bool {
        self.place.0 == database && *self.place.1 == *key
    }

    /// An effect is recorded.
    pub(super) fn follow(&mut self, database: usize, arguments: &[&[u8]]) {
        let Some(key) = arguments.get(1).filter(|_| self.string) else { return };
        if self.disturbed || !self.is(database, key) {
            return;
        }
        let named = |names: &[&str]| names.iter().any(|name| is(arguments[0], name));
        if named(&["bitfield"]) {
            self.margin = self.margin.saturating_add(FIELD * arguments.len());
        } else if !named(&["setrange", "append", "setbit", "pexpireat", "persist"]) {
            self.disturbed = true;
            return;
        }
        journal::encode(&mut self.effects, database, arguments);
    }
}
