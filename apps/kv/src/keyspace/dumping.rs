//! A value that a snapshot hands out piece by piece while commands change it.
//!
//! 1. The snapshot's copy is a part of the value ([`Part`]). Effects on the key are noted, and go
//!    into the snapshot before the next piece, so that the copy stays a part of the value as it is
//!    then. No dump begins again because of them.
//! 2. Of a string the copy has the length at once. It has the same bytes but for those that follow,
//!    so every change in place is noted as it is. A field of BITFIELD may span bytes that are there
//!    and bytes that follow. What it makes of the former can be wrong, and what a further field
//!    makes of these. So `margin` counts the bytes that have to be handed out again.
//! 3. Of a set, a hash or a sorted set the copy has all elements up to a position, and some behind
//!    it. Effects name their elements and what these become, so they are noted as they are. What
//!    they put behind the position is handed out once more. ZREMRANGEBYRANK and its like would take
//!    others out of the copy: they are noted as ZREM of those that they took.
//! 4. Of a list the copy has the first `n` elements. A change of these is noted with its place
//!    among them ([`Detail`]), and `n` follows. A change behind them is not noted.
//! 5. A DEL or a SET makes the copy equal to the value. From then on all is noted as it
//!    is, and there is nothing to hand out. To make a large value anew takes as long as to dump it.
//! 6. Expiry is handed out at the end: of a copy that is empty for a while it would be lost.
//! 7. `brought` counts the bytes of all these effects. The next piece is larger by so many, so that
//!    the walk comes nearer to the end, however fast the value grows.

use super::Place;
use crate::commands::is;
use crate::journal;
use crate::value::Progress;

/// Bytes before a field that it can spoil: it spans nine at most.
const FIELD: usize = 8;

/// Effects that do to an element what they did at first, whatever else a collection holds.
const OF_ELEMENTS: [&str; 7] = ["sadd", "srem", "hset", "hmset", "hdel", "zadd", "zrem"];

/// Effects that change a string in place.
const IN_PLACE: [&str; 5] = ["setrange", "append", "setbit", "pexpireat", "persist"];

/// What a snapshot has of a value.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// Of a string the bytes before `at` and those from `end` on.
    String {
        /// See above.
        at: usize,
        /// See above.
        end: usize,
        /// Bytes around these places to be handed out again.
        margin: usize,
    },
    /// So much of a collection.
    Collection(Progress),
    /// All of it, with the effects that are noted.
    Whole,
    /// What cannot be made right: the dump has to begin again.
    Spoilt,
}

/// What an effect did to a list or a sorted set, where its arguments do not say it.
#[derive(Debug)]
pub enum Detail<'a> {
    /// Its arguments say all.
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
    /// An element was put in at this place.
    Inserted(usize),
    /// Equal elements were removed.
    Removed {
        /// Of those that the snapshot has ([`super::Data::dumped_elements`]), so many.
        of_head: usize,
        /// The search began at the end.
        from_back: bool,
    },
    /// Elements were kept, and no others.
    Kept {
        /// The place of the first.
        first: usize,
        /// How many.
        many: usize,
    },
    /// These members of a sorted set were removed.
    Members(&'a [(Vec<u8>, f64)]),
}

/// See the module's account.
#[derive(Debug)]
pub struct Dumping {
    place: Place,
    pub(crate) part: Part,
    /// Effects since the last piece, as the journal encodes them.
    pub(crate) effects: Vec<u8>,
    /// Bytes that effects brought since then.
    pub(crate) brought: usize,
}

impl Dumping {
    pub(crate) fn new(place: Place, part: Part) -> Self {
        Self { place, part, effects: Vec::new(), brought: 0 }
    }

    fn is(&self, database: usize, key: &[u8]) -> bool {
        self.place.0 == database && *self.place.1 == *key
    }

    /// Elements at the front of a list that the snapshot has.
    pub(super) fn elements(&self, database: usize, key: &[u8]) -> usize {
        match self.part {
            Part::Collection(Progress::Elements(count)) if self.is(database, key) => count,
            _ => 0,
        }
    }

    /// A key is about to change, and no effect will say how.
    pub(super) fn spoil(&mut self, database: usize, key: &[u8]) {
        if self.is(database, key) {
            self.part = Part::Spoilt;
            self.effects.clear();
        }
    }

    /// An effect is recorded.
    pub(super) fn follow(&mut self, database: usize, arguments: &[&[u8]], detail: &Detail<'_>) {
        let &[name, key, ..] = arguments else { return };
        if !self.is(database, key) {
            return;
        }
        self.brought += arguments.iter().map(|argument| argument.len() + 1).sum::<usize>();
        let named = |names: &[&str]| names.iter().any(|&word| is(name, word));
        match &mut self.part {
            _ if named(&["del", "set"]) => self.replace(arguments),
            Part::Whole => self.note(arguments),
            Part::String { .. } if named(&IN_PLACE) => self.note(arguments),
            Part::String { margin, .. } if named(&["bitfield"]) => {
                *margin = margin.saturating_add(FIELD * arguments.len());
                self.note(arguments);
            }
            Part::Collection(_) if named(&["pexpireat", "persist"]) => {}
            Part::Collection(Progress::Elements(_)) => self.follow_list(arguments, detail),
            Part::Collection(_) if named(&OF_ELEMENTS) => self.note(arguments),
            _ => match detail {
                Detail::Members(members) => {
                    let names = members.iter().map(|(name, _)| name.as_slice());
                    let effect: Vec<&[u8]> = [&b"ZREM"[..], key].into_iter().chain(names).collect();
                    self.note(&effect);
                }
                _ => self.spoil(database, key),
            },
        }
    }

    fn note(&mut self, arguments: &[&[u8]]) {
        journal::encode_bounded(&mut self.effects, self.place.0, arguments);
    }

    /// This effect replaces what there was.
    fn replace(&mut self, arguments: &[&[u8]]) {
        self.part = Part::Whole;
        self.effects.clear();
        self.note(arguments);
    }

    /// An effect on a list, of which the snapshot has some elements.
    fn follow_list(&mut self, arguments: &[&[u8]], detail: &Detail<'_>) {
        let Part::Collection(Progress::Elements(had)) = self.part else { return };
        let (name, key) = (arguments[0], arguments[1]);
        let count = |number: usize| number.to_string().into_bytes();
        let has = match *detail {
            Detail::None if is(name, "rpush") || is(name, "rpushx") => had,
            Detail::None if is(name, "lpush") || is(name, "lpushx") => {
                if had > 0 {
                    self.note(&[&[b"LPUSH", key], &arguments[2..]].concat());
                    had + arguments.len() - 2
                } else {
                    0
                }
            }
            Detail::Popped { front, many, left } => {
                let has = if front { had.saturating_sub(many) } else { had.min(left) };
                let name: &[u8] = if front { b"LPOP" } else { b"RPOP" };
                if has < had {
                    self.note(&[name, key, &count(had - has)]);
                }
                has
            }
            Detail::Element(at) => {
                if at < had {
                    self.note(&[b"LSET", key, &count(at), arguments[3]]);
                }
                had
            }
            Detail::Inserted(at) if at < had => {
                self.note(arguments);
                had + 1
            }
            Detail::Inserted(_) => had,
            Detail::Removed { of_head, from_back } => {
                if of_head > 0 {
                    let sign: &[u8] = if from_back { b"-" } else { b"" };
                    self.note(&[b"LREM", key, &[sign, &count(of_head)].concat(), arguments[3]]);
                }
                had - of_head
            }
            Detail::Kept { first, many } => self.trim(had, first, many),
            Detail::None | Detail::Members(_) => return self.spoil(self.place.0, key),
        };
        self.part = Part::Collection(Progress::Elements(has));
    }

    /// Notes an LTRIM that keeps these elements of a list, of which the snapshot has `had`; how
    /// many it has then.
    fn trim(&mut self, had: usize, first: usize, many: usize) -> usize {
        let end = first.saturating_add(many).min(had);
        let has = end.saturating_sub(first);
        let key = self.place.1.clone();
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
