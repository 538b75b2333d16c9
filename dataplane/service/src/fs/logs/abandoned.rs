//! The memory of logs whose file system is gone: a folder that was removed by hand leaves it in
//! `/dev/shm`, where nothing else removes it before the machine starts again.
//!
//! 1. A folder of the memory has a note ([`NOTE`]) of its file system: the folder, the files of the
//!    media, the device of each, and whether the logs have records that are not digested.
//! 2. A start of any file system with memory at the same place removes the memory of those that are
//!    gone: neither the folder nor a medium is there, and what would have them is. Where a disk is
//!    not mounted, there is another device. Memory in use is locked.
//! 3. A file system may have been moved as a whole, to where nothing is known of it. So memory with
//!    records that are not digested stays.
//!
//! What it must never do: remove memory that a file system still needs.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::super::description::{Description, FILE};
use super::folder::{NAME, NOTE, own_folder};

/// What a file system has.
#[derive(Serialize, Deserialize)]
struct Note {
    /// All records are digested.
    is_digested: bool,
    parts: Vec<Part>,
}

/// A note, to be changed when the file system is closed.
pub(in crate::fs) struct Noted {
    path: PathBuf,
    note: Note,
}

impl Noted {
    fn write(&self) {
        // Without a note the memory stays until the machine starts again.
        if let Ok(text) = toml::to_string(&self.note) {
            drop(std::fs::write(&self.path, text));
        }
    }

    /// All records are digested, and nothing follows.
    pub(in crate::fs) fn digested(mut self) {
        self.note.is_digested = true;
        self.write();
    }
}

/// A folder or a file.
#[derive(Serialize, Deserialize)]
struct Part {
    path: PathBuf,
    device: u64,
}

impl Part {
    fn of(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), device: path.symlink_metadata().ok()?.dev() })
    }

    /// Whether it was removed, as far as can be seen.
    fn is_gone(&self) -> bool {
        match self.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let above = self.path.ancestors().skip(1).find_map(|path| path.symlink_metadata().ok());
                above.is_some_and(|above| above.dev() == self.device)
            }
            _ => false,
        }
    }
}

/// Notes of which file system the memory is, if it has a folder of its own. There may be records
/// from now on.
pub(in crate::fs) fn note(folder: &Path, description: &Description) -> Option<Noted> {
    let own = own_folder(&description.log)?;
    let folder = folder.canonicalize().ok()?;
    let files = description.media.iter().map(|medium| medium.path.as_path());
    let parts = std::iter::once(folder.as_path()).chain(files).map(Part::of).collect::<Option<Vec<_>>>();
    let noted = Noted { path: own.join(NOTE), note: Note { is_digested: false, parts: parts? } };
    noted.write();
    Some(noted)
}

/// Removes the memory of file systems that are gone, where the memory of this one is.
pub(in crate::fs) fn collect(description: &Description) {
    let own = own_folder(&description.log);
    let Some(place) = own.and_then(Path::parent) else { return };
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().as_bytes().starts_with(NAME.as_bytes()) && Some(path.as_path()) != own {
            remove_if_gone(&path);
        }
    }
}

fn remove_if_gone(folder: &Path) {
    let Ok(found) = folder.symlink_metadata() else { return };
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return;
    }
    let note = std::fs::read_to_string(folder.join(NOTE)).ok();
    let Some(note) = note.and_then(|note| toml::from_str::<Note>(&note).ok()) else { return };
    if !note.is_digested || note.parts.is_empty() || !note.parts.iter().all(Part::is_gone) {
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let is_free = |path: &PathBuf| {
        let file = std::fs::File::open(path);
        file.is_ok_and(|file| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok())
    };
    if !files.iter().all(is_free) {
        return;
    }
    let removed = files.iter().try_for_each(std::fs::remove_file);
    if removed.and_then(|()| std::fs::remove_dir(folder)).is_ok() {
        let of = note.parts.first().map_or(Path::new(FILE), |part| part.path.as_path());
        tracing::info!("removed {}: the file system in {} is gone", folder.display(), of.display());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::super::description::{ClassName, MediumDescription};
    use super::super::super::{CreateOptions, create, open};
    use super::*;
    use crate::fs::test_folder::{MIB, end};

    /// A place in which every user may make files, and file systems with their memory there.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/dev/shm/sietch-abandoned-{name}-{}", std::process::id()));
            drop(std::fs::remove_dir_all(&path));
            std::fs::create_dir_all(path.join("shm")).expect("a folder");
            std::fs::set_permissions(path.join("shm"), Permissions::from_mode(0o1777)).expect("its mode");
            Self(path)
        }

        /// Makes one; the folder of its memory.
        fn create(&self, name: &str) -> PathBuf {
            let path = self.0.join(format!("{name}.data"));
            let medium = MediumDescription { class: ClassName::Ssd, path, bytes: 8 * MIB, model: None };
            let (log_memory, log_bytes) = (Some(self.0.join("shm")), Some(MIB));
            let options = CreateOptions { media: vec![medium], log_memory, log_bytes, durability: None };
            let made = create(&self.0.join(name), &options, &mut |_| {}).expect("room");
            own_folder(&made.log).expect("a folder of its own").to_owned()
        }

        fn remove(&self, name: &str) {
            std::fs::remove_dir_all(self.0.join(name)).expect("it is there");
        }

        fn remove_medium(&self, name: &str) {
            std::fs::remove_file(self.0.join(format!("{name}.data"))).expect("it is there");
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn the_memory_of_a_file_system_that_is_gone_is_removed_at_the_next_start() {
        let place = Place::new("gone");
        let (first, second) = (place.create("first"), place.create("second"));
        place.remove("first");
        end(open(&place.0.join("second")).expect("it opens"));
        assert!(first.exists(), "its medium is there: the folder may have been renamed");
        place.remove_medium("first");
        end(open(&place.0.join("second")).expect("it opens"));
        assert!(!first.exists() && second.exists());
        place.remove("second");
        place.remove_medium("second");
        let third = place.create("third");
        assert!(!second.exists() && third.exists());
    }

    /// Its files may have been moved, and be opened by other names.
    #[test]
    fn memory_with_records_stays() {
        let place = Place::new("records");
        let first = place.create("first");
        // As if its process was killed.
        drop(open(&place.0.join("first")).expect("it opens"));
        place.remove("first");
        place.remove_medium("first");
        place.create("second");
        assert!(first.exists());
    }

    #[test]
    fn memory_in_use_or_of_what_is_not_mounted_stays() {
        let place = Place::new("stays");
        let first = place.create("first");
        let running = open(&place.0.join("first")).expect("it opens");
        place.remove("first");
        place.remove_medium("first");
        place.create("second");
        assert!(first.exists(), "its process runs");
        end(running);
        // As if its disk was mounted somewhere above.
        let text = std::fs::read_to_string(first.join(NOTE)).expect("a note");
        let mut note: Note = toml::from_str(&text).expect("a note");
        note.parts[0].device += 1;
        std::fs::write(first.join(NOTE), toml::to_string(&note).expect("text")).expect("written");
        place.create("third");
        assert!(first.exists());
        std::fs::write(first.join(NOTE), text).expect("written");
        place.create("fourth");
        assert!(!first.exists());
    }
}
