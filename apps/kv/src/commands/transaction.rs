//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! 1. After MULTI the shard queues commands. A command that is refused at that time breaks the
//!    transaction: EXEC replies EXECABORT.
//! 2. WATCH notes a key's version. EXEC replies nil if a version has changed, or if the time of a
//!    key is over that was not when the watch began. A key that the user may no longer use counts
//!    as changed, so that the reply says nothing about it.
//! 3. EXEC runs the whole queue at once. Its effects are in one log record, so a transaction is
//!    atomic in a crash, too.

use super::context::{Command, Context, Outcome};
use crate::acl::{DEFAULT, Denied};
use crate::clients::{Transaction, Watch};
use crate::foundation::command::{Keys, flag};
use crate::foundation::protocol::Fault;

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "multi",
        1,
        flag::NO_SCRIPT.and(flag::FAST).and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "transactions",
        multi,
    ),
    Command::new(
        "exec",
        1,
        flag::NO_SCRIPT.and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "transactions",
        exec,
    ),
    Command::new(
        "discard",
        1,
        flag::NO_SCRIPT.and(flag::FAST).and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "transactions",
        discard,
    ),
    Command::new(
        "watch",
        -2,
        flag::NO_SCRIPT.and(flag::FAST).and(flag::LOADING).and(flag::STALE),
        Keys::Range(1, -1, 1),
        "transactions",
        watch,
    ),
    Command::new(
        "unwatch",
        1,
        flag::NO_SCRIPT.and(flag::FAST).and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "transactions",
        unwatch,
    ),
];

/// Whether a command runs at once inside MULTI instead of being queued.
pub(crate) fn runs_inside(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

fn multi(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    if context.client.in_transaction() {
        return Err(Fault::of("ERR MULTI calls can not be nested"));
    }
    context.client.transaction = Some(Transaction::default());
    context.reply.ok();
    Ok(())
}

fn discard(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    if context.client.transaction.take().is_none() {
        return Err(Fault::of("ERR DISCARD without MULTI"));
    }
    context.client.unwatch_all(context.data.store());
    context.reply.ok();
    Ok(())
}

fn watch(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if context.client.in_transaction() {
        return Err(Fault::of("ERR WATCH inside MULTI is not allowed"));
    }
    let database = context.data.database();
    let now = context.data.now();
    for &key in &arguments[1..] {
        let watched = (database, key.into());
        if context.client.watches.contains_key(&watched) {
            continue;
        }
        let overdue = context.data.store_ref().is_overdue(database, key, now);
        let version = context.data.store().watch(watched.clone());
        context.client.watches.insert(watched, Watch { version, overdue });
    }
    context.reply.ok();
    Ok(())
}

fn unwatch(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    context.client.unwatch_all(context.data.store());
    context.reply.ok();
    Ok(())
}

fn watched_key_changed(context: &Context<'_>) -> bool {
    let store = context.data.store_ref();
    let now = context.data.now();
    let users = &store.users;
    let user = users.get(&context.client.user).filter(|_| !users.is_open());
    context.client.watches.iter().any(|(watched, watch)| {
        let (database, key) = (watched.0, &watched.1);
        if user.is_some_and(|user| !user.may_use_key(key)) {
            return true;
        }
        let changed = store.version(watched) != watch.version;
        if watch.overdue {
            // The removal of such a key is no change: its time was over when the watch began.
            changed && store.find(database, key).is_some()
        } else {
            changed || store.is_overdue(database, key, now)
        }
    })
}

/// Why the user may no longer run a queued command.
fn denied(context: &Context<'_>, number: u16, command: &Command, arguments: &[&[u8]]) -> Option<Fault> {
    let users = &context.data.store_ref().users;
    if users.is_open() {
        return None;
    }
    // As in Redis, a client whose user was deleted in this transaction goes on as the default one;
    // unlike in Redis, only where that one needs no password.
    let fallback = || users.get(DEFAULT).filter(|_| users.admits_unauthenticated());
    match users.get(&context.client.user).or_else(fallback) {
        Some(user) => user.permit(number, &command.spec, arguments).err().map(Denied::fault),
        None if command.spec.flags.has(flag::NO_AUTH) => None,
        None => Some(Fault::NOT_AUTHENTICATED),
    }
}

fn exec(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let Some(transaction) = context.client.transaction.take() else {
        return Err(Fault::of("ERR EXEC without MULTI"));
    };
    let changed = watched_key_changed(context);
    context.client.unwatch_all(context.data.store());
    if transaction.broken {
        return Err(Fault::of("EXECABORT Transaction discarded because of previous errors."));
    }
    if changed {
        context.reply.nil_array();
        return Ok(());
    }
    if let Some(reason) = context.failed
        && transaction.queue.iter().any(|queued| {
            context.table.find(&queued[0]).is_some_and(|(_, command)| {
                command.spec.flags.has(flag::WRITE)
                    || context.unlogged && command.spec.flags.has(flag::READONLY)
            })
        })
    {
        return Err(Fault::new(format!(
            "EXECABORT Transaction discarded because of: MISCONF Errors writing to the AOF file: {reason}"
        )));
    }
    let own = context.command;
    context.must_not_block = true;
    context.reply.array(transaction.queue.len());
    for queued in &transaction.queue {
        let arguments: Vec<&[u8]> = queued.iter().map(Vec::as_slice).collect();
        if let Some((number, command)) = context.table.find(arguments[0]) {
            if let Some(denied) = denied(context, number, command, &arguments) {
                context.reply.error(&denied);
                continue;
            }
            context.command = command;
            context.reply.resp3 = context.client.resp3;
            context.run_observed(number, &arguments);
            // The commands run, but a client that is to be closed needs no replies.
            if context.clients.overflows_with(context.client, context.reply.bytes.len()) {
                context.reply.bytes.clear();
            }
        }
    }
    context.command = own;
    Ok(())
}
