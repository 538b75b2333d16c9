//! From bytes to replies.
//!
//! 1. [`Shard::receive`] parses where the bytes arrived: in the event loop's buffer if the client
//!    had no input left over, else in its own input buffer. Incomplete commands stay in that
//!    buffer.
//! 2. The whole commands of a pipeline are read first, and the memory that they will need is
//!    prefetched ([`crate::data::keyspace::Store::prefetch`]): the processor loads all of it at
//!    once instead of waiting for one access after the other.
//! 3. A client's commands run one after the other until its input is used up, it blocks, is to be
//!    closed, or has more output waiting than the soft limit.
//! 4. [`Shard::execute`] finds a command and refuses it if it may not run, in Redis' order of
//!    checks; inside MULTI it queues the command. [`Shard::call`] builds the [`Context`] and runs
//!    the handler. A command that is observed takes the way of `shard/observe.rs` there.

use super::Shard;
use super::peers::Halt;
use crate::acl::Denied;
use crate::clients::{Client, Closing, ReplyMode};
use crate::commands::{Command, Context, added_bytes, runs_inside};
use crate::data::keyspace::Data;
use crate::foundation::command::{flag, full_name, refuse_subcommand};
use crate::foundation::protocol::{
    Fault, Limits, Parser, PipelineBatch, Progress, ProtocolError, Reply, text_before_zero,
};

/// Arguments that fit on the stack; more need an allocation.
const STACK_ARGUMENTS: usize = 16;
/// Input that is kept allocated for a client between its commands.
const KEPT_INPUT: usize = 16 << 10;
/// Bytes of arguments shown for an unknown command.
const SHOWN_ARGUMENTS: usize = 128;

impl Shard {
    /// Whether a client's next command may run.
    pub(super) fn may_run(&self, client: &Client) -> bool {
        client.blocked.is_none()
            && client.closing == Closing::No
            && client.output.pending() <= self.store.settings.output_soft_limit
            && (!self.peers.any || self.may_run_placed(client))
    }

    /// Takes bytes from a client and runs what is complete.
    pub(super) fn receive(&mut self, client: &mut Client, bytes: &[u8]) {
        let mut parser = std::mem::take(&mut client.parser);
        if client.input.is_empty() {
            let used = self.run_input(client, &mut parser, bytes);
            if used < bytes.len() && client.closing == Closing::No {
                let rest = &bytes[used..];
                let room = parser.missing(rest.len()).min(rest.len().max(KEPT_INPUT));
                client.input.reserve(rest.len() + room);
                client.input.extend_from_slice(rest);
            }
        } else {
            let mut input = std::mem::take(&mut client.input);
            input.extend_from_slice(bytes);
            let used = self.run_input(client, &mut parser, &input);
            input.drain(..used);
            if input.is_empty() {
                input.shrink_to(KEPT_INPUT);
            }
            client.input = input;
        }
        client.parser = parser;
        if client.input.len() as u64 > self.store.settings.client_query_buffer_limit {
            self.store.metrics.query_limit_closed += 1;
            client.closing = Closing::Now;
        }
        if self.peers.any && self.peers.halt != Halt::No && !client.input.is_empty() {
            self.note_halted(client.id);
        }
        if client.closing != Closing::No {
            client.input = Vec::new();
        } else if client.input_ended && self.may_run(client) {
            client.closing = Closing::AfterOutput;
        }
    }

    /// Runs the complete commands in `input` as far as they may run; the bytes used.
    fn run_input(&mut self, client: &mut Client, parser: &mut Parser, input: &[u8]) -> usize {
        client.reading = input.len();
        let mut used = 0;
        while used < input.len() && self.may_run(client) {
            if parser.is_between_commands() {
                let ran = self.run_batch(client, &input[used..]);
                if ran > 0 {
                    used += ran;
                    continue;
                }
                if !self.may_run(client) {
                    break;
                }
            }
            // The command before may have been AUTH.
            match parser.next(&input[used..], self.limits(client)) {
                Ok(Progress::More) => break,
                Ok(Progress::Nothing(length)) => used += length,
                Ok(Progress::Command(length)) => {
                    if !self.run_arguments(client, parser, &input[used..]) {
                        break;
                    }
                    used += length;
                }
                Err(error) => {
                    self.refuse_protocol(client, &error);
                    client.reading = 0;
                    return input.len();
                }
            }
        }
        client.reading = 0;
        used
    }

    /// What a client may send: little, until it is authenticated.
    fn limits(&self, client: &Client) -> Limits {
        let known = client.authenticated || self.store.users.admits_unauthenticated();
        Limits { bulk: self.store.settings.proto_max_bulk_len, authenticated: known }
    }

    /// Runs at most one batch of ordinary commands at the beginning of `input` and returns the
    /// bytes used. The first one may run.
    fn run_batch(&mut self, client: &mut Client, input: &[u8]) -> usize {
        let mut batch = PipelineBatch::new();
        batch.read(input);
        if batch.len() > 1 {
            let keys = batch.commands().filter_map(|(arguments, _)| arguments.get(1));
            self.store.prefetch(client.database, keys);
        }
        let mut used = 0;
        for (arguments, end) in batch.commands() {
            if used > 0 && !self.may_run(client) {
                break;
            }
            if !self.peers.any {
                self.execute(client, arguments);
            } else if !self.execute_placed(client, arguments) {
                break;
            }
            self.serve_others(client);
            used = end;
        }
        used
    }

    fn refuse_protocol(&mut self, client: &mut Client, error: &ProtocolError) {
        self.store.metrics.protocol_errors += 1;
        let fault = Fault::new(error.0.as_str());
        let start = client.output.bytes.len();
        self.reply_fault(client, &fault);
        client.hold_back(start);
        client.closing = Closing::AfterOutput;
    }

    /// Runs the command that the parser has found; false if it may not run yet.
    fn run_arguments(&mut self, client: &mut Client, parser: &Parser, input: &[u8]) -> bool {
        let arguments = parser.arguments(input);
        let count = arguments.len();
        if count <= STACK_ARGUMENTS {
            let mut stack: [&[u8]; STACK_ARGUMENTS] = [&[]; STACK_ARGUMENTS];
            for (slot, argument) in stack.iter_mut().zip(arguments.iter()) {
                *slot = argument;
            }
            self.execute_anywhere(client, &stack[..count])
        } else {
            let heap: Vec<&[u8]> = arguments.iter().collect();
            self.execute_anywhere(client, &heap)
        }
    }

    /// Runs a command, wherever its keys are; false if it may not run yet.
    fn execute_anywhere(&mut self, client: &mut Client, arguments: &[&[u8]]) -> bool {
        if !self.peers.any {
            self.execute(client, arguments);
        } else if !self.execute_placed(client, arguments) {
            return false;
        }
        self.serve_others(client);
        true
    }

    /// Runs a command that has been postponed, with all checks.
    pub(super) fn execute_again(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        if !self.peers.any {
            self.execute(client, arguments);
        } else if !self.execute_placed(client, arguments) {
            self.put_back_command(client, arguments);
        }
    }

    /// Serves clients that wait for keys which this client has just changed.
    fn serve_others(&mut self, client: &mut Client) {
        if !self.store.has_ready() && !self.clients.has_unblock_requests() {
            return;
        }
        // In an exclusive section the other shards are needed for it.
        if self.in_section() {
            return;
        }
        // The client being served is not blocked on what it changed itself, unless it blocked just
        // now. It is then served after it has been put back.
        if client.blocked.is_none() {
            self.serve_ready();
        }
    }

    /// Puts a client back after it was served.
    pub(super) fn put_back(&mut self, mut client: Box<Client>) {
        self.clients.check_output(&mut client, self.now.monotonic_ns);
        self.store.metrics.output_limit_closed += std::mem::take(&mut self.clients.overflowed);
        if client.output.is_held() {
            self.clients.note_output(&mut client);
        }
        if client.closing != Closing::No {
            self.clients.note_ready(&mut client);
        }
        let memory = client.memory();
        self.store.client_bytes = self.store.client_bytes + memory - client.charged;
        client.charged = memory;
        let used = self.store.used_memory();
        self.store.metrics.peak_memory = self.store.metrics.peak_memory.max(used);
        self.store.most_used = self.store.most_used.max(used);
        self.clients.put(client);
    }

    /// Appends an error to a client's output.
    fn reply_fault(&mut self, client: &mut Client, fault: &Fault) {
        self.store.metrics.count_error(fault.code());
        if matches!(client.reply_mode, ReplyMode::On) {
            let mut reply = Reply::new(std::mem::take(&mut client.output.bytes), client.resp3);
            reply.error(fault);
            client.output.bytes = reply.bytes;
        }
        if client.reply_mode == ReplyMode::SkipNext {
            client.reply_mode = ReplyMode::On;
        }
    }

    /// Refuses a command before it runs; a transaction it was meant for must fail.
    pub(super) fn reject(&mut self, client: &mut Client, number: Option<u16>, fault: &Fault) {
        if let Some(transaction) = client.transaction.as_mut() {
            transaction.broken = true;
        }
        if let Some(number) = number {
            self.store.metrics.by_command[number as usize].rejected += 1;
        }
        self.reply_fault(client, fault);
    }

    /// Runs, queues or refuses one command.
    pub(super) fn execute(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        let Some((number, command)) = self.table.find(arguments[0]) else {
            if is_http(arguments[0]) {
                self.store.metrics.http_closed += 1;
                client.closing = Closing::Now;
                return;
            }
            let fault = unknown(arguments);
            return self.reject(client, None, &fault);
        };
        if !command.spec.accepts(arguments.len()) {
            let mut fault = Fault::arity(command.spec.name);
            if command.spec.name == "exec" {
                fault = self.abort_transaction(client, &fault);
            }
            return self.reject(client, Some(number), &fault);
        }
        if let Err(fault) = self.authorize(client, number, command, arguments) {
            return self.reject(client, Some(number), &fault);
        }
        if let Err(fault) = self.admit(client, command, arguments) {
            // As in Redis, outside a transaction, too.
            if command.spec.name == "exec" {
                let fault = self.abort_transaction(client, &fault);
                return self.reject(client, Some(number), &fault);
            }
            return self.reject(client, Some(number), &fault);
        }
        if client.in_transaction() && !runs_inside(command.spec.name) {
            if command.spec.flags.has(flag::NO_MULTI) {
                let fault = Fault::of("ERR Command not allowed inside a transaction");
                return self.reject(client, Some(number), &fault);
            }
            if let Some(fault) = refuse_subcommand(&command.spec, arguments) {
                return self.reject(client, Some(number), &fault);
            }
            if !self.postpone(client, &command.spec) {
                return self.queue(client, arguments);
            }
        } else {
            client.last_command = command.spec.name;
            if self.observed[number as usize] {
                self.execute_observed(client, number, command, arguments);
            } else {
                client.last_subcommand = None;
                self.call(client, command, |context| context.run(number, arguments));
            }
        }
        if client.block_request.is_some() {
            self.block_as_requested(client, arguments);
        }
    }

    /// Blocks the client, as its command has requested.
    #[cold]
    pub(super) fn block_as_requested(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        if let Some(mut blocked) = client.block_request.take() {
            blocked.arguments = arguments.iter().map(|argument| argument.to_vec()).collect();
            self.block(client, blocked);
        }
    }

    /// Whether the client is authenticated, and its user may run this.
    #[inline(always)]
    pub(super) fn authorize(
        &self,
        client: &Client,
        number: u16,
        command: &Command,
        arguments: &[&[u8]],
    ) -> Result<(), Fault> {
        let users = &self.store.users;
        if users.is_open() {
            return Ok(());
        }
        if !client.authenticated && !users.admits_unauthenticated() && !command.spec.flags.has(flag::NO_AUTH)
        {
            return Err(Fault::NOT_AUTHENTICATED);
        }
        let user = users.get(&client.user).ok_or(Fault::NOT_AUTHENTICATED)?;
        user.permit(number, &command.spec, arguments).map_err(Denied::fault)
    }

    /// Redis' checks between the arity of a command and its execution.
    #[inline]
    pub(super) fn admit(
        &mut self,
        client: &Client,
        command: &Command,
        arguments: &[&[u8]],
    ) -> Result<(), Fault> {
        if self.store.settings.maxmemory > 0
            && !self.make_room()
            && (command.spec.flags.has(flag::DENY_OOM) || self.holds_denied_command(client, command))
        {
            return Err(Fault::OUT_OF_MEMORY);
        }
        if self.restricted {
            self.admit_restricted(client, command)?;
        }
        if command.spec.name == "exec" && self.store.most_dumped != u64::MAX {
            self.admit_transaction(client)?;
        }
        if client.is_subscriber() && !client.resp3 && !allowed_to_subscribers(command.spec.name) {
            return Err(refuse_subcommand(&command.spec, arguments).unwrap_or_else(|| {
                Fault::new(format!(
                    "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                    full_name(&command.spec, arguments)
                ))
            }));
        }
        Ok(())
    }

    /// Refuses what a failed or a full log forbids.
    #[cold]
    fn admit_restricted(&self, client: &Client, command: &Command) -> Result<(), Fault> {
        if let Some(reason) = &self.failed
            && command.spec.flags.has(flag::WRITE)
        {
            return Err(Fault::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
        }
        if let Some(reason) = &self.failed
            && self.unlogged
            && command.spec.flags.has(flag::READONLY)
        {
            return Err(Fault::new(format!(
                "MISCONF the log has failed, and a restart undoes what was not acknowledged: {reason}"
            )));
        }
        if let Some(reason) = &self.full
            && (command.spec.flags.has(flag::DENY_OOM) || self.holds_denied_command(client, command))
        {
            return Err(Fault::new(format!("MISCONF {reason}")));
        }
        Ok(())
    }

    /// Refuses a transaction that adds more than the log's area has room for. A single command is
    /// checked when it runs.
    fn admit_transaction(&mut self, client: &Client) -> Result<(), Fault> {
        let Some(transaction) = &client.transaction else { return Ok(()) };
        let data = Data::new(&mut self.store, client.database, self.now);
        let added = transaction.queue.iter().map(|queued| {
            let arguments: Vec<&[u8]> = queued.iter().map(Vec::as_slice).collect();
            let found = self.table.find(arguments[0]).filter(|(number, _)| self.table.may_grow(*number));
            found.map_or(0, |(_, command)| added_bytes(&data, &command.spec, &arguments))
        });
        data.admit(added.fold(0, usize::saturating_add))
    }

    /// Whether this is an EXEC of a transaction with a command that memory forbids.
    pub(super) fn holds_denied_command(&self, client: &Client, command: &Command) -> bool {
        command.spec.name == "exec"
            && client.transaction.as_ref().is_some_and(|transaction| {
                transaction.queue.iter().any(|arguments| {
                    self.table
                        .find(&arguments[0])
                        .is_some_and(|(_, command)| command.spec.flags.has(flag::DENY_OOM))
                })
            })
    }

    /// Drops a transaction whose EXEC may not run, and returns the error.
    fn abort_transaction(&mut self, client: &mut Client, reason: &Fault) -> Fault {
        client.transaction = None;
        client.unwatch_all(&mut self.store);
        let mut text = b"EXECABORT Transaction discarded because of: ".to_vec();
        text.extend_from_slice(reason.0.strip_prefix(b"ERR ").unwrap_or(&reason.0));
        Fault::new(text)
    }

    fn queue(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        let limit = self.store.settings.client_query_buffer_limit;
        let bytes: usize = arguments.iter().map(|argument| argument.len() + 32).sum();
        if let Some(transaction) = client.transaction.as_mut() {
            transaction.bytes += bytes;
            if transaction.bytes as u64 > limit {
                self.store.metrics.query_limit_closed += 1;
                client.closing = Closing::Now;
                return;
            }
            transaction.queue.push(arguments.iter().map(|argument| argument.to_vec()).collect());
        }
        if matches!(client.reply_mode, ReplyMode::On) {
            client.output.bytes.extend_from_slice(b"+QUEUED\r\n");
        }
    }

    /// Runs a handler for a client, by `run`.
    #[inline]
    pub(super) fn call(
        &mut self,
        client: &mut Client,
        command: &'static Command,
        run: impl FnOnce(&mut Context<'_>),
    ) {
        let start = client.output.bytes.len();
        let reply = Reply::new(std::mem::take(&mut client.output.bytes), client.resp3);
        let database = client.database;
        let mut context = Context {
            data: Data::new(&mut self.store, database, self.now),
            reply,
            random: &mut self.random,
            client,
            clients: &mut self.clients,
            others: &mut self.guests,
            table: &self.table,
            command,
            failed: self.failed.as_deref(),
            unlogged: self.unlogged,
            pushed: Vec::new(),
            must_not_block: false,
        };
        run(&mut context);
        let Context { reply: Reply { mut bytes, .. }, pushed, .. } = context;
        if client.reply_mode != ReplyMode::On {
            suppress_reply(client, &mut bytes, start, &pushed);
        }
        client.output.bytes = bytes;
    }
}

/// Drops the reply that begins at `start`, except messages about subscriptions, for a client whose
/// replies are turned off.
#[cold]
fn suppress_reply(client: &mut Client, bytes: &mut Vec<u8>, start: usize, pushed: &[u8]) {
    bytes.truncate(start);
    bytes.extend_from_slice(pushed);
    client.reply_mode = client.reply_mode.after_command();
}

/// Whether this begins a line of HTTP. Another site may have made a browser send it (cross-protocol
/// request forgery), so what follows must not run.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

pub(super) fn allowed_to_subscribers(name: &str) -> bool {
    matches!(
        name,
        "ping"
            | "subscribe"
            | "ssubscribe"
            | "psubscribe"
            | "unsubscribe"
            | "sunsubscribe"
            | "punsubscribe"
            | "quit"
            | "reset"
    )
}

/// The error for an unknown command, with the beginning of its arguments.
fn unknown(arguments: &[&[u8]]) -> Fault {
    let mut shown = Vec::new();
    for argument in &arguments[1..] {
        if shown.len() >= SHOWN_ARGUMENTS {
            break;
        }
        let room = SHOWN_ARGUMENTS - shown.len();
        shown.push(b'\'');
        shown.extend_from_slice(text_before_zero(argument, room));
        shown.extend_from_slice(b"' ");
    }
    let name = text_before_zero(arguments[0], SHOWN_ARGUMENTS);
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(name);
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend_from_slice(&shown);
    Fault::new(text)
}
