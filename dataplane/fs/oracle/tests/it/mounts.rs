//! A file system of the kernel, mounted for a test, and unmounted when the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a file system.
const BYTES: u64 = 256 << 20;

/// A mounted file system. Its folder goes with it.
pub(crate) struct Mounted {
    folder: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {text}")) }
}

impl Mounted {
    /// Mounts `kind`, `tmpfs` or `ext4`.
    ///
    /// # Errors
    /// Why it cannot be mounted here.
    pub(crate) fn new(kind: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".into());
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sietch-oracle-{kind}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("root")).map_err(|error| error.to_string())?;
        let mounted = Self { folder };
        let root = mounted.root();
        let root = root.to_str().ok_or("not UTF-8")?;
        if kind == "tmpfs" {
            let options = format!("noatime,mode=755,size={BYTES}");
            run("mount", &["-t", "tmpfs", "-o", &options, "sietch-oracle", root])?;
        } else {
            let image = mounted.folder.join("image");
            let file = fs::File::create(&image).map_err(|error| error.to_string())?;
            file.set_len(BYTES).map_err(|error| error.to_string())?;
            let image = image.to_str().ok_or("not UTF-8")?;
            run("mkfs.ext4", &["-q", "-b", "4096", image])?;
            run("mount", &["-o", "loop,noatime", image, root])?;
            let _ = fs::remove_dir(Path::new(root).join("lost+found"));
        }
        Ok(mounted)
    }

    /// Its root directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let root = self.root();
        // Fails where the mount failed: then there is nothing to unmount.
        let _ = Command::new("umount").arg("-l").arg(&root).output();
        // Never removes the content of a file system that is still mounted.
        if fs::remove_dir(&root).is_ok() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
