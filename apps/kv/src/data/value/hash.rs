//! A hash: packed while it is small, else an index of fields.
//!
//! 1. A packed hash has two entries for each field, its name and its value, in order of insertion.
//! 2. It becomes a table when a name, a value or the number of fields passes Redis' thresholds
//!    ([`Rules`]), and never back.
//! 3. Thresholds that were set to more than this crate packs at most make it a table earlier.
//!    OBJECT ENCODING then still says what Redis would: [`Table::listpack`] keeps that.
//! 4. A field of a table is one [`ShortBytes`]: the length of its name as LEB128, the name, the
//!    value.

use super::form::{Form, Large, View};
use super::limits::{MOST_PACKED_BYTES, MOST_PACKED_ENTRIES};
use super::packed::{Encoded, Packed, PackedRef, Text, after, read};
use super::rules::Rules;
use super::short::ShortBytes;
use super::size::argument;
use crate::data::index::{Index, Keyed};

/// A field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    /// Its name.
    pub name: Text<'a>,
    /// Its value.
    pub value: Text<'a>,
}

/// A field of a table.
#[derive(Clone, Debug)]
struct Stored(ShortBytes);

impl Stored {
    fn new(name: &[u8], value: &[u8]) -> Self {
        let mut length = [0; 10];
        let mut used = 0;
        let mut rest = name.len();
        loop {
            length[used] = (rest & 0x7f) as u8;
            used += 1;
            rest >>= 7;
            if rest == 0 {
                break;
            }
            length[used - 1] |= 0x80;
        }
        Self(ShortBytes::of(&[&length[..used], name, value]))
    }

    /// Where the name starts, and where it ends.
    #[inline]
    fn name_range(&self) -> (usize, usize) {
        let first = self.0[0];
        if first < 0x80 {
            return (1, 1 + usize::from(first));
        }
        let (mut length, mut at) = (0, 0);
        loop {
            length |= usize::from(self.0[at] & 0x7f) << (7 * at);
            at += 1;
            if self.0[at - 1] & 0x80 == 0 {
                return (at, at + length);
            }
        }
    }

    fn value(&self) -> &[u8] {
        &self.0[self.name_range().1..]
    }

    fn field(&self) -> Field<'_> {
        Field { name: Text::Bytes(self.key()), value: Text::Bytes(self.value()) }
    }

    fn content(&self) -> usize {
        argument(self.key().len()) + argument(self.value().len())
    }
}

impl Keyed for Stored {
    #[inline]
    fn key(&self) -> &[u8] {
        let (start, end) = self.name_range();
        &self.0[start..end]
    }
}

/// A hash value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hash(Form<Table>);

/// A hash that is not small.
#[derive(Clone, Debug)]
struct Table {
    fields: Index<Stored>,
    /// Bytes of the fields' allocations.
    bytes: usize,
    /// Bytes of the fields in effects.
    content: usize,
    /// It never passed Redis' thresholds.
    listpack: bool,
}

impl Large for Table {
    fn len(&self) -> usize {
        self.fields.len()
    }

    fn memory(&self) -> usize {
        self.fields.memory() + self.bytes
    }

    fn content(&self) -> usize {
        self.content
    }

    fn release(&mut self, budget: usize) -> bool {
        self.fields.release(budget)
    }
}

impl Table {
    fn insert(&mut self, name: &[u8], value: &[u8]) -> bool {
        let new = Stored::new(name, value);
        self.bytes += new.0.memory();
        self.content += new.content();
        let old = self.fields.insert(new);
        self.forget(old.as_ref());
        old.is_none()
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        let old = self.fields.remove(name);
        self.forget(old.as_ref());
        old.is_some()
    }

    fn forget(&mut self, old: Option<&Stored>) {
        if let Some(old) = old {
            self.bytes -= old.0.memory();
            self.content -= old.content();
        }
    }
}

/// A hash that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashRef<'a>(View<'a, Table>);

impl<'a> HashRef<'a> {
    /// The hash of this packed form.
    pub(super) fn of_packed(packed: PackedRef<'a>) -> Self {
        Self(View::Packed(packed))
    }

    /// A copy.
    pub(super) fn to_hash(self) -> Hash {
        Hash(self.0.to_form())
    }

    /// Fields.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(self) -> &'static str {
        match self.0 {
            View::Large(table) if !table.listpack => "hashtable",
            _ => "listpack",
        }
    }

    /// Bytes on the heap.
    pub(crate) fn memory(self) -> usize {
        self.0.memory()
    }

    /// Bytes of the fields in effects.
    pub(crate) fn content(self) -> usize {
        self.0.content()
    }

    /// The value of a field.
    pub(crate) fn get(self, name: &[u8]) -> Option<Text<'a>> {
        match self.0 {
            View::Packed(packed) => {
                let at = packed.find(&Encoded::new(name), 2)?;
                let (value, _) = read(packed.bytes(), after(packed.bytes(), at));
                Some(value.text())
            }
            View::Large(table) => table.fields.get(name).map(|field| Text::Bytes(field.value())),
        }
    }

    /// Whether the field is there.
    pub(crate) fn contains(self, name: &[u8]) -> bool {
        match self.0 {
            View::Packed(packed) => packed.find(&Encoded::new(name), 2).is_some(),
            View::Large(table) => table.fields.contains(name),
        }
    }

    /// All fields.
    pub(crate) fn iter(self) -> Box<dyn Iterator<Item = Field<'a>> + 'a> {
        match self.0 {
            View::Packed(packed) => {
                let mut entries = packed.iter();
                Box::new(std::iter::from_fn(move || {
                    Some(Field { name: entries.next()?.text(), value: entries.next()?.text() })
                }))
            }
            View::Large(table) => Box::new(table.fields.iter().map(Stored::field)),
        }
    }

    /// A random field.
    pub(crate) fn random(self, next: &mut dyn FnMut() -> u64) -> Option<Field<'a>> {
        match self.0 {
            View::Packed(packed) if packed.len() == 0 => None,
            View::Packed(packed) => {
                let (name, value) =
                    read(packed.bytes(), packed.nth(2 * (next() % packed.len() as u64) as usize));
                Some(Field { name: name.text(), value: read(packed.bytes(), value).0.text() })
            }
            View::Large(table) => table.fields.random(next).map(Stored::field),
        }
    }

    /// See [`Index::scan`]; a packed hash is returned whole.
    pub(crate) fn scan(self, cursor: u64, count: usize, found: &mut dyn FnMut(Field<'_>)) -> u64 {
        match self.0 {
            View::Packed(_) => {
                self.iter().for_each(found);
                0
            }
            View::Large(table) => table.fields.scan(cursor, count, &mut |field| found(field.field())),
        }
    }

    /// See [`Index::scan_while`]; a packed hash is returned whole.
    pub(crate) fn scan_while(self, cursor: u64, found: &mut dyn FnMut(Field<'_>) -> bool) -> u64 {
        match self.0 {
            View::Packed(_) => {
                self.iter().for_each(|field| _ = found(field));
                0
            }
            View::Large(table) => table.fields.scan_while(cursor, &mut |field| found(field.field())),
        }
    }
}

impl Hash {
    /// An empty hash.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The hash, to be read.
    #[inline]
    pub(crate) fn view(&self) -> HashRef<'_> {
        HashRef(self.0.view())
    }

    /// The hash of this packed form.
    pub(super) fn of_packed(packed: Packed) -> Self {
        Self(Form::Packed(packed))
    }

    /// Its packed form.
    ///
    /// # Errors
    /// The hash is in its other form.
    pub(super) fn into_packed(self) -> Result<Packed, Self> {
        self.0.into_packed().map_err(Self)
    }

    /// Sets a field; whether it is new.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], rules: &Rules) -> bool {
        let limits = &rules.limits;
        if name.len() > limits.hash_value || value.len() > limits.hash_value {
            self.convert(rules, false);
        }
        let new = match &mut self.0 {
            Form::Large(table) => table.insert(name, value),
            Form::Packed(packed) => match insert_packed(packed, name, value) {
                Some(new) => new,
                None => {
                    self.convert(rules, true);
                    return self.insert(name, value, rules);
                }
            },
        };
        if self.view().len() > limits.hash_entries {
            self.convert(rules, false);
        }
        new
    }

    /// Turns a packed hash into a table. Without `listpack` it is one in the eyes of Redis, too.
    fn convert(&mut self, rules: &Rules, listpack: bool) {
        if let Form::Packed(_) = &self.0 {
            let fields = Index::new(rules.seed.compute());
            let mut table = Table { fields, bytes: 0, content: 0, listpack };
            for field in self.view().iter() {
                table.insert(&field.name, &field.value);
            }
            self.0 = Form::Large(Box::new(table));
        }
        if let Form::Large(table) = &mut self.0 {
            table.listpack &= listpack;
        }
    }

    /// Removes a field; whether it was there.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        match &mut self.0 {
            Form::Large(table) => table.remove(name),
            Form::Packed(packed) => {
                let Some(at) = packed.view().find(&Encoded::new(name), 2) else { return false };
                let (value, end) = read(packed.view().bytes(), after(packed.view().bytes(), at));
                let content = argument(name.len()) + argument(value.text().len());
                packed.resize(at, end - at, 0);
                packed.count(-1, -(content as isize));
                true
            }
        }
    }

    /// Drops about `budget` fields; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        self.0.release(budget)
    }
}

/// Sets a field of a packed hash; whether it is new. `None`, and no change, if the hash would
/// become too large to be packed.
fn insert_packed(packed: &mut Packed, name: &[u8], value: &[u8]) -> Option<bool> {
    let (entry, name_entry) = (Encoded::new(value), Encoded::new(name));
    let old = packed.view().find(&name_entry, 2).map(|at| after(packed.view().bytes(), at));
    let growth = entry.size() + old.map_or(name_entry.size(), |_| 0);
    if packed.view().end() + growth > MOST_PACKED_BYTES
        || old.is_none() && packed.view().len() >= MOST_PACKED_ENTRIES
    {
        return None;
    }
    match old {
        Some(at) => {
            let (content, end) = read(packed.view().bytes(), at);
            let before = argument(content.text().len());
            packed.splice(at, end - at, &[entry]);
            packed.count(0, argument(value.len()) as isize - before as isize);
        }
        None => {
            packed.splice(packed.view().end(), 0, &[name_entry, entry]);
            packed.count(1, (argument(name.len()) + argument(value.len())) as isize);
        }
    }
    Some(old.is_none())
}
