//! SORT and SORT_RO.
//!
//! 1. The elements of a list, set or sorted set are gathered.
//! 2. Each gets a weight: itself, or the value that BY's pattern names (a string, or a field of a
//!    hash after `->`). A pattern without `*` names no key for any element: the order is unchanged
//!    (DESC reverses a list or sorted set).
//! 3. They are sorted by number or (ALPHA) by bytes, and LIMIT selects a range. Equal numbers are
//!    in order of their bytes.
//! 4. GET replaces each by the values that its patterns name; STORE stores the result as a list.

use std::cmp::Ordering;

use crate::commands::context::{Context, Outcome};
use crate::data::value::{List, Value, ValueRef};
use crate::foundation::command::{integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;

#[derive(Default)]
struct Options<'a> {
    descending: bool,
    alphabetic: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

fn options<'a>(arguments: &[&'a [u8]], may_store: bool) -> Result<Options<'a>, Fault> {
    let mut options = Options::default();
    let mut rest = arguments;
    loop {
        rest = match rest {
            [] => return Ok(options),
            [word, tail @ ..] if is(word, "asc") => {
                options.descending = false;
                tail
            }
            [word, tail @ ..] if is(word, "desc") => {
                options.descending = true;
                tail
            }
            [word, tail @ ..] if is(word, "alpha") => {
                options.alphabetic = true;
                tail
            }
            [word, offset, count, tail @ ..] if is(word, "limit") => {
                options.limit = Some((integer(offset)?, integer(count)?));
                tail
            }
            [word, pattern, tail @ ..] if is(word, "by") => {
                options.by = Some(pattern);
                tail
            }
            [word, pattern, tail @ ..] if is(word, "get") => {
                options.get.push(pattern);
                tail
            }
            [word, target, tail @ ..] if is(word, "store") && may_store => {
                options.store = Some(target);
                tail
            }
            _ => return Err(Fault::SYNTAX),
        };
    }
}

/// The elements of the collection at a key.
fn gather(context: &mut Context<'_>, key: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    match context.data.read(key) {
        None => Ok(Vec::new()),
        Some(ValueRef::List(list)) => Ok(list.iter().map(|element| element.to_vec()).collect()),
        Some(ValueRef::Set(set)) => Ok(set.to_vec()),
        Some(ValueRef::SortedSet(sorted)) => {
            Ok(sorted.range(0, sorted.len(), false).map(|(name, _)| name.to_vec()).collect())
        }
        Some(_) => Err(Fault::WRONG_TYPE),
    }
}

/// The value that a pattern names for an element: the element itself for `#`.
fn follow(context: &mut Context<'_>, pattern: &[u8], element: &[u8]) -> Option<Vec<u8>> {
    if pattern == b"#" {
        return Some(element.to_vec());
    }
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let arrow = pattern[star..].windows(2).position(|pair| pair == b"->").map(|at| star + at);
    // An arrow at the very end belongs to the key's name.
    let arrow = arrow.filter(|&at| at + 2 < pattern.len());
    let (name, field) = match arrow {
        Some(at) => (&pattern[..at], Some(&pattern[at + 2..])),
        None => (pattern, None),
    };
    let key = [&name[..star], element, &name[star + 1..]].concat();
    match (context.data.read(&key)?, field) {
        (ValueRef::String(string), None) => Some(string.to_vec()),
        (ValueRef::Hash(hash), Some(field)) => hash.get(field).map(|value| value.to_vec()),
        _ => None,
    }
}

struct WeightedElement {
    element: Vec<u8>,
    number: f64,
    text: Option<Vec<u8>>,
}

fn weigh(
    context: &mut Context<'_>,
    element: Vec<u8>,
    options: &Options<'_>,
) -> Result<WeightedElement, Fault> {
    let text = match options.by {
        Some(pattern) => follow(context, pattern, &element),
        None => Some(element.clone()),
    };
    let number = match &text {
        // As `strtod` reads numbers, except those out of range.
        Some(text) if !options.alphabetic => crate::foundation::text::number::parse_bound(text)
            .filter(|number| number.is_finite() || !text.iter().any(u8::is_ascii_digit))
            .ok_or(Fault::of("ERR One or more scores can't be converted into double"))?,
        _ => 0.0,
    };
    Ok(WeightedElement { element, number, text })
}

fn order(a: &WeightedElement, b: &WeightedElement, alphabetic: bool) -> Ordering {
    if alphabetic {
        // Elements of equal weight keep their order.
        return a.text.cmp(&b.text);
    }
    let first = a.number.partial_cmp(&b.number).unwrap_or(Ordering::Equal);
    first.then_with(|| a.element.cmp(&b.element))
}

fn sorted(context: &mut Context<'_>, key: &[u8], options: &Options<'_>) -> Result<Vec<Vec<u8>>, Fault> {
    let mut elements = gather(context, key)?;
    let unsorted = options.by.is_some_and(|pattern| !pattern.contains(&b'*'));
    if unsorted {
        let ordered = matches!(context.data.read(key), Some(ValueRef::SortedSet(_) | ValueRef::List(_)));
        let unordered = matches!(context.data.read(key), Some(ValueRef::Set(_)));
        if ordered && options.descending {
            elements.reverse();
        } else if unordered && options.store.is_some() {
            // The stored result must not depend on the order of a set.
            elements.sort_unstable();
        }
    } else {
        let mut weighed = Vec::with_capacity(elements.len());
        for element in elements {
            weighed.push(weigh(context, element, options)?);
        }
        weighed.sort_by(|a, b| {
            let order = order(a, b, options.alphabetic);
            if options.descending { order.reverse() } else { order }
        });
        elements = weighed.into_iter().map(|weighed| weighed.element).collect();
    }
    if let Some((offset, count)) = options.limit {
        let start = usize::try_from(offset).unwrap_or(0).min(elements.len());
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(elements.len() - start);
        elements = elements.split_off(start);
        elements.truncate(count);
    }
    Ok(elements)
}

fn run(context: &mut Context<'_>, arguments: &[&[u8]], may_store: bool) -> Outcome {
    let options = options(&arguments[2..], may_store)?;
    let elements = sorted(context, arguments[1], &options)?;
    let mut result: Vec<Option<Vec<u8>>> = Vec::with_capacity(elements.len());
    for element in elements {
        if options.get.is_empty() {
            result.push(Some(element));
            continue;
        }
        for pattern in &options.get {
            result.push(follow(context, pattern, &element));
        }
    }
    let Some(target) = options.store else {
        context.reply.array(result.len());
        result.iter().for_each(|found| context.reply.bulk_or_nil(found.as_deref()));
        return Ok(());
    };
    if result.is_empty() {
        if context.data.delete(target) {
            context.notify(class::GENERIC, "del", target);
        }
    } else {
        let (mut list, rules) = (List::new(), context.data.rules());
        result.iter().for_each(|found| list.push_back(found.as_deref().unwrap_or_default(), &rules));
        let value = Value::List(list);
        context.data.admit_value(target, &value)?;
        context.data.insert(target, value);
        context.notify(class::LIST, "sortstore", target);
        context.data.effect_rebuild(target);
    }
    context.reply.count(result.len());
    Ok(())
}

pub(super) fn sort(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    run(context, arguments, true)
}

pub(super) fn sort_ro(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    run(context, arguments, false)
}
