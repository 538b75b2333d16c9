//! Commands about the connection itself: HELLO, PING, SELECT, RESET, QUIT.
//!
//! `connection/acl.rs` has AUTH and ACL, `connection/clients.rs` CLIENT. A handler changes the
//! state of `context.client`; the shard acts on it after the command.

use super::context::{Command, Context, Outcome};
use crate::clients::{Closing, ReplyMode};
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::protocol::Fault;
use crate::foundation::settings::REDIS_VERSION;

mod acl;
mod clients;

const ALWAYS: Flags = flag::NO_SCRIPT.and(flag::LOADING).and(flag::STALE).and(flag::FAST).and(flag::NO_AUTH);

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "acl",
        -2,
        flag::ADMIN.and(flag::NO_SCRIPT).and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "server",
        acl::acl,
    ),
    Command::new("auth", -2, ALWAYS, Keys::None, "connection", acl::auth),
    Command::new(
        "client",
        -2,
        flag::NO_SCRIPT.and(flag::LOADING).and(flag::STALE),
        Keys::None,
        "connection",
        clients::client,
    ),
    Command::new("echo", 2, flag::FAST.and(flag::LOADING).and(flag::STALE), Keys::None, "connection", echo),
    Command::new("hello", -1, ALWAYS, Keys::None, "connection", hello),
    Command::new("ping", -1, flag::FAST, Keys::None, "connection", ping),
    Command::new("quit", -1, ALWAYS, Keys::None, "connection", quit),
    Command::new("reset", 1, ALWAYS, Keys::None, "connection", reset),
    Command::new(
        "select",
        2,
        flag::LOADING.and(flag::STALE).and(flag::FAST),
        Keys::None,
        "connection",
        select,
    ),
];

fn ping(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments.len() > 2 {
        return Err(Fault::arity("ping"));
    }
    if context.client.is_subscriber() && !context.client.resp3 {
        context.reply.array(2);
        context.reply.bulk(b"pong");
        context.reply.bulk(arguments.get(1).copied().unwrap_or_default());
        return Ok(());
    }
    match arguments.get(1) {
        Some(text) => context.reply.bulk(text),
        None => context.reply.bytes.extend_from_slice(b"+PONG\r\n"),
    }
    Ok(())
}

fn echo(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    context.reply.bulk(arguments[1]);
    Ok(())
}

fn quit(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    context.reply.ok();
    context.client.closing = Closing::AfterOutput;
    Ok(())
}

fn select(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let number = integer(arguments[1])?;
    if i32::try_from(number).is_err() {
        return Err(Fault::of("ERR value is out of range, value must between -2147483648 and 2147483647"));
    }
    let number = usize::try_from(number)
        .ok()
        .filter(|&number| number < context.data.store_ref().database_count())
        .ok_or(Fault::of("ERR DB index is out of range"))?;
    context.client.database = number;
    context.data.select(number);
    context.reply.ok();
    Ok(())
}

const HELLO_FIRST: Fault = Fault::of(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
);

fn hello(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let mut resp3 = context.client.resp3;
    let mut name = None;
    if let Some(version) = arguments.get(1) {
        let version = crate::foundation::text::number::parse_integer(version)
            .ok_or(Fault::of("ERR Protocol version is not an integer or out of range"))?;
        resp3 = match version {
            2 => false,
            3 => true,
            _ => return Err(Fault::of("NOPROTO unsupported protocol version")),
        };
    }
    let mut rest = arguments.get(2..).unwrap_or_default();
    let mut who: Option<(&[u8], &[u8])> = None;
    loop {
        rest = match rest {
            [] => break,
            [word, user, password, tail @ ..] if is(word, "auth") => {
                who = Some((user, password));
                tail
            }
            [word, text, tail @ ..] if is(word, "setname") => {
                if !clients::valid_name(text) {
                    return Err(clients::BAD_NAME);
                }
                name = Some(*text);
                tail
            }
            [word, ..] => {
                let mut text = b"ERR Syntax error in HELLO option '".to_vec();
                text.extend_from_slice(word);
                text.push(b'\'');
                return Err(Fault::new(text));
            }
        };
    }
    if let Some((user, password)) = who {
        acl::authenticate(context, user, password)?;
    }
    if !context.client.authenticated && !context.data.store_ref().users.admits_unauthenticated() {
        return Err(HELLO_FIRST);
    }
    if let Some(name) = name {
        context.client.name = name.to_vec();
    }
    context.client.resp3 = resp3;
    context.reply.resp3 = resp3;
    let reply = &mut context.reply;
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(context.client.number as i64);
    reply.bulk(b"mode");
    reply.bulk(b"standalone");
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

fn reset(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    context.client.transaction = None;
    context.client.unwatch_all(context.data.store());
    context.clients.unsubscribe_all(context.client);
    let admitted = context.data.store_ref().users.admits_unauthenticated();
    let client = &mut *context.client;
    client.user = crate::acl::DEFAULT.to_vec();
    client.authenticated = admitted;
    client.database = 0;
    client.name.clear();
    client.resp3 = false;
    client.reply_mode = ReplyMode::On;
    client.no_evict = false;
    client.monitor = false;
    if context.clients.monitors.remove(&context.client.id()) {
        context.data.store().observation.changed = true;
    }
    context.reply.resp3 = false;
    context.reply.simple("RESET");
    Ok(())
}
