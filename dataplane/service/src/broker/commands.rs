//! What other threads send to the broker's loop, and what it sends back.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use sietch_disk::broker::{BrokerFds, BrokerLayout};

use super::extents::Span;
use super::id::AreaId;

/// A command for the broker's loop.
#[derive(Debug)]
pub enum Command {
    /// Serve areas of a volume. The loop's own thread opens its queue.
    Volume {
        /// The volume's name.
        name: String,
        /// The file or device.
        file: OwnedFd,
        /// The volume's size in bytes.
        capacity: u64,
        /// Receives a description of the queue, or why there is none.
        reply: Sender<Result<String, String>>,
    },
    /// Serve an area.
    Attach {
        /// The number of its grant.
        id: AreaId,
        /// The name of its volume.
        volume: String,
        /// Where it is on the volume.
        extents: Vec<Span>,
        /// The broker's end of its memory.
        fds: BrokerFds,
        /// The sizes of its rings and of its data region.
        layout: BrokerLayout,
        /// The user of its holder.
        uid: u32,
        /// Receives the result, or why the area is not served.
        reply: Sender<Result<(), String>>,
    },
    /// Give an area other extents. [`Event::Reshaped`] follows, unless they are refused.
    Reshape {
        /// The number of its grant.
        id: AreaId,
        /// Where it is from now on.
        extents: Vec<Span>,
        /// Receives the result, or why the extents are refused.
        reply: Sender<Result<(), String>>,
    },
    /// Take no more requests of an area. [`Event::Detached`] follows.
    Detach(AreaId),
    /// End the loop.
    Stop,
}

/// Something that the control plane waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// No request of that area is in flight, and it is not served any more.
    Detached(AreaId),
    /// The area has its new extents, and no request in flight touches a block that it no longer
    /// has.
    Reshaped(AreaId),
    /// The queue of that volume is broken. From now on its areas answer every request with EIO.
    /// They are never released, because requests in flight may still reach the device until this
    /// process ends. Other volumes continue.
    Broken {
        /// The volume.
        volume: String,
        /// The queue's error.
        cause: String,
    },
}

/// Where the loop sends its events: a channel, and an eventfd that is written after each send.
#[derive(Debug)]
pub struct EventSink {
    /// The channel.
    pub events: Sender<Event>,
    /// The eventfd.
    pub doorbell: OwnedFd,
}
