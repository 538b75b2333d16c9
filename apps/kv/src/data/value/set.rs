//! A set: sorted integers while all members are integers, packed strings while these are few and
//! short, else an index.
//!
//! 1. [`integers`] holds a set that has had only integers, up to `set-max-intset-entries`. OBJECT
//!    ENCODING calls it intset.
//! 2. Past that it is packed up to [`PACKED_SET_ENTRIES`] members of at most [`PACKED_SET_BYTES`],
//!    in order of insertion, and then a table. OBJECT ENCODING calls both hashtable, because Redis
//!    7.0 has no smaller form.
//! 3. No form ever returns to an earlier one.

mod integers;

use super::form::{Form, Large, View};
use super::limits::{MOST_INTEGERS, PACKED_SET_BYTES, PACKED_SET_ENTRIES};
use super::packed::{Content, Encoded, Packed, PackedRef, read};
use super::rules::Rules;
use super::short::ShortBytes;
use super::size::argument;
use crate::data::index::Index;
use crate::foundation::text::number::{self, Digits};

/// A set value. A packed one has integers if its kind is [`integers::KIND`], else strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set(Form<Table>);

#[derive(Clone, Debug)]
struct Table {
    members: Index<ShortBytes>,
    /// Bytes of the members' allocations.
    bytes: usize,
    /// Bytes of the members in effects.
    content: usize,
    /// It has only integers, and not more than the set's threshold: Redis calls it intset.
    intset: bool,
}

impl Large for Table {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn memory(&self) -> usize {
        self.members.memory() + self.bytes
    }

    fn content(&self) -> usize {
        self.content
    }

    fn release(&mut self, budget: usize) -> bool {
        self.members.release(budget)
    }
}

impl Table {
    fn insert(&mut self, member: &[u8]) -> bool {
        if self.members.contains(member) {
            return false;
        }
        let new = ShortBytes::of(&[member]);
        self.bytes += new.memory();
        self.content += argument(member.len());
        self.members.insert(new);
        true
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.members.remove(member);
        if let Some(removed) = &removed {
            self.bytes -= removed.memory();
            self.content -= argument(member.len());
        }
        removed.is_some()
    }
}

/// A set that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetRef<'a>(View<'a, Table>);

impl<'a> SetRef<'a> {
    /// The set of this packed form.
    pub(super) fn of_packed(packed: PackedRef<'a>) -> Self {
        Self(View::Packed(packed))
    }

    /// A copy.
    pub(super) fn to_set(self) -> Set {
        Set(self.0.to_form())
    }

    /// Members.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(self) -> &'static str {
        if self.is_intset() { "intset" } else { "hashtable" }
    }

    /// Whether Redis would hold it in an intset.
    #[inline]
    fn is_intset(self) -> bool {
        match self.0 {
            View::Packed(small) => small.kind() == integers::KIND,
            View::Large(table) => table.intset,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn memory(self) -> usize {
        self.0.memory()
    }

    /// Bytes of the members in effects, at most.
    pub(crate) fn content(self) -> usize {
        match self.0 {
            View::Packed(small) if small.kind() == integers::KIND => {
                let largest = integers::ends(small)
                    .map_or(0, |(least, greatest)| least.unsigned_abs().max(greatest.unsigned_abs()));
                small.len() * argument(number::digits(largest) + 1)
            }
            form => form.content(),
        }
    }

    /// Whether `member` is in.
    pub(crate) fn contains(self, member: &[u8]) -> bool {
        match self.0 {
            View::Packed(small) if small.kind() == integers::KIND => {
                number::parse_integer(member).is_some_and(|integer| integers::find(small, integer).is_ok())
            }
            View::Packed(small) => small.find(&Encoded::new(member), 1).is_some(),
            View::Large(table) => table.members.contains(member),
        }
    }

    /// Calls `visit` with every member.
    pub(crate) fn for_each(self, visit: &mut dyn FnMut(&[u8])) {
        match self.0 {
            View::Packed(small) if small.kind() == integers::KIND => {
                let mut digits = Digits::default();
                integers::iter(small).for_each(|integer| visit(digits.write(integer)));
            }
            View::Packed(small) => small.iter().for_each(|member| visit(&member.text())),
            View::Large(table) => table.members.iter().for_each(|member| visit(member)),
        }
    }

    /// Copies of all members.
    pub(crate) fn to_vec(self) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(self.len());
        self.for_each(&mut |member| all.push(member.to_vec()));
        all
    }

    /// A copy of a random member.
    pub(crate) fn random(self, next: &mut dyn FnMut() -> u64) -> Option<Vec<u8>> {
        match self.0 {
            View::Packed(small) if small.len() == 0 => None,
            View::Packed(small) => {
                let number = (next() % small.len() as u64) as usize;
                let member = if small.kind() == integers::KIND {
                    Content::Integer(integers::get(small, number))
                } else {
                    read(small.bytes(), small.nth(number)).0
                };
                Some(member.text().to_vec())
            }
            View::Large(table) => table.members.random(next).map(|member| member.to_vec()),
        }
    }

    /// See [`Index::scan`]; a small set is returned whole.
    pub(crate) fn scan(self, cursor: u64, count: usize, found: &mut dyn FnMut(&[u8])) -> u64 {
        match self.0 {
            View::Packed(_) => {
                self.for_each(found);
                0
            }
            View::Large(table) => table.members.scan(cursor, count, &mut |member| found(member)),
        }
    }

    /// See [`Index::scan_while`]; a small set is returned whole.
    pub(crate) fn scan_while(self, cursor: u64, found: &mut dyn FnMut(&[u8]) -> bool) -> u64 {
        match self.0 {
            View::Packed(_) => {
                self.for_each(&mut |member| _ = found(member));
                0
            }
            View::Large(table) => table.members.scan_while(cursor, &mut |member| found(member)),
        }
    }
}

impl Set {
    /// An empty set.
    pub(crate) fn new() -> Self {
        Self(Form::Packed(Packed::of_kind(integers::KIND)))
    }

    /// The set, to be read.
    #[inline]
    pub(crate) fn view(&self) -> SetRef<'_> {
        SetRef(self.0.view())
    }

    /// The set of this packed form.
    pub(super) fn of_packed(packed: Packed) -> Self {
        Self(Form::Packed(packed))
    }

    /// Its packed form.
    ///
    /// # Errors
    /// The set is in its other form.
    pub(super) fn into_packed(self) -> Result<Packed, Self> {
        self.0.into_packed().map_err(Self)
    }

    /// Puts a member in; whether it is new.
    pub(crate) fn insert(&mut self, member: &[u8], rules: &Rules) -> bool {
        if self.view().is_intset() && number::parse_integer(member).is_none() {
            self.leave_integers(rules);
        }
        let new = match &mut self.0 {
            Form::Large(table) => table.insert(member),
            Form::Packed(small) if small.view().kind() == integers::KIND => {
                match number::parse_integer(member)
                    .map(|integer| (integer, integers::find(small.view(), integer)))
                {
                    Some((integer, Err(position))) => integers::insert(small, position, integer),
                    _ => return false,
                }
                true
            }
            Form::Packed(small) => {
                let entry = Encoded::new(member);
                if small.view().find(&entry, 1).is_some() {
                    return false;
                }
                if small.view().len() >= PACKED_SET_ENTRIES || member.len() > PACKED_SET_BYTES {
                    self.tabulate(rules, false);
                    return self.insert(member, rules);
                }
                small.splice(small.view().end(), 0, &[entry]);
                small.count(1, argument(member.len()) as isize);
                true
            }
        };
        if new && self.view().is_intset() {
            if self.view().len() > rules.limits.set_integers {
                self.leave_integers(rules);
            } else if matches!(&self.0, Form::Packed(small) if small.view().len() > MOST_INTEGERS) {
                self.tabulate(rules, true);
            }
        }
        new
    }

    /// From now on it is no set of integers in the eyes of Redis.
    fn leave_integers(&mut self, rules: &Rules) {
        match &mut self.0 {
            Form::Packed(small) if small.view().len() <= PACKED_SET_ENTRIES => {
                let all: Vec<i64> = integers::iter(small.view()).collect();
                let mut digits = Digits::default();
                small.clear();
                for integer in all {
                    small.splice(small.view().end(), 0, &[Encoded::integer(integer)]);
                    small.count(1, argument(digits.write(integer).len()) as isize);
                }
            }
            Form::Packed(_) => self.tabulate(rules, false),
            Form::Large(table) => table.intset = false,
        }
    }

    /// Makes a small set a table.
    fn tabulate(&mut self, rules: &Rules, intset: bool) {
        let mut table = Table { members: Index::new(rules.seed.compute()), bytes: 0, content: 0, intset };
        self.view().for_each(&mut |member| _ = table.insert(member));
        self.0 = Form::Large(Box::new(table));
    }

    /// Takes a member out; whether it was in.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.0 {
            Form::Packed(small) if small.view().kind() == integers::KIND => {
                let found =
                    number::parse_integer(member).map(|integer| integers::find(small.view(), integer));
                let Some(Ok(position)) = found else { return false };
                integers::remove(small, position);
                true
            }
            Form::Packed(small) => {
                let Some(at) = small.view().find(&Encoded::new(member), 1) else { return false };
                let (_, end) = read(small.view().bytes(), at);
                small.resize(at, end - at, 0);
                small.count(-1, -(argument(member.len()) as isize));
                true
            }
            Form::Large(table) => table.remove(member),
        }
    }

    /// Drops about `budget` members; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        self.0.release(budget)
    }
}
