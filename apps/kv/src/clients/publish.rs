//! Messages to subscribers and monitors.
//!
//! A message is appended to the output of each subscriber at once, within the limit of its output
//! buffer. The client that is being served is not among the others: its messages are returned.

use super::announcement::Announcement;
use super::table::Clients;
use crate::foundation::client_id::ClientId;
use crate::foundation::protocol::Reply;
use crate::foundation::text::glob;

/// Where a message went.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Subscriptions that matched.
    pub(crate) receivers: usize,
    /// Those of the client that is being served: the pattern, or `None` for the channel itself.
    pub(crate) own: Vec<Option<Box<[u8]>>>,
}

/// Writes a message, which matched a pattern or the channel itself.
pub(crate) fn write_message(reply: &mut Reply, pattern: Option<&[u8]>, channel: &[u8], message: &[u8]) {
    match pattern {
        None => {
            reply.push(3);
            reply.bulk(b"message");
        }
        Some(pattern) => {
            reply.push(4);
            reply.bulk(b"pmessage");
            reply.bulk(pattern);
        }
    }
    reply.bulk(channel);
    reply.bulk(message);
}

impl Clients {
    /// Sends a message to every subscriber of a channel but `own`, the client that is being served.
    /// Those that have too much output are closed.
    pub(crate) fn publish(
        &mut self,
        channel: &[u8],
        message: &[u8],
        now_ns: u64,
        own: Option<ClientId>,
    ) -> Delivery {
        let mut receivers: Vec<(ClientId, Option<Box<[u8]>>)> =
            self.subscribers(channel).into_iter().map(|id| (id, None)).collect();
        for (pattern, subscribers) in self.patterns() {
            if glob::matches(pattern, channel) {
                receivers.extend(subscribers.iter().map(|&id| (id, Some(pattern.into()))));
            }
        }
        let mut delivery = Delivery { receivers: receivers.len(), own: Vec::new() };
        for (id, pattern) in receivers {
            if Some(id) == own {
                delivery.own.push(pattern);
                continue;
            }
            self.send(id, now_ns, |resp3, bytes| {
                let mut reply = Reply::new(std::mem::take(bytes), resp3);
                write_message(&mut reply, pattern.as_deref(), channel, message);
                *bytes = reply.bytes;
            });
        }
        delivery
    }

    /// As [`Clients::publish`], to the subscribers of all shards.
    pub(crate) fn publish_everywhere(
        &mut self,
        channel: &[u8],
        message: &[u8],
        now_ns: u64,
        own: Option<ClientId>,
    ) -> Delivery {
        self.announce(&Announcement::Published { channel: channel.into(), message: message.into() });
        self.publish(channel, message, now_ns, own)
    }

    /// Sends a line to the monitors of all shards, as [`Clients::send_to_monitors`] does.
    pub(crate) fn send_to_all_monitors(&mut self, line: &[u8], now_ns: u64) {
        self.announce_line(line);
        self.send_to_monitors(line, now_ns);
    }

    /// Sends a line to every monitor but the client that is being served. A monitor that does not
    /// read is closed, so that it holds up no client.
    pub(crate) fn send_to_monitors(&mut self, line: &[u8], now_ns: u64) {
        let monitors: Vec<ClientId> = self.monitors.iter().copied().collect();
        for id in monitors {
            self.send(id, now_ns, |_, bytes| bytes.extend_from_slice(line));
        }
    }
}
