//! What shards send to each other: commands, replies, announcements. Plain data.
//!
//! 1. Each batch is packed into a few vectors, so that it costs a few allocations however many
//!    commands it has.
//! 2. A batch is for one shard. Batches from one shard to another arrive in the order in which they
//!    were sent.
//! 3. A reply follows an [`Envelope`], which names the client and its ticket.

use std::net::SocketAddr;

use crate::clients::Announcement;
use crate::foundation::client_id::ClientId;

/// A command that the owner of its keys is to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestHead {
    /// The client, at the sender.
    pub(super) client: ClientId,
    /// The ticket of its reply.
    pub(super) ticket: u32,
    /// The number of the command.
    pub(super) command: u16,
    /// The client's address, for the slow log.
    pub(super) peer: SocketAddr,
    pub(super) database: usize,
    pub(super) resp3: bool,
    /// The client's replies are turned off.
    pub(super) quiet: bool,
}

/// Stands for no command: what the owner holds for the client may run.
pub(super) const RESUME: u16 = u16::MAX;

/// Commands for the owner of their keys.
#[derive(Debug, Default)]
pub struct Requests {
    /// Each with the number of its arguments.
    heads: Vec<(RequestHead, usize)>,
    lengths: Vec<usize>,
    bytes: Vec<u8>,
    /// The next one to be read, and where its lengths and bytes begin.
    next: (usize, usize, usize),
}

impl Requests {
    /// Adds a command of a client of this name.
    pub(super) fn push(&mut self, head: RequestHead, name: &[u8], arguments: &[&[u8]]) {
        self.heads.push((head, arguments.len()));
        for argument in std::iter::once(&name).chain(arguments) {
            self.lengths.push(argument.len());
            self.bytes.extend_from_slice(argument);
        }
    }

    /// Adds the note that the commands of a client which are held may run; without replies if the
    /// client has gone.
    pub(super) fn push_resume(&mut self, client: ClientId, has_gone: bool) {
        let peer = SocketAddr::from(([0; 4], 0));
        let (ticket, database, resp3) = (0, 0, false);
        let head = RequestHead { client, ticket, command: RESUME, peer, database, resp3, quiet: has_gone };
        self.push(head, b"", &[]);
    }

    /// Turns off the replies of all commands.
    pub(super) fn silence(&mut self) {
        self.heads.iter_mut().for_each(|(head, _)| head.quiet = true);
    }

    /// Whether none is left to be read.
    pub(super) fn is_empty(&self) -> bool {
        self.next.0 == self.heads.len()
    }

    /// Where reading is.
    pub(super) fn reader(&self) -> RequestReader<'_> {
        RequestReader { requests: self, next: self.next }
    }

    /// Continues from where a reader has come to.
    pub(super) fn resume_at(&mut self, position: (usize, usize, usize)) {
        self.next = position;
    }
}

/// Reads the commands of a batch.
pub(super) struct RequestReader<'a> {
    requests: &'a Requests,
    next: (usize, usize, usize),
}

impl<'a> RequestReader<'a> {
    /// The next command and the name of its client; its arguments replace what is in `arguments`.
    pub(super) fn next(&mut self, arguments: &mut Vec<&'a [u8]>) -> Option<(RequestHead, &'a [u8])> {
        let (head, length, byte) = &mut self.next;
        let &(found, count) = self.requests.heads.get(*head)?;
        arguments.clear();
        let mut name: &[u8] = &[];
        for (number, &bytes) in self.requests.lengths[*length..=*length + count].iter().enumerate() {
            let part = &self.requests.bytes[*byte..*byte + bytes];
            if number == 0 {
                name = part;
            } else {
                arguments.push(part);
            }
            *byte += bytes;
        }
        *head += 1;
        *length += count + 1;
        Some((found, name))
    }

    /// Where the next command is.
    pub(super) fn position(&self) -> (usize, usize, usize) {
        self.next
    }
}

/// Bytes of an envelope.
pub(super) const ENVELOPE: usize = 24;

/// What precedes a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) client: ClientId,
    pub(super) ticket: u32,
    /// There is no reply: the log has failed before its effects were durable, or the client does
    /// not read. The client is to be closed.
    pub(super) lost: bool,
    /// The owner holds further commands of the client until it is asked to go on.
    pub(super) holds: bool,
    /// Bytes of the reply.
    pub(super) length: u64,
}

impl Envelope {
    pub(super) fn encode(self) -> [u8; ENVELOPE] {
        let mut bytes = [0; ENVELOPE];
        bytes[..4].copy_from_slice(&self.client.slot.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.client.generation.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.ticket.to_ne_bytes());
        bytes[12] = u8::from(self.lost);
        bytes[13] = u8::from(self.holds);
        bytes[16..].copy_from_slice(&self.length.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ENVELOPE]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut length = [0; 8];
        length.copy_from_slice(&bytes[16..]);
        Self {
            client: ClientId { slot: word(0), generation: word(4) },
            ticket: word(8),
            lost: bytes[12] != 0,
            holds: bytes[13] != 0,
            length: u64::from_ne_bytes(length),
        }
    }
}

/// The first envelope in `bytes`, its reply, and what follows.
pub(super) fn first_reply(bytes: &[u8]) -> Option<(Envelope, &[u8], &[u8])> {
    let (envelope, rest) = bytes.split_first_chunk::<ENVELOPE>()?;
    let envelope = Envelope::decode(envelope);
    let (reply, rest) = rest.split_at_checked(usize::try_from(envelope.length).ok()?)?;
    Some((envelope, reply, rest))
}

/// Replies to the commands of another shard's clients.
#[derive(Debug)]
pub struct Replies {
    /// Each behind its envelope.
    pub(super) bytes: Vec<u8>,
}

/// What another shard's clients must receive.
#[derive(Debug)]
pub struct Announcements {
    pub(super) list: Vec<Announcement>,
}

impl Announcements {
    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.list.iter().map(|announcement| announcement.bytes() as u64).sum()
    }

    /// Drops what shows a change or a command.
    pub(crate) fn forget_shown(&mut self) {
        self.list.retain(Announcement::shows_nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(ticket: u32) -> RequestHead {
        let client = ClientId { slot: 1, generation: 2 };
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        RequestHead { client, ticket, command: 3, peer, database: 4, resp3: true, quiet: false }
    }

    #[test]
    fn a_batch_is_read_on_where_reading_ended() {
        let mut requests = Requests::default();
        requests.push(head(1), b"", &[b"GET", b"key"]);
        requests.push(head(2), b"me", &[b"SET", b"", b"value"]);
        let mut arguments = Vec::new();
        let mut reader = requests.reader();
        assert_eq!(reader.next(&mut arguments).map(|(head, name)| (head.ticket, name)), Some((1, &b""[..])));
        assert_eq!(arguments, [&b"GET"[..], b"key"]);
        let position = reader.position();
        requests.resume_at(position);
        assert!(!requests.is_empty());
        let mut arguments = Vec::new();
        let mut reader = requests.reader();
        assert_eq!(
            reader.next(&mut arguments).map(|(head, name)| (head.ticket, name)),
            Some((2, &b"me"[..]))
        );
        assert_eq!(arguments, [&b"SET"[..], b"", b"value"]);
        assert!(reader.next(&mut arguments).is_none());
    }

    #[test]
    fn a_reply_is_found_behind_its_envelope() {
        let client = ClientId { slot: 7, generation: u32::MAX };
        let envelope = Envelope { client, ticket: 9, lost: true, holds: false, length: 3 };
        let bytes = [&envelope.encode()[..], b"abcrest"].concat();
        assert_eq!(first_reply(&bytes), Some((envelope, &b"abc"[..], &b"rest"[..])));
        assert_eq!(first_reply(&bytes[..ENVELOPE + 2]), None);
        assert_eq!(first_reply(&bytes[..5]), None);
    }
}
