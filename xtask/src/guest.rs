//! Sietch on a common kernel: Debian's own, in a guest under QEMU without hardware virtualisation
//! (TCG).
//!
//! 1. The kernel is a package of Debian's, downloaded once into `target/guest` and unpacked there.
//!    Without an argument it is the one that `linux-image-amd64` stands for; another is named in
//!    full, as in `cargo xtask guest linux-image-6.12.111+deb12-amd64`.
//! 2. The guest's file system is an archive ([`archive`]). It holds the `sietch` command, its
//!    library, some programs of this machine with the libraries that `ldd` names, some of the
//!    kernel's modules, and this program as `/init`. The data of `sietch` are on a disk with ext4.
//! 3. In the guest, [`inside`] is process 1: it takes the steps of a user, prints a line for each,
//!    and powers the guest off.
//! 4. On the host, the run reads the console until the guest prints the outcome, for at most
//!    [`TIMEOUT`].
//!
//! Without QEMU, or if the package cannot be downloaded, the run prints `SKIPPED` with the reason
//! and succeeds.

mod archive;
pub(crate) mod inside;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use archive::Archive;

/// A guest boots in 25 s and works for a minute; a busy machine takes several times as long.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Megabytes of the guest: the programs are in its memory.
const MEMORY: &str = "1536";

/// Programs of this machine that the guest needs: a shell's worth of tools, and clients.
const PROGRAMS: [&str; 9] =
    ["mount", "ip", "insmod", "setpriv", "redis-server", "redis-cli", "redis-benchmark", "sh", "sleep"];

/// Modules of Debian's kernels: the pair of interfaces, the disk, its file system, FUSE.
const MODULES: [&str; 13] = [
    "drivers/net/veth",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "crypto/crc32c_generic",
    "lib/crc16",
    "fs/mbcache",
    "fs/jbd2/jbd2",
    "fs/ext4/ext4",
    "fs/fuse/fuse",
];

/// Bytes of the guest's disk.
const DISK: u64 = 512 << 20;

/// The outcome of a run that did not fail.
enum Outcome {
    Passed,
    Skipped(String),
}

/// Boots the kernel of `package`, or Debian's usual one, and takes the steps of a user in it.
pub(crate) fn run(root: &Path, package: Option<&str>) -> Result<(), String> {
    match attempt(root, package)? {
        Outcome::Passed => {}
        Outcome::Skipped(why) => println!("SKIPPED guest: {why}"),
    }
    Ok(())
}

fn attempt(root: &Path, package: Option<&str>) -> Result<Outcome, String> {
    if find("qemu-system-x86_64").is_none() {
        return Ok(Outcome::Skipped("there is no qemu-system-x86_64 (Debian: qemu-system-x86)".to_owned()));
    }
    if let Some(missing) = PROGRAMS.iter().find(|program| find(program).is_none()) {
        return Ok(Outcome::Skipped(format!("there is no {missing} to put into it")));
    }
    let folder = root.join("target/guest");
    std::fs::create_dir_all(&folder).map_err(|cause| format!("cannot make {}: {cause}", folder.display()))?;
    let kernel = match kernel(&folder, package) {
        Ok(kernel) => kernel,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    crate::cargo::build_workspace(root)?;
    let initramfs = folder.join("initramfs");
    pack(root, &kernel, &initramfs)?;
    println!("guest: {}", kernel.package);
    let disk = disk(&folder)?;
    watch(boot(&kernel, &initramfs, &disk)?)
}

/// A kernel on disk.
struct Kernel {
    package: String,
    image: PathBuf,
    /// In the order in which they can be loaded.
    modules: Vec<PathBuf>,
}

/// Gets and unpacks the kernel's package.
fn kernel(folder: &Path, package: Option<&str>) -> Result<Kernel, String> {
    let package = match package {
        Some(package) => package.to_owned(),
        None => usual_package()?,
    };
    let unpacked = folder.join(&package);
    if !unpacked.join("boot").is_dir() {
        output(Command::new("apt-get").args(["download", "-qq", &package]).current_dir(folder))?;
        let is_ours = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
        };
        let deb = entries(folder)?.into_iter().find(is_ours);
        let deb = deb.ok_or_else(|| format!("apt-get brought no package {package}"))?;
        output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
        // Only a download that could be unpacked is kept as what it was unpacked to.
        std::fs::remove_file(&deb).map_err(|cause| format!("cannot remove {}: {cause}", deb.display()))?;
    }
    let image = entries(&unpacked.join("boot"))?
        .into_iter()
        .find(|path| path.to_string_lossy().contains("/vmlinuz-"))
        .ok_or_else(|| format!("package {package} has no kernel"))?;
    let folders = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")];
    let folder = folders.iter().find_map(|folder| entries(folder).ok()?.pop());
    let folder = folder.ok_or_else(|| format!("package {package} has no modules"))?;
    // A missing module is part of the kernel; if it is not, the guest reports the failure.
    let found = MODULES.iter().map(|name| module(&folder, name)).collect::<Result<Vec<_>, _>>()?;
    Ok(Kernel { package, image, modules: found.into_iter().flatten().collect() })
}

/// The file of a module, unpacked.
fn module(folder: &Path, name: &str) -> Result<Option<PathBuf>, String> {
    let file = folder.join("kernel").join(name).with_extension("ko");
    let compressed = file.with_extension("ko.xz");
    if !file.is_file() && compressed.is_file() {
        output(Command::new("xz").args(["-d", "-k"]).arg(&compressed))?;
    }
    Ok(file.is_file().then_some(file))
}

/// Makes the guest's disk: an ext4 file system.
fn disk(folder: &Path) -> Result<PathBuf, String> {
    let disk = folder.join("disk");
    let named = |cause| format!("cannot make {}: {cause}", disk.display());
    std::fs::File::create(&disk).and_then(|file| file.set_len(DISK)).map_err(named)?;
    let mkfs = find("mkfs.ext4").ok_or("there is no mkfs.ext4 (Debian: e2fsprogs)")?;
    output(Command::new(mkfs).args(["-q", "-F"]).arg(&disk))?;
    Ok(disk)
}

/// The package that `linux-image-amd64` depends on.
fn usual_package() -> Result<String, String> {
    let text = output(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let depends = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    depends.map(str::to_owned).ok_or_else(|| "apt knows no linux-image-amd64".to_owned())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let named = |cause| format!("cannot list {}: {cause}", folder.display());
    let found = std::fs::read_dir(folder).map_err(named)?;
    found.map(|entry| entry.map(|entry| entry.path()).map_err(named)).collect()
}

/// Runs a command to its end and returns what it wrote.
fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|cause| format!("cannot run {command:?}: {cause}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    Err(format!("{command:?} ended with {}: {}", done.status, errors.trim()))
}

/// The program of that name in PATH or in the folders of administration programs.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Writes the guest's file system.
fn pack(root: &Path, kernel: &Kernel, to: &Path) -> Result<(), String> {
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "etc", "lib", "lib64", "proc", "run", "sys", "tmp", "usr", "var", "var/lib"]
    {
        archive.folder(folder);
    }
    // The devices that a process needs before the kernel's own devices are mounted.
    archive.device("dev/console", (5, 1));
    archive.device("dev/null", (1, 3));
    let target = root.join("target/debug");
    let mut programs = vec![
        // This program as the build has just made it, which may differ from the running one.
        (target.join("xtask"), "init".to_owned()),
        (target.join("sietch"), "bin/sietch".to_owned()),
        // A build of the tests makes the library as a dependency, with no copy beside programs.
        (target.join("deps/libsietch_posix.so"), "bin/libsietch_posix.so".to_owned()),
    ];
    for name in PROGRAMS {
        let found = find(name).ok_or_else(|| format!("there is no {name}"))?;
        programs.push((found, format!("bin/{name}")));
    }
    let mut libraries = BTreeSet::new();
    for (from, name) in &programs {
        libraries.extend(libraries_of(from)?);
        archive.file(name, 0o755, &stripped(from, to)?);
    }
    for library in libraries {
        let name = library.to_string_lossy().trim_start_matches('/').to_owned();
        for above in Path::new(&name).ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            archive.folder(&above.to_string_lossy());
        }
        archive.file(&name, 0o755, &read(&library)?);
    }
    archive.folder("modules");
    for (number, module) in kernel.modules.iter().enumerate() {
        archive.file(&format!("modules/{number:02}.ko"), 0o644, &read(module)?);
    }
    archive.file("etc/passwd", 0o644, b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
    std::fs::write(to, archive.finish()).map_err(|cause| format!("cannot write {}: {cause}", to.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|cause| format!("cannot read {}: {cause}", path.display()))
}

/// The program without its debugging information, which is most of it.
fn stripped(from: &Path, beside: &Path) -> Result<Vec<u8>, String> {
    let to = beside.with_extension("stripped");
    match output(Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(from)) {
        Ok(_) => read(&to),
        // An unstripped program only takes more memory.
        Err(_) => read(from),
    }
}

/// The libraries that a program is loaded with, the loader among them.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, String> {
    let text = output(Command::new("ldd").arg(program))?;
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

fn boot(kernel: &Kernel, initramfs: &Path, disk: &Path) -> Result<Child, String> {
    Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", MEMORY, "-nic", "none"])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"])
        .arg("-drive")
        .arg(format!("file={},format=raw,if=virtio", disk.display()))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        // A guest that panics ends. The emulated timers are late on a busy machine, which the
        // kernel's check would take for a fault.
        .args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|cause| format!("cannot start qemu-system-x86_64: {cause}"))
}

/// Prints the guest's console until it shows the outcome.
fn watch(mut guest: Child) -> Result<Outcome, String> {
    let console = guest.stdout.take().ok_or("the guest has no console")?;
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + TIMEOUT;
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                println!("  | {line}");
                if line.ends_with(inside::PASSED) {
                    break Ok(Outcome::Passed);
                }
                if let Some((_, why)) = line.split_once(inside::FAILED) {
                    break Err(format!("in the guest: {}", why.trim()));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                break Err(format!("the guest did not finish within {} s", TIMEOUT.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => break Err("the guest ended without an outcome".to_owned()),
        }
    };
    // The guest keeps no data; its output counts.
    let _ = guest.kill();
    let _ = guest.wait();
    drop(lines);
    let _ = reader.join();
    outcome
}
