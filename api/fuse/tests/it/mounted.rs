//! A mount on a temporary directory, which goes away with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use sietch_fuse::{Mount, MountError, Options, Unmounter};

use crate::beside::Beside;

/// A model that is mounted.
pub(crate) struct Mounted {
    pub(crate) directory: PathBuf,
    pub(crate) model: Beside,
    unmounter: Unmounter,
    serving: Option<JoinHandle<Result<Beside, MountError>>>,
}

/// A mount that is unmounted and may still be ending.
pub(crate) struct Ending {
    pub(crate) directory: PathBuf,
    pub(crate) thread: JoinHandle<Result<Beside, MountError>>,
}

/// What a test of ordinary programs wants.
pub(crate) fn options() -> Options {
    Options { allow_other: true, trusted: true, ..Options::default() }
}

/// An empty directory, with a name of its own.
pub(crate) fn directory(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("sietch-fuse-{name}-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).expect("a directory for the mount");
    directory
}

/// Whether this machine lets a test mount; prints why not.
pub(crate) fn can_mount(name: &str) -> bool {
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_ADMIN));
    let why = if !rustix::process::geteuid().is_root() || !may_mount {
        "not root, or root without CAP_SYS_ADMIN"
    } else if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        "/dev/fuse cannot be opened"
    } else {
        return true;
    };
    println!("SKIPPED {name}: {why}");
    false
}

/// Waits for what the kernel does in the background. Whether it happens is the test, not how soon.
pub(crate) fn eventually(happened: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while !happened() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

impl Mounted {
    /// Mounts an empty model, if this machine lets it.
    pub(crate) fn new(name: &str) -> Option<Self> {
        Self::with(name, &options())
    }

    pub(crate) fn with(name: &str, options: &Options) -> Option<Self> {
        can_mount(name).then(|| Self::at(directory(name), options))
    }

    /// Mounts an empty model on a directory, which goes away with it.
    pub(crate) fn at(directory: PathBuf, options: &Options) -> Self {
        let model = Beside::default();
        let mount = Mount::new(model.clone(), &directory, options).expect("it is mounted");
        let unmounter = mount.unmounter();
        let serving = Some(std::thread::spawn(move || mount.run()));
        Self { directory, model, unmounter, serving }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }

    /// Unmounts it, and returns how serving ended.
    pub(crate) fn unmount(mut self) -> Result<Beside, MountError> {
        self.unmounter.unmount().expect("nothing uses it");
        self.serving.take().expect("it serves").join().expect("serving does not panic")
    }

    /// Unmounts it, and does not wait for the end of serving.
    pub(crate) fn unmount_only(mut self) -> Ending {
        self.unmounter.unmount().expect("nothing uses it");
        let thread = self.serving.take().expect("it serves");
        Ending { directory: std::mem::take(&mut self.directory), thread }
    }

    /// Runs a shell command in it as a user with these groups, and returns what it prints.
    pub(crate) fn shell_as(&self, uid: u32, gid: u32, groups: &str, script: &str) -> String {
        let output = Command::new("setpriv")
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg(if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") })
            .args(["sh", "-c", script])
            .current_dir(&self.directory)
            .output()
            .expect("setpriv of util-linux runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            // Also where the test failed with files open.
            let detached = self.unmounter.detach();
            if detached.is_ok() && !std::thread::panicking() {
                drop(serving.join());
            }
        }
        drop(std::fs::remove_dir(&self.directory));
    }
}
