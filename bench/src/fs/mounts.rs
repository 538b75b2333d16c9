//! Mounts that a measurement makes and removes: ext4 on a loop device over a file in memory, and
//! Sietch through FUSE.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::mount::{UnmountFlags, unmount};
use sietch_fuse::{Mount, MountError, Options, Unmounter};
use sietch_service::fs::{self, Digester, FileSystemClient};

use super::sietch::Store;
use crate::error::{Error, system};
use crate::process;

/// ext4 on a loop device. The file is sparse.
#[derive(Debug)]
pub(super) struct Loop {
    image: PathBuf,
    point: PathBuf,
}

impl Loop {
    /// Makes `image` with so many bytes and mounts it on `point`, which is made too.
    ///
    /// # Errors
    /// Not root, or no loop devices, or no mkfs.ext4.
    pub(super) fn mount(image: PathBuf, point: PathBuf, bytes: u64) -> Result<Self, Error> {
        std::fs::create_dir_all(&point).map_err(system("making a mount point"))?;
        let file = std::fs::File::create(&image).map_err(system("making an image"))?;
        let mounted = Self { image, point };
        file.set_len(bytes).map_err(system("making an image"))?;
        let (image, point) = (mounted.image.as_os_str(), mounted.point.as_os_str());
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        process::output("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-E".as_ref(), lazy.as_ref(), image])?;
        process::output("mount", &["-o".as_ref(), "loop".as_ref(), image, point])?;
        Ok(mounted)
    }

    pub(super) fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // It may not be mounted; what stays is recognisable by the process id in its name.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Sietch through FUSE, served by threads of this process.
pub(super) struct Fuse {
    point: PathBuf,
    unmounter: Unmounter,
    serving: Option<JoinHandle<Result<FileSystemClient, MountError>>>,
    digester: Option<Digester>,
    _store: Store,
}

impl Fuse {
    /// Mounts `store` on `point`, which is made.
    pub(super) fn mount(store: Store, point: PathBuf) -> Result<Self, Error> {
        let failed = |cause: MountError| system("mounting FUSE")(std::io::Error::other(cause.to_string()));
        std::fs::create_dir_all(&point).map_err(system("making a mount point"))?;
        let fs::Running { client, digester, .. } = store.open()?;
        let mount = Mount::new(client, &point, &Options::default()).map_err(failed)?;
        let unmounter = mount.unmounter();
        let serving = std::thread::spawn(move || mount.run());
        Ok(Self { point, unmounter, serving: Some(serving), digester: Some(digester), _store: store })
    }

    pub(super) fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let ended = self.unmounter.unmount().or_else(|_| self.unmounter.detach());
        // Without that the threads would be waited for in vain.
        if ended.is_ok()
            && let Some(serving) = self.serving.take()
        {
            drop(serving.join());
        }
        if let Some(digester) = self.digester.take() {
            drop(digester.end());
        }
    }
}
