//! Pops of the lowest or highest members, with and without blocking.

use super::replies::write_members;
use crate::commands::collection::{at_least, count, read};
use crate::commands::context::{Context, Outcome};
use crate::data::value::SortedSet;
use crate::foundation::command::{is, timeout_milliseconds};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;

/// Pops up to `many` members and records it.
fn take(
    context: &mut Context<'_>,
    key: &[u8],
    highest: bool,
    many: usize,
) -> Result<Vec<(Vec<u8>, f64)>, Fault> {
    let mut taken: Vec<(Vec<u8>, f64)> = Vec::new();
    if let Some(mut set) = context.data.write::<SortedSet>(key)? {
        taken.extend(set.view().range(0, many, highest).map(|(name, score)| (name.to_vec(), score)));
        taken.iter().for_each(|(name, _)| {
            set.remove(name);
        });
    }
    if !taken.is_empty() {
        context.notify(class::SORTED_SET, if highest { "zpopmax" } else { "zpopmin" }, key);
        context.data.changed(key);
        let mut effect: Vec<&[u8]> = vec![b"ZREM", key];
        effect.extend(taken.iter().map(|(name, _)| name.as_slice()));
        context.data.effect(&effect);
    }
    Ok(taken)
}

fn borrowed(taken: &[(Vec<u8>, f64)]) -> impl Iterator<Item = (&[u8], f64)> {
    taken.iter().map(|(name, score)| (name.as_slice(), *score))
}

/// ZPOPMIN and ZPOPMAX.
pub(super) fn pop(context: &mut Context<'_>, arguments: &[&[u8]], highest: bool) -> Outcome {
    let many = match arguments {
        [_, _] => None,
        [_, _, many] => Some(count(many)?),
        _ => return Err(Fault::SYNTAX),
    };
    let taken = take(context, arguments[1], highest, many.unwrap_or(1))?;
    if many.is_some() {
        write_members(&mut context.reply, taken.len(), true, borrowed(&taken));
    } else {
        // Without a count the one pair is never nested.
        context.reply.array(2 * taken.len());
        for (name, score) in &taken {
            context.reply.bulk(name);
            context.reply.double(*score);
        }
    }
    Ok(())
}

/// The first of the keys that holds a sorted set. For a client that is already blocked, other types
/// are skipped.
fn first_set<'k>(context: &mut Context<'_>, keys: &[&'k [u8]]) -> Result<Option<&'k [u8]>, Fault> {
    let waits = context.client.blocked.is_some();
    for key in keys {
        match read::<SortedSet>(&mut context.data, key) {
            Ok(Some(_)) => return Ok(Some(key)),
            Err(fault) if !waits => return Err(fault),
            _ => {}
        }
    }
    Ok(None)
}

/// BZPOPMIN and BZPOPMAX.
pub(super) fn blocking_pop(context: &mut Context<'_>, arguments: &[&[u8]], highest: bool) -> Outcome {
    let (keys, timeout) = (&arguments[1..arguments.len() - 1], arguments[arguments.len() - 1]);
    let timeout = timeout_milliseconds(timeout)?;
    let Some(key) = first_set(context, keys)? else {
        return context.block_for("zset", keys, timeout);
    };
    let taken = take(context, key, highest, 1)?;
    context.reply.array(1 + 2 * taken.len());
    context.reply.bulk(key);
    for (name, score) in &taken {
        context.reply.bulk(name);
        context.reply.double(*score);
    }
    Ok(())
}

/// BZMPOP.
pub(super) fn blocking_pop_many(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let timeout = timeout_milliseconds(arguments[1])?;
    pop_many(context, arguments, 2, Some(timeout))
}

/// ZMPOP and BZMPOP; the number of keys is at `at`.
pub(super) fn pop_many(
    context: &mut Context<'_>,
    arguments: &[&[u8]],
    at: usize,
    timeout: Option<u64>,
) -> Outcome {
    let many_keys = at_least(arguments[at], 1, "ERR numkeys should be greater than 0")?;
    let after = (at + 1).saturating_add(many_keys);
    let keys = arguments.get(at + 1..after).ok_or(Fault::SYNTAX)?;
    let highest = match arguments.get(after) {
        Some(word) if is(word, "min") => false,
        Some(word) if is(word, "max") => true,
        _ => return Err(Fault::SYNTAX),
    };
    let many = match &arguments[after + 1..] {
        [] => 1,
        [name, many, rest @ ..] if is(name, "count") => {
            let many = at_least(many, 1, "ERR count should be greater than 0")?;
            if !rest.is_empty() {
                return Err(Fault::SYNTAX);
            }
            many
        }
        _ => return Err(Fault::SYNTAX),
    };
    let Some(key) = first_set(context, keys)? else {
        match timeout {
            Some(timeout) => return context.block_for("zset", keys, timeout),
            None => context.reply.nil_array(),
        }
        return Ok(());
    };
    let taken = take(context, key, highest, many)?;
    context.reply.array(2);
    context.reply.bulk(key);
    context.reply.array(taken.len());
    for (name, score) in &taken {
        context.reply.array(2);
        context.reply.bulk(name);
        context.reply.double(*score);
    }
    Ok(())
}
