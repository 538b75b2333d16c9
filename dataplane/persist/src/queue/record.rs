//! The records of a queue: `docs/spec/queue.md`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TypeError;
use crate::typed::{Record, TYPE_HEADER, check_type, read_record, type_of};

/// An entry; the tail is its payload.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Sent {
    /// In a snapshot. In the log the entry's id is the record's sequence, and this is 0.
    pub id: U64,
    /// Times that it was delivered to a consumer.
    pub deliveries: U32,
    pub reserved: U32,
}

/// One of the entries that were passed to consumers; a record holds a list of them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DeliveryCount {
    pub id: U64,
    /// How often, this time included.
    pub deliveries: U32,
    pub reserved: U32,
}

/// One of the entries that were acknowledged; a record holds a list of them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Acknowledged {
    id: U64,
}

impl Acknowledged {
    pub(super) fn of(id: u64) -> Self {
        Self { id: id.into() }
    }

    pub(super) fn get(self) -> u64 {
        self.id.get()
    }
}

impl Record for Sent {
    const NAME: &'static str = "queue entry";
    const TYPE: u32 = 1;
    const VERSION: u16 = 1;
}

impl Record for DeliveryCount {
    const NAME: &'static str = "queue delivery";
    const TYPE: u32 = 2;
    const VERSION: u16 = 1;
}

impl Record for Acknowledged {
    const NAME: &'static str = "queue acknowledgement";
    const TYPE: u32 = 3;
    const VERSION: u16 = 1;
}

/// What a record says.
pub(super) enum Change<'a> {
    Sent(&'a Sent, &'a [u8]),
    DeliveryCount(&'a [DeliveryCount]),
    Acknowledged(&'a [Acknowledged]),
}

/// Reads a record.
pub(super) fn read(payload: &[u8]) -> Result<Change<'_>, TypeError> {
    match type_of(payload) {
        Some((DeliveryCount::TYPE, _)) => list(payload).map(Change::DeliveryCount),
        Some((Acknowledged::TYPE, _)) => list(payload).map(Change::Acknowledged),
        _ => read_record::<Sent>(payload).map(|(sent, payload)| Change::Sent(sent, payload)),
    }
}

fn list<R: Record>(payload: &[u8]) -> Result<&[R], TypeError> {
    check_type::<R>(payload)?;
    <[R]>::ref_from_bytes(&payload[TYPE_HEADER..])
        .map_err(|_| TypeError::Short { name: R::NAME, length: payload.len() })
}
