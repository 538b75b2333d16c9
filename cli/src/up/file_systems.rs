//! The mounts of `[[fs]]`, each a process of its own.
//!
//! 1. All of them must be there before `up` says that it serves: a wrong folder is seen at once.
//! 2. A mount that ends later is started again, which recovers its log. If that fails, the other
//!    processes go on without it: what fails is most likely its medium, and nothing else needs it.
//! 3. At the end each is unmounted and digests its log. One that takes longer than its grace is
//!    killed; the next mount recovers it.

use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use sietch_daemon::configuration::FileSystem;

use super::child::Child;
use super::plan::Plan;
use crate::error::Error;

/// For a log of a few GiB to be digested on a slow disk.
const GRACE: Duration = Duration::from_secs(30);

/// A file system and the process that shows it.
struct Shown {
    file_system: FileSystem,
    log: PathBuf,
    child: Option<Child>,
}

impl Shown {
    async fn start(&mut self) -> Result<(), Error> {
        let arguments = Plan::mount(&self.file_system);
        let child = self.child.insert(Child::start("file system", arguments, &self.log)?);
        let outcome = child.ready_line().await;
        if outcome.is_err() {
            self.child = None;
        }
        outcome.map(drop)
    }
}

/// All mounts.
pub(super) struct FileSystems(Vec<Shown>);

impl FileSystems {
    /// None of them runs yet. Their messages go to files in `data`.
    pub(super) fn new(file_systems: &[FileSystem], data: &Path) -> Self {
        let shown = |file_system: &FileSystem| Shown {
            file_system: file_system.clone(),
            log: data.join(format!("fs-{}.log", file_system.name)),
            child: None,
        };
        Self(file_systems.iter().map(shown).collect())
    }

    /// Starts those that do not run.
    ///
    /// # Errors
    /// Of the first that does not start.
    pub(super) async fn start(&mut self) -> Result<(), Error> {
        for shown in self.0.iter_mut().filter(|shown| shown.child.is_none()) {
            shown.start().await?;
        }
        Ok(())
    }

    /// Waits until one ends; returns its name and how it ended. May be cancelled and called again.
    pub(super) async fn ended(&mut self) -> (String, String) {
        let waits = self.0.iter_mut().filter_map(|shown| {
            let child = shown.child.as_mut()?;
            let name = shown.file_system.name.clone();
            Some(Box::pin(async move { (name, child.ended().await) }))
        });
        let mut waits: Vec<_> = waits.collect();
        std::future::poll_fn(|context| {
            let polls = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
            polls.into_iter().find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Starts one again that has ended.
    ///
    /// # Errors
    /// Why it does not start. It stays away.
    pub(super) async fn restart(&mut self, name: &str) -> Result<(), Error> {
        match self.0.iter_mut().find(|shown| shown.file_system.name == name) {
            Some(shown) => {
                shown.child = None;
                shown.start().await
            }
            None => Ok(()),
        }
    }

    /// Directories, folders and processes of those that run.
    pub(super) fn running(&self) -> impl Iterator<Item = (&FileSystem, u32)> {
        self.0.iter().filter_map(|shown| Some((&shown.file_system, shown.child.as_ref()?.pid()?)))
    }

    /// Unmounts all; the names of those that had to be killed.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        let children = || self.0.iter().filter_map(|shown| shown.child.as_ref());
        children().for_each(Child::terminate);
        self.end(GRACE).await
    }

    /// Kills all.
    pub(super) async fn kill(&mut self) {
        self.end(Duration::ZERO).await;
    }

    async fn end(&mut self, grace: Duration) -> Vec<String> {
        let mut killed = Vec::new();
        for shown in &mut self.0 {
            if let Some(mut child) = shown.child.take()
                && !child.wait_or_kill(grace).await
            {
                killed.push(shown.file_system.name.clone());
            }
        }
        killed
    }
}
