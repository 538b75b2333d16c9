//! Operations on several sorted sets. Plain sets take part with a score of 1 for each member.
//!
//! Sources are visited in order of size (but for a difference), because that is the order in which
//! Redis adds scores up, and sums of floats depend on it.

use std::collections::HashMap;

use super::range;
use super::replies::write_members;
use crate::commands::collection::at_least;
use crate::commands::context::{Context, Outcome};
use crate::data::keyspace::Data;
use crate::data::value::{SortedSet, ValueRef, compare};
use crate::foundation::command::{integer, is};
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::parse_float;

/// How the sources are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Members of any.
    Union,
    /// Members of all.
    Intersection,
    /// Members of the first that are in no other.
    Difference,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Minimum,
    Maximum,
}

impl Aggregate {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum => number(a + b),
            Self::Minimum => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Self::Maximum => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

/// Infinities that cancel out, or that are multiplied by zero, are zero.
fn number(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value }
}

struct Source<'a> {
    key: &'a [u8],
    len: usize,
    weight: f64,
}

struct Request<'a> {
    sources: Vec<Source<'a>>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: usize,
}

/// The options that the command allows beside its keys.
#[derive(Clone, Copy)]
struct AllowedOptions {
    weights: bool,
    with_scores: bool,
    limit: bool,
}

impl<'a> Request<'a> {
    /// `arguments` start with the number of keys.
    fn parse(
        context: &mut Context<'_>,
        arguments: &[&'a [u8]],
        allowed: AllowedOptions,
    ) -> Result<Self, Fault> {
        let many = integer(arguments[0])?;
        if many < 1 {
            let name = context.command.spec.name;
            return Err(Fault::new(format!("ERR at least 1 input key is needed for '{name}' command")));
        }
        let after = usize::try_from(many).unwrap_or(usize::MAX).saturating_add(1);
        let keys = arguments.get(1..after).ok_or(Fault::SYNTAX)?;
        let mut sources = Vec::with_capacity(keys.len());
        for &key in keys {
            let len = match context.data.read(key) {
                Some(ValueRef::Set(set)) => set.len(),
                Some(ValueRef::SortedSet(set)) => set.len(),
                Some(_) => return Err(Fault::WRONG_TYPE),
                None => 0,
            };
            sources.push(Source { key, len, weight: 1.0 });
        }
        let mut request = Self { sources, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        request.parse_options(&arguments[after..], allowed)?;
        Ok(request)
    }

    fn parse_options(&mut self, mut rest: &[&[u8]], allowed: AllowedOptions) -> Result<(), Fault> {
        while let [word, tail @ ..] = rest {
            rest = match tail {
                _ if allowed.weights && tail.len() >= self.sources.len() && is(word, "weights") => {
                    for (source, weight) in self.sources.iter_mut().zip(tail) {
                        source.weight =
                            parse_float(weight).ok_or(Fault::of("ERR weight value is not a float"))?;
                    }
                    &tail[self.sources.len()..]
                }
                [how, after @ ..] if allowed.weights && is(word, "aggregate") => {
                    self.aggregate = match how {
                        how if is(how, "sum") => Aggregate::Sum,
                        how if is(how, "min") => Aggregate::Minimum,
                        how if is(how, "max") => Aggregate::Maximum,
                        _ => return Err(Fault::SYNTAX),
                    };
                    after
                }
                _ if allowed.with_scores && is(word, "withscores") => {
                    self.with_scores = true;
                    tail
                }
                [limit, after @ ..] if allowed.limit && is(word, "limit") => {
                    self.limit = at_least(limit, 0, "ERR LIMIT can't be negative")?;
                    after
                }
                _ => return Err(Fault::SYNTAX),
            };
        }
        Ok(())
    }

    fn run(&mut self, data: &mut Data<'_>, operation: Operation) -> Vec<(Vec<u8>, f64)> {
        if operation != Operation::Difference {
            self.sources.sort_by_key(|source| source.len);
        }
        match operation {
            Operation::Union => self.union(data),
            Operation::Intersection => self.intersection(data),
            Operation::Difference => self.difference(data),
        }
    }

    fn union(&self, data: &mut Data<'_>) -> Vec<(Vec<u8>, f64)> {
        let mut all: HashMap<Vec<u8>, f64> = HashMap::new();
        for source in &self.sources {
            for_each(data, source.key, &mut |name, score| {
                let score = number(source.weight * score);
                match all.get_mut(name) {
                    Some(sum) => *sum = self.aggregate.apply(*sum, score),
                    None => {
                        all.insert(name.to_vec(), score);
                    }
                }
            });
        }
        all.into_iter().collect()
    }

    fn intersection(&self, data: &mut Data<'_>) -> Vec<(Vec<u8>, f64)> {
        let mut left = Vec::new();
        let smallest = &self.sources[0];
        for_each(data, smallest.key, &mut |name, score| {
            left.push((name.to_vec(), number(smallest.weight * score)));
        });
        for source in &self.sources[1..] {
            let value = data.read(source.key);
            left.retain_mut(|(name, sum)| {
                let Some(score) = value.and_then(|value| score(value, name)) else {
                    return false;
                };
                // Redis checks the sum for NaN, not the product.
                *sum = self.aggregate.apply(*sum, source.weight * score);
                true
            });
        }
        left
    }

    fn difference(&self, data: &mut Data<'_>) -> Vec<(Vec<u8>, f64)> {
        let mut left = Vec::new();
        for_each(data, self.sources[0].key, &mut |name, score| left.push((name.to_vec(), score)));
        for source in &self.sources[1..] {
            if let Some(value) = data.read(source.key) {
                left.retain(|(name, _)| score(value, name).is_none());
            }
        }
        left
    }
}

/// The score of a member of a sorted set or set.
fn score(value: ValueRef<'_>, name: &[u8]) -> Option<f64> {
    match value {
        ValueRef::Set(set) => set.contains(name).then_some(1.0),
        ValueRef::SortedSet(set) => set.score(name),
        _ => None,
    }
}

fn for_each(data: &mut Data<'_>, key: &[u8], visit: &mut dyn FnMut(&[u8], f64)) {
    match data.read(key) {
        Some(ValueRef::Set(set)) => set.for_each(&mut |name| visit(name, 1.0)),
        Some(ValueRef::SortedSet(set)) => {
            set.range(0, set.len(), false).for_each(|(name, score)| visit(&name, score));
        }
        _ => {}
    }
}

/// ZUNION, ZINTER, ZDIFF, and ZINTERCARD if only the `cardinality` is wanted.
pub(super) fn combine(
    context: &mut Context<'_>,
    arguments: &[&[u8]],
    operation: Operation,
    cardinality: bool,
) -> Outcome {
    let allowed = AllowedOptions {
        weights: operation != Operation::Difference && !cardinality,
        with_scores: !cardinality,
        limit: cardinality,
    };
    let mut request = Request::parse(context, &arguments[1..], allowed)?;
    let mut members = request.run(&mut context.data, operation);
    if cardinality {
        let limit = if request.limit == 0 { usize::MAX } else { request.limit };
        context.reply.count(members.len().min(limit));
        return Ok(());
    }
    members.sort_by(|a, b| compare((a.1, &a.0), (b.1, &b.0)));
    let sorted = members.iter().map(|(name, score)| (name.as_slice(), *score));
    write_members(&mut context.reply, members.len(), request.with_scores, sorted);
    Ok(())
}

/// ZUNIONSTORE, ZINTERSTORE, ZDIFFSTORE.
pub(super) fn store(context: &mut Context<'_>, arguments: &[&[u8]], operation: Operation) -> Outcome {
    let allowed =
        AllowedOptions { weights: operation != Operation::Difference, with_scores: false, limit: false };
    let mut request = Request::parse(context, &arguments[2..], allowed)?;
    let members = request.run(&mut context.data, operation);
    let set = SortedSet::of(&context.data.rules(), &members);
    range::store(context, arguments[1], set)
}
