//! The storage broker: areas of a volume for applications that must not have the volume. Sans-I/O:
//! queues are a trait, nothing reads a clock.
//!
//! One iteration ([`Broker::poll`]):
//!
//! 1. Collect what the devices have finished. Bytes of a successful read are copied to the
//!    application's data region; then the buffer returns to the pool. A request is done when all of
//!    its pieces are.
//! 2. Every area in rotation gets [`limits::QUANTUM`] bytes of credit (deficit round robin). A
//!    submission is copied once and the copy is judged (`area.rs`). A refused submission is
//!    answered at once, and costs as much as any other.
//! 3. What passes is translated to extents (`extents.rs`), piece by piece, as far as the area's
//!    share of the device goes. Bytes to be written are copied into a private buffer, so that the
//!    application cannot change them while the device reads them. `docs/spec/broker.md` says why
//!    that matters to others.
//! 4. All flushes that are requested while one is in flight share the next one.
//! 5. Each device is notified once. Then completions are published, and sleeping applications are
//!    woken.
//! 6. An area that is *leaving* (detached, its application ended, its rings broken) takes no more
//!    requests. When none of its requests is in flight it is released, and the control plane is
//!    notified: only then may its blocks become another's.
//!
//! A device whose queue breaks fails its own areas ([`Event::Broken`]); the others continue.
//!
//! The broker never waits for an application: one that takes no completions gets no more requests
//! served.

mod area;
mod commands;
mod error;
mod extents;
mod id;
mod limits;
mod metrics;
mod piece;
mod run;
mod volume;

use std::io;

use sietch_disk::broker::{BrokerHost, layout};
use sietch_disk::{Completion, DiskQueue};

use area::Area;
use extents::Map;
use volume::{FLUSHES, Issue, Volume};

pub use commands::{Command, Event, EventSink};
pub use error::AttachError;
pub use extents::{MapError, Span};
pub use id::AreaId;
pub use metrics::{AreaCounters, AreaReport, Refusal};
pub use run::run;

/// A broker over volumes of one kind. One thread owns it.
pub struct Broker<D> {
    volumes: Vec<Volume<D>>,
    /// A free entry is used again: no piece in flight refers to it.
    areas: Vec<Option<Area>>,
    /// The area that is served first in the next iteration.
    first: usize,
    events: Vec<Event>,
    done: Vec<Completion>,
}

impl<D: DiskQueue> Default for Broker<D> {
    fn default() -> Self {
        Self { volumes: Vec::new(), areas: Vec::new(), first: 0, events: Vec::new(), done: Vec::new() }
    }
}

impl<D: DiskQueue> Broker<D> {
    /// Serves areas of the volume `name` through `queue` from now on. Replaces a volume of that
    /// name, unless an area of it is served.
    ///
    /// # Errors
    /// Returns the queue if an area of that volume is served.
    pub fn add_volume(&mut self, name: &str, queue: D) -> Result<(), D> {
        match self.volumes.iter_mut().find(|volume| volume.name == name) {
            Some(volume) if volume.areas > 0 => Err(queue),
            Some(volume) => {
                *volume = Volume::new(name, queue);
                Ok(())
            }
            None => {
                self.volumes.push(Volume::new(name, queue));
                Ok(())
            }
        }
    }

    /// Iterates over the queues that are not broken, for a caller that sleeps on them.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &D> {
        self.volumes.iter().filter(|volume| !volume.broken).map(|volume| &volume.queue)
    }

    /// Iterates over the applications that are served, for a caller that sleeps on them.
    pub fn hosts_mut(&mut self) -> impl Iterator<Item = &mut BrokerHost> {
        self.areas.iter_mut().flatten().filter(|area| !area.leaving).map(|area| &mut area.host)
    }

    /// Like [`Broker::hosts_mut`].
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &BrokerHost> {
        self.areas.iter().flatten().filter(|area| !area.leaving).map(|area| &area.host)
    }

    /// Iterates over the counters of the areas.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (AreaId, AreaCounters)> {
        self.areas.iter().flatten().map(|area| (area.id, area.counters()))
    }

    /// Returns the number of operations in flight at the devices.
    pub(crate) fn in_flight(&self) -> usize {
        self.queues().map(DiskQueue::in_flight).sum()
    }

    /// Takes the events for the control plane.
    pub(crate) fn take_events(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }

    fn index_of(&self, id: AreaId) -> Option<usize> {
        self.areas.iter().position(|area| area.as_ref().is_some_and(|area| area.id == id))
    }

    /// Serves an area of `volume` at `extents` from now on.
    ///
    /// # Errors
    /// See [`AttachError`]. The host is dropped, so the application sees a hang-up.
    pub fn attach(
        &mut self,
        id: AreaId,
        volume: &str,
        extents: &[Span],
        host: BrokerHost,
    ) -> Result<(), AttachError> {
        if self.index_of(id).is_some() {
            return Err(AttachError::Taken(id));
        }
        let index = match self.areas.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.areas.len() < limits::AREAS => {
                self.areas.push(None);
                self.areas.len() - 1
            }
            None => return Err(AttachError::Full(id)),
        };
        let unknown = || AttachError::Volume(id, volume.to_owned());
        let number = self.volumes.iter().position(|known| known.name == volume).ok_or_else(unknown)?;
        let volume = &mut self.volumes[number];
        let map =
            Map::new(extents, volume.queue.capacity()).map_err(|cause| AttachError::Extents(id, cause))?;
        let block = host.layout().block;
        if block as usize != volume.queue.block_size() {
            return Err(AttachError::Block(id, block, volume.queue.block_size()));
        }
        volume.areas += 1;
        self.areas[index] = Some(Area::new(id, number, map, host));
        Ok(())
    }

    /// Gives an area other extents; [`Event::Reshaped`] follows when that is done.
    ///
    /// # Errors
    /// The extents are invalid; the area keeps its previous ones.
    pub(crate) fn reshape(&mut self, id: AreaId, extents: &[Span]) -> Result<(), MapError> {
        let Some(area) = self.index_of(id).and_then(|index| self.areas[index].as_mut()) else {
            // The area is released: none of its requests is in flight.
            self.events.push(Event::Reshaped(id));
            return Ok(());
        };
        let map = Map::new(extents, self.volumes[area.volume].queue.capacity())?;
        if map.begins_with(&area.map) {
            area.map = map;
            self.events.push(Event::Reshaped(id));
        } else {
            area.next_map = Some(map);
        }
        Ok(())
    }

    /// Takes no more requests of an area; [`Event::Detached`] follows when none is in flight.
    pub(crate) fn detach(&mut self, id: AreaId) {
        match self.index_of(id).and_then(|index| self.areas[index].as_mut()) {
            Some(area) => area.leaving = true,
            None => self.events.push(Event::Detached(id)),
        }
    }

    /// Runs one iteration. Returns whether anything happened.
    pub fn poll(&mut self) -> bool {
        let mut busy = self.collect();
        let count = self.areas.len();
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
        for step in 0..count {
            busy |= self.serve((self.first + step) % count);
        }
        for number in 0..self.volumes.len() {
            let volume = &mut self.volumes[number];
            if volume.broken {
                continue;
            }
            volume.start_flush();
            if let Err(cause) = volume.queue.notify() {
                self.fail(number, &cause);
                busy = true;
            }
        }
        for index in 0..count {
            busy |= self.settle(index);
        }
        busy
    }

    /// A device's queue is broken: fails all requests of its areas.
    fn fail(&mut self, number: usize, cause: &io::Error) {
        let volume = &mut self.volumes[number];
        volume.broken = true;
        self.events.push(Event::Broken { volume: volume.name.clone(), cause: cause.to_string() });
        for area in self.areas.iter_mut().flatten().filter(|area| area.volume == number) {
            area.abandon();
        }
    }

    /// Collects what the devices have finished.
    fn collect(&mut self) -> bool {
        let Self { volumes, areas, done, .. } = self;
        let mut busy = false;
        for volume in volumes.iter_mut().filter(|volume| !volume.broken) {
            busy |= volume.queue.complete(done) > 0;
            for completion in done.drain(..) {
                let error = completion.result.as_ref().err().map_or(0, volume::error_number);
                if completion.token == FLUSHES {
                    for (index, request) in volume.flushed() {
                        if let Some(area) = areas.get_mut(index).and_then(Option::as_mut) {
                            area.flushed(request, error);
                        }
                    }
                    continue;
                }
                let Some(piece) = volume.finish(completion.token) else { continue };
                if let Some(area) = areas.get_mut(piece.area).and_then(Option::as_mut) {
                    area.completed(&piece, completion.buffer.as_ref(), error);
                }
                if let Some(buffer) = completion.buffer {
                    volume.buffers.recycle(buffer);
                }
            }
        }
        busy
    }

    /// Takes requests of one area, and submits them to its device.
    fn serve(&mut self, index: usize) -> bool {
        let Some(area) = self.areas.get_mut(index).and_then(Option::as_mut) else { return false };
        let volume = &mut self.volumes[area.volume];
        if volume.broken {
            return area.refuse_all();
        }
        area.credit = (area.credit + limits::QUANTUM).min(limits::QUANTUM);
        area.leaving |= area.host.is_over();
        let mut busy = false;
        for _ in 0..limits::BATCH {
            if area.leaving {
                area.cancel_head();
            } else if let Some(request) = area.head {
                match volume.issue(area, index, request) {
                    Issue::All => area.head = None,
                    Issue::Some => return true,
                    Issue::None => return busy,
                }
                busy = true;
            }
            if area.leaving || area.next_map.is_some() || area.credit <= 0 {
                return busy;
            }
            let Some(submission) = area.host.take() else { return busy };
            busy = true;
            if let Some(request) = area.admit(&submission, volume.queue.block_size()) {
                if submission.operation == layout::FLUSH {
                    volume.request_flush(index, request);
                } else {
                    area.head = Some(request);
                }
            }
        }
        busy
    }

    /// Publishes the completions of an area, and releases it if it is leaving.
    fn settle(&mut self, index: usize) -> bool {
        let Some(area) = self.areas[index].as_mut() else { return false };
        area.host.publish();
        if area.in_flight > 0 || area.head.is_some() {
            return false;
        }
        let (id, volume) = (area.id, area.volume);
        if let Some(map) = area.next_map.take() {
            area.map = map;
            self.events.push(Event::Reshaped(id));
            return true;
        }
        if area.leaving {
            self.areas[index] = None;
            self.volumes[volume].areas -= 1;
            self.events.push(Event::Detached(id));
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests;
