//! Commands of other shards' clients.
//!
//! 1. A command runs in the place of its client with a *proxy*, a client without a connection, one
//!    for each other shard. The sender has checked what concerns the client: permissions,
//!    subscriptions, pauses. What concerns the data is checked here: memory, the state of the log.
//! 2. Replies go to the proxy's output, each behind its envelope. The output is sealed and released
//!    as that of any client is, so a reply leaves only once what it shows is durable.
//! 3. An iteration runs a bounded number of such commands, and none while many bytes of replies
//!    wait for their shard. The others stay in the inbox.
//! 4. A reply of [`HELD_FROM`](super::proxy) bytes says that the next commands of its client are
//!    *held*: nothing is known of the size of their replies. They run when the client's shard says
//!    that the client has room, or has gone.
//! 5. If the log fails, the replies that were held are lost. An envelope without a reply says so,
//!    and the sender closes the client, as it closes its own.
//! 6. While a section waits until all commands have run (`shard/exclusive.rs`), none is held. They
//!    all run; replies to a client beyond its soft limit are lost, so that one that does not read
//!    does not fill the memory.

use super::Shard;
use super::messages::{RESUME, RequestHead, Requests};
use super::peers::Halt;
use super::proxy::Proxy;

/// Commands whose memory is prefetched at a time.
const AHEAD: usize = 16;
/// Commands of other shards that run in one iteration.
const COMMANDS: usize = 4096;
impl Shard {
    /// Whether a command of another shard waits, and may run.
    pub(super) fn has_runnable_request(&self) -> bool {
        let room = |&(from, _): &(usize, _)| self.peers.proxies[from].has_room();
        self.peers.halt == Halt::No && self.peers.inbox.front().is_some_and(room)
    }

    /// Runs commands of other shards, as far as they may run and an iteration may take.
    pub(super) fn run_inbox(&mut self) {
        let mut left = COMMANDS;
        while left > 0
            && self.has_runnable_request()
            && let Some((from, mut requests)) = self.peers.inbox.pop_front()
        {
            let resumed = self.run_batch_of(from, &mut requests, &mut left);
            // Later commands of the client are behind those that were held.
            for requests in [Some(requests), resumed].into_iter().flatten() {
                if !requests.is_empty() {
                    self.peers.inbox.push_front((from, requests));
                }
            }
        }
    }

    /// Runs up to `left` commands of a batch. Returns commands that were held and are to run before
    /// the rest.
    fn run_batch_of(&mut self, from: usize, requests: &mut Requests, left: &mut usize) -> Option<Requests> {
        let mut resumed = None;
        let mut proxy = std::mem::replace(&mut self.peers.proxies[from], Proxy::new(from));
        let (mut reader, mut arguments) = (requests.reader(), Vec::new());
        // Behind the last command that has run.
        let mut position = reader.position();
        let (mut ahead, mut prefetched) = (requests.reader(), Vec::new());
        while *left > 0 && self.peers.halt == Halt::No && proxy.has_room() {
            if left.is_multiple_of(AHEAD) {
                for _ in 0..AHEAD {
                    let Some((head, _)) = ahead.next(&mut prefetched) else { break };
                    self.store.prefetch(head.database, prefetched.iter().skip(1).take(1));
                }
            }
            let Some((head, name)) = reader.next(&mut arguments) else { break };
            if head.command == RESUME {
                position = reader.position();
                resumed = self.peers.held.remove(&(from, head.client)).filter(|held| !held.is_empty());
                let Some(held) = &mut resumed else { continue };
                if head.quiet {
                    held.silence();
                }
                break;
            }
            if !self.peers.held.is_empty()
                && let Some(held) = self.peers.held.get_mut(&(from, head.client))
            {
                held.push(head, name, &arguments);
                position = reader.position();
                continue;
            }
            let command = self.table.commands().get(head.command as usize);
            if command.is_some_and(|command| self.awaits_memory(&proxy.client, command)) {
                self.peers.halt = Halt::Memory;
                break;
            }
            position = reader.position();
            *left -= 1;
            self.peers.ran[from] += 1;
            proxy.client.name.clear();
            proxy.client.name.extend_from_slice(name);
            if self.run_request(from, &mut proxy, &head, &arguments) {
                self.peers.held.insert((from, head.client), Requests::default());
            }
        }
        requests.resume_at(position);
        self.peers.proxies[from] = proxy;
        resumed
    }

    /// Runs a command; whether the next ones of its client are held.
    fn run_request(
        &mut self,
        from: usize,
        proxy: &mut Proxy,
        head: &RequestHead,
        arguments: &[&[u8]],
    ) -> bool {
        let Some(&command) = self.table.commands().get(head.command as usize) else { return false };
        let fate = self.peers.fate(from, head.client, self.store.settings.output_soft_limit);
        let start = proxy.begin(head, fate);
        let client = &mut proxy.client;
        if let Err(fault) = self.admit(client, command, arguments) {
            self.reject(client, Some(head.command), &fault);
        } else if self.observed[head.command as usize] {
            // The sender has sent it to the monitors.
            self.call(client, command, |context| context.run_observed_again(head.command, arguments));
            if self.store.observation.changed {
                self.observe();
            }
        } else {
            self.call(client, command, |context| context.run(head.command, arguments));
        }
        let (reply, holds) = proxy.end(head, start, fate);
        self.peers.note_reply(from, head.client, reply);
        self.serve_ready();
        holds
    }
}
