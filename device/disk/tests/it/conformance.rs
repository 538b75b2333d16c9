//! The suite of `sietch_disk::conformance` over every queue of this crate.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{CAPACITY, Folder, sealed};
use sietch_disk::conformance::Bench;
use sietch_disk::nvm::{Mapped, Model, Seek};
use sietch_disk::uring::{Mode, UringOptions};
use sietch_disk::{
    BlockingQueue, DiskQueue, MemoryQueue, NvmQueue, OpenError, UringQueue, conformance, open_memory,
    open_parts,
};

/// How a descriptor is driven.
type Driver = fn(OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError>;

fn blocking(fd: OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError> {
    Ok(Box::new(BlockingQueue::open(fd, CAPACITY as u64)?))
}

fn uring(fd: OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError> {
    in_mode(fd, Mode::Cooperative)
}

fn deferred(fd: OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError> {
    in_mode(fd, Mode::Deferred)
}

fn kernel_thread(fd: OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError> {
    in_mode(fd, Mode::KernelThread)
}

fn plain(fd: OwnedFd) -> Result<Box<dyn DiskQueue>, OpenError> {
    in_mode(fd, Mode::Plain)
}

fn in_mode(fd: OwnedFd, mode: Mode) -> Result<Box<dyn DiskQueue>, OpenError> {
    Ok(Box::new(UringQueue::open(fd, CAPACITY as u64, UringOptions { depth: 8, mode })?))
}

/// A file of its own.
struct File {
    folder: Folder,
    driver: Driver,
}

impl File {
    fn new(parent: &Path, driver: Driver) -> Result<Self, String> {
        let folder = Folder::new(parent)?;
        // What the machine refuses it refuses here.
        match driver(folder.area()) {
            Ok(_) => {}
            Err(OpenError::Unavailable { cause }) => return Err(format!("io_uring: {cause}")),
            Err(other) => panic!("{other}"),
        }
        Ok(Self { folder, driver })
    }
}

impl Bench for File {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        (self.driver)(self.folder.reopen()).expect("opened before")
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        Some(self.open())
    }
}

/// A loop device over a file.
struct Loop {
    device: PathBuf,
    driver: Driver,
    _folder: Folder,
}

impl Loop {
    fn new(driver: Driver) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("root, for a loop device".into());
        }
        let folder = Folder::temporary();
        drop(folder.area());
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(folder.path())
            .output()
            .map_err(|e| format!("losetup: {e}"))?;
        if !made.status.success() {
            return Err(format!("a loop device: {}", String::from_utf8_lossy(&made.stderr).trim()));
        }
        let device = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let bench = Self { device, driver, _folder: folder };
        match driver(bench.descriptor()) {
            Ok(_) => Ok(bench),
            Err(OpenError::Unavailable { cause }) => Err(format!("io_uring: {cause}")),
            Err(other) => panic!("{other}"),
        }
    }

    fn descriptor(&self) -> OwnedFd {
        let device = std::fs::File::options().read(true).write(true).open(&self.device);
        device.expect("a loop device that was just made").into()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("--detach").arg(&self.device).status());
    }
}

impl Bench for Loop {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        (self.driver)(self.descriptor()).expect("opened before")
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        Some(self.open())
    }
}

/// Sealed memory that outlives its queue.
struct Sealed(OwnedFd, Option<Model>);

impl Bench for Sealed {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        let memory = self.0.try_clone().expect("a descriptor");
        Box::new(open_memory(memory, CAPACITY as u64, self.1).expect("sealed memory"))
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        Some(self.open())
    }
}

/// An area of three parts, each in memory that is longer than it.
fn parts() -> impl DiskQueue {
    let third = CAPACITY as u64 / 3 / 4096 * 4096;
    let lengths = [third, 4096, CAPACITY as u64 - third - 4096];
    let parts = lengths.map(|length| (sealed(length + 4096), length));
    open_parts(parts.into(), None).expect("parts of sealed memory")
}

const SLOW: Model = Model {
    read_latency: Duration::from_micros(3),
    write_latency: Duration::from_micros(2),
    bandwidth: 1 << 30,
    seek: None,
};

/// A rotating disk that is a thousand times as fast as one.
const ROTATING: Model = Model {
    bandwidth: 1 << 30,
    seek: Some(Seek {
        shortest: Duration::from_micros(1),
        longest: Duration::from_micros(10),
        half_rotation: Duration::from_micros(4),
    }),
    ..SLOW
};

conformance!(memory, Ok(|| MemoryQueue::new(CAPACITY)));
conformance!(nvm_anonymous, Ok(|| NvmQueue::over(Mapped::anonymous(CAPACITY).expect("64 KiB"), None)));
conformance!(nvm_sealed, Ok(Sealed(sealed(CAPACITY as u64), None)));
conformance!(nvm_parts, Ok(parts));
conformance!(nvm_modelled, Ok(Sealed(sealed(CAPACITY as u64), Some(SLOW))));
conformance!(nvm_rotating, Ok(Sealed(sealed(CAPACITY as u64), Some(ROTATING))));
conformance!(blocking_disk, File::new(&std::env::temp_dir(), blocking));
conformance!(blocking_tmpfs, File::new(Path::new("/dev/shm"), blocking));
conformance!(blocking_loop, Loop::new(blocking));
conformance!(uring_disk, File::new(&std::env::temp_dir(), uring));
conformance!(uring_tmpfs, File::new(Path::new("/dev/shm"), uring));
conformance!(uring_loop, Loop::new(uring));
conformance!(uring_plain, File::new(&std::env::temp_dir(), plain));
conformance!(uring_deferred, File::new(&std::env::temp_dir(), deferred));
conformance!(uring_kernel_thread, File::new(&std::env::temp_dir(), kernel_thread));
