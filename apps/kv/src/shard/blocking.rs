//! Clients that wait for a key.
//!
//! 1. A handler that finds nothing requests to block. The client joins the queue of each of its
//!    keys, with its command; later input stays in its input buffer.
//! 2. A change of such a key queues the key as ready. After each command (a transaction is one) the
//!    ready keys are served in order: the command of the oldest waiter is run again. If it still
//!    finds nothing, the client stays in its queues. Otherwise it has its reply, and its input is
//!    processed.
//!    The rules of its user may have changed since: they are checked again, and a command that they
//!    refuse now ends with their error, as in Redis 7.2 (7.0 runs it).
//!    With several shards, a client that needs other shards is served in an exclusive section, and
//!    only if the value is of the type that it waits for.
//! 3. A deadline answers with the command's timeout reply.
//! 4. CLIENT PAUSE postpones commands: their clients are blocked until it ends, and the commands
//!    run then, with all checks. After each of them the clients are served that wait for a key
//!    which it has changed, as after any command.

use super::Shard;
use super::peers::Halt;
use crate::clients::{Blocked, Client, Closing, ReplyMode, TimeoutReply};
use crate::data::keyspace::{Data, DatabaseKey, Waiter};
use crate::foundation::client_id::ClientId;
use crate::foundation::protocol::{Fault, Reply};

/// The reply to a client that CLIENT UNBLOCK ends with ERROR.
const UNBLOCKED: Fault = Fault::of("UNBLOCKED client unblocked via CLIENT UNBLOCK");

impl Shard {
    /// Blocks a client.
    pub(super) fn block(&mut self, client: &mut Client, mut blocked: Blocked) {
        blocked.shared = self.in_section();
        self.clients.waits += 1;
        blocked.number = self.clients.waits;
        self.store.client_bytes += blocked.bytes();
        for database_key in &blocked.keys {
            self.store.wait(database_key.clone(), client.id, (blocked.type_name, blocked.number));
        }
        if let Some(deadline) = blocked.deadline {
            self.clients.deadlines.insert((deadline, client.id));
        }
        if blocked.is_postponed() {
            self.clients.postponed.push(client.id);
        } else {
            self.clients.blocked += 1;
        }
        client.blocked = Some(blocked);
    }

    /// Takes a client out of all queues and returns what it waited for.
    pub(super) fn unblock(&mut self, client: &mut Client) -> Option<Blocked> {
        let blocked = client.blocked.take()?;
        self.store.client_bytes -= blocked.bytes();
        for database_key in &blocked.keys {
            self.store.end_wait(database_key, client.id);
        }
        if let Some(deadline) = blocked.deadline {
            self.clients.deadlines.remove(&(deadline, client.id));
        }
        if blocked.is_postponed() {
            self.clients.postponed.retain(|&id| id != client.id);
        } else {
            self.clients.blocked -= 1;
        }
        if blocked.on_timeout == TimeoutReply::NoReplicas {
            self.clients.syncing.retain(|&(_, id)| id != client.id);
        }
        Some(blocked)
    }

    /// Serves the clients that wait for changed keys.
    pub(super) fn serve_ready(&mut self) {
        while self.store.has_ready() || self.clients.has_unblock_requests() {
            self.serve_unblock_requests();
            if self.peers.any && self.needs_section() {
                self.peers.halt = Halt::Ready;
                return;
            }
            let Some(database_key) = self.store.pop_ready() else {
                self.serve_released();
                continue;
            };
            for waiter in self.store.waiters(&database_key) {
                let now = self.now;
                if !Data::new(&mut self.store, database_key.0, now).exists(&database_key.1) {
                    break;
                }
                let found = self.store.find(database_key.0, &database_key.1);
                if found.map(|entry| entry.value().type_name()) != Some(waiter.type_name) {
                    continue;
                }
                let Some(mut client) = self.clients.take(waiter.client) else {
                    continue;
                };
                self.retry(&mut client);
                self.put_back(client);
            }
        }
    }

    /// Ends the waits that CLIENT UNBLOCK has named.
    pub(super) fn serve_unblock_requests(&mut self) {
        if self.clients.unblock_requests.is_empty() {
            return;
        }
        for (id, with_error) in std::mem::take(&mut self.clients.unblock_requests) {
            self.end_block(id, with_error.then_some(&UNBLOCKED));
        }
    }

    /// Runs the oldest command that was postponed and may run now.
    pub(super) fn serve_released(&mut self) {
        if let Some(id) = self.clients.released.pop_front() {
            self.end_block(id, None);
        }
    }

    /// Whether a changed key can serve a client whose command needs other shards.
    fn needs_section(&self) -> bool {
        self.store.ready_waiters().any(|waiter| self.needs_others(&waiter))
    }

    /// Whether the command of a client that waits needs other shards.
    fn needs_others(&self, waiter: &Waiter) -> bool {
        let shared = |client: &Client| client.blocked.as_ref().is_some_and(|blocked| blocked.shared);
        waiter.shard != self.placement.own() || self.clients.get(waiter.client).is_some_and(shared)
    }

    /// Runs the command of a client that waits for this key again, in an exclusive section, if the
    /// value is of the type that it waits for. Returns whether the key is still there.
    pub(super) fn retry_in_section(&mut self, ready: &DatabaseKey, waiter: &Waiter) -> bool {
        let ((database, key), now) = (ready, self.now);
        if !Data::new(&mut self.store, *database, now).exists(key) {
            return false;
        }
        let found = self.store.find(*database, key);
        if found.map(|entry| entry.value().type_name()) != Some(waiter.type_name) {
            return true;
        }
        // It may have stopped to wait for the key, and may even wait for something else. Its keys
        // are not compared: there may be many.
        let waits =
            |client: &Client| client.blocked.as_ref().is_some_and(|blocked| blocked.number == waiter.number);
        if self.clients.get(waiter.client).is_some_and(waits)
            && let Some(mut client) = self.clients.take(waiter.client)
        {
            self.retry(&mut client);
            self.put_back(client);
        }
        true
    }

    /// Runs a blocked client's command again.
    pub(super) fn retry(&mut self, client: &mut Client) {
        let Some(blocked) = client.blocked.as_ref() else {
            return;
        };
        if client.closing != Closing::No {
            self.unblock(client);
            return;
        }
        let arguments = blocked.arguments.clone();
        let borrowed: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let Some((number, command)) = self.table.find(borrowed[0]) else {
            return;
        };
        if let Err(fault) = self.authorize(client, number, command, &borrowed) {
            self.reject(client, Some(number), &fault);
        } else if self.observed[number as usize] {
            self.call(client, command, |context| context.run_observed_again(number, &borrowed));
        } else {
            self.call(client, command, |context| context.run(number, &borrowed));
        }
        if client.block_request.take().is_none() {
            self.unblock(client);
            self.resume(client);
        }
    }

    /// Answers blocked clients whose time is over.
    pub(super) fn time_out_blocked(&mut self) {
        while let Some(&(deadline, id)) = self.clients.deadlines.first()
            && deadline <= self.now.monotonic_ns
        {
            self.clients.deadlines.pop_first();
            // All clients that a pause has postponed have its end as their deadline. They run in
            // the order of their arrival.
            let is_postponed = |client: &Client| client.blocked.as_ref().is_some_and(Blocked::is_postponed);
            if self.clients.get(id).is_some_and(is_postponed) {
                self.clients.release_postponed();
            } else {
                self.end_block(id, None);
            }
        }
    }

    /// Unblocks a client with its timeout reply, or with an error.
    pub(super) fn end_block(&mut self, id: ClientId, error: Option<&Fault>) {
        let Some(mut client) = self.clients.take(id) else {
            return;
        };
        if let Some(blocked) = self.unblock(&mut client) {
            if blocked.is_postponed() && client.closing == Closing::No {
                let arguments: Vec<&[u8]> = blocked.arguments.iter().map(Vec::as_slice).collect();
                self.execute_again(&mut client, &arguments);
            }
            let mut reply = Reply::new(std::mem::take(&mut client.output.bytes), client.resp3);
            match error {
                _ if client.reply_mode != ReplyMode::On => {}
                Some(fault) => reply.error(fault),
                None => blocked.on_timeout.write(&mut reply),
            }
            client.output.bytes = reply.bytes;
            self.clients.note_output(&mut client);
            self.resume(&mut client);
        }
        self.put_back(client);
    }

    /// Schedules the input of a client that no longer waits for the next tick.
    fn resume(&mut self, client: &mut Client) {
        let waits = client.blocked.is_some();
        if !waits && (!client.input.is_empty() || client.input_ended) && !client.resumable {
            client.resumable = true;
            self.clients.push_resumable(client.id);
        }
    }
}
