//! AUTH and ACL.
//!
//! The rules of users are in `acl.rs`; this file reads the arguments and writes the replies. A
//! client whose user was deleted is closed, as in Redis.

use crate::acl::{CATEGORIES, DEFAULT, members};
use crate::clients::{Client, Closing};
use crate::commands::context::{Context, Outcome};
use crate::foundation::command::CommandSpec;
use crate::foundation::protocol::Fault;

const NO_PASSWORD: Fault = Fault::of(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
);
const WRONG_PASSWORD: Fault = Fault::of("WRONGPASS invalid username-password pair or user is disabled.");

pub(super) fn auth(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    match arguments {
        [_, password] => {
            if !context.data.store_ref().users.is_protected() {
                return Err(NO_PASSWORD);
            }
            authenticate(context, DEFAULT, password)?;
        }
        [_, user, password] => authenticate(context, user, password)?,
        _ => return Err(Fault::SYNTAX),
    }
    context.reply.ok();
    Ok(())
}

/// Authenticates the client as a user.
pub(super) fn authenticate(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> Outcome {
    if !context.data.store_ref().users.authenticate(user, password) {
        return Err(WRONG_PASSWORD);
    }
    context.client.user = user.to_vec();
    context.client.authenticated = true;
    Ok(())
}

pub(super) fn acl(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let lowered = arguments[1].to_ascii_lowercase();
    match (lowered.as_slice(), arguments.len()) {
        (b"whoami", 2) => context.reply.bulk(&context.client.user),
        (b"users", 2) => {
            let names: Vec<Vec<u8>> =
                context.data.store_ref().users.all().map(|(name, _)| name.to_vec()).collect();
            context.reply.array(names.len());
            names.iter().for_each(|name| context.reply.bulk(name));
        }
        (b"list", 2) => {
            let lines: Vec<String> =
                context.data.store_ref().users.all().map(|(name, user)| user.describe(name)).collect();
            context.reply.array(lines.len());
            lines.iter().for_each(|line| context.reply.bulk(line.as_bytes()));
        }
        (b"cat", 2) => {
            context.reply.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|name| context.reply.bulk(name.as_bytes()));
        }
        (b"cat", 3) => return category(context, arguments[2]),
        (b"getuser", 3) => get_user(context, arguments[2]),
        (b"setuser", 3..) => return set_user(context, arguments),
        (b"deluser", 3..) => {
            let deleted = context.data.store().users.remove(&arguments[2..])?;
            context.share_users();
            context.each_clients(|clients| clients.kill_users(&deleted));
            context.client.close_if_user(&deleted);
            context.reply.count(deleted.len());
        }
        (b"help", 2) => context.reply.help("ACL", HELP),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

fn set_user(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let name = arguments[2];
    if name.iter().any(|byte| matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n')) {
        return Err(Fault::of("ERR Usernames can't contain spaces or null characters"));
    }
    let specs: Vec<&CommandSpec> = context.table.commands().iter().map(|command| &command.spec).collect();
    context.data.store().users.set(name, &arguments[3..], &specs)?;
    context.share_users();
    close_listeners(context, name);
    crate::acl::warn_of_restart("ACL SETUSER");
    context.reply.ok();
    Ok(())
}

/// Closes the clients of a user that receive what it may no longer receive: by subscriptions, or as
/// monitors. Redis closes them if the user lost the channels, but not if it lost the command.
fn close_listeners(context: &mut Context<'_>, name: &[u8]) {
    let Some(user) = context.data.store_ref().users.get(name).cloned() else { return };
    let may_run = |command: &[u8]| {
        let found = context.table.find(command);
        found.is_some_and(|(number, row)| user.permit(number, &row.spec, &[command]).is_ok())
    };
    let (channels, patterns) = (may_run(b"subscribe"), may_run(b"psubscribe"));
    let monitors = may_run(b"monitor");
    let listens = |client: &Client| {
        client.user == name
            && ((client.monitor && !monitors)
                || (!client.channels.is_empty() && !channels)
                || (!client.patterns.is_empty() && !patterns)
                || !user.may_keep(&client.channels, &client.patterns))
    };
    context.each_clients(|clients| {
        let doomed: Vec<_> = clients.iter().filter(|client| listens(client)).map(Client::id).collect();
        doomed.into_iter().for_each(|id| clients.close(id, Closing::Now));
    });
    if listens(context.client) {
        context.client.closing = Closing::AfterOutput;
    }
}

fn category(context: &mut Context<'_>, name: &[u8]) -> Outcome {
    let given = String::from_utf8_lossy(name);
    let name = given.to_ascii_lowercase();
    if !CATEGORIES.contains(&&*name) {
        return Err(Fault::new(format!("ERR Unknown category '{given}'")));
    }
    let names: Vec<String> =
        context.table.commands().iter().flat_map(|command| members(&command.spec, &name)).collect();
    context.reply.array(names.len());
    names.iter().for_each(|name| context.reply.bulk(name.as_bytes()));
    Ok(())
}

fn get_user(context: &mut Context<'_>, name: &[u8]) {
    let Some(user) = context.data.store_ref().users.get(name).cloned() else {
        context.reply.nil();
        return;
    };
    let reply = &mut context.reply;
    reply.map(6);
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    let passwords = user.passwords();
    reply.array(passwords.len());
    passwords.iter().for_each(|hash| reply.bulk(hash.as_bytes()));
    for (name, text) in [("commands", user.commands()), ("keys", user.keys()), ("channels", user.channels())]
    {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    reply.bulk(b"selectors");
    reply.array(0);
}

const HELP: &[&str] = &[
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "GETUSER <username>",
    "    Get the user's details.",
    "LIST",
    "    Show users details in config file format.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
];
