//! A daemon with devices in memory (or real ones), its directory, and applications in processes of
//! their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use sietch_daemon::device::{Adoption, DeviceError, OpenedVnic, RingViolation, VnicDevices, VnicPlan};
use sietch_daemon::{Error, Options};
use sietch_protocol::metrics::Metric;
use sietch_protocol::{CallError, Connection, SharedDescriptors, Status, VnicDescriptors, XskLayout};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Devices as files in a directory, so that they outlive the daemon as real ones do.
pub(crate) struct FileDevices {
    directory: PathBuf,
}

impl FileDevices {
    pub(crate) fn new(directory: PathBuf) -> Self {
        std::fs::create_dir_all(&directory).unwrap();
        Self { directory }
    }

    /// The file of a device. While there is one of its name with `.slow`, as a test makes it, the
    /// device takes time.
    fn path(&self, plan: &VnicPlan) -> PathBuf {
        let path = self.directory.join(&plan.host_interface);
        while path.with_extension("slow").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        path
    }
}

impl VnicDevices for FileDevices {
    fn support(&self) -> Result<String, String> {
        Ok("files".to_owned())
    }

    async fn open(&mut self, plan: &VnicPlan) -> Result<OpenedVnic, DeviceError> {
        std::fs::write(self.path(plan), plan.generation.to_string()).unwrap();
        let memory = || rustix::fs::memfd_create("fake", MemfdFlags::CLOEXEC).unwrap();
        let layout = XskLayout {
            ifindex: 1,
            queue: 0,
            chunk_size: 2048,
            chunks: 64,
            fill: 32,
            completion: 32,
            receive: 32,
            transmit: 32,
            runs: 0,
            run_chunks: 0,
            unfinished_checksums: false,
        };
        Ok(OpenedVnic {
            xsk: memory(),
            umem: memory(),
            layout,
            gateway_mac: Some(plan.host_mac),
            mtu: plan.mtu,
            cookie: 0,
        })
    }

    async fn bind(&mut self, _plan: &VnicPlan) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn examine(&self, _plan: &VnicPlan) -> Result<(), String> {
        Ok(())
    }

    fn check_rings(&mut self) -> Vec<RingViolation> {
        Vec::new()
    }

    fn repair_rings(&mut self, _host_interface: &str) {}

    async fn adopt(&mut self, adoptions: Vec<Adoption>) -> Vec<Result<(), DeviceError>> {
        let adopted = adoptions.iter().map(|Adoption { plan, .. }| {
            let found = std::fs::read_to_string(self.path(plan)).unwrap_or_default();
            if found == plan.generation.to_string() {
                return Ok(());
            }
            Err(DeviceError { what: plan.name.clone(), cause: "gone".into(), fix: "restart".into() })
        });
        adopted.collect()
    }

    async fn close(&mut self, plan: &VnicPlan) -> Result<(), DeviceError> {
        let _ = std::fs::remove_file(self.path(plan));
        Ok(())
    }

    async fn remove_others(&mut self, keep: &[&VnicPlan]) -> Result<Vec<String>, DeviceError> {
        let mut removed = Vec::new();
        for entry in std::fs::read_dir(&self.directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !keep.iter().any(|plan| plan.host_interface == name) {
                std::fs::remove_file(self.directory.join(&name)).unwrap();
                removed.push(name);
            }
        }
        Ok(removed)
    }

    async fn finish(&mut self) {}

    fn counters(&self, _plan: &VnicPlan) -> Vec<Metric> {
        Vec::new()
    }
}

/// A directory with everything of one daemon, removed at the end of the test.
pub(crate) struct Scene {
    pub root: PathBuf,
}

impl Scene {
    pub(crate) fn new(name: &str, uid: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("sietch-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let scene = Self { root };
        scene.configure(&format!(
            "[[vnic]]\nname = \"kv\"\nuid = {uid}\naddress = \"10.83.0.2/24\"\nhost_address = \"10.83.0.1\"\n\
             tcp_ports = [\"6379\"]\nrate = \"1Gbit/s\"\n\n\
             [[vnic]]\nname = \"other\"\nuid = 4242\naddress = \"10.83.0.3/24\"\nhost_address = \"10.83.0.1\"\n\n\
             [[vsa]]\nname = \"kv\"\nuid = {uid}\nsize = \"1MiB\"\n"
        ));
        scene
    }

    pub(crate) fn own(name: &str) -> Self {
        Self::new(name, rustix::process::geteuid().as_raw())
    }

    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.configuration(), text).unwrap();
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.root.join("sietch.toml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("run/sietch.sock")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The file that stands for the VNIC `kv`.
    pub(crate) fn device(&self) -> PathBuf {
        self.root.join("devices/sv-kv")
    }

    pub(crate) fn options(&self, ready: Option<OwnedFd>) -> Options {
        Options {
            configuration: Some(self.configuration()),
            socket: Some(self.socket()),
            data: Some(self.data()),
            ready,
            ..Options::default()
        }
    }

    /// A daemon on a thread, with devices as files.
    pub(crate) fn start(&self) -> Daemon {
        self.start_with(|options, devices| async move {
            sietch_daemon::run_with(options, |_| FileDevices::new(devices)).await
        })
    }

    /// A daemon on a thread that runs `serve`.
    pub(crate) fn start_with<F, R>(&self, serve: F) -> Daemon
    where
        F: FnOnce(Options, PathBuf) -> R + Send + 'static,
        R: Future<Output = Result<(), Error>>,
    {
        nothing_is_starting();
        let (ready, notify) = rustix::pipe::pipe().unwrap();
        let (options, devices) = (self.options(Some(notify)), self.root.join("devices"));
        let (crash, crashed) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    ended = serve(options, devices) => Some(ended),
                    _ = crashed => None,
                }
            })
        });
        let mut byte = [0; 1];
        let started = std::fs::File::from(ready).read(&mut byte).unwrap() == 1;
        Daemon { thread: Some(thread), crash: Some(crash), started }
    }

    /// A daemon in a process of its own, which can be killed. It runs the ignored test
    /// `daemon_process`.
    pub(crate) fn start_process(&self) -> Process {
        self.start_process_by(Command::new(std::env::current_exe().unwrap()))
    }

    /// The same, with at most so many descriptors to begin with.
    pub(crate) fn start_process_limited(&self, descriptors: u32) -> Process {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={descriptors}:")).arg(std::env::current_exe().unwrap());
        self.start_process_by(command)
    }

    fn start_process_by(&self, command: Command) -> Process {
        nothing_is_starting();
        let mut process = Process::spawn(command, "scene::daemon_process", &self.root, None);
        process.expect("READY");
        process
    }

    /// An application in a process of its own that runs the ignored test `application_process`.
    pub(crate) fn application(&self, uid: Option<u32>) -> Process {
        let command = Command::new(std::env::current_exe().unwrap());
        let mut process = Process::spawn(command, "scene::application_process", &self.root, uid);
        process.expect("CONNECTED");
        process
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::connect_as_administrator(&self.socket(), "test", PATIENCE).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.connect().status().unwrap()
    }

    /// Waits until the status satisfies `wanted`.
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + PATIENCE;
        let mut connection = self.connect();
        loop {
            let status = connection.status().unwrap();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "waited in vain for: {what}; {status:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A fenced area must be freed before it can go.
        if let Ok(entries) = std::fs::read_dir(self.data().join("areas")) {
            for entry in entries.flatten() {
                if let Ok(file) = std::fs::File::open(entry.path()) {
                    let _ = rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::empty());
                }
            }
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// A running daemon; shut down at the latest with the test.
pub(crate) struct Daemon {
    thread: Option<JoinHandle<Option<Result<(), Error>>>>,
    crash: Option<tokio::sync::oneshot::Sender<()>>,
    pub started: bool,
}

impl Daemon {
    /// Drops everything without any cleaning up.
    pub(crate) fn crash(mut self) {
        self.crash.take().unwrap().send(()).unwrap();
        assert!(self.thread.take().unwrap().join().unwrap().is_none(), "it ended before the crash");
    }

    /// What it ended with.
    pub(crate) fn ended(mut self) -> Result<(), Error> {
        let ended = self.thread.take().unwrap().join().unwrap();
        ended.expect("it did not crash")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(crash) = self.crash.take() {
            let _ = crash.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Read while a process is started. Between fork and exec it has every descriptor of this one,
/// locks that a daemon has left among them, and the next daemon would find them taken.
static STARTING: RwLock<()> = RwLock::new(());

/// Starts a process, and returns when it has none of this one's descriptors any more.
pub(crate) fn starting<T>(start: impl FnOnce() -> T) -> T {
    let _held = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    start()
}

/// Waits until no process is being started that may have the locks of a daemon that has ended.
fn nothing_is_starting() {
    drop(STARTING.write().unwrap_or_else(PoisonError::into_inner));
}

/// A child that is killed with the test.
pub(crate) struct Process {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn spawn(mut command: Command, test: &str, root: &Path, uid: Option<u32>) -> Self {
        command.args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
        command.env("SIETCH_TEST_ROOT", root).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = starting(|| command.spawn()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the next line that starts with `word`.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the process ended before {word}");
            // libtest prints the test's name in front of its first output.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().to_owned();
            }
        }
    }

    pub(crate) fn command(&mut self, command: &str, answer: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.expect(answer)
    }

    /// Sends a command that has no answer.
    pub(crate) fn send_command(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Waits until the process has been killed.
    pub(crate) fn wait_for_end(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats what is refused while the area is being shut.
pub(crate) fn until_done<T>(mut attempt: impl FnMut() -> Result<T, CallError>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// A quota of the test's own user on the volume that is configured before it. A user that is no
/// administrator creates areas within one.
pub(crate) fn quota() -> String {
    format!("[[volume.quota]]\nuid = {}\nsize = \"64MiB\"\n", rustix::process::geteuid().as_raw())
}

/// The scene that a child process was started for.
pub(crate) fn inherited() -> Option<Scene> {
    std::env::var_os("SIETCH_TEST_ROOT").map(|root| Scene { root: root.into() })
}

/// The daemon of [`Scene::start_process`].
#[test]
#[ignore = "run by other tests in a process of its own"]
fn daemon_process() {
    let Some(scene) = inherited() else { return };
    let (ready, notify) = rustix::pipe::pipe().unwrap();
    std::thread::spawn(move || {
        if std::fs::File::from(ready).read(&mut [0; 1]).unwrap() == 1 {
            println!("READY");
        }
    });
    let (options, devices) = (scene.options(Some(notify)), scene.root.join("devices"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(sietch_daemon::run_with(options, |_| FileDevices::new(devices)));
    std::mem::forget(scene);
    ended.unwrap();
}

/// The application of [`Scene::application`]: executes its standard input, one line after another.
#[test]
#[ignore = "run by other tests in a process of its own"]
fn application_process() {
    let Some(scene) = inherited() else { return };
    let scene = std::mem::ManuallyDrop::new(scene);
    let mut connection = scene.connect();
    let mut held = Vec::new();
    let mut kept = Vec::new();
    let mut vnic = None;
    let mut rings = None;
    println!("CONNECTED");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.as_str() {
            "vnic" => match connection.acquire_vnic("kv") {
                Ok((grant, VnicDescriptors::AfXdp { socket, umem })) => {
                    kept.extend([socket, umem]);
                    hold(&mut held, grant.grant, grant.generation);
                    vnic = Some(grant);
                }
                Ok((grant, VnicDescriptors::Shared(SharedDescriptors { own, peer, doorbell }))) => {
                    kept.extend([own, peer, doorbell]);
                    hold(&mut held, grant.grant, grant.generation);
                }
                Err(error) => println!("GRANT refused: {error}"),
            },
            "vsa" => match connection.acquire_vsa("kv") {
                Ok((grant, file)) => {
                    kept.push(file);
                    hold(&mut held, grant.grant, grant.generation);
                }
                Err(error) => println!("GRANT refused: {error}"),
            },
            "open" | "bind" | "hide" | "scribble" => {
                vnic_command(&line, &mut connection, vnic.as_ref().unwrap(), &mut kept, &mut rings);
            }
            "write" => {
                let file = kept.last().unwrap().as_fd();
                println!("WROTE {:?}", rustix::io::pwrite(file, &[7; 4096], 0));
            }
            "status" => println!("STATUS {:?}", connection.status().map(|_| ()).map_err(|e| e.to_string())),
            "reconnect" => {
                connection = scene.connect();
                let adopted = connection.adopt(held.clone()).unwrap();
                println!("ADOPTED {}", adopted.iter().all(|grant| grant.held));
            }
            "capabilities" => {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let line = status.lines().find(|line| line.starts_with("CapEff")).unwrap();
                println!("CAPABILITIES {line}");
            }
            // Keeps the area and fills it with this byte repeatedly, until it is killed or a write
            // fails.
            other if other.starts_with("storm ") => {
                let (_, file) = connection.acquire_vsa(&other[6..]).unwrap();
                println!("DID storm");
                storm(&file);
                kept.push(file);
            }
            // The same through a service core, with as much in flight as it accepts.
            other if other.starts_with("rush ") => {
                let mut client = sietch::Client::connect(&scene.socket(), "rush").unwrap();
                let mut vsa = client.acquire_vsa(&other[5..]).unwrap();
                println!("DID rush");
                rush(&mut vsa.queue);
            }
            // The sum of all bytes of an area.
            other if other.starts_with("peek ") => {
                println!("DID {}", peek(&mut connection, &other[5..]));
            }
            other if other.starts_with("escape-reading ") => {
                let (_, file) = connection.read_vsa(&other[15..]).unwrap();
                println!("DID {}", escape(&file.unwrap()));
            }
            other if other.starts_with("wobble ") => {
                println!("DID {}", wobble(&mut connection, &other[7..], &mut kept));
            }
            other if other.starts_with("escape ") => {
                let (_, file) = connection.acquire_vsa(&other[7..]).unwrap();
                println!("DID {}", escape(&file));
                kept.push(file);
            }
            other => println!("DID {}", area_command(&mut connection, other)),
        }
    }
}

fn hold(held: &mut Vec<sietch_protocol::HeldGrant>, grant: u64, generation: u64) {
    held.push(sietch_protocol::HeldGrant { grant, generation });
    println!("GRANT {grant} {generation}");
}

/// What a holder does with its VNIC, the descriptors of which are the last of `kept`.
fn vnic_command(
    command: &str,
    connection: &mut Connection,
    vnic: &sietch_protocol::VnicGrant,
    kept: &mut Vec<OwnedFd>,
    rings: &mut Option<Rings>,
) {
    let mut bind = || connection.bind_vnic(vnic.grant).map_err(|error| error.to_string());
    match command {
        "open" => {
            *rings = Some(Rings::map(&kept[kept.len() - 2], vnic));
            println!("OPENED {:?}", bind());
        }
        "bind" => println!("BOUND {:?}", bind()),
        "hide" => {
            kept.clear();
            println!("HID");
        }
        _ => rings.as_ref().unwrap().scribble(),
    }
}

/// The fill ring of a VNIC, as its holder has it.
struct Rings {
    fill: *mut u32,
    producer: usize,
    consumer: usize,
}

impl Rings {
    fn map(socket: &OwnedFd, grant: &sietch_protocol::VnicGrant) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let sietch_protocol::QueueLayout::AfXdp(shape) = grant.layout else { panic!("a veth VNIC") };
        let offsets = rustix::net::sockopt::xdp_mmap_offsets(socket).unwrap().fr;
        let length = offsets.desc as usize + shape.fill as usize * 8;
        let page = rustix::net::xdp::XDP_UMEM_PGOFF_FILL_RING;
        let (read, write) = (ProtFlags::READ, ProtFlags::WRITE);
        // SAFETY: the kernel chooses a range that is free; it stays mapped until the process ends.
        let at = unsafe { mmap(std::ptr::null_mut(), length, read | write, MapFlags::SHARED, socket, page) };
        Self {
            fill: at.unwrap().cast(),
            producer: offsets.producer as usize / 4,
            consumer: offsets.consumer as usize / 4,
        }
    }

    /// Advances the producer word as far beyond the consumer word as possible, over entries that
    /// are all zero.
    fn scribble(&self) {
        // SAFETY: both words are inside the mapping, as the kernel reported, and are aligned.
        unsafe {
            let consumer = self.fill.add(self.consumer).read_volatile();
            self.fill.add(self.producer).write_volatile(consumer.wrapping_sub(1));
        }
    }
}

fn peek(connection: &mut Connection, name: &str) -> u64 {
    let (_, file) = connection.acquire_vsa(name).unwrap();
    let mut bytes = Vec::new();
    std::fs::File::from(file).read_to_end(&mut bytes).unwrap();
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// What [`storm`] writes.
const STORM: u8 = 0xba;

/// Writes as fast as it can, inside the area, on its edge and far beyond, without any library that
/// checks; ends when it is refused.
fn storm(file: &OwnedFd) {
    let size = rustix::fs::fstat(file).unwrap().st_size.cast_unsigned();
    let bytes = [STORM; 65536];
    for round in 0_u64.. {
        let inside = round * 4096 % size;
        match rustix::io::pwrite(file, &bytes[..4096], inside) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                println!("STORM {error:?} {:?}", rustix::io::pwrite(file, &bytes[..4096], inside));
                return;
            }
        }
        if round % 64 == 0 {
            // Beyond its end: refused, or at the cost of the writer alone.
            for offset in [size - 4096, size, size + (1 << 20), u64::MAX >> 1] {
                let _ = rustix::io::pwrite(file, &bytes, offset);
            }
        }
    }
}

/// Writes as fast as it can until it is killed.
fn rush(queue: &mut sietch::disk::AreaQueue) {
    use sietch::disk::{Buffer, DiskQueue as _, Operation};
    let (size, mut done) = (queue.capacity(), Vec::new());
    for round in 0_u64.. {
        let mut buffer = Buffer::new(65536);
        buffer.fill(STORM);
        let write = Operation::Write { offset: round * 65536 % size, length: 65536, buffer, durable: true };
        let _ = queue.submit(round, write);
        queue.notify().unwrap();
        queue.complete(&mut done);
        done.clear();
        if round == 100 {
            println!("RUSHES");
        }
    }
}

/// Grows and shrinks an area that it holds while another thread writes all over it. Returns its
/// final size.
fn wobble(connection: &mut Connection, name: &str, kept: &mut Vec<OwnedFd>) -> String {
    const BLOCKS: [u64; 6] = [700, 10, 300, 768, 1, 512];
    let (_, files) = connection.acquire_vsa_descriptors(name).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = [STORM; 65536];
            for block in (0..768).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Beyond its end, cut off under it, longer than permitted: every result affects
                // only this process.
                let _ = rustix::io::pwrite(&files[0], &bytes, block * 4096);
                if block % 64 == 0 {
                    let _ = rustix::fs::ftruncate(&files[0], 4 << 20);
                }
            }
        });
        for blocks in BLOCKS.iter().cycle().take(24) {
            match connection.resize_held_vsa(name, blocks * 4096) {
                Ok((_, mut parts)) => kept.append(&mut parts),
                // Its buffered writes meet the daemon's direct ones, for which the kernel gives
                // this file EIO: its own affair as well.
                Err(sietch_protocol::CallError::Refused(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    kept.extend(files);
    let areas = connection.vsas().unwrap();
    format!("wobbled {}", areas.iter().find(|area| area.path == name).unwrap().size)
}

/// Tries to make more of a descriptor than was given: what worked, or nothing.
fn escape(file: &OwnedFd) -> String {
    use std::os::fd::AsRawFd as _;
    let mut worked = Vec::new();
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    if std::fs::OpenOptions::new().read(true).write(true).open(&own).is_ok() {
        worked.push("opened anew".to_owned());
    }
    if let Ok(path) = std::fs::read_link(&own) {
        if std::fs::File::open(&path).is_ok() {
            worked.push("opened by its name".to_owned());
        }
        if path.parent().is_some_and(|parent| parent != Path::new("/") && std::fs::read_dir(parent).is_ok()) {
            worked.push("saw its neighbours".to_owned());
        }
    }
    // Everything but reading and writing: what a block device would take to move its window.
    for name in ["..", "../victim.vsa"] {
        let flags = rustix::fs::OFlags::RDWR;
        if rustix::fs::openat(file, name, flags, rustix::fs::Mode::empty()).is_ok() {
            worked.push(format!("opened {name}"));
        }
    }
    if rustix::fs::fchown(file, Some(rustix::process::geteuid()), None).is_ok() {
        worked.push("took it over".to_owned());
    }
    if rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o666)).is_ok() {
        worked.push("opened it to everybody".to_owned());
    }
    worked.join(", ")
}

/// `create NAME SIZE`, `create-for UID NAME SIZE`, `resize NAME SIZE`, `trim NAME OFFSET LENGTH`,
/// `delete NAME`, `acquire NAME`, `list`. The answer is `ok` with the result, or the kind of
/// refusal and its text.
fn area_command(connection: &mut Connection, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().unwrap();
    let shown = |area: sietch_protocol::AreaStatus| format!("ok {} {}", area.path, area.size);
    let done = match words[..] {
        ["create", name, size] => connection.create_vsa(name, number(size), None).map(shown),
        ["create-for", uid, name, size] => {
            connection.create_vsa(name, number(size), Some(uid.parse().unwrap())).map(shown)
        }
        ["resize", name, size] => connection.resize_vsa(name, number(size)).map(shown),
        ["trim", name, offset, length] => {
            connection.trim_vsa(name, number(offset), Some(number(length))).map(shown)
        }
        ["delete", name] => connection.delete_vsa(name).map(|()| "ok".to_owned()),
        ["acquire", name] => {
            connection.acquire_vsa_descriptors(name).map(|(grant, _)| format!("ok {}", grant.size))
        }
        ["read", name] => connection.read_vsa(name).map(|(area, _)| format!("ok {}", area.size)),
        ["stat", name] => {
            let question = sietch_protocol::ViewRequest {
                path: String::new(),
                operation: sietch_protocol::ViewOperation::Stat,
            };
            connection.view(name, question).map(|(answer, _)| format!("ok {answer:?}"))
        }
        ["read-at", name] => connection.read_vsa_at(name, 0, 1).map(|bytes| format!("ok {}", bytes.len())),
        ["list"] => connection
            .vsas()
            .map(|areas| areas.into_iter().map(|area| area.path).collect::<Vec<_>>().join(" ")),
        _ => return "unknown".to_owned(),
    };
    match done {
        Ok(text) => text,
        Err(sietch_protocol::CallError::Refused(error)) => format!("{:?} {error}", error.kind),
        Err(error) => error.to_string(),
    }
}
