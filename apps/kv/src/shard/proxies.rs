//! Commands of other shards' clients.
//!
//! 1. A command runs in the place of its client with a *proxy*, a client without a connection, one
//!    for each other shard. The sender has checked what concerns the client: permissions,
//!    subscriptions, pauses. What concerns the data is checked here: memory, the state of the log.
//! 2. Replies go to the proxy's output, each behind its envelope. The output is sealed and released
//!    as that of any client is, so a reply leaves only once what it shows is durable.
//! 3. If the log fails, the replies that were held are lost. An envelope without a reply says so,
//!    and the sender closes the client, as it closes its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Shard;
use super::messages::{ENVELOPE, Envelope, RequestHead, first_reply};
use super::peers::Halt;
use crate::clients::{Client, ReplyMode};
use crate::foundation::client_id::ClientId;

/// Commands whose memory is prefetched at a time.
const AHEAD: usize = 16;

/// The client in whose place the commands of another shard's clients run.
pub(super) struct Proxy {
    pub(super) client: Box<Client>,
}

impl Proxy {
    /// For shard `shard`.
    pub(super) fn new(shard: usize) -> Self {
        // No client has this slot, so none is found by this identity.
        let id = ClientId { slot: u32::MAX, generation: shard as u32 };
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        Self { client: Box::new(Client::new(id, 0, nowhere, nowhere, 0)) }
    }

    /// Takes on the state of the client whose command runs next, and begins its reply. Returns
    /// where the envelope is.
    fn begin(&mut self, head: &RequestHead) -> usize {
        let client = &mut self.client;
        client.database = head.database;
        client.resp3 = head.resp3;
        client.peer = head.peer;
        client.reply_mode = if head.quiet { ReplyMode::Off } else { ReplyMode::On };
        let start = client.output.bytes.len();
        client.output.bytes.extend_from_slice(&[0; ENVELOPE]);
        start
    }

    /// Writes the envelope of the reply.
    fn end(&mut self, head: &RequestHead, start: usize) {
        let bytes = &mut self.client.output.bytes;
        let length = (bytes.len() - start - ENVELOPE) as u64;
        let envelope = Envelope { client: head.client, ticket: head.ticket, lost: false, length };
        bytes[start..start + ENVELOPE].copy_from_slice(&envelope.encode());
    }

    /// Replaces the replies that are held by notes that they are lost.
    pub(super) fn fail(&mut self) {
        let output = &mut self.client.output;
        let held = output.held().to_vec();
        output.drop_held();
        let mut rest = held.as_slice();
        while let Some((envelope, _, next)) = first_reply(rest) {
            output.append_durable(&Envelope { lost: true, length: 0, ..envelope }.encode());
            rest = next;
        }
    }
}

impl Shard {
    /// Runs the commands of other shards, unless no command may run.
    pub(super) fn run_inbox(&mut self) {
        while self.peers.halt == Halt::No
            && let Some((from, mut requests)) = self.peers.inbox.pop_front()
        {
            if from >= self.peers.proxies.len() {
                continue;
            }
            let mut proxy = std::mem::replace(&mut self.peers.proxies[from], Proxy::new(from));
            let mut reader = requests.reader();
            let mut arguments = Vec::new();
            let (mut ahead, mut prefetched) = (requests.reader(), Vec::new());
            let mut count = 0;
            while self.peers.halt == Halt::No {
                if count % AHEAD == 0 {
                    for _ in 0..AHEAD {
                        let Some((head, _)) = ahead.next(&mut prefetched) else { break };
                        self.store.prefetch(head.database, prefetched.iter().skip(1).take(1));
                    }
                }
                count += 1;
                let Some((head, name)) = reader.next(&mut arguments) else { break };
                proxy.client.name.clear();
                proxy.client.name.extend_from_slice(name);
                self.run_request(&mut proxy, &head, &arguments);
            }
            let position = reader.position();
            requests.resume_at(position);
            self.peers.proxies[from] = proxy;
            if !requests.is_empty() {
                self.peers.inbox.push_front((from, requests));
            }
        }
    }

    fn run_request(&mut self, proxy: &mut Proxy, head: &RequestHead, arguments: &[&[u8]]) {
        let Some(&command) = self.table.commands().get(head.command as usize) else { return };
        let start = proxy.begin(head);
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
        proxy.end(head, start);
        self.serve_ready();
    }
}
