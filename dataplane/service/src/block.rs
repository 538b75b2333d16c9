//! The storage broker: areas of a volume for applications that must not have the volume. Sans-I/O:
//! queues are a trait, nothing reads a clock.
//!
//! One turn:
//!
//! 1. What the devices have finished is collected. Bytes of a read that succeeded are copied to the
//!    application's data region, then its buffer goes back to the pool. A request is done when all
//!    of its pieces are.
//! 2. Every area in rotation gets [`limits::QUANTUM`] bytes of credit (deficit round robin). A
//!    submission is copied once and the copy is judged ([`judge`]); one that fails is answered at
//!    once, and costs as any other.
//! 3. What passes is translated to extents ([`extents`]), piece by piece, as far as the area's
//!    share of the device goes. Bytes to be written are copied into a buffer of our own: they stand
//!    still while the device has them, whatever the application does (docs/spec/broker.md says why
//!    that matters to others).
//! 4. All flushes of a device that are asked for while one is under way share the next.
//! 5. Devices are rung, once; then completions are shown to the applications that have some, and
//!    those that sleep are woken.
//! 6. An area that is *leaving* (detached, its application gone, its rings broken) is taken from no
//!    more. When nothing of it is under way it is let go of, and the control plane is told: only
//!    now may its blocks become another's.
//!
//! A device whose queue breaks fails its own areas ([`Event::Broken`]); the others go on.
//!
//! Nothing here waits for an application: one that takes no completions is taken from no more, by
//! itself.

mod area;
mod extents;
pub mod limits;
mod metrics;
mod run;
mod volume;

use std::io;

use sietch_disk::broker::{BrokerHost, layout};
use sietch_disk::{Completion, DiskQueue};

use area::Area;
pub use extents::{Map, MapError, Span};
pub use metrics::{AreaCounters, Refusal};
pub use run::{AreaReport, Board, Command, Told, run};
use volume::{FLUSHES, Issue, Volume};

/// What the control plane calls an area that is served: the number of its grant.
pub type AreaId = u64;

/// Something that the control plane waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing of that area is under way, and nothing of it is served any more.
    Detached(AreaId),
    /// It has its new extents, and nothing of the former is under way that is not of the new ones.
    Reshaped(AreaId),
    /// The queue of that volume is broken. Its areas answer every request with EIO from now on and
    /// are never let go of: nobody knows what of them will still land before this process has
    /// ended. Other volumes go on.
    Broken {
        /// The volume.
        volume: String,
        /// What the queue said.
        cause: String,
    },
}

/// Why an area was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The volume was not given before.
    #[error("area {0}: there is no volume {1} here; the control plane must pass it first")]
    Volume(AreaId, String),
    /// Its extents make no sense.
    #[error("area {0}: {1}")]
    Extents(AreaId, #[source] MapError),
    /// Its number is taken.
    #[error("area {0}: it is served already")]
    Taken(AreaId),
    /// There are too many.
    #[error("area {0}: {most} areas are served already; start another service core", most = limits::AREAS)]
    Full(AreaId),
    /// Its memory is of another block size than the volume.
    #[error("area {0}: its memory is for blocks of {1} bytes, the volume has blocks of {2}")]
    Block(AreaId, u32, usize),
}

/// A broker over volumes of one kind. One thread owns it.
pub struct Broker<D> {
    volumes: Vec<Volume<D>>,
    /// A place is used again when nothing refers to it.
    areas: Vec<Option<Area>>,
    /// Who is first in the next turn.
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
    /// Serves areas of the volume `name` through `queue` from now on. One of that name is replaced,
    /// unless an area of it is served.
    ///
    /// # Errors
    /// The queue comes back.
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

    /// The devices that work, for whoever sleeps on them.
    pub fn queues(&self) -> impl Iterator<Item = &D> {
        self.volumes.iter().filter(|volume| !volume.broken).map(|volume| &volume.queue)
    }

    /// The applications that are served, for whoever sleeps on them.
    pub fn hosts_mut(&mut self) -> impl Iterator<Item = &mut BrokerHost> {
        self.areas.iter_mut().flatten().filter(|area| !area.leaving).map(|area| &mut area.host)
    }

    /// As [`Broker::hosts_mut`].
    pub fn hosts(&self) -> impl Iterator<Item = &BrokerHost> {
        self.areas.iter().flatten().filter(|area| !area.leaving).map(|area| &area.host)
    }

    /// What every area has counted.
    pub fn counters(&self) -> impl Iterator<Item = (AreaId, AreaCounters)> {
        self.areas.iter().flatten().map(|area| (area.id, area.counters()))
    }

    /// Whether anything is under way at a device.
    pub fn in_flight(&self) -> usize {
        self.queues().map(DiskQueue::in_flight).sum()
    }

    /// Takes what the control plane waits for.
    pub fn take_events(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }

    fn place(&self, id: AreaId) -> Option<usize> {
        self.areas.iter().position(|area| area.as_ref().is_some_and(|area| area.id == id))
    }

    /// Serves an area of `volume` that lies at `extents` from now on.
    ///
    /// # Errors
    /// See [`AttachError`]. The application then sees a hang-up.
    pub fn attach(
        &mut self,
        id: AreaId,
        volume: &str,
        extents: &[Span],
        host: BrokerHost,
    ) -> Result<(), AttachError> {
        if self.place(id).is_some() {
            return Err(AttachError::Taken(id));
        }
        let place = match self.areas.iter().position(Option::is_none) {
            Some(place) => place,
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
        let block = host.geometry().block;
        if block as usize != volume.queue.block_size() {
            return Err(AttachError::Block(id, block, volume.queue.block_size()));
        }
        volume.areas += 1;
        self.areas[place] = Some(Area::new(id, number, map, host));
        Ok(())
    }

    /// Gives an area other extents; [`Event::Reshaped`] tells when that is done.
    ///
    /// # Errors
    /// The extents make no sense; the area has its former ones.
    pub fn reshape(&mut self, id: AreaId, extents: &[Span]) -> Result<(), MapError> {
        let Some(area) = self.place(id).and_then(|place| self.areas[place].as_mut()) else {
            // It has gone: nothing of it is under way.
            self.events.push(Event::Reshaped(id));
            return Ok(());
        };
        let map = Map::new(extents, self.volumes[area.volume].queue.capacity())?;
        if map.begins_with(&area.map) {
            area.map = map;
            self.events.push(Event::Reshaped(id));
        } else {
            area.shape = Some(map);
        }
        Ok(())
    }

    /// Takes nothing more from an area; [`Event::Detached`] tells when nothing of it is under way.
    pub fn detach(&mut self, id: AreaId) {
        match self.place(id).and_then(|place| self.areas[place].as_mut()) {
            Some(area) => area.leaving = true,
            None => self.events.push(Event::Detached(id)),
        }
    }

    /// Does one turn. Whether anything happened.
    pub fn turn(&mut self) -> bool {
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
        for place in 0..count {
            busy |= self.settle(place);
        }
        busy
    }

    /// A device's queue is broken: all that its areas asked for fails.
    fn fail(&mut self, number: usize, cause: &io::Error) {
        let volume = &mut self.volumes[number];
        volume.broken = true;
        self.events.push(Event::Broken { volume: volume.name.clone(), cause: cause.to_string() });
        for area in self.areas.iter_mut().flatten().filter(|area| area.volume == number) {
            area.abandon();
        }
    }

    /// Takes what the devices have finished.
    fn collect(&mut self) -> bool {
        let Self { volumes, areas, done, .. } = self;
        let mut busy = false;
        for volume in volumes.iter_mut().filter(|volume| !volume.broken) {
            busy |= volume.queue.complete(done) > 0;
            for completion in done.drain(..) {
                let error = completion.result.as_ref().err().map_or(0, volume::number);
                if completion.token == FLUSHES {
                    for (place, request) in volume.flushed() {
                        if let Some(area) = areas.get_mut(place).and_then(Option::as_mut) {
                            area.flushed(request, error);
                        }
                    }
                    continue;
                }
                let Some(piece) = volume.finish(completion.token) else { continue };
                if let Some(area) = areas.get_mut(piece.area).and_then(Option::as_mut) {
                    area.arrived(&piece, completion.buffer.as_ref(), error);
                }
                if let Some(buffer) = completion.buffer {
                    volume.buffers.give(buffer);
                }
            }
        }
        busy
    }

    /// Takes requests from one area, and hands them to its device.
    fn serve(&mut self, place: usize) -> bool {
        let Some(area) = self.areas.get_mut(place).and_then(Option::as_mut) else { return false };
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
                match volume.issue(area, place, request) {
                    Issue::All => area.head = None,
                    Issue::Some => return true,
                    Issue::None => return busy,
                }
                busy = true;
            }
            if area.leaving || area.shape.is_some() || area.credit <= 0 {
                return busy;
            }
            let Some(submission) = area.host.take() else { return busy };
            busy = true;
            if let Some(request) = area.admit(&submission, volume.queue.block_size()) {
                if submission.operation == layout::FLUSH {
                    volume.want_flush(place, request);
                } else {
                    area.head = Some(request);
                }
            }
        }
        busy
    }

    /// Shows an area's application what is done, and lets go of it if it is to go.
    fn settle(&mut self, place: usize) -> bool {
        let Some(area) = self.areas[place].as_mut() else { return false };
        area.publish();
        if area.under_way > 0 || area.head.is_some() {
            return false;
        }
        let (id, volume) = (area.id, area.volume);
        if let Some(map) = area.shape.take() {
            area.map = map;
            self.events.push(Event::Reshaped(id));
            return true;
        }
        if area.leaving {
            self.areas[place] = None;
            self.volumes[volume].areas -= 1;
            self.events.push(Event::Detached(id));
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests;
