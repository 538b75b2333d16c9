//! COMMAND: queries of the command table.
//!
//! COMMAND INFO and DOCS describe rows of the table in Redis' format, as far as the table has the
//! data. COMMAND GETKEYS finds keys by the same positions that the ACL checks.

use crate::acl::{CATEGORIES, belongs, members};
use crate::commands::context::{Command, Context, Outcome};
use crate::foundation::command::{CommandSpec, Keys, flag, is, subcommands};
use crate::foundation::protocol::Fault;
use crate::foundation::text::glob;

/// First, last and step as COMMAND INFO shows them.
fn positions(command: &CommandSpec) -> (i64, i64, i64) {
    match command.keys {
        Keys::None => (0, 0, 0),
        Keys::Range(first, last, step) => (first.into(), last.into(), step.into()),
        Keys::Counted(_) => (0, 0, 0),
        Keys::Destination(_) => (1, 1, 1),
    }
}

fn describe(context: &mut Context<'_>, command: &CommandSpec) {
    let reply = &mut context.reply;
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity.into());
    let flags: Vec<&str> =
        flag::NAMES.iter().filter(|(flag, _)| command.flags.has(*flag)).map(|&(_, name)| name).collect();
    reply.set(flags.len());
    flags.iter().for_each(|name| reply.simple(name));
    let (first, last, step) = positions(command);
    reply.integer(first);
    reply.integer(last);
    reply.integer(step);
    let categories: Vec<String> = CATEGORIES
        .iter()
        .filter(|category| belongs(command, category))
        .map(|category| format!("@{category}"))
        .collect();
    reply.set(categories.len());
    categories.iter().for_each(|name| reply.simple(name));
    // Tips, key specifications, subcommands.
    for _ in 0..3 {
        reply.array(0);
    }
}

fn document(context: &mut Context<'_>, command: &CommandSpec) {
    let reply = &mut context.reply;
    reply.bulk(command.name.as_bytes());
    reply.map(4);
    reply.bulk(b"summary");
    reply.bulk(b"See https://redis.io/commands.");
    reply.bulk(b"since");
    reply.bulk(b"1.0.0");
    reply.bulk(b"group");
    reply.bulk(command.group.as_bytes());
    reply.bulk(b"arity");
    reply.integer(command.arity.into());
}

pub(super) fn command(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let table = context.table;
    let Some(subcommand) = arguments.get(1) else {
        context.reply.array(table.commands().len());
        table.commands().iter().for_each(|command| describe(context, &command.spec));
        return Ok(());
    };
    let subcommand = subcommand.to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"count", 2) => context.reply.count(table.commands().len()),
        (b"info", 2) => {
            context.reply.array(table.commands().len());
            table.commands().iter().for_each(|command| describe(context, &command.spec));
        }
        (b"info", _) => {
            context.reply.array(arguments.len() - 2);
            for name in &arguments[2..] {
                match table.find(name) {
                    Some((_, command)) => describe(context, &command.spec),
                    None => context.reply.nil(),
                }
            }
        }
        (b"docs", count) => {
            let named = arguments[2..].iter().filter_map(|name| table.find(name));
            let shown: Vec<&Command> = if count == 2 {
                table.commands().to_vec()
            } else {
                named.map(|(_, command)| command).collect()
            };
            context.reply.map(shown.len());
            shown.iter().for_each(|command| document(context, &command.spec));
        }
        (b"list", _) => return list(context, &arguments[2..]),
        (b"getkeys", 4..) => return getkeys(context, &arguments[2..]),
        (b"help", 2) => context.reply.help(
            "COMMAND",
            &[
                "(no subcommand)",
                "    Return details about all commands.",
                "COUNT",
                "    Return the total number of commands in this server.",
                "LIST",
                "    Return a list of all commands in this server.",
                "INFO [<command-name> ...]",
                "    Return details about multiple commands.",
                "DOCS [<command-name> ...]",
                "    Return documentation details about multiple commands.",
                "GETKEYS <full-command>",
                "    Return the keys from a full command.",
            ],
        ),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

fn list(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let with_subcommands = |command: &&'static Command| {
        let name = command.spec.name;
        let own = std::iter::once(name.to_owned());
        own.chain(subcommands(&command.spec).map(move |subcommand| format!("{name}|{subcommand}")))
    };
    let names = context.table.commands().iter();
    let chosen: Vec<String> = match arguments {
        [] => names.flat_map(with_subcommands).collect(),
        [by, what, value] if is(by, "filterby") && is(what, "pattern") => names
            .flat_map(with_subcommands)
            .filter(|name| glob::matches_ignoring_case(value, name.as_bytes()))
            .collect(),
        [by, what, value] if is(by, "filterby") && is(what, "aclcat") => {
            let category = String::from_utf8_lossy(value).to_ascii_lowercase();
            names.flat_map(|command| members(&command.spec, &category)).collect()
        }
        [by, what, _] if is(by, "filterby") && is(what, "module") => Vec::new(),
        _ => return Err(Fault::SYNTAX),
    };
    context.reply.array(chosen.len());
    chosen.iter().for_each(|name| context.reply.bulk(name.as_bytes()));
    Ok(())
}

fn getkeys(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (_, command) = context.table.find(arguments[0]).ok_or(Fault::of("ERR Invalid command specified"))?;
    if matches!(command.spec.keys, Keys::None) {
        return Err(Fault::of("ERR The command has no key arguments"));
    }
    if !command.spec.accepts(arguments.len()) {
        return Err(Fault::of("ERR Invalid number of arguments specified for command"));
    }
    let positions = command
        .spec
        .key_positions(arguments)
        .ok_or(Fault::of("ERR Invalid arguments specified for command"))?;
    context.reply.array(positions.len());
    positions.iter().for_each(|&at| context.reply.bulk(arguments[at]));
    Ok(())
}
