//! Where a command runs, in a store of several shards.
//!
//! | route | commands |
//! | --- | --- |
//! | at once | all keys are this shard's |
//! | forwarded | all keys are another shard's |
//! | alone | it concerns the client itself; it waits for the replies of forwarded commands |
//! | section | keys of several shards, other clients, or a whole data set |
//!
//! A command that is refused whatever its keys are runs at once: its reply is the error.

use super::Shard;
use super::class::Class;
use crate::clients::Client;
use crate::commands::{Command, runs_inside};
use crate::foundation::command::{CommandSpec, Keys, is};

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Here, and at once.
    Here,
    /// Here, after all forwarded commands of the client.
    Alone,
    /// On another shard.
    Forward(usize),
    /// In an exclusive section.
    Section,
}

/// Commands after which clients may do less than before.
const RESTRICTING: [(&str, &str); 4] =
    [("client", "kill"), ("client", "pause"), ("acl", "setuser"), ("acl", "deluser")];

/// Subcommands of CLIENT that concern other clients.
const ABOUT_CLIENTS: [&str; 5] = ["list", "kill", "unblock", "pause", "unpause"];

impl Shard {
    /// Where a command of a client runs.
    pub(super) fn route(
        &self,
        client: &Client,
        number: u16,
        command: &Command,
        arguments: &[&[u8]],
    ) -> Route {
        let spec = &command.spec;
        if !spec.accepts(arguments.len()) || (client.in_transaction() && !runs_inside(spec.name)) {
            return Route::Here;
        }
        self.route_alone(client, number, command, arguments)
    }

    /// The same for a command that is not queued in a transaction.
    fn route_alone(&self, client: &Client, number: u16, command: &Command, arguments: &[&[u8]]) -> Route {
        let spec = &command.spec;
        match self.peers.classes[number as usize] {
            Class::Keyed => match spec.keys {
                Keys::Range(first, last, _) if first == last => match arguments.get(first as usize) {
                    Some(key) => self.route_to(self.placement.shard_of(key)),
                    // MEMORY STATS and its like; a subcommand of OBJECT without a key is an error.
                    None if spec.name == "memory" => Route::Section,
                    None => Route::Here,
                },
                _ => self.route_by_keys(spec, arguments),
            },
            Class::Bound => keep(self.route_by_keys(spec, arguments)),
            Class::Sort if arguments.iter().any(|word| is(word, "by") || is(word, "get")) => Route::Section,
            Class::Sort => self.route_by_keys(spec, arguments),
            Class::Client if ABOUT_CLIENTS.iter().any(|name| is(arguments[1], name)) => Route::Section,
            Class::Exec if !self.is_own_transaction(client) => Route::Section,
            Class::Client | Class::Exec | Class::Session => Route::Alone,
            Class::Global => Route::Section,
        }
    }

    /// Whether a command takes something from other clients that their forwarded commands need.
    pub(super) fn restricts_clients(&self, client: &Client, arguments: &[&[u8]]) -> bool {
        let Some((_, command)) = self.table.find(arguments[0]) else { return false };
        match (command.spec.name, &client.transaction) {
            ("exec", Some(transaction)) => transaction.queue.iter().any(|words| restricts(words)),
            _ => restricts(arguments),
        }
    }

    fn route_to(&self, owner: usize) -> Route {
        if owner == self.placement.own() { Route::Here } else { Route::Forward(owner) }
    }

    fn route_by_keys(&self, spec: &CommandSpec, arguments: &[&[u8]]) -> Route {
        let Some(positions) = spec.key_positions(arguments) else { return Route::Here };
        let mut owners = positions.iter().map(|&at| self.placement.shard_of(arguments[at]));
        match owners.next() {
            None => Route::Here,
            Some(first) if owners.all(|owner| owner == first) => self.route_to(first),
            Some(_) => Route::Section,
        }
    }

    /// Whether a transaction needs only what this shard has.
    fn is_own_transaction(&self, client: &Client) -> bool {
        let is_own = |words: &Vec<Vec<u8>>| {
            let arguments: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let Some((number, command)) = self.table.find(arguments[0]) else { return true };
            matches!(self.route_alone(client, number, command, &arguments), Route::Here | Route::Alone)
        };
        client.watches.keys().all(|(_, key)| self.placement.is_own(key))
            && client.transaction.iter().flat_map(|transaction| &transaction.queue).all(is_own)
    }
}

/// Whether a command alone restricts other clients. Other settings than the password concern no
/// command that its shard has forwarded: the owner of the keys checks it by its own settings.
fn restricts(words: &[impl AsRef<[u8]>]) -> bool {
    let [name, subcommand, rest @ ..] = words else { return false };
    let (name, subcommand) = (name.as_ref(), subcommand.as_ref());
    RESTRICTING.iter().any(|(container, of)| is(name, container) && is(subcommand, of))
        || (is(name, "config")
            && is(subcommand, "set")
            && rest.iter().step_by(2).any(|setting| is(setting.as_ref(), "requirepass")))
}

/// The route of a command that cannot be forwarded.
fn keep(route: Route) -> Route {
    match route {
        Route::Here => Route::Alone,
        _ => Route::Section,
    }
}
