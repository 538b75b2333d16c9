//! A hash: a vector of fields in order of insertion while it is small, else an index.
//!
//! Redis keeps more fields in a listpack than are searched one by one here. The encoding that
//! OBJECT ENCODING shows is therefore stored separately.

use super::limits::{LISTPACK_HASH_ENTRIES, SMALL_HASH_BYTES, SMALL_HASH_ENTRIES};
use super::size::{allocation, argument};
use crate::data::index::{Index, Keyed};

/// One field.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

impl Keyed for Field {
    fn key(&self) -> &[u8] {
        &self.name
    }
}

impl Field {
    fn bytes(&self) -> usize {
        allocation(self.name.len()) + allocation(self.value.len())
    }

    fn content(&self) -> usize {
        argument(self.name.len()) + argument(self.value.len())
    }
}

/// A hash value.
#[derive(Clone, Debug)]
pub(crate) struct Hash {
    fields: Fields,
    /// Bytes of the fields' allocations.
    bytes: usize,
    /// Bytes of the fields in effects.
    content: usize,
    seed: u64,
    /// It never had more fields, or longer ones, than a listpack of Redis may have.
    listpack: bool,
}

#[derive(Clone, Debug)]
enum Fields {
    Small(Vec<Field>),
    Index(Box<Index<Field>>),
}

impl Hash {
    /// An empty hash. `seed`: see [`Index::new`].
    pub(crate) fn new(seed: u64) -> Self {
        Self { fields: Fields::Small(Vec::new()), bytes: 0, content: 0, seed, listpack: true }
    }

    /// Fields.
    pub(crate) fn len(&self) -> usize {
        match &self.fields {
            Fields::Small(fields) => fields.len(),
            Fields::Index(index) => index.len(),
        }
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(&self) -> &'static str {
        if self.listpack { "listpack" } else { "hashtable" }
    }

    /// Estimated bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
            + match &self.fields {
                Fields::Small(fields) => allocation(fields.capacity() * size_of::<Field>()),
                Fields::Index(index) => index.memory(),
            }
    }

    /// Bytes of the fields in effects.
    pub(crate) fn content(&self) -> usize {
        self.content
    }

    /// The value of a field.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        match &self.fields {
            Fields::Small(fields) => fields.iter().find(|field| *field.name == *name),
            Fields::Index(index) => index.get(name),
        }
        .map(|field| &*field.value)
    }

    /// Whether the field is there.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// Sets a field; whether it is new.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8]) -> bool {
        if name.len() > SMALL_HASH_BYTES || value.len() > SMALL_HASH_BYTES {
            self.listpack = false;
            self.convert();
        }
        if let Fields::Small(fields) = &mut self.fields {
            if let Some(field) = fields.iter_mut().find(|field| *field.name == *name) {
                self.bytes += allocation(value.len());
                self.bytes -= allocation(field.value.len());
                self.content += argument(value.len());
                self.content -= argument(field.value.len());
                field.value = value.into();
                return false;
            }
            if fields.len() == SMALL_HASH_ENTRIES {
                self.convert();
            }
        }
        let new = Field { name: name.into(), value: value.into() };
        self.bytes += new.bytes();
        self.content += new.content();
        let old = match &mut self.fields {
            Fields::Small(fields) => {
                fields.push(new);
                None
            }
            Fields::Index(index) => index.insert(new),
        };
        self.bytes -= old.as_ref().map_or(0, Field::bytes);
        self.content -= old.as_ref().map_or(0, Field::content);
        self.listpack &= self.len() <= LISTPACK_HASH_ENTRIES;
        old.is_none()
    }

    /// Turns a small hash into an index.
    fn convert(&mut self) {
        if let Fields::Small(fields) = &mut self.fields {
            let mut index = Index::new(self.seed);
            for field in fields.drain(..) {
                index.insert(field);
            }
            self.fields = Fields::Index(Box::new(index));
        }
    }

    /// Removes a field; whether it was there.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let removed = match &mut self.fields {
            Fields::Small(fields) => {
                fields.iter().position(|field| *field.name == *name).map(|position| fields.remove(position))
            }
            Fields::Index(index) => index.remove(name),
        };
        self.bytes -= removed.as_ref().map_or(0, Field::bytes);
        self.content -= removed.as_ref().map_or(0, Field::content);
        removed.is_some()
    }

    /// All fields.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &Field> + '_> {
        match &self.fields {
            Fields::Small(fields) => Box::new(fields.iter()),
            Fields::Index(index) => Box::new(index.iter()),
        }
    }

    /// A random field.
    pub(crate) fn random(&self, next: &mut dyn FnMut() -> u64) -> Option<&Field> {
        match &self.fields {
            Fields::Small(fields) if fields.is_empty() => None,
            Fields::Small(fields) => fields.get((next() % fields.len() as u64) as usize),
            Fields::Index(index) => index.random(next),
        }
    }

    /// See [`Index::scan`]; a small hash is returned whole.
    pub(crate) fn scan(&self, cursor: u64, count: usize, found: &mut dyn FnMut(&Field)) -> u64 {
        match &self.fields {
            Fields::Small(fields) => {
                fields.iter().for_each(found);
                0
            }
            Fields::Index(index) => index.scan(cursor, count, found),
        }
    }

    /// See [`Index::scan_while`]; a small hash is returned whole.
    pub(crate) fn scan_while(&self, cursor: u64, found: &mut dyn FnMut(&Field) -> bool) -> u64 {
        match &self.fields {
            Fields::Small(fields) => {
                fields.iter().for_each(|field| _ = found(field));
                0
            }
            Fields::Index(index) => index.scan_while(cursor, found),
        }
    }

    /// Drops about `budget` fields; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        match &mut self.fields {
            Fields::Small(_) => true,
            Fields::Index(index) => index.release(budget),
        }
    }
}
