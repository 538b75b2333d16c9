//! Each second: what holders, and former holders, have made of the files of their areas.
//!
//! 1. A holder can make the file of its area longer, and take room of others so. Its grant ends,
//!    and the area is shut ([`Volume::shut`]).
//! 2. An area that was left is checked half a second later or more. If a process can still write to
//!    it, it is shut: that process could make it longer, and has no grant that could end. At the
//!    start, every area is one that was left.
//! 3. Where a file system does not support that, the area is only cut back, each second as long as
//!    a process can write to it.
//! 4. Shutting flushes what was written, which may take long. So it runs on a blocking thread, and
//!    the area is not given to others until [`Event::Shut`].
//! 5. Revocations for which the state had no room are written as soon as it has some.

use std::sync::Arc;
use std::time::Instant;

use super::super::controller::{Control, INSPECTION};
use super::super::event::{Event, LeftArea};
use super::super::tables::Pending;
use crate::state::{Device, GrantRecord};
use crate::volume::{AreaPath, Volume};

impl Control {
    /// Whether the file of the area `label` is longer than the area.
    pub(in crate::control) fn has_grown(&self, label: &str) -> bool {
        let path = AreaPath::from_label(label);
        let Some(volume) = self.volumes.get(&path.volume) else { return false };
        volume.find(&path.name).is_some_and(|found| volume.has_grown(&path.name, found.size))
    }

    /// Counts every area as one that was left.
    pub(in crate::control) fn leave_areas(&mut self) {
        for volume in self.volumes.iter() {
            for found in volume.list() {
                let path = AreaPath { volume: volume.definition.name.clone(), name: found.name };
                let left = LeftArea { uid: found.uid.unwrap_or(u32::MAX), at: Instant::now() };
                self.left.insert(path.label(), left);
            }
        }
    }

    /// See the module's account.
    pub(in crate::control) fn inspect(&mut self) {
        let grown = |record: &&GrantRecord| {
            let Device::Vsa { size } = record.device else { return false };
            let path = AreaPath::from_label(&record.name);
            let volume = self.volumes.get(&path.volume);
            !self.preparing.contains_key(&record.name)
                && volume.is_some_and(|volume| volume.has_grown(&path.name, size))
        };
        for record in self.grants.values().filter(grown).cloned().collect::<Vec<_>>() {
            self.end_grown(&record);
        }
        let due = self.left.iter().filter(|(_, left)| left.at.elapsed() >= INSPECTION / 2);
        for (label, left) in due.map(|(label, left)| (label.clone(), *left)).collect::<Vec<_>>() {
            self.check_left(label, left);
        }
        // Status shows nothing of it: the answer to the request has said it.
        let _ = self.record_revoked();
    }

    fn end_grown(&mut self, record: &GrantRecord) {
        let (uid, pid) = (record.process.uid, record.process.pid);
        let name = &record.name;
        self.counters.borrow_mut().areas_cut_back += 1;
        self.warn(
            Some(uid),
            format!("VSA {name}: had grown beyond its size, so its grant to pid {pid} has ended, and it is cut back"),
        );
        self.leave(record, "its file was made longer than the area");
        self.check_left(name.clone(), LeftArea { uid, at: Instant::now() });
    }

    fn check_left(&mut self, label: String, left: LeftArea) {
        if self.preparing.contains_key(&label) {
            return;
        }
        self.left.remove(&label);
        let path = AreaPath::from_label(&label);
        let Some(volume) = self.volumes.get(&path.volume).cloned() else { return };
        let Some(found) = volume.find(&path.name).filter(|_| self.holder(&label, false).is_none()) else {
            return;
        };
        if !volume.is_written(&path.name) {
            volume.check_size(&path.name, found.size);
        } else if volume.can_shut() {
            self.shut(label, path, volume, left);
        } else {
            volume.check_size(&path.name, found.size);
            self.left.insert(label, left);
        }
    }

    fn shut(&mut self, label: String, path: AreaPath, volume: Arc<Volume>, left: LeftArea) {
        self.preparing.insert(label.clone(), Pending::OPENING);
        let events = self.events.clone();
        tokio::task::spawn_local(async move {
            let shut = tokio::task::spawn_blocking(move || volume.shut(&path.name)).await;
            let result = shut.unwrap_or_else(|_| Err(format!("VSA {label}: shutting it was interrupted")));
            // The send fails only when the daemon has ended.
            let _ = events.send(Event::Shut { label, left, result }).await;
        });
    }

    /// An area was shut, or this failed.
    pub(in crate::control) fn shut_done(
        &mut self,
        label: String,
        left: LeftArea,
        result: Result<(), String>,
    ) {
        self.preparing.remove(&label);
        let failed = result.is_err();
        if let Err(why) = result {
            self.warn(Some(left.uid), why);
        }
        if failed || self.has_grown(&label) {
            self.left.insert(label, left);
        }
        let _ = self.record_revoked();
    }
}
