//! What a creation makes, written down before the first file is made: so nothing stays of one that
//! was interrupted, was killed or failed.
//!
//! 1. A draft is the description under another name, in the folder of the file system. Its process
//!    has it locked. It names no file that was there before.
//! 2. A creation that fails, or that a signal interrupts ([`Interrupt`]), removes the files that
//!    the draft names, and then the draft.
//! 3. A draft that is there and not locked was left by a process that was killed. The next creation
//!    in the folder does the same with it.
//!
//! What it must never do: remove a file that was there before, or one of a file system that is
//! whole.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::geteuid;
use sietch_disk::area::AreaError;

use super::super::description::{Description, FILE};
use super::super::error::StoreError;
use super::super::logs;

/// The name of a draft.
pub(super) const DRAFT: &str = "fs.toml.draft";
/// Bytes of a draft, at most: no description has as many.
const MOST: u64 = 1 << 20;
/// Between two looks for files of a creation that was interrupted: it may be about to make the next
/// one.
const PAUSE: Duration = Duration::from_millis(20);

/// The draft of a creation that this process does.
pub(super) struct Draft {
    path: PathBuf,
    /// Locked.
    _file: File,
}

fn lock(file: &File) -> bool {
    !matches!(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK))
}

impl Draft {
    /// Removes what an earlier creation in `folder` left, and begins this one.
    pub(super) fn begin(folder: &Path, description: &Description) -> Result<Self, StoreError> {
        let path = folder.join(DRAFT);
        let fail = |action, source| StoreError::Io { path: path.clone(), action, source };
        let text = description.text(&path)?;
        let options = || File::options().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = match options() {
            Err(source) if source.kind() == ErrorKind::AlreadyExists => {
                clear(&path)?;
                options()
            }
            other => other,
        }
        .map_err(|source| fail("create it", source))?;
        if !lock(&file) {
            return Err(AreaError::Busy { path }.into());
        }
        let draft =
            Self { path: path.clone(), _file: file.try_clone().map_err(|source| fail("keep it", source))? };
        let is_new = files(description).try_for_each(|file| judge_new(&file));
        let written = is_new.and_then(|()| {
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            let written = written.and_then(|()| File::open(folder)?.sync_all());
            written.map_err(|source| fail("write it", source))
        });
        match written {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.end();
                Err(error)
            }
        }
    }

    /// The creation has ended.
    pub(super) fn end(self) {
        // One that stays names files of a whole file system, which the next creation refuses first.
        drop(std::fs::remove_file(&self.path));
    }
}

/// The file system in `folder` is whole: a draft that a killed process left says nothing.
pub(in crate::fs) fn forget(folder: &Path) {
    drop(std::fs::remove_file(folder.join(DRAFT)));
}

/// Removes what a killed process left.
fn clear(path: &Path) -> Result<(), StoreError> {
    let fail = |action, source| StoreError::Io { path: path.to_owned(), action, source };
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|source| fail("open it", source))?;
    let found = file.metadata().map_err(|source| fail("read its owner", source))?;
    if found.uid() != geteuid().as_raw() || !found.is_file() {
        return Err(StoreError::foreign(path, found.uid(), found.mode(), found.nlink()));
    }
    if !lock(&file) {
        return Err(AreaError::Busy { path: path.to_owned() }.into());
    }
    let mut text = String::new();
    let read = (&file).take(MOST).read_to_string(&mut text);
    // One that is not whole was not flushed: no file was made.
    if read.is_ok()
        && let Some(description) = Description::of_text(&text)
    {
        undo(&description);
    }
    std::fs::remove_file(path).map_err(|source| fail("remove it", source))
}

/// The files of a file system.
fn files(description: &Description) -> impl Iterator<Item = PathBuf> {
    let log = &description.log;
    let logs = [Some(&log.memory), log.disk.as_ref()].into_iter().flatten();
    description.media.iter().map(|medium| &medium.path).chain(logs).cloned()
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Refuses a file that is there already, or would be overwritten.
fn judge_new(path: &Path) -> Result<(), StoreError> {
    for path in [path.to_owned(), partial(path)] {
        if path.symlink_metadata().is_ok() {
            return Err(AreaError::Exists { path }.into());
        }
    }
    Ok(())
}

/// Removes all files; whether there was one.
fn undo(description: &Description) -> bool {
    let mut has_removed = false;
    for path in files(description) {
        for path in [partial(&path), path] {
            has_removed |= std::fs::remove_file(path).is_ok();
        }
    }
    logs::remove_folder(&description.log);
    has_removed
}

/// How far a creation is.
#[derive(Default)]
enum Stage {
    /// Nothing was made.
    #[default]
    Idle,
    /// Files are made, for the file system in this folder.
    Making(PathBuf, Box<Description>),
    /// It is whole, or has failed.
    Ended,
    /// What was made is removed: nothing else follows.
    Interrupted,
}

/// Interrupts a creation from another thread. Clones are for the same one.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Stage>>);

impl Interrupt {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        // Nothing under this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what was made. `false`: the creation has ended, and what it made stays. Otherwise
    /// the process must end: the creation goes on until then, and makes nothing that stays.
    pub fn interrupt(&self) -> bool {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Interrupted) {
            Stage::Making(folder, description) => {
                undo(&description);
                std::thread::sleep(PAUSE);
                while undo(&description) {
                    std::thread::sleep(PAUSE);
                }
                drop(std::fs::remove_file(folder.join(DRAFT)));
                true
            }
            Stage::Ended => {
                *stage = Stage::Ended;
                false
            }
            Stage::Idle | Stage::Interrupted => true,
        }
    }

    /// Files are made from now on.
    pub(super) fn begin(&self, folder: &Path, description: &Description) -> Result<(), StoreError> {
        let mut stage = self.stage();
        judge(&stage, folder)?;
        *stage = Stage::Making(folder.to_owned(), Box::new(description.clone()));
        Ok(())
    }

    /// Whether the next file is to be made.
    pub(super) fn go_on(&self, folder: &Path) -> Result<(), StoreError> {
        judge(&self.stage(), folder)
    }

    /// Ends the creation: `publish` makes it whole. If there is none, or it fails, what was made is
    /// removed.
    pub(super) fn end(
        &self,
        (folder, description): (&Path, &Description),
        made: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut stage = self.stage();
        judge(&stage, folder)?;
        *stage = Stage::Ended;
        let published = made.and_then(|()| description.write(folder));
        if published.is_err() {
            // A description that is not whole, or not durable, goes first.
            drop(std::fs::remove_file(folder.join(FILE)));
            undo(description);
        }
        published
    }
}

fn judge(stage: &Stage, folder: &Path) -> Result<(), StoreError> {
    let source = std::io::Error::from(ErrorKind::Interrupted);
    match stage {
        Stage::Interrupted => Err(StoreError::Io { path: folder.to_owned(), action: "make it", source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::description::{ClassName, MediumDescription};
    use super::super::super::{CreateOptions, create, open};
    use super::super::create_interruptibly;
    use super::*;
    use crate::fs::test_folder::{MIB, end};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/dev/shm/sietch-draft-{name}-{}", std::process::id()));
            drop(std::fs::remove_dir_all(&path));
            std::fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }

        fn options(&self) -> CreateOptions {
            let path = self.0.join("data");
            let medium = MediumDescription { class: ClassName::Ssd, path, bytes: 8 * MIB, model: None };
            let log_memory = Some(self.0.clone());
            CreateOptions { media: vec![medium], log_memory, log_bytes: Some(MIB), durability: None }
        }

        /// What is there.
        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).expect("a folder").flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.extend(
                std::fs::read_dir(self.0.join("store"))
                    .map(|entries| {
                        let name =
                            |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
                        entries.flatten().map(name).collect::<Vec<_>>()
                    })
                    .unwrap_or_default(),
            );
            names.retain(|name| name != "store");
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    /// At each moment that the creation shows.
    #[test]
    fn an_interrupted_creation_leaves_nothing() {
        let folder = Folder::new("interrupt");
        let store = folder.0.join("store");
        for moment in 0.. {
            let (interrupt, mut seen) = (Interrupt::default(), 0);
            let mut progress = |_: u64| {
                if seen == moment {
                    assert!(interrupt.interrupt());
                }
                seen += 1;
            };
            let made = create_interruptibly(&store, &folder.options(), &interrupt, &mut progress);
            // How often it shows what it has written depends on the disk.
            if seen <= moment {
                made.expect("room");
                assert!(!interrupt.interrupt(), "it is whole");
                assert!(moment >= 2, "{moment} moments: of the data, and of the log");
                break;
            }
            assert!(made.is_err(), "moment {moment}");
            assert_eq!(folder.names(), Vec::<String>::new(), "moment {moment}");
        }
        end(open(&store).expect("it is there"));
    }

    #[test]
    fn what_a_killed_creation_left_is_removed_by_the_next_one() {
        let folder = Folder::new("killed");
        let store = folder.0.join("store");
        let made = create(&store, &folder.options(), &mut |_| {}).expect("room");
        // As it was before the last step.
        std::fs::rename(store.join(FILE), store.join(DRAFT)).expect("a draft");
        std::fs::write(partial(&folder.0.join("data")), [0; 4096]).expect("a partial file");
        let again = create(&store, &folder.options(), &mut |_| {}).expect("the files are removed");
        assert_ne!(made.log.memory, again.log.memory);
        assert!(!made.log.memory.exists() && !store.join(DRAFT).exists());
        assert!(!partial(&folder.0.join("data")).exists());
        end(open(&store).expect("it is there"));
        std::fs::write(store.join(DRAFT), "").expect("a draft");
        end(open(&store).expect("it is there"));
        assert!(!store.join(DRAFT).exists(), "it says nothing");
        // A draft that is not whole: nothing was made.
        std::fs::remove_dir_all(&store).expect("remove it");
        std::fs::remove_file(folder.0.join("data")).expect("remove it");
        std::fs::create_dir(&store).expect("a folder");
        std::fs::write(store.join(DRAFT), "version = ").expect("a draft");
        create(&store, &folder.options(), &mut |_| {}).expect("room");
    }

    #[test]
    fn files_that_were_there_stay() {
        let folder = Folder::new("there");
        for name in ["data", "data.partial"] {
            std::fs::write(folder.0.join(name), "mine").expect("a file");
            let refused = create(&folder.0.join("store"), &folder.options(), &mut |_| {});
            assert!(refused.is_err_and(|error| error.to_string().contains("exists already")));
            assert_eq!(folder.names(), [name]);
            std::fs::remove_file(folder.0.join(name)).expect("remove it");
        }
        // Another process makes one there.
        std::fs::write(folder.0.join("store").join(DRAFT), "").expect("a draft");
        let other = File::open(folder.0.join("store").join(DRAFT)).expect("a draft");
        assert!(lock(&other));
        let refused = create(&folder.0.join("store"), &folder.options(), &mut |_| {});
        assert!(refused.is_err_and(|error| error.to_string().contains("another process")));
    }
}
