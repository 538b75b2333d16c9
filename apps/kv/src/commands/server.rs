//! Commands about the server: FLUSHALL, INFO, CONFIG, COMMAND and so on.

use super::{Command, Context, Fault, Flags, Keys, Outcome, flag, integer, is};

const ANY: Flags = flag::LOADING.and(flag::STALE);
const ADMIN: Flags = flag::ADMIN.and(flag::NO_SCRIPT).and(flag::LOADING).and(flag::STALE);

/// The commands of this family.
pub const COMMANDS: &[Command] = &[
    Command::new("dbsize", 1, flag::READONLY.and(flag::FAST), Keys::None, "server", dbsize),
    Command::new("flushall", -1, flag::WRITE, Keys::None, "server", flushall),
    Command::new("flushdb", -1, flag::WRITE, Keys::None, "server", flushdb),
];

/// Replies with a HELP text.
pub fn help(context: &mut Context<'_>, command: &str, lines: &[&str]) {
    let reply = &mut context.reply;
    reply.array(lines.len() + 3);
    reply.simple(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| reply.simple(line));
    reply.simple("HELP");
    reply.simple("    Print this help.");
}

fn dbsize(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let count = context.data.len();
    context.reply.count(count);
    Ok(())
}

/// Checks the optional SYNC or ASYNC: both are freed in slices here.
fn flush_mode(arguments: &[&[u8]]) -> Outcome {
    match arguments[1..] {
        [] => Ok(()),
        [mode] if is(mode, "sync") || is(mode, "async") => Ok(()),
        _ => Err(Fault::SYNTAX),
    }
}

fn flushall(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    flush_mode(arguments)?;
    context.data.store().flush(None);
    context.data.effect(&[b"FLUSHALL"]);
    context.reply.ok();
    Ok(())
}

fn flushdb(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    flush_mode(arguments)?;
    let database = context.data.database();
    context.data.store().flush(Some(database));
    context.data.effect(&[b"FLUSHDB"]);
    context.reply.ok();
    Ok(())
}
