//! A command with its handler, the table of all commands, and the context in which a handler runs.
//!
//! The shard finds a row in the [`Table`] and calls [`Context::run`], for each command and again
//! for the commands of a transaction. `run` counts the call and turns a fault into the reply.

use sietch_structures::XorShift64Star;

use crate::clients::{Client, Clients, ReplyMode, TimeoutReply};
use crate::data::keyspace::{Data, Store};
use crate::data::value;
use crate::foundation::command::{CommandSpec, Flags, Keys, Names, refused_subcommand, subcommands};
use crate::foundation::observation::key_events::EventClasses;
use crate::foundation::protocol::{Fault, Reply};

/// The result of a handler: `Ok` after exactly one reply, or the error that is the reply.
pub(crate) type Outcome = Result<(), Fault>;

/// Runs one command.
pub(crate) type Handler = fn(&mut Context<'_>, &[&[u8]]) -> Outcome;

/// One row of the command table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Command {
    /// The description of the command.
    pub spec: CommandSpec,
    /// Runs it.
    pub handler: Handler,
}

impl Command {
    /// A row of the table.
    pub(crate) const fn new(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        group: &'static str,
        handler: Handler,
    ) -> Self {
        Self { spec: CommandSpec { name, arity, flags, keys, group }, handler }
    }
}

/// The command table: rows by number, and numbers by name.
pub(crate) struct Table {
    names: Names,
    commands: Vec<&'static Command>,
    /// By number: whether the command's arguments may stay in the data set.
    may_grow: Vec<bool>,
    /// By number: whether it has subcommands.
    containers: Vec<bool>,
}

impl Table {
    /// The table of these rows, which are numbered in their order.
    pub(crate) fn new(commands: Vec<&'static Command>) -> Self {
        let names = Names::new(commands.iter().map(|command| command.spec.name).collect());
        let may_grow = commands.iter().map(|command| command.spec.may_grow()).collect();
        let containers = commands.iter().map(|command| subcommands(&command.spec).next().is_some()).collect();
        Self { names, commands, may_grow, containers }
    }

    /// The number and the row of this name, in any case.
    #[inline(always)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<(u16, &'static Command)> {
        let number = self.names.find(name)?;
        Some((number, self.commands[number as usize]))
    }

    /// All rows, by their numbers.
    pub(crate) fn commands(&self) -> &[&'static Command] {
        &self.commands
    }

    /// Whether this row has subcommands.
    pub(crate) fn is_container(&self, number: u16) -> bool {
        self.containers[number as usize]
    }

    /// Whether the arguments of a command of this row may stay in the data set.
    pub(crate) fn may_grow(&self, number: u16) -> bool {
        self.may_grow[number as usize]
    }
}

/// Most bytes that the arguments of a command add to the data set: as if each were a key or an
/// element of its own.
pub(crate) fn added_bytes(data: &Data<'_>, command: &CommandSpec, arguments: &[&[u8]]) -> usize {
    let given: usize =
        arguments[1..].iter().map(|argument| value::argument(argument.len()) + value::EFFECT_HEAD).sum();
    // The new value of a string replaces the old one.
    match command.name {
        "set" | "getset" | "setex" | "psetex" => given.saturating_sub(data.dumped(arguments[1])),
        _ => given,
    }
}

/// The other shards of the store, in their order, as a command that concerns all of them sees them.
/// Their keys are in the store of the shard that runs the command.
pub(crate) trait Others {
    /// How many.
    fn count(&self) -> usize;
    /// One of them: all but its keys.
    fn store(&self, number: usize) -> &Store;
    /// The same, to be changed.
    fn store_mut(&mut self, number: usize) -> &mut Store;
    /// Its clients.
    fn clients(&self, number: usize) -> &Clients;
    /// The same, to be changed.
    fn clients_mut(&mut self, number: usize) -> &mut Clients;
}

/// The part of the shard that a handler works on.
pub(crate) struct Context<'a> {
    /// The selected database, the journal, the clock reading of this batch.
    pub data: Data<'a>,
    /// Where the reply goes.
    pub reply: Reply,
    /// Source of random words, beside `data` so that it can be used while a value is borrowed.
    pub random: &'a mut XorShift64Star,
    /// The client that sent the command. It is not among `clients` meanwhile.
    pub client: &'a mut Client,
    /// All other clients of this shard, and their subscriptions.
    pub clients: &'a mut Clients,
    /// The other shards, during an exclusive section. There are none at other times.
    pub others: &'a mut dyn Others,
    /// The command table.
    pub table: &'a Table,
    /// The row of the command that runs.
    pub command: &'static Command,
    /// Why the log failed, if it has: commands that write are refused.
    pub failed: Option<&'a str>,
    /// Whether the data set holds writes that the failed log lacks: commands that read are refused,
    /// too.
    pub unlogged: bool,
    /// Messages about subscriptions, for a client whose replies are turned off: it gets these
    /// nevertheless.
    pub pushed: Vec<u8>,
    /// Whether the command runs inside EXEC (or a replay) and must not block.
    pub must_not_block: bool,
}

impl Context<'_> {
    /// Marks the reply from `start` on as a message about subscriptions, which is sent even if
    /// replies are turned off.
    pub(crate) fn push(&mut self, start: usize) {
        if !matches!(self.client.reply_mode, ReplyMode::On) {
            self.pushed.extend_from_slice(&self.reply.bytes[start..]);
        }
    }

    /// Notes an event of a key, for the clients that subscribe to such events. It must precede
    /// `data.changed`, which notes the deletion of a key that has become empty.
    #[inline]
    pub(crate) fn notify(&mut self, class: EventClasses, name: &'static str, key: &[u8]) {
        let database = self.data.database();
        self.data.store().observation.events.note(class, name, database, key);
    }

    /// Blocks the client on `keys` for `timeout_ms` (0: for ever); see `commands.rs`.
    ///
    /// # Errors
    /// None; it returns [`Outcome`] so that a handler can end with it.
    pub(crate) fn block(&mut self, keys: &[&[u8]], timeout_ms: u64, on_timeout: TimeoutReply) -> Outcome {
        if self.must_not_block {
            on_timeout.write(&mut self.reply);
            return Ok(());
        }
        let now = self.data.now().monotonic_ns;
        let deadline = (timeout_ms > 0).then(|| now.saturating_add(timeout_ms.saturating_mul(1_000_000)));
        self.client.want_block(keys, self.data.database(), deadline, on_timeout);
        Ok(())
    }

    /// Blocks the client until one of `keys` has a value of this type, which TYPE shows as
    /// `type_name`, or for `timeout_ms` (0: for ever).
    ///
    /// # Errors
    /// None, as [`Context::block`].
    pub(crate) fn block_for(&mut self, type_name: &'static str, keys: &[&[u8]], timeout_ms: u64) -> Outcome {
        self.block(keys, timeout_ms, TimeoutReply::NilArray)?;
        if let Some(request) = &mut self.client.block_request {
            request.type_name = type_name;
        }
        Ok(())
    }

    /// The error for a subcommand that the command does not have, or not with these arguments.
    pub(crate) fn subcommand_fault(&self, arguments: &[&[u8]]) -> Fault {
        refused_subcommand(&self.command.spec, arguments)
    }

    /// Runs the handler of `self.command`, counts the call, and replies with its fault if there is
    /// one.
    pub(crate) fn run(&mut self, number: u16, arguments: &[&[u8]]) {
        let start = self.reply.bytes.len();
        let outcome = self.admit(number, arguments).and_then(|()| (self.command.handler)(self, arguments));
        let metrics = &mut self.data.store().metrics;
        metrics.commands += 1;
        let count = &mut metrics.by_command[number as usize];
        count.calls += 1;
        if let Err(fault) = outcome {
            count.failed += 1;
            metrics.count_error(fault.code());
            self.reply.bytes.truncate(start);
            self.reply.error(&fault);
        }
    }

    /// Refuses a command that adds more than the log's area has room for.
    #[inline]
    fn admit(&self, number: u16, arguments: &[&[u8]]) -> Outcome {
        if self.data.store_ref().most_dumped == u64::MAX || !self.table.may_grow(number) {
            return Ok(());
        }
        self.data.admit(added_bytes(&self.data, &self.command.spec, arguments))
    }
}
