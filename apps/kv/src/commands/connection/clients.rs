//! CLIENT.
//!
//! The lines of CLIENT LIST have the fields of Redis 7.0, in their order, because tools split them.
//! Behind those is `path`, the way on which the client comes: tools skip names that they do not
//! know. A filter of CLIENT LIST and CLIENT KILL is checked as a whole before any client is
//! touched.

use crate::clients::{Client, Clients, Closing, Pause, ReplyMode, TimeoutReply};
use crate::commands::context::{Context, Outcome};
use crate::foundation::client_id::ClientId;
use crate::foundation::command::{integer, is};
use crate::foundation::protocol::Fault;

pub(super) const BAD_NAME: Fault =
    Fault::of("ERR Client names cannot contain spaces, newlines or special characters.");

/// Whether a client's name has only printable characters.
pub(super) fn valid_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

pub(super) fn client(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let lowered = arguments[1].to_ascii_lowercase();
    let count = arguments.len();
    match (lowered.as_slice(), count) {
        (b"id", 2) => context.reply.integer(context.client.number as i64),
        (b"getname", 2) => {
            let name = (!context.client.name.is_empty()).then_some(context.client.name.as_slice());
            context.reply.bulk_or_nil(name);
        }
        (b"setname", 3) => {
            if !valid_name(arguments[2]) {
                return Err(BAD_NAME);
            }
            context.client.name = arguments[2].to_vec();
            context.reply.ok();
        }
        (b"setinfo", 4) => return set_info(context, arguments),
        (b"info", 2) => {
            let shard = shard_of(context, context.clients);
            let line = describe(context.client, shard, context.data.now().monotonic_ns);
            context.reply.verbatim(&line);
        }
        (b"list", _) => return list(context, arguments),
        (b"kill", 3..) => return kill(context, arguments),
        (b"reply", 3) => return reply_mode(context, arguments[2]),
        (b"unblock", 3 | 4) => return unblock(context, arguments),
        (b"no-evict", 3) => {
            context.client.no_evict = on_or_off(arguments[2])?;
            context.reply.ok();
        }
        (b"getredir", 2) => context.reply.integer(-1),
        (b"pause", 3 | 4) => return pause(context, arguments),
        (b"unpause", 2) => {
            context.each_clients(|clients| {
                clients.pause = None;
                clients.release_postponed();
            });
            context.each_store(|store| store.observation.changed = true);
            context.reply.ok();
        }
        (b"tracking" | b"caching" | b"trackinginfo", _) => {
            return Err(Fault::new(format!(
                "ERR CLIENT {} is not supported by Sietch",
                String::from_utf8_lossy(&lowered).to_ascii_uppercase()
            )));
        }
        (b"help", 2) => context.reply.help("CLIENT", HELP),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

const HELP: &[&str] = &[
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port> | <option> <value> [<option> <value> [...]]",
    "    Kill connections by address, or by ADDR, LADDR, ID, TYPE, USER, SKIPME.",
    "LIST [TYPE (NORMAL|PUBSUB)] [ID <client-id> [<client-id> ...]]",
    "    Return information about client connections.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Suspend all, or just write, clients for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETINFO <option> <value>",
    "    Set the name or the version of the client library.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Unblock the specified blocked client.",
    "UNPAUSE",
    "    Stop the current client pause, resuming traffic.",
];

/// Postpones the commands of all clients, or those that write. A pause that runs already is neither
/// shortened nor weakened.
fn pause(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let all = match arguments.get(3) {
        None => true,
        Some(mode) if is(mode, "all") => true,
        Some(mode) if is(mode, "write") => false,
        Some(_) => return Err(Fault::of("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let milliseconds =
        integer(arguments[2]).map_err(|_| Fault::of("ERR timeout is not an integer or out of range"))?;
    let milliseconds = u64::try_from(milliseconds).map_err(|_| Fault::TIMEOUT_NEGATIVE)?;
    let now = context.data.now().monotonic_ns;
    let new = Pause { until: now.saturating_add(milliseconds.saturating_mul(1_000_000)), all };
    let running = context.clients.pause.filter(|pause| pause.until > now).unwrap_or(new);
    let pause = Pause { until: running.until.max(new.until), all: running.all || new.all };
    context.each_clients(|clients| clients.pause = Some(pause));
    context.each_store(|store| store.observation.changed = true);
    context.reply.ok();
    Ok(())
}

fn on_or_off(argument: &[u8]) -> Result<bool, Fault> {
    if is(argument, "on") {
        Ok(true)
    } else if is(argument, "off") {
        Ok(false)
    } else {
        Err(Fault::SYNTAX)
    }
}

fn set_info(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (attribute, value) = (arguments[2], arguments[3]);
    let library = is(attribute, "lib-name");
    if !library && !is(attribute, "lib-ver") {
        let mut text = b"ERR Unrecognized option '".to_vec();
        text.extend_from_slice(attribute);
        text.push(b'\'');
        return Err(Fault::new(text));
    }
    if !valid_name(value) {
        let name = if library { "lib-name" } else { "lib-ver" };
        return Err(Fault::new(format!("ERR {name} cannot contain spaces, newlines or special characters.")));
    }
    if library {
        context.client.library = value.to_vec();
    } else {
        context.client.library_version = value.to_vec();
    }
    context.reply.ok();
    Ok(())
}

fn reply_mode(context: &mut Context<'_>, mode: &[u8]) -> Outcome {
    if is(mode, "on") {
        context.client.reply_mode = ReplyMode::On;
        context.reply.ok();
    } else if is(mode, "off") {
        context.client.reply_mode = ReplyMode::Off;
    } else if is(mode, "skip") {
        if context.client.reply_mode != ReplyMode::Off {
            context.client.reply_mode = ReplyMode::SkipThis;
        }
    } else {
        return Err(Fault::SYNTAX);
    }
    Ok(())
}

/// The shard of these clients, if there are several.
fn shard_of(context: &Context<'_>, clients: &Clients) -> Option<usize> {
    (context.data.settings().shards > 1).then(|| clients.own())
}

/// One line of CLIENT LIST, with the number of the shard if there are several.
fn describe(client: &Client, shard: Option<usize>, now_ns: u64) -> Vec<u8> {
    let seconds = |since: u64| now_ns.saturating_sub(since) / 1_000_000_000;
    let mut flags = String::new();
    if client.monitor {
        flags.push('O');
    }
    if client.is_subscriber() {
        flags.push('P');
    }
    if client.in_transaction() {
        flags.push('x');
    }
    if client.blocked.is_some() {
        flags.push('b');
    }
    if client.no_evict {
        flags.push('e');
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let mut line =
        format!("id={} addr={} laddr={} fd=-1 name=", client.number, client.peer, client.local).into_bytes();
    line.extend_from_slice(&client.name);
    let multi = client.transaction.as_ref().map_or(-1, |transaction| transaction.queue.len() as i64);
    line.extend_from_slice(
        format!(
            " age={} idle={} flags={} db={} sub={} psub={} ssub=0 multi={} qbuf={} qbuf-free={} argv-mem=0 multi-mem={} rbs=0 rbp=0 obl={} oll=0 omem={} tot-mem={} events=r cmd={} user={} redir=-1 resp={}",
            seconds(client.connected_ns),
            seconds(client.active_ns),
            flags,
            client.database,
            client.channels.len(),
            client.patterns.len(),
            multi,
            client.input.len().max(client.reading),
            client.input.capacity() - client.input.len(),
            client.transaction.as_ref().map_or(0, |transaction| transaction.bytes),
            client.output.pending(),
            client.owed(),
            client.memory(),
            client.last_subcommand.map_or_else(
                || client.last_command.to_owned(),
                |name| format!("{}|{name}", client.last_command)
            ),
            String::from_utf8_lossy(&client.user),
            if client.resp3 { 3 } else { 2 },
        )
        .as_bytes(),
    );
    line.extend_from_slice(b" lib-name=");
    line.extend_from_slice(&client.library);
    line.extend_from_slice(b" lib-ver=");
    line.extend_from_slice(&client.library_version);
    line.extend_from_slice(b" path=");
    line.extend_from_slice(client.path.name().as_bytes());
    if let Some(shard) = shard {
        line.extend_from_slice(format!(" shard={shard}").as_bytes());
    }
    line.push(b'\n');
    line
}

/// Whether CLIENT's TYPE word fits this client.
fn type_filter(word: &[u8]) -> Result<fn(&Client) -> bool, Fault> {
    if is(word, "normal") {
        Ok(|client| !client.is_subscriber())
    } else if is(word, "pubsub") {
        Ok(Client::is_subscriber)
    } else if is(word, "master") || is(word, "replica") || is(word, "slave") {
        Ok(|_| false)
    } else {
        let mut text = b"ERR Unknown client type '".to_vec();
        text.extend_from_slice(word);
        text.push(b'\'');
        Err(Fault::new(text))
    }
}

fn list(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let mut kind: fn(&Client) -> bool = |_| true;
    let mut numbers: Option<Vec<u64>> = None;
    match &arguments[2..] {
        [] => {}
        [word, name] if is(word, "type") => kind = type_filter(name)?,
        [word, ids @ ..] if is(word, "id") && !ids.is_empty() => {
            let parsed: Option<Vec<u64>> = ids
                .iter()
                .map(|id| {
                    crate::foundation::text::number::parse_integer(id).and_then(|id| u64::try_from(id).ok())
                })
                .collect();
            numbers = Some(parsed.ok_or(Fault::of("ERR Invalid client ID"))?);
        }
        _ => return Err(Fault::SYNTAX),
    }
    let now = context.data.now().monotonic_ns;
    let others = context.all_clients().flat_map(|clients| clients.iter().map(move |one| (clients, one)));
    let mut lines: Vec<(u64, Vec<u8>)> = others
        .chain(std::iter::once((&*context.clients, &*context.client)))
        .filter(|(_, client)| kind(client))
        .filter(|(_, client)| numbers.as_ref().is_none_or(|numbers| numbers.contains(&client.number)))
        .map(|(of, client)| (client.number, describe(client, shard_of(context, of), now)))
        .collect();
    lines.sort_unstable();
    let text: Vec<u8> = lines.into_iter().flat_map(|(_, line)| line).collect();
    context.reply.verbatim(&text);
    Ok(())
}

struct KillFilter {
    number: Option<u64>,
    address: Option<Vec<u8>>,
    local: Option<Vec<u8>>,
    kind: Option<fn(&Client) -> bool>,
    user: Option<Vec<u8>>,
    skip_me: bool,
}

impl KillFilter {
    fn fits(&self, client: &Client) -> bool {
        self.number.is_none_or(|number| client.number == number)
            && self.address.as_ref().is_none_or(|at| *at == client.peer.to_string().as_bytes())
            && self.local.as_ref().is_none_or(|at| *at == client.local.to_string().as_bytes())
            && self.kind.is_none_or(|kind| kind(client))
            && self.user.as_ref().is_none_or(|user| client.user == *user)
    }
}

fn kill_filter(arguments: &[&[u8]], known: impl Fn(&[u8]) -> bool) -> Result<KillFilter, Fault> {
    let mut filter =
        KillFilter { number: None, address: None, local: None, kind: None, user: None, skip_me: true };
    for pair in arguments.chunks(2) {
        let [word, value] = pair else {
            return Err(Fault::SYNTAX);
        };
        if is(word, "id") {
            let id = integer(value).ok().and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
            filter.number = Some(id.ok_or(Fault::of("ERR client-id should be greater than 0"))?);
        } else if is(word, "addr") {
            filter.address = Some(value.to_vec());
        } else if is(word, "laddr") {
            filter.local = Some(value.to_vec());
        } else if is(word, "type") {
            filter.kind = Some(type_filter(value)?);
        } else if is(word, "user") {
            if !known(value) {
                let mut text = b"ERR No such user '".to_vec();
                text.extend_from_slice(value);
                text.push(b'\'');
                return Err(Fault::new(text));
            }
            filter.user = Some(value.to_vec());
        } else if is(word, "skipme") && (is(value, "yes") || is(value, "no")) {
            filter.skip_me = is(value, "yes");
        } else {
            return Err(Fault::SYNTAX);
        }
    }
    Ok(filter)
}

fn kill(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let old_form = arguments.len() == 3;
    let filter = if old_form {
        let mut filter = kill_filter(&[], |_| false)?;
        filter.address = Some(arguments[2].to_vec());
        filter.skip_me = false;
        filter
    } else {
        kill_filter(&arguments[2..], |user| context.data.store_ref().users.get(user).is_some())?
    };
    let mut killed = 0;
    context.each_clients(|clients| {
        let doomed: Vec<ClientId> =
            clients.iter().filter(|client| filter.fits(client)).map(Client::id).collect();
        killed += doomed.len();
        doomed.into_iter().for_each(|id| clients.close(id, Closing::Now));
    });
    if !filter.skip_me && filter.fits(context.client) {
        context.client.closing = Closing::AfterOutput;
        killed += 1;
    }
    if !old_form {
        context.reply.count(killed);
    } else if killed > 0 {
        context.reply.ok();
    } else {
        return Err(Fault::of("ERR No such client"));
    }
    Ok(())
}

fn unblock(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let with_error = match arguments.get(3) {
        None => false,
        Some(word) if is(word, "timeout") => false,
        Some(word) if is(word, "error") => true,
        Some(_) => {
            return Err(Fault::of("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let number = integer(arguments[2])?;
    let is_meant = |client: &&Client| {
        // A client that waits for the end of a pause cannot be unblocked.
        let waits = client.blocked.as_ref().is_some_and(|blocked| {
            !blocked.keys.is_empty() || blocked.on_timeout == TimeoutReply::NoReplicas
        });
        client.number as i64 == number && waits
    };
    let mut found = false;
    context.each_clients(|clients| {
        let id = clients.iter().find(is_meant).map(Client::id);
        if let Some(id) = id {
            clients.unblock_requests.push((id, with_error));
            found = true;
        }
    });
    context.reply.integer(i64::from(found));
    Ok(())
}
