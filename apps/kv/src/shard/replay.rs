//! Replay of effects.
//!
//! 1. A few effects are decoded and hashed ahead, also those of the next records, and the memory
//!    that they will need is prefetched, so that its latencies overlap. Each key is hashed once.
//! 2. Then they are applied in order. A plain SET needs no command.
//! 3. With one shard, the shard replays the log while it is read, on the same thread
//!    ([`Gathered`]): large records where they are, and small ones once several have come. With
//!    several shards, a [`Router`](super::Router) divides the records.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sietch::persist::Entry;

use super::Shard;
use super::router::{Batch, Share};
use crate::clients::Client;
use crate::commands::{Command, Context, Table};
use crate::data::journal::{EFFECTS, Reader, ReplayError, SNAPSHOT};
use crate::data::keyspace::{Data, Now, Store};
use crate::foundation::client_id::ClientId;
use crate::foundation::command::flag;
use crate::foundation::protocol::{Fault, Reply};

/// Effects that replay decodes before it applies them: enough to overlap memory accesses, few
/// enough for the first-level cache.
const AHEAD: usize = 32;

/// Arguments of such effects from which on no more are decoded: an effect may have a million.
const AHEAD_ARGUMENTS: usize = 1024;

/// Bytes of a record from which on it is replayed alone, where it is.
const LARGE_RECORD: usize = 8 << 10;

/// Bytes of smaller records that are replayed together: they stay in the first-level cache.
const GATHERED_BYTES: usize = 16 << 10;

/// Bytes of a key that an error shows.
pub(super) const SHOWN_KEY: usize = 64;

/// A fault, and the count of the record that it is in.
pub(crate) type RecordFault = (u64, ReplayError);

/// The command that an effect names: one that writes and takes so many arguments.
fn command_of(table: &Table, arguments: &[&[u8]], sequence: u64) -> Result<&'static Command, ReplayError> {
    let found = table.find(arguments[0]);
    let known = found
        .filter(|(_, command)| command.spec.flags.has(flag::WRITE) && command.spec.accepts(arguments.len()));
    known.map(|(_, command)| command).ok_or_else(|| {
        let name = String::from_utf8_lossy(arguments[0]).into_owned();
        ReplayError::Command { sequence, name }
    })
}

fn refused(sequence: u64, arguments: &[&[u8]], fault: &Fault) -> ReplayError {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_KEY)]).into_owned();
    ReplayError::Refused {
        sequence,
        effect: text(arguments[0]),
        key: arguments.get(1).map(|key| text(key)).unwrap_or_default(),
        reason: text(&fault.0),
    }
}

/// Small records that are not replayed yet, and how much of the log has been.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    batch: Batch,
    /// Records of the log that have come.
    pub(crate) log_records: u64,
    /// Bytes of all records that have come.
    pub(crate) bytes: u64,
}

/// An effect that was decoded.
struct Effect {
    /// Of its record; see [`Share`].
    record: u64,
    sequence: u64,
    guarded: bool,
    explained: Option<u64>,
    database: usize,
    /// [`Store::hash_of`] its key.
    hash: u64,
    /// Its arguments.
    begin: usize,
    end: usize,
}

/// Decodes the effects of shares.
struct Decoder<'a, I> {
    shares: I,
    /// The share at hand, and what is left of it.
    current: Option<(Share<'a>, Reader<'a>)>,
    arguments: Vec<&'a [u8]>,
    effects: Vec<Effect>,
}

impl<'a, I: Iterator<Item = Share<'a>>> Decoder<'a, I> {
    fn new(shares: I) -> Self {
        Self { shares, current: None, arguments: Vec::new(), effects: Vec::with_capacity(AHEAD) }
    }

    /// Decodes the next few effects; none at the end.
    ///
    /// # Errors
    /// The effect behind these is damaged.
    fn decode(&mut self, store: &Store) -> Result<(), RecordFault> {
        self.arguments.clear();
        self.effects.clear();
        let count = store.database_count();
        while self.effects.len() < AHEAD && self.arguments.len() < AHEAD_ARGUMENTS {
            let Some((share, reader)) = &mut self.current else {
                let Some(share) = self.shares.next() else { break };
                let reader = Reader::of_effects(share.bytes, share.begin, share.sequence);
                self.current = Some((share, reader));
                continue;
            };
            let Share { record, sequence, guarded, explained, .. } = *share;
            let begin = self.arguments.len();
            let decoded = reader.effect_behind(&mut self.arguments).map_err(|cause| (record, cause))?;
            let Some(database) = decoded else {
                self.current = None;
                continue;
            };
            let number = usize::try_from(database).ok().filter(|&number| number < count);
            let database = number.ok_or((record, ReplayError::Database { sequence, database }))?;
            let end = self.arguments.len();
            let key = self.arguments[begin..].get(1).copied().unwrap_or_default();
            let hash = store.hash_of(database, key);
            self.effects.push(Effect { record, sequence, guarded, explained, database, hash, begin, end });
        }
        Ok(())
    }
}

impl Shard {
    /// Replays an entry of a log now, or with some of the next. After the last entry,
    /// [`Shard::replay_gathered`] replays the rest. Returns whether any were replayed.
    ///
    /// # Errors
    /// As [`Shard::replay`], of this record or of one before it.
    pub(crate) fn gather(&mut self, entry: Entry<'_>, gathered: &mut Gathered) -> Result<bool, ReplayError> {
        let whole = match entry {
            Entry::Snapshot(payload) => self.parts.take(payload),
            Entry::Record(_, payload) => Ok(Some(payload.into())),
        };
        let share = match &whole {
            Ok(None) => return Ok(false),
            Err(cause) => Err(cause.clone()),
            Ok(Some(whole)) => match entry {
                Entry::Snapshot(_) => self.share_of_snapshot(whole),
                Entry::Record(sequence, _) => self.share_of_log(sequence, whole),
            },
        };
        let share = match share {
            Ok(share) => share,
            // An earlier fault comes first.
            Err(cause) => return self.replay_gathered(gathered).and(Err(cause)),
        };
        gathered.log_records += u64::from(share.guarded);
        gathered.bytes += share.bytes.len() as u64;
        if share.bytes.len() < LARGE_RECORD {
            gathered.batch.push_share(&share);
            if gathered.batch.bytes() < GATHERED_BYTES {
                return Ok(false);
            }
            self.replay_gathered(gathered)?;
        } else {
            self.replay_gathered(gathered)?;
            self.replay_shares([share].into_iter()).map_err(|(_, cause)| cause)?;
        }
        Ok(true)
    }

    /// Replays what has been gathered.
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub(crate) fn replay_gathered(&mut self, gathered: &mut Gathered) -> Result<(), ReplayError> {
        let replayed = self.replay_shares(gathered.batch.shares());
        gathered.batch.clear();
        replayed.map_err(|(_, cause)| cause)
    }

    /// Replays this shard's shares of records ([`Router`](super::Router)).
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub(crate) fn replay_batch(&mut self, batch: &Batch, now: Now) -> Result<(), RecordFault> {
        self.now = now;
        self.replay_shares(batch.shares())
    }

    /// A record of the log as a share.
    pub(super) fn share_of_log<'a>(
        &mut self,
        sequence: u64,
        record: &'a [u8],
    ) -> Result<Share<'a>, ReplayError> {
        let reader = Reader::new(record, EFFECTS, sequence)?;
        self.deferred_faults.record_replayed(sequence);
        let begin = reader.position();
        Ok(Share { record: 0, sequence, guarded: true, explained: None, bytes: record, begin })
    }

    /// A whole record of a snapshot as a share.
    pub(super) fn share_of_snapshot<'a>(&mut self, record: &'a [u8]) -> Result<Share<'a>, ReplayError> {
        let mut reader = Reader::new(record, SNAPSHOT, 0)?;
        let sequence = reader.number()?;
        self.deferred_faults.snapshot_loaded(sequence, reader.is_at_end());
        let begin = reader.position();
        Ok(Share { record: 0, sequence, guarded: false, explained: None, bytes: record, begin })
    }

    /// Replays shares, in order, up to the first fault.
    pub(super) fn replay_shares<'a>(
        &mut self,
        shares: impl Iterator<Item = Share<'a>>,
    ) -> Result<(), RecordFault> {
        self.store.replaying = true;
        let mut decoder = Decoder::new(shares);
        let mut runner = None;
        loop {
            let decoded = decoder.decode(&self.store);
            let Decoder { arguments, effects, .. } = &decoder;
            self.store.metrics.replayed += effects.len() as u64;
            self.store.prefetch_hashed(effects.iter().map(|effect| (effect.database, effect.hash)));
            let generation = self.store.own().generation();
            for effect in effects {
                let words = &arguments[effect.begin..effect.end];
                let fresh = self.store.own().generation() == generation;
                let applied = self.apply(effect, words, fresh, &mut runner);
                applied.map_err(|cause| (effect.record, cause))?;
            }
            decoded?;
            if decoder.effects.is_empty() {
                return Ok(());
            }
        }
    }

    /// Applies an effect, unless the snapshot includes it. Its hash is that of its key if `fresh`.
    #[inline]
    fn apply(
        &mut self,
        effect: &Effect,
        words: &[&[u8]],
        fresh: bool,
        runner: &mut Option<Box<Runner>>,
    ) -> Result<(), ReplayError> {
        let Effect { sequence, guarded, database, .. } = *effect;
        let key = words.get(1).copied().unwrap_or_default();
        if let Some(last) = effect.explained {
            self.deferred_faults.explain_up_to(last);
        }
        if !guarded {
            self.snapshot_keys.insert(database as u64, key, sequence);
        } else if self.snapshot_keys.covers(database as u64, key, sequence) {
            return Ok(());
        }
        // Nearly all effects are a plain SET, which needs no command.
        if let [b"SET", key, value] = words {
            let hash = if fresh { effect.hash } else { self.store.hash_of(database, key) };
            Data::new(&mut self.store, database, self.now).insert_hashed_string(hash, key, value);
            self.resolve_fault(database, key);
            return Ok(());
        }
        self.run_effect(effect, words, runner.get_or_insert_with(Runner::new))
    }

    /// Runs the command of an effect.
    fn run_effect(
        &mut self,
        effect: &Effect,
        words: &[&[u8]],
        runner: &mut Runner,
    ) -> Result<(), ReplayError> {
        let Effect { sequence, guarded, database, .. } = *effect;
        let command = command_of(&self.table, words, sequence)?;
        runner.client.database = database;
        runner.reply.clear();
        let mut context = Context {
            data: Data::new(&mut self.store, database, self.now),
            reply: Reply::new(std::mem::take(&mut runner.reply), false),
            random: &mut self.random,
            client: &mut runner.client,
            clients: &mut self.clients,
            others: &mut self.guests,
            table: &self.table,
            command,
            failed: None,
            unlogged: false,
            pushed: Vec::new(),
            must_not_block: true,
        };
        let outcome = (command.handler)(&mut context, words);
        runner.reply = context.reply.bytes;
        let key = words.get(1).copied();
        if let Err(fault) = outcome {
            let refused = refused(sequence, words, &fault);
            match key {
                Some(key)
                    if guarded
                        && self.deferred_faults.explains(sequence)
                        && !self.snapshot_keys.contains(database as u64, key) =>
                {
                    self.deferred_faults.defer((database, key.into()), refused);
                }
                _ => return Err(refused),
            }
        } else if let (b"DEL", Some(key)) = (words[0], key) {
            self.resolve_fault(database, key);
        }
        if self.store.weight().dumped as u64 > self.most_replayed {
            return Err(ReplayError::TooLarge { sequence, limit: self.most_replayed });
        }
        Ok(())
    }

    fn resolve_fault(&mut self, database: usize, key: &[u8]) {
        self.store.metrics.replay_skipped += u64::from(self.deferred_faults.resolve(database, key));
    }
}

/// The client that runs the commands of effects, and the memory for their replies.
struct Runner {
    client: Client,
    reply: Vec<u8>,
}

impl Runner {
    fn new() -> Box<Self> {
        let no_address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let id = ClientId { slot: u32::MAX, generation: 0 };
        Box::new(Self { client: Client::new(id, 0, no_address, no_address, 0), reply: Vec::new() })
    }
}
