//! The mounts of `[[fs]]`, each a process of its own.
//!
//! 1. A mount that ends, or cannot be made, is tried again as every part is ([`super::part`]):
//!    what fails is most likely its medium, and nothing else needs it.
//! 2. One that is unmounted, or whose process is ended by a signal that it handles, has a clean
//!    end. It stays unmounted until `sietch reload`: meanwhile its media can be changed or checked,
//!    or another process serves it.
//! 3. At the end each is unmounted and digests its log. One that takes longer than its grace is
//!    killed; the next mount recovers it.

use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use sietch_daemon::configuration::FileSystem;

use super::child::Reports;
use super::instance::Failing;
use super::part::{Event, Part};
use super::plan::Plan;

/// For a log of a few GiB to be digested on a slow disk.
const GRACE: Duration = Duration::from_secs(30);

/// A file system and the process that shows it.
struct Shown {
    file_system: FileSystem,
    part: Part,
}

/// All mounts.
pub(super) struct FileSystems(Vec<Shown>);

impl FileSystems {
    /// None of them runs yet. Their messages go to files in `data`.
    pub(super) fn new(file_systems: &[FileSystem], data: &Path) -> Self {
        let shown = |file_system: &FileSystem| {
            let name = format!("the file system {}", file_system.name);
            let log = data.join(format!("fs-{}.log", file_system.name));
            let part = Part::new("file system", name, log, Reports::Line).stays_ended();
            Shown { file_system: file_system.clone(), part }
        };
        Self(file_systems.iter().map(shown).collect())
    }

    /// Waits for the next change of one of them. May be cancelled and called again.
    pub(super) async fn event(&mut self) -> (&mut Part, Event) {
        let mut waits: Vec<_> = self.0.iter_mut().map(|shown| Box::pin(shown.part.event())).collect();
        let (which, event) = std::future::poll_fn(|context| {
            let mut polls = waits.iter_mut().map(|wait| wait.as_mut().poll(context)).enumerate();
            let ready = polls.find_map(|(which, poll)| match poll {
                Poll::Ready(event) => Some((which, event)),
                Poll::Pending => None,
            });
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        drop(waits);
        let Shown { file_system, part } = &mut self.0[which];
        if matches!(event, Event::Due) {
            part.start(Plan::mount(file_system));
        }
        (part, event)
    }

    /// Whether none is being started for the first times.
    pub(super) fn are_settled(&self) -> bool {
        self.0.iter().all(|shown| shown.part.is_settled())
    }

    /// Those that do not run, and why.
    pub(super) fn failing(&self) -> impl Iterator<Item = Failing> {
        self.0.iter().filter_map(|shown| shown.part.failing())
    }

    /// The names of those that were unmounted on purpose.
    pub(super) fn unmounted(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|shown| shown.part.rests()).map(|shown| shown.part.name.clone())
    }

    /// Mounts those again.
    pub(super) fn resume(&mut self) {
        self.0.iter_mut().for_each(|shown| shown.part.resume());
    }

    /// Directories, folders and processes of those that are shown.
    pub(super) fn running(&self) -> impl Iterator<Item = (&FileSystem, u32)> {
        let shown = self.0.iter().filter(|shown| shown.part.serves());
        shown.filter_map(|shown| Some((&shown.file_system, shown.part.pid()?)))
    }

    /// Unmounts all; the names of those that had to be killed.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        self.0.iter().for_each(|shown| shown.part.terminate());
        self.end(GRACE).await
    }

    /// Kills all.
    pub(super) async fn kill(&mut self) {
        self.end(Duration::ZERO).await;
    }

    async fn end(&mut self, grace: Duration) -> Vec<String> {
        let mut killed = Vec::new();
        for shown in &mut self.0 {
            if !shown.part.stop(grace).await {
                killed.push(shown.part.name.clone());
            }
        }
        killed
    }
}
