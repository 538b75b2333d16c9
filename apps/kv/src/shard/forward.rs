//! Commands whose keys another shard owns.
//!
//! 1. [`Shard::execute_placed`] decides where a command of a client runs (`shard/routing.rs`). A
//!    command that may not run now stays in the client's input.
//! 2. A forwarded command is checked as far as it concerns the client, and is queued for the owner
//!    of its keys. Its reply has a slot of the client
//!    (`clients/pending.rs`), so that replies keep the order of the
//!    commands.
//! 3. A client that waits for replies runs only commands that have keys on one shard. Anything else
//!    waits for the replies first.
//! 4. While a command in a section waits until all forwarded commands have run
//!    (`shard/exclusive.rs`), nothing is forwarded.
//! 5. After a large reply the owner holds the client's next commands. It goes on once the client
//!    has received what is before their replies, so a client that does not read has at most one
//!    large reply of each shard.
//! 6. The bytes of forwarded commands and of replies that wait count as output: a client with more
//!    than the soft limit runs nothing.

use super::Shard;
use super::execute::allowed_to_subscribers;
use super::messages::{Replies, RequestHead, first_reply};
use super::peers::Halt;
use super::routing::Route;
use super::{ClientId, Now};
use crate::clients::{Client, Closing, ReplyMode, WaitsFor};
use crate::commands::{Command, monitor_line};
use crate::foundation::command::{flag, subcommand};

impl Shard {
    /// Whether a client's next command may run, in a store of several shards.
    pub(super) fn may_run_placed(&self, client: &Client) -> bool {
        client.waits_for == WaitsFor::Nothing
            && self.peers.halt == Halt::No
            && client.output.pending() + client.pending.bytes_to_come()
                <= self.store.settings.output_soft_limit
    }

    /// Runs, queues, forwards or refuses one command. Returns false if it may not run yet: it stays
    /// in the client's input.
    pub(super) fn execute_placed(&mut self, client: &mut Client, arguments: &[&[u8]]) -> bool {
        if self.in_section() {
            return self.execute_in_section(client, arguments);
        }
        let Some((number, command)) = self.table.find(arguments[0]) else {
            self.execute_in_order(client, arguments);
            return true;
        };
        let route = self.route(client, number, command, arguments);
        if route != Route::Here && self.is_refused(client, number, command, arguments) {
            self.execute_in_order(client, arguments);
            return true;
        }
        if matches!(route, Route::Here | Route::Alone) && self.awaits_memory(client, command) {
            self.peers.halt = Halt::Memory;
            return false;
        }
        match route {
            Route::Here => self.execute_in_order(client, arguments),
            Route::Forward(_) if self.peers.draining => {
                client.waits_for = WaitsFor::Drained;
                self.note_halted(client.id);
                return false;
            }
            Route::Forward(owner) => self.forward(client, (number, command), owner, arguments),
            Route::Alone | Route::Section if !client.pending.is_empty() => {
                client.waits_for = WaitsFor::Replies;
                return false;
            }
            Route::Alone => self.execute(client, arguments),
            Route::Section => {
                client.waits_for = WaitsFor::Section;
                self.peers.section.push_back(client.id);
                return false;
            }
        }
        true
    }

    /// Whether a command that needs memory has to wait until keys of other shards are evicted.
    pub(super) fn awaits_memory(&self, client: &Client, command: &Command) -> bool {
        (command.spec.flags.has(flag::DENY_OOM) || self.holds_denied_command(client, command))
            && self.store.must_evict_elsewhere()
            && self.now.monotonic_ns >= self.peers.full_until
    }

    /// Whether a command is refused for what concerns its client.
    fn is_refused(&self, client: &Client, number: u16, command: &Command, arguments: &[&[u8]]) -> bool {
        self.authorize(client, number, command, arguments).is_err()
            || (client.monitor && self.touches_keys(client, &command.spec))
            || (client.is_subscriber() && !client.resp3 && !allowed_to_subscribers(command.spec.name))
    }

    /// Runs a command here. Its reply waits for those that other shards owe.
    fn execute_in_order(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        let start = client.output.bytes.len();
        self.execute(client, arguments);
        client.hold_back(start);
    }

    fn forward(
        &mut self,
        client: &mut Client,
        (number, command): (u16, &'static Command),
        owner: usize,
        arguments: &[&[u8]],
    ) {
        if self.clients.pause.is_some() && self.postpone(client, &command.spec) {
            return self.block_as_requested(client, arguments);
        }
        client.last_command = command.spec.name;
        client.last_subcommand = None;
        if self.table.is_container(number) {
            client.last_subcommand = subcommand(&command.spec, arguments);
        }
        let quiet = client.reply_mode != ReplyMode::On;
        if quiet {
            client.reply_mode = client.reply_mode.after_command();
        }
        let bytes = arguments.iter().map(|argument| argument.len()).sum();
        let head = RequestHead {
            client: client.id,
            ticket: client.pending.expect(bytes, owner),
            command: number,
            peer: client.peer,
            database: client.database,
            resp3: client.resp3,
            quiet,
        };
        self.peers.requests[owner].push(head, &client.name, arguments);
        self.peers.sent[owner] += 1;
        self.store.metrics.forwarded += 1;
        if self.clients.are_monitored() {
            let now_ns = self.now.monotonic_ns;
            if let Some(line) = monitor_line(client, &command.spec, self.now, arguments) {
                self.clients.send_to_all_monitors(&line, now_ns);
            }
        }
    }

    /// Gives replies to the clients that wait for them.
    pub fn accept_replies(&mut self, from: usize, replies: Replies, now: Now) {
        self.now = now;
        let mut rest = replies.bytes.as_slice();
        let mut current: Option<Box<Client>> = None;
        while let Some((envelope, reply, next)) = first_reply(rest) {
            rest = next;
            if current.as_ref().is_none_or(|client| client.id != envelope.client) {
                self.end_replies(current.take());
                current = self.clients.take(envelope.client);
            }
            // The client may have left, and its slot may be another's.
            let Some(client) = &mut current else {
                if envelope.holds {
                    self.peers.resume(from, envelope.client, true);
                }
                continue;
            };
            if envelope.holds {
                client.pending.note_held(from);
            }
            if client.closing == Closing::Now {
                continue;
            }
            if envelope.lost {
                // Unless the log has failed, it has more output than it may have.
                let is_first = client.closing == Closing::No && self.failed.is_none();
                self.store.metrics.output_limit_closed += u64::from(is_first);
                client.output.drop_held();
                client.closing = Closing::AfterOutput;
                client.pending.clear();
                continue;
            }
            client.pending.fulfil(envelope.ticket, reply, &mut client.output);
        }
        self.end_replies(current);
    }

    /// Puts a client back that has received replies, and lets it go on.
    fn end_replies(&mut self, client: Option<Box<Client>>) {
        let Some(mut client) = client else { return };
        if client.waits_for == WaitsFor::Replies && client.pending.is_empty() {
            client.waits_for = WaitsFor::Nothing;
        }
        if client.output.pending() <= self.store.settings.output_soft_limit {
            self.peers.resume_owner(&mut client);
        }
        // The event loop may read from the client again.
        if !client.output.releasable().is_empty() || client.pending.is_empty() {
            self.clients.note_ready(&mut client);
        }
        let id = client.id;
        let goes_on = client.closing == Closing::No
            && client.blocked.is_none()
            && client.waits_for == WaitsFor::Nothing
            && (!client.input.is_empty() || client.input_ended);
        self.put_back(client);
        if goes_on {
            self.clients.resume_later(id);
        }
    }

    /// Puts a command back in front of a client's input.
    pub(super) fn put_back_command(&mut self, client: &mut Client, arguments: &[&[u8]]) {
        let mut input = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            input.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            input.extend_from_slice(argument);
            input.extend_from_slice(b"\r\n");
        }
        input.append(&mut client.input);
        client.input = input;
    }

    /// Notes a client whose input waits until the shard runs commands again.
    pub(super) fn note_halted(&mut self, id: ClientId) {
        self.peers.halted.push(id);
    }
}
