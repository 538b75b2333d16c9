//! Publish and subscribe.
//!
//! Subscriptions are kept twice: in the client, in order to end with it, and by channel in
//! [`Clients`], where PUBLISH finds the subscribers. A message is appended
//! to each subscriber's output at once, within the limit of its output buffer.

use std::collections::BTreeSet;

use super::context::{Command, Context, Outcome};
use crate::clients::{Clients, write_message};
use crate::foundation::command::{Flags, Keys, flag, is};
use crate::foundation::text::glob;

const SUBSCRIPTION: Flags = flag::PUBSUB.and(flag::NO_SCRIPT).and(flag::LOADING).and(flag::STALE);

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("subscribe", -2, SUBSCRIPTION, Keys::None, "pubsub", subscribe),
    Command::new("unsubscribe", -1, SUBSCRIPTION, Keys::None, "pubsub", unsubscribe),
    Command::new("psubscribe", -2, SUBSCRIPTION, Keys::None, "pubsub", psubscribe),
    Command::new("punsubscribe", -1, SUBSCRIPTION, Keys::None, "pubsub", punsubscribe),
    Command::new(
        "publish",
        3,
        flag::PUBSUB.and(flag::LOADING).and(flag::STALE).and(flag::FAST),
        Keys::None,
        "pubsub",
        publish,
    ),
    Command::new(
        "pubsub",
        -2,
        flag::PUBSUB.and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "pubsub",
        pubsub,
    ),
];

/// One confirmation of a (un)subscription.
fn confirm(context: &mut Context<'_>, kind: &[u8], channel: Option<&[u8]>) {
    let start = context.reply.bytes.len();
    context.reply.push(3);
    context.reply.bulk(kind);
    context.reply.bulk_or_nil(channel);
    context.reply.count(context.client.subscriptions());
    context.push(start);
}

fn subscribe(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    for &channel in &arguments[1..] {
        context.clients.subscribe(context.client, channel);
        confirm(context, b"subscribe", Some(channel));
    }
    Ok(())
}

fn psubscribe(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    for &pattern in &arguments[1..] {
        context.clients.subscribe_pattern(context.client, pattern);
        confirm(context, b"psubscribe", Some(pattern));
    }
    Ok(())
}

fn unsubscribe(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments.len() > 1 {
        for &channel in &arguments[1..] {
            context.clients.unsubscribe(context.client, channel);
            confirm(context, b"unsubscribe", Some(channel));
        }
        return Ok(());
    }
    let channels: Vec<Box<[u8]>> = context.client.channels.iter().cloned().collect();
    for channel in &channels {
        context.clients.unsubscribe(context.client, channel);
        confirm(context, b"unsubscribe", Some(channel));
    }
    if channels.is_empty() {
        confirm(context, b"unsubscribe", None);
    }
    Ok(())
}

fn punsubscribe(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments.len() > 1 {
        for &pattern in &arguments[1..] {
            context.clients.unsubscribe_pattern(context.client, pattern);
            confirm(context, b"punsubscribe", Some(pattern));
        }
        return Ok(());
    }
    let patterns: Vec<Box<[u8]>> = context.client.patterns.iter().cloned().collect();
    for pattern in &patterns {
        context.clients.unsubscribe_pattern(context.client, pattern);
        confirm(context, b"punsubscribe", Some(pattern));
    }
    if patterns.is_empty() {
        confirm(context, b"punsubscribe", None);
    }
    Ok(())
}

fn publish(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (channel, message) = (arguments[1], arguments[2]);
    let now_ns = context.data.now().monotonic_ns;
    let delivery = context.clients.publish(channel, message, now_ns, Some(context.client.id()));
    for pattern in &delivery.own {
        let start = context.reply.bytes.len();
        write_message(&mut context.reply, pattern.as_deref(), channel, message);
        context.push(start);
    }
    let others = 0..context.others.count();
    let elsewhere: usize = others
        .map(|number| context.others.clients_mut(number).publish(channel, message, now_ns, None).receivers)
        .sum();
    context.reply.count(delivery.receivers + elsewhere);
    Ok(())
}

fn pubsub(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1];
    if is(subcommand, "channels") && arguments.len() <= 3 {
        let pattern = arguments.get(2);
        let mut names: Vec<Vec<u8>> = context
            .all_clients()
            .flat_map(Clients::channels)
            .filter(|(channel, _)| pattern.is_none_or(|pattern| glob::matches(pattern, channel)))
            .map(|(channel, _)| channel.to_vec())
            .collect();
        if context.others.count() > 0 {
            names.sort_unstable();
            names.dedup();
        }
        context.reply.array(names.len());
        names.iter().for_each(|name| context.reply.bulk(name));
    } else if is(subcommand, "numsub") {
        // An array even in RESP3.
        context.reply.array(2 * (arguments.len() - 2));
        for channel in &arguments[2..] {
            context.reply.bulk(channel);
            let count = context.all_clients().map(|clients| clients.subscribers(channel).len()).sum();
            context.reply.count(count);
        }
    } else if is(subcommand, "numpat") && arguments.len() == 2 {
        let count = pattern_count(context);
        context.reply.count(count);
    } else if is(subcommand, "help") && arguments.len() == 2 {
        context.reply.help(
            "PUBSUB",
            &[
                "CHANNELS [<pattern>]",
                "    Return the currently active channels matching a <pattern> (default: '*').",
                "NUMPAT",
                "    Return number of subscriptions to patterns.",
                "NUMSUB [<channel> ...]",
                "    Return the number of subscribers for the specified channels, excluding",
                "    pattern subscriptions(default: no channels).",
            ],
        );
    } else {
        return Err(context.subcommand_fault(arguments));
    }
    Ok(())
}

/// Patterns that have subscribers on any shard.
pub(super) fn pattern_count(context: &Context<'_>) -> usize {
    let patterns = context.all_clients().flat_map(Clients::patterns).map(|(pattern, _)| pattern);
    patterns.collect::<BTreeSet<_>>().len()
}

/// Channels that have subscribers on any shard.
pub(super) fn channel_count(context: &Context<'_>) -> usize {
    let channels = context.all_clients().flat_map(Clients::channels).map(|(channel, _)| channel);
    channels.collect::<BTreeSet<_>>().len()
}
