//! A large value that a snapshot dumps piece by piece while commands change it.
//!
//! 1. The snapshot's copy is a part of the value ([`DumpedPart`]). Effects on the key are recorded
//!    here and go into the snapshot before the next piece. So the copy stays a part of the value as
//!    it is then, and the dump need not begin again.
//! 2. The copy of a string has its full length at once, and the same bytes except those not dumped
//!    yet, so every change in place is recorded unchanged. A field of BITFIELD may span dumped
//!    bytes and bytes not dumped yet. It can then compute wrong values for the dumped ones, and so
//!    can later fields that use them. `margin` counts the bytes that must be dumped again.
//! 3. The copy of a set, a hash or a sorted set has all elements up to a position, and some behind
//!    it. Effects name their elements and the new state of these, so they are recorded unchanged.
//!    Elements that they add behind the position are dumped once more. ZREMRANGEBYRANK and similar
//!    commands would remove other elements from the copy, so they are recorded as ZREM of the
//!    removed members.
//! 4. The copy of a list has the first `n` elements. A change of these is recorded with its
//!    position ([`EffectDetail`]), and `n` is adjusted. A change behind them is not recorded.
//! 5. A DEL or a SET makes the copy equal to the value. From then on every effect is recorded
//!    unchanged, and nothing is left to dump. To build a large value anew takes as long as to dump
//!    it.
//! 6. The expiry is dumped at the end: a copy that is empty for a while would lose it.
//! 7. `added_bytes` counts the bytes of all these effects. The next piece is larger by that many,
//!    so that the walk approaches the end however fast the value grows.

use super::key::DatabaseKey;
use crate::data::journal;
use crate::data::value::Progress;
use crate::foundation::command::is;

/// Bytes before a field that it can invalidate: a field spans at most nine.
const FIELD: usize = 8;

/// Effects that change an element in the same way, whatever else a collection holds.
const OF_ELEMENTS: [&str; 7] = ["sadd", "srem", "hset", "hmset", "hdel", "zadd", "zrem"];

/// Effects that change a string in place.
const IN_PLACE: [&str; 5] = ["setrange", "append", "setbit", "pexpireat", "persist"];

/// The part of a value that a snapshot has.
#[derive(Debug, PartialEq)]
pub(crate) enum DumpedPart {
    /// Of a string the bytes before `at` and those from `end` on.
    String {
        /// See above.
        at: usize,
        /// See above.
        end: usize,
        /// Bytes around these positions that must be dumped again.
        margin: usize,
    },
    /// So much of a collection.
    Collection(Progress),
    /// All of it, with the recorded effects.
    Whole,
    /// An unknown part: the dump must begin again.
    Invalid,
}

/// How an effect changed a list or a sorted set, where its arguments do not show it.
#[derive(Debug)]
pub(crate) enum EffectDetail<'a> {
    /// The arguments show everything.
    None,
    /// So many elements were taken from one end, and so many are left.
    Popped {
        /// From the front.
        front: bool,
        /// How many.
        many: usize,
        /// Elements that are left.
        left: usize,
    },
    /// The element at this place was replaced.
    Element(usize),
    /// An element was inserted at this position.
    Inserted(usize),
    /// Equal elements were removed.
    Removed {
        /// The number of them among the elements that the snapshot has
        /// ([`super::Data::dumped_elements`]).
        of_head: usize,
        /// The search began at the end.
        from_back: bool,
    },
    /// Elements were kept, and no others.
    Kept {
        /// The position of the first.
        first: usize,
        /// How many.
        many: usize,
    },
    /// These members of a sorted set were removed.
    Members(&'a [(Vec<u8>, f64)]),
}

/// The state of the dump of one key; see the module documentation.
#[derive(Debug)]
pub(crate) struct PartialDump {
    key: DatabaseKey,
    pub(crate) part: DumpedPart,
    /// Effects since the last piece, as the journal encodes them.
    pub(crate) effects: Vec<u8>,
    /// Bytes of the effects since the last piece.
    pub(crate) added_bytes: usize,
}

impl PartialDump {
    pub(crate) fn new(key: DatabaseKey, part: DumpedPart) -> Self {
        Self { key, part, effects: Vec::new(), added_bytes: 0 }
    }

    fn is(&self, database: usize, key: &[u8]) -> bool {
        self.key.0 == database && *self.key.1 == *key
    }

    /// Elements at the front of a list that the snapshot has.
    pub(super) fn elements(&self, database: usize, key: &[u8]) -> usize {
        match self.part {
            DumpedPart::Collection(Progress::Elements(count)) if self.is(database, key) => count,
            _ => 0,
        }
    }

    /// Notes that a key is about to change without an effect.
    pub(super) fn invalidate(&mut self, database: usize, key: &[u8]) {
        if self.is(database, key) {
            self.part = DumpedPart::Invalid;
            self.effects.clear();
        }
    }

    /// Records an effect on the key.
    pub(super) fn note_effect(&mut self, database: usize, arguments: &[&[u8]], detail: &EffectDetail<'_>) {
        let &[name, key, ..] = arguments else { return };
        if !self.is(database, key) {
            return;
        }
        self.added_bytes += arguments.iter().map(|argument| argument.len() + 1).sum::<usize>();
        let named = |names: &[&str]| names.iter().any(|&word| is(name, word));
        match &mut self.part {
            _ if named(&["del", "set"]) => self.replace(arguments),
            DumpedPart::Whole => self.note(arguments),
            DumpedPart::String { .. } if named(&IN_PLACE) => self.note(arguments),
            DumpedPart::String { margin, .. } if named(&["bitfield"]) => {
                *margin = margin.saturating_add(FIELD * arguments.len());
                self.note(arguments);
            }
            DumpedPart::Collection(_) if named(&["pexpireat", "persist"]) => {}
            DumpedPart::Collection(Progress::Elements(_)) => self.note_list_effect(arguments, detail),
            DumpedPart::Collection(_) if named(&OF_ELEMENTS) => self.note(arguments),
            _ => match detail {
                EffectDetail::Members(members) => {
                    let names = members.iter().map(|(name, _)| name.as_slice());
                    let effect: Vec<&[u8]> = [&b"ZREM"[..], key].into_iter().chain(names).collect();
                    self.note(&effect);
                }
                _ => self.invalidate(database, key),
            },
        }
    }

    fn note(&mut self, arguments: &[&[u8]]) {
        journal::encode_bounded(&mut self.effects, self.key.0, arguments);
    }

    /// Records an effect that replaces the whole value.
    fn replace(&mut self, arguments: &[&[u8]]) {
        self.part = DumpedPart::Whole;
        self.effects.clear();
        self.note(arguments);
    }

    /// Records an effect on a list of which the snapshot has some elements.
    fn note_list_effect(&mut self, arguments: &[&[u8]], detail: &EffectDetail<'_>) {
        let DumpedPart::Collection(Progress::Elements(had)) = self.part else { return };
        let (name, key) = (arguments[0], arguments[1]);
        let count = |number: usize| number.to_string().into_bytes();
        let has = match *detail {
            EffectDetail::None if is(name, "rpush") || is(name, "rpushx") => had,
            EffectDetail::None if is(name, "lpush") || is(name, "lpushx") => {
                if had > 0 {
                    self.note(&[&[b"LPUSH", key], &arguments[2..]].concat());
                    had + arguments.len() - 2
                } else {
                    0
                }
            }
            EffectDetail::Popped { front, many, left } => {
                let has = if front { had.saturating_sub(many) } else { had.min(left) };
                let name: &[u8] = if front { b"LPOP" } else { b"RPOP" };
                if has < had {
                    self.note(&[name, key, &count(had - has)]);
                }
                has
            }
            EffectDetail::Element(at) => {
                if at < had {
                    self.note(&[b"LSET", key, &count(at), arguments[3]]);
                }
                had
            }
            EffectDetail::Inserted(at) if at < had => {
                self.note(arguments);
                had + 1
            }
            EffectDetail::Inserted(_) => had,
            EffectDetail::Removed { of_head, from_back } => {
                if of_head > 0 {
                    let sign: &[u8] = if from_back { b"-" } else { b"" };
                    self.note(&[b"LREM", key, &[sign, &count(of_head)].concat(), arguments[3]]);
                }
                had - of_head
            }
            EffectDetail::Kept { first, many } => self.trim(had, first, many),
            EffectDetail::None | EffectDetail::Members(_) => return self.invalidate(self.key.0, key),
        };
        self.part = DumpedPart::Collection(Progress::Elements(has));
    }

    /// Records an LTRIM that keeps these elements of a list of which the snapshot has `had`;
    /// returns how many it has then.
    fn trim(&mut self, had: usize, first: usize, many: usize) -> usize {
        let end = first.saturating_add(many).min(had);
        let has = end.saturating_sub(first);
        let key = self.key.1.clone();
        if has == had {
            return had;
        }
        if has == 0 {
            self.note(&[b"DEL", &key]);
        } else {
            let (first, last) = (first.to_string(), (end - 1).to_string());
            self.note(&[b"LTRIM", &key, first.as_bytes(), last.as_bytes()]);
        }
        has
    }
}
