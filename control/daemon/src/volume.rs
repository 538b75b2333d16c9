//! Volumes: where storage areas are stored, for every kind of storage.
//!
//! 1. `sietch.toml` names the volumes. `main`, the directory `areas` in the daemon's data, always
//!    exists. A volume that cannot be opened is *broken*: it is shown with the reason, and requests
//!    for its areas are refused with that reason. The daemon starts all the same.
//! 2. An area is found by a [`AreaPath`]: volume and name. Its label is `NAME` on `main` and
//!    `/VOLUME/NAME` elsewhere. Grants, revocations and messages carry the label.
//! 3. Every call here may block for as long as writing an area takes. The control task itself calls
//!    only the reading ones ([`Volume::find`], [`Volume::list`], [`Volume::room`]). The others run
//!    on a blocking thread, one call an area at a time.

mod area;
mod claim;
mod directory;
mod extents;
mod memory;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use sietch_protocol::{ErrorKind, ErrorReply, MemoryModel, Protection, VolumeKind};

use crate::configuration::{Volume as Definition, Vsa};
use crate::error::Error;
use area::refuse;
use claim::{Claim, PreviousClaims};
use directory::Directory;
use extents::Extents;
use memory::Memory;

pub(crate) use area::{AreaChange, AreaDescriptors, AreaInfo, AreaLayout, AreaPath};

enum Backend {
    Directory(Directory),
    Extents(Box<Extents>),
    Memory(Memory),
    Broken(String),
}

/// A volume that is open, or why it is not.
pub(crate) struct Volume {
    /// The definition in `sietch.toml`.
    pub(crate) definition: Definition,
    backend: Arc<Backend>,
}

/// All volumes.
pub(crate) struct Volumes {
    list: Vec<Arc<Volume>>,
}

impl Volumes {
    /// Opens what `definitions` name. Volumes of `previous` that are defined as before stay open.
    pub(crate) fn open(
        data: &Path,
        definitions: &[Definition],
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let stays = |definition: &Definition| {
            let open = previous?.get(&definition.name)?;
            (same(&open.definition, definition) && open.failure().is_none()).then_some(open)
        };
        let kept: Vec<&str> =
            definitions.iter().filter_map(stays).map(|volume| volume.definition.name.as_str()).collect();
        let given_up = previous.into_iter().flat_map(Self::iter);
        let given_up = given_up.filter(|volume| !kept.contains(&volume.definition.name.as_str()));
        let mut claims: PreviousClaims = given_up.filter_map(|volume| volume.claim()).collect();
        let mut list = Vec::new();
        for definition in definitions {
            let volume = match stays(definition) {
                Some(open) => Volume { definition: definition.clone(), backend: Arc::clone(&open.backend) },
                None => Volume::open(data, definition, &mut claims)?,
            };
            list.push(Arc::new(volume));
        }
        Ok(Self { list })
    }

    /// The volume `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Volume>> {
        self.list.iter().find(|volume| volume.definition.name == name)
    }

    /// The volume of an area, or why there is none.
    pub(crate) fn of(&self, place: &AreaPath) -> Result<&Arc<Volume>, ErrorReply> {
        self.get(&place.volume).ok_or_else(|| {
            let fix = "see `sietch vsa usage` for those that there are".to_owned();
            let what = format!("volume {}", place.volume);
            ErrorReply { kind: ErrorKind::Unknown, what, cause: "there is none of that name".to_owned(), fix }
        })
    }

    /// All of them, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.list.iter()
    }
}

/// Whether two definitions are of one open volume: quotas may differ.
pub(crate) fn same(a: &Definition, b: &Definition) -> bool {
    // The size of a volume of extents is that with which it was made.
    let size = |volume: &Definition| volume.size.filter(|_| volume.kind != VolumeKind::Extents);
    (&a.name, a.kind, &a.path, size(a)) == (&b.name, b.kind, &b.path, size(b))
}

impl Volume {
    fn open(data: &Path, definition: &Definition, previous: &mut PreviousClaims) -> Result<Self, Error> {
        let Definition { name, kind, path, size, .. } = definition;
        let backend = match (kind, path) {
            // Without the main volume there is no daemon.
            (VolumeKind::Directory, None) => {
                Backend::Directory(Directory::open(name, data.join("areas"), *size, previous)?)
            }
            (VolumeKind::Directory, Some(path)) => match Directory::open(name, path.clone(), *size, previous)
            {
                Ok(directory) => Backend::Directory(directory),
                Err(error) => Backend::Broken(error.to_string()),
            },
            (VolumeKind::Extents, Some(path)) => match Extents::open(name, path, *size, previous) {
                Ok(extents) => Backend::Extents(Box::new(extents)),
                Err(why) => Backend::Broken(why),
            },
            (VolumeKind::Memory, _) => Backend::Memory(Memory::new(name, size.unwrap_or(0))),
            (VolumeKind::Dax, Some(path)) => match open_dax(name, path, *size, previous) {
                Ok(directory) => Backend::Directory(directory),
                Err(why) => Backend::Broken(why),
            },
            (VolumeKind::Extents | VolumeKind::Dax, None) => {
                Backend::Broken("it has no path; set `path` to its directory or device".to_owned())
            }
        };
        if let Backend::Broken(why) = &backend {
            tracing::warn!(volume = name, why, "a volume cannot be used");
        }
        Ok(Self { definition: definition.clone(), backend: Arc::new(backend) })
    }

    /// The claim that excludes other daemons from it.
    fn claim(&self) -> Option<Arc<Claim>> {
        match &*self.backend {
            Backend::Directory(directory) => Some(directory.claim()),
            Backend::Extents(extents) => Some(extents.claim()),
            Backend::Memory(_) | Backend::Broken(_) => None,
        }
    }

    fn broken(&self, why: &str) -> ErrorReply {
        let (cause, fix) = why.rsplit_once("; ").unwrap_or((why, "fix it, then `sietch reload`"));
        ErrorReply {
            kind: ErrorKind::Unsupported,
            what: format!("volume {}", self.definition.name),
            cause: cause.to_owned(),
            fix: fix.to_owned(),
        }
    }

    /// Why it cannot be used, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        match &*self.backend {
            Backend::Directory(_) | Backend::Memory(_) => None,
            Backend::Extents(extents) => extents.failure(),
            Backend::Broken(why) => Some(why.clone()),
        }
    }

    /// What becomes of its data when the power fails.
    pub(crate) fn durability(&self) -> &'static str {
        match &*self.backend {
            Backend::Directory(directory) if directory.is_dax() => "durable with the fence behind it",
            Backend::Directory(_) | Backend::Extents(_) => "durable as the storage below it",
            Backend::Memory(_) => "memory, lost at power off and when the daemon ends",
            Backend::Broken(_) => "",
        }
    }

    /// Where the volume is stored, for display.
    pub(crate) fn place(&self) -> String {
        match (&*self.backend, &self.definition.path) {
            (Backend::Directory(directory), _) => directory.location(),
            (_, Some(path)) => path.display().to_string(),
            (_, None) => String::new(),
        }
    }

    /// How memory pretends to be slow.
    pub(crate) fn model(&self) -> Option<MemoryModel> {
        (self.definition.kind == VolumeKind::Memory).then_some(self.definition.model)
    }

    /// The mechanism that keeps a holder inside its area.
    pub(crate) fn protection(&self) -> Protection {
        match &*self.backend {
            Backend::Directory(directory) => directory.protection(),
            Backend::Memory(_) => Protection::KernelEnforced,
            Backend::Extents(_) => Protection::BrokerMediated,
            Backend::Broken(why) => Protection::None(why.clone()),
        }
    }

    /// The warning that the administrator must see.
    pub(crate) fn warning(&self) -> Option<String> {
        match &*self.backend {
            Backend::Directory(directory) => directory.warning(),
            Backend::Memory(_) | Backend::Extents(_) | Backend::Broken(_) => None,
        }
    }

    /// Where the area `name` is stored, for display.
    pub(crate) fn location(&self, name: &str) -> String {
        match &*self.backend {
            Backend::Directory(directory) => directory.path(name).display().to_string(),
            Backend::Memory(_) => "memory".to_owned(),
            Backend::Extents(_) => format!("{} in {}", name, self.place()),
            Backend::Broken(_) => String::new(),
        }
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<AreaInfo> {
        match &*self.backend {
            Backend::Directory(directory) => directory.find(name),
            Backend::Memory(memory) => memory.find(name),
            Backend::Extents(extents) => extents.find(name),
            Backend::Broken(_) => None,
        }
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<AreaInfo> {
        match &*self.backend {
            Backend::Directory(directory) => directory.list(),
            Backend::Memory(memory) => memory.list(),
            Backend::Extents(extents) => extents.list(),
            Backend::Broken(_) => Vec::new(),
        }
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        match &*self.backend {
            Backend::Directory(directory) => directory.room(),
            Backend::Memory(memory) => memory.room(),
            Backend::Extents(extents) => extents.room(),
            Backend::Broken(_) => (0, 0),
        }
    }

    /// Checks that the area that `sietch.toml` describes can be acquired. A size that the file
    /// names anew (`resized`) must be that of the area, even if the area has been resized since it
    /// was made. A broken volume refuses nothing here: its device may come back.
    pub(crate) fn check(&self, vsa: &Vsa, resized: bool) -> Result<(), ErrorReply> {
        let Some(found) = self.find(&vsa.name) else {
            let (_, free) = self.room();
            let fits = vsa.size <= free || self.failure().is_some();
            return if fits { Ok(()) } else { Err(area::full(&self.definition.name, vsa.size, free)) };
        };
        let size = if found.recorded && !resized { found.size } else { vsa.size };
        match &*self.backend {
            Backend::Directory(directory) => directory.check(&vsa.name, vsa.uid, size),
            _ => area::check_fit(&found, vsa.uid, size, ""),
        }
    }

    /// Descriptors for user `uid` that reach the area `name` and nothing else. Creates an area of
    /// `size` bytes if it does not exist.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<AreaDescriptors, ErrorReply> {
        match &*self.backend {
            Backend::Directory(directory) => directory.prepare(name, uid, size).map(AreaDescriptors::one),
            Backend::Memory(memory) => memory.prepare(name, uid, size),
            Backend::Extents(extents) => extents.prepare(name, uid, size).map(|layout| AreaDescriptors {
                files: Vec::new(),
                lengths: Vec::new(),
                layout: Some(layout),
            }),
            Backend::Broken(why) => Err(self.broken(why)),
        }
    }

    /// The descriptors that the holder of the area `name` maps when its size has changed. None if
    /// its descriptor remains valid.
    pub(crate) fn remap(&self, name: &str) -> Result<AreaDescriptors, ErrorReply> {
        match &*self.backend {
            Backend::Memory(memory) => memory.remap(name),
            _ => Ok(AreaDescriptors { files: Vec::new(), lengths: Vec::new(), layout: None }),
        }
    }

    /// The extents of the area `name`, if areas of this volume have extents.
    pub(crate) fn layout(&self, name: &str) -> Option<AreaLayout> {
        match &*self.backend {
            Backend::Extents(extents) => extents.layout(name),
            _ => None,
        }
    }

    /// The volume's file for a service core alone, locked, and how many bytes of it there are.
    pub(crate) fn lease(&self) -> Result<(OwnedFd, u64), String> {
        match &*self.backend {
            Backend::Extents(extents) => extents.lease(),
            _ => Err("areas of this volume are not reached through a service core".to_owned()),
        }
    }

    /// Whether some service core has the volume, or requests of one are in flight.
    pub(crate) fn is_leased(&self) -> Result<bool, String> {
        match &*self.backend {
            Backend::Extents(extents) => extents.is_leased(),
            _ => Ok(false),
        }
    }

    /// A descriptor that can only read the area `name`, whatever process has it. None if no
    /// descriptor can be restricted to the area. It takes no lock, so it does not prevent acquiring
    /// the area.
    pub(crate) fn reader(&self, name: &str) -> Result<Option<OwnedFd>, ErrorReply> {
        match &*self.backend {
            Backend::Directory(directory) => directory.reader(name).map(Some),
            Backend::Memory(_) | Backend::Extents(_) => Ok(None),
            Backend::Broken(why) => Err(self.broken(why)),
        }
    }

    /// At most `length` bytes of the area `name` from `offset` on, of an area without a
    /// [`Volume::reader`].
    pub(crate) fn read(&self, name: &str, offset: u64, length: u32) -> Result<Vec<u8>, ErrorReply> {
        match &*self.backend {
            Backend::Extents(extents) => extents.read(name, offset, length),
            Backend::Memory(memory) => memory.read(name, offset, length),
            Backend::Broken(why) => Err(self.broken(why)),
            Backend::Directory(_) => {
                let cause = "it is read through its descriptor".to_owned();
                Err(refuse(ErrorKind::Unsupported, name, cause, "use ReadVsa for that"))
            }
        }
    }

    /// When the area `name` was last written, in nanoseconds since 1970, where that is known.
    pub(crate) fn modified(&self, name: &str) -> Option<u64> {
        match &*self.backend {
            Backend::Directory(directory) => directory.modified(name),
            Backend::Memory(_) | Backend::Extents(_) | Backend::Broken(_) => None,
        }
    }

    /// Does `work` to the area `name`. `held`: its holder may be using it meanwhile.
    pub(crate) fn work(&self, name: &str, work: AreaChange, held: bool) -> Result<(), ErrorReply> {
        match &*self.backend {
            Backend::Directory(directory) => match work {
                AreaChange::Create { uid, size } => directory.create(name, uid, size),
                AreaChange::Resize { size } => directory.resize(name, size, held),
                AreaChange::Trim { offset, length } => directory.trim(name, offset, length, held),
                AreaChange::Delete => directory.delete(name),
            },
            Backend::Memory(memory) => match work {
                AreaChange::Create { uid, size } => memory.create(name, uid, size),
                AreaChange::Resize { size } => memory.resize(name, size),
                AreaChange::Trim { offset, length } => memory.trim(name, offset, length),
                AreaChange::Delete => memory.delete(name),
            },
            Backend::Extents(extents) => match work {
                AreaChange::Create { uid, size } => extents.create(name, uid, size),
                AreaChange::Resize { size } => extents.resize(name, size),
                AreaChange::Trim { offset, length } => extents.trim(name, offset, length),
                AreaChange::Delete => extents.delete(name),
            },
            Backend::Broken(why) => Err(self.broken(why)),
        }
    }

    /// Stops every process that has the area open from writing. Returns a text that says what now
    /// stops them, or what does not.
    pub(crate) fn fence(&self, name: &str) -> Result<String, String> {
        match &*self.backend {
            Backend::Directory(directory) => directory.fence(name),
            Backend::Memory(memory) => memory.fence(name),
            Backend::Extents(_) => Ok("only the service core has the volume".to_owned()),
            Backend::Broken(why) => Err(why.clone()),
        }
    }

    /// Whether a process can write to the area `name` without the daemon's knowledge.
    pub(crate) fn is_written(&self, name: &str) -> bool {
        matches!(&*self.backend, Backend::Directory(directory) if directory.is_written(name))
    }

    /// Whether the holder of the area `name` has made it longer than `size` bytes.
    pub(crate) fn has_grown(&self, name: &str, size: u64) -> bool {
        matches!(&*self.backend, Backend::Directory(directory) if directory.has_grown(name, size))
    }

    /// Whether [`Volume::shut`] has an effect.
    pub(crate) fn can_shut(&self) -> bool {
        matches!(&*self.backend, Backend::Directory(directory) if directory.can_shut())
    }

    /// Cuts the area `name` back to its size. Then no process can write to it until it is used
    /// again.
    pub(crate) fn shut(&self, name: &str) -> Result<(), String> {
        match &*self.backend {
            Backend::Directory(directory) => directory.shut(name),
            Backend::Memory(_) | Backend::Extents(_) | Backend::Broken(_) => Ok(()),
        }
    }

    /// Checks whether a holder has changed its area's size, and fixes it. Returns a text that says
    /// what it found.
    pub(crate) fn check_size(&self, name: &str, size: u64) -> Option<String> {
        match &*self.backend {
            Backend::Directory(directory) => directory.check_size(name, size),
            // The memory is sealed, and no process has the extents open.
            Backend::Memory(_) | Backend::Extents(_) | Backend::Broken(_) => None,
        }
    }
}

/// Opens a directory on persistent memory, or returns the reason why it can store no area.
fn open_dax(
    name: &str,
    path: &Path,
    size: Option<u64>,
    previous: &mut PreviousClaims,
) -> Result<Directory, String> {
    let shown = path.display();
    let metadata = path.metadata().map_err(|error| {
        format!(
            "{shown} is not there ({error}); mount a file system of persistent memory with -o dax, or use kind = \"memory\" to try without"
        )
    })?;
    if !metadata.is_dir() {
        // A range of a device would be reached through a descriptor of all of it.
        return Err(format!(
            "{shown} is no directory, and a process that may map one range of a DAX device may map all of it; \
             make a file system on its memory (`ndctl create-namespace --mode=fsdax`), mount it with -o dax, and name a directory there"
        ));
    }
    Directory::open(name, path.to_owned(), size, previous).map_err(|error| error.to_string())?.on_dax()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_memory_that_is_not_there_is_refused_by_its_name() {
        let refused = |path: &str| open_dax("pmem", Path::new(path), None, &mut Vec::new()).err().unwrap();
        assert!(refused("/dev/dax9.9").starts_with("/dev/dax9.9 is not there"));
        assert!(refused("/dev/null").contains("may map all of it"), "a device is not cut in ranges");
    }
}
