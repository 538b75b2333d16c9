//! A set: sorted integers while all members are integers and few, else an index.

use super::limits::INTEGER_SET_ENTRIES;
use super::size::{allocation, argument};
use crate::data::index::Index;
use crate::foundation::text::number::{self, Digits};

/// A set value.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    members: Members,
    /// Bytes of the members' allocations, in an index.
    bytes: usize,
    /// Bytes of the members in effects, in an index.
    content: usize,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Members {
    Integers(Vec<i64>),
    Index(Box<Index<Box<[u8]>>>),
}

impl Set {
    /// An empty set. `seed`: see [`Index::new`].
    pub(crate) fn new(seed: u64) -> Self {
        Self { members: Members::Integers(Vec::new()), bytes: 0, content: 0, seed }
    }

    /// Members.
    pub(crate) fn len(&self) -> usize {
        match &self.members {
            Members::Integers(integers) => integers.len(),
            Members::Index(index) => index.len(),
        }
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(&self) -> &'static str {
        match &self.members {
            Members::Integers(_) => "intset",
            Members::Index(_) => "hashtable",
        }
    }

    /// Estimated bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        match &self.members {
            Members::Integers(integers) => allocation(integers.capacity() * size_of::<i64>()),
            Members::Index(index) => index.memory() + self.bytes,
        }
    }

    /// Bytes of the members in effects, at most.
    pub(crate) fn content(&self) -> usize {
        match &self.members {
            Members::Integers(integers) => {
                let ends = integers.first().into_iter().chain(integers.last());
                let largest = ends.map(|end| end.unsigned_abs()).max().unwrap_or_default();
                integers.len() * argument(number::digits(largest) + 1)
            }
            Members::Index(_) => self.content,
        }
    }

    /// Whether `member` is in.
    pub(crate) fn contains(&self, member: &[u8]) -> bool {
        match &self.members {
            Members::Integers(integers) => {
                number::parse_integer(member).is_some_and(|integer| integers.binary_search(&integer).is_ok())
            }
            Members::Index(index) => index.contains(member),
        }
    }

    /// Puts a member in; whether it is new.
    pub(crate) fn insert(&mut self, member: &[u8]) -> bool {
        if let Members::Integers(integers) = &mut self.members {
            let parsed = number::parse_integer(member);
            match parsed.map(|integer| (integer, integers.binary_search(&integer))) {
                Some((_, Ok(_))) => return false,
                Some((integer, Err(position))) if integers.len() < INTEGER_SET_ENTRIES => {
                    integers.insert(position, integer);
                    return true;
                }
                _ => self.convert(),
            }
        }
        self.insert_in_index(member)
    }

    fn insert_in_index(&mut self, member: &[u8]) -> bool {
        let Members::Index(index) = &mut self.members else {
            return false;
        };
        let (_, new) = index.get_or_insert_with(member, || member.into());
        if new {
            self.bytes += allocation(member.len());
            self.content += argument(member.len());
        }
        new
    }

    fn convert(&mut self) {
        let index = Members::Index(Box::new(Index::new(self.seed)));
        if let Members::Integers(integers) = std::mem::replace(&mut self.members, index) {
            let mut digits = Digits::default();
            for integer in integers {
                self.insert_in_index(digits.write(integer));
            }
        }
    }

    /// Takes a member out; whether it was in.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.members {
            Members::Integers(integers) => {
                let position =
                    number::parse_integer(member).and_then(|integer| integers.binary_search(&integer).ok());
                if let Some(position) = position {
                    integers.remove(position);
                }
                position.is_some()
            }
            Members::Index(index) => {
                let removed = index.remove(member).is_some();
                if removed {
                    self.bytes -= allocation(member.len());
                    self.content -= argument(member.len());
                }
                removed
            }
        }
    }

    /// Calls `visit` with every member.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(&[u8])) {
        match &self.members {
            Members::Integers(integers) => {
                let mut digits = Digits::default();
                for &integer in integers {
                    visit(digits.write(integer));
                }
            }
            Members::Index(index) => index.iter().for_each(|member| visit(member)),
        }
    }

    /// Copies of all members.
    pub(crate) fn to_vec(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(self.len());
        self.for_each(&mut |member| all.push(member.to_vec()));
        all
    }

    /// A copy of a random member.
    pub(crate) fn random(&self, next: &mut dyn FnMut() -> u64) -> Option<Vec<u8>> {
        match &self.members {
            Members::Integers(integers) if integers.is_empty() => None,
            Members::Integers(integers) => {
                let integer = integers[(next() % integers.len() as u64) as usize];
                Some(Digits::default().write(integer).to_vec())
            }
            Members::Index(index) => index.random(next).map(|member| member.to_vec()),
        }
    }

    /// See [`Index::scan`]; a set of integers is returned whole.
    pub(crate) fn scan(&self, cursor: u64, count: usize, found: &mut dyn FnMut(&[u8])) -> u64 {
        match &self.members {
            Members::Integers(_) => {
                self.for_each(found);
                0
            }
            Members::Index(index) => index.scan(cursor, count, &mut |member| found(member)),
        }
    }

    /// See [`Index::scan_while`]; a set of integers is returned whole.
    pub(crate) fn scan_while(&self, cursor: u64, found: &mut dyn FnMut(&[u8]) -> bool) -> u64 {
        match &self.members {
            Members::Integers(_) => {
                self.for_each(&mut |member| _ = found(member));
                0
            }
            Members::Index(index) => index.scan_while(cursor, &mut |member| found(member)),
        }
    }

    /// Drops about `budget` members; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        match &mut self.members {
            Members::Integers(_) => true,
            Members::Index(index) => index.release(budget),
        }
    }
}
