//! A meeting of the two stacks: a namespace, a veth pair, a path, conditions; and the checks at its
//! end.
//!
//! 1. The calling thread starts one in a namespace of its own, where the pair is made and Sietch
//!    runs.
//! 2. That thread starts the kernel's side, which inherits the namespace. Every wait of the
//!    kernel's side has a limit, so it ends.
//! 3. Its end wakes Sietch from another thread, through a waker. Sietch continues until its
//!    connections have ended and its buffers are back, and returns its counters.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use sietch::net::congestion::Kind;
use sietch::net::{Config, Ipv6Config, Metrics};
use sietch::nic::af_xdp;
use sietch::nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};
use sietch::{Doorbell, Net, Runtime, clock};
use sietch_sim::link::{LinkConfig, Tally};
use sietch_sim::{Cable, Random};

use super::pair::{HOST_END, Pair, Plan, enter_namespace, ip};

/// The kernel's addresses, and Sietch's.
const KERNEL: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 9, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1));
const SIETCH: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 9, 0, 2), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2));
/// More addresses of the kernel's, so that ports do not run out.
pub(crate) const MORE: u8 = 4;

/// Which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The kernel's address.
    pub(crate) const fn kernel(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(KERNEL.0),
            Self::V6 => IpAddr::V6(KERNEL.1),
        }
    }

    /// Sietch's address.
    pub(crate) const fn sietch(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(SIETCH.0),
            Self::V6 => IpAddr::V6(SIETCH.1),
        }
    }

    /// Another address of the kernel's, of [`MORE`].
    pub(crate) const fn another(self, which: u8) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::new(10, 9, 0, 11 + which)),
            Self::V6 => IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 1, which as u16)),
        }
    }

    /// An address in the form that `ip` requires.
    pub(crate) fn with_prefix(self, address: IpAddr) -> String {
        match self {
            Self::V4 => format!("{address}/24"),
            Self::V6 => format!("{address}/64"),
        }
    }

    /// An address as a URL has it.
    pub(crate) fn host(self) -> String {
        match self {
            Self::V4 => SIETCH.0.to_string(),
            Self::V6 => format!("[{}]", SIETCH.1),
        }
    }
}

/// How long one thing may take before a test gives up. Nothing seen took a tenth of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What differs between meetings.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub family: Family,
    pub mtu: usize,
    /// The kernel leaves checksums unfinished, as behind a VNIC without an uplink.
    pub unfinished: bool,
    /// The path; none is the bare veth.
    pub link: Option<LinkConfig>,
    pub seed: u64,
    /// The kernel's options.
    pub sack: bool,
    pub timestamps: bool,
    pub scaling: bool,
    pub ecn: bool,
    /// The kernel's congestion control: cubic, reno or bbr.
    pub congestion: &'static str,
    /// Bytes of the kernel's receive buffers, if it shall not choose itself.
    pub kernel_buffer: Option<usize>,
    /// Bytes of Sietch's buffers.
    pub buffer: usize,
    pub control: Kind,
    /// Whether meetings run one after the other, so that none takes cores from another. The long
    /// runs use all cores.
    pub alone: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            family: Family::V4,
            mtu: 1500,
            unfinished: false,
            link: None,
            seed: 1,
            sack: true,
            timestamps: true,
            scaling: true,
            ecn: false,
            congestion: "cubic",
            kernel_buffer: None,
            buffer: 512 << 10,
            control: Kind::Cubic,
            alone: true,
        }
    }
}

impl Conditions {
    /// The same over the other IP.
    pub(crate) fn over(family: Family) -> Self {
        Self { family, ..Self::default() }
    }

    fn config(&self) -> Config {
        let mut config = Config::new(SIETCH.0, 24, *b"sixteen secrets!");
        config.ipv6 =
            (self.mtu >= 1280).then(|| Ipv6Config { addresses: vec![(SIETCH.1, 64)], gateway: None });
        config.receive_buffer = self.buffer;
        config.send_buffer = self.buffer;
        config.congestion = self.control;
        config
    }

    /// Configures the kernel's side of the calling thread's namespace for these conditions.
    fn prepare(&self) -> io::Result<()> {
        let flag = |on: bool| if on { "1" } else { "0" };
        set("tcp_sack", flag(self.sack))?;
        set("tcp_timestamps", flag(self.timestamps))?;
        set("tcp_window_scaling", flag(self.scaling))?;
        set("tcp_ecn", flag(self.ecn))?;
        // Else what one connection learned of a path becomes the next one's conditions.
        set("tcp_no_metrics_save", "1")?;
        // For foreign programs: others than this one may not be the default outside the first
        // namespace.
        set("tcp_congestion_control", "reno")
    }
}

/// Gives the kernel one more address.
pub(crate) fn give(family: Family, which: u8) {
    let nodad = if family == Family::V6 { "nodad" } else { "" };
    let address = family.with_prefix(family.another(which));
    ip(&format!("addr add {address} dev {HOST_END} {nodad}")).expect("the pair is there");
}

/// Sets a parameter of TCP in the calling thread's namespace.
pub(crate) fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
}

/// Sietch's counters at the end.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub value: T,
    pub metrics: Metrics,
    /// What the path did, from Sietch and to it.
    pub tallies: [Tally; 2],
}

/// Connects `serve` on Sietch and `client` on the kernel; `None` if this machine cannot.
pub(crate) fn meet<T, F>(
    name: &str,
    conditions: &Conditions,
    serve: impl FnOnce(Net) -> F + Send + 'static,
    client: impl FnOnce() -> T + Send + 'static,
) -> Option<Outcome<T>>
where
    T: Send + 'static,
    F: Future<Output = ()> + 'static,
{
    static ALONE: Mutex<()> = Mutex::new(());
    // A failed test poisons it, which means nothing to the next one.
    let _alone = conditions.alone.then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let (name, conditions) = (name.to_owned(), conditions.clone());
    let thread = std::thread::spawn(move || {
        if !enter_namespace() {
            eprintln!("SKIPPED {name}: needs root (CAP_SYS_ADMIN) for a network namespace of its own");
            return None;
        }
        let plan = Plan {
            host: KERNEL.0,
            address: SIETCH.0,
            // Smaller links have no IPv6.
            ipv6: (conditions.mtu >= 1280).then_some((KERNEL.1, SIETCH.1)),
            ports: 1..=u16::MAX,
            mtu: conditions.mtu,
            unfinished: conditions.unfinished,
        };
        let pair = match Pair::new(&plan) {
            Ok(pair) => pair,
            Err(error) => {
                eprintln!("SKIPPED {name}: needs root, the `ip` command and AF_XDP ({error})");
                return None;
            }
        };
        for which in 0..MORE {
            give(conditions.family, which);
        }
        conditions.prepare().expect("the namespace is ours");
        Some(hold(&name, &conditions, pair, serve, client))
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn hold<T, F>(
    name: &str,
    conditions: &Conditions,
    pair: Pair,
    serve: impl FnOnce(Net) -> F,
    client: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T>
where
    T: Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let _capture = Capture::begin(name);
    let Pair { queue, filters } = pair;
    let wire = Wire::new(queue, conditions).expect("there are descriptors left");
    let free = wire.free_buffers();
    let mut runtime = Runtime::new(wire, &conditions.config()).expect("there are descriptors left");
    let net = runtime.net();
    net.spawn(serve(net.clone()));
    let over = Arc::new(Over::default());
    let kernel = std::thread::spawn({
        let over = Ending(Arc::clone(&over));
        move || {
            // Dropped at the end, also of one that panics.
            let _over = over;
            client()
        }
    });
    let left = Rc::new(RefCell::new(None));
    let settled = net.spawn(settle(net.clone(), over, Rc::clone(&left)));
    while !settled.is_finished() {
        runtime.poll().expect("the device remains");
    }
    let value = kernel.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let left = left.take();
    assert!(left.is_none(), "{name}: not over after {PATIENCE:?}: {left:#?}");
    let damaged = runtime.queue().cable.tallies()[0].corrupted > 0;
    assert!(
        damaged || filters.refused().is_empty(),
        "{name}: the filter dropped frames that Sietch may send: {:?}",
        filters.refused()
    );
    finish(name, &mut runtime, free);
    let metrics = net.with_engine(|engine| engine.metrics().clone());
    Outcome { value, metrics, tallies: runtime.queue().cable.tallies() }
}

/// Waits for the end of the kernel's side, then for that of all connections. Notes what is left if
/// they do not end.
async fn settle(net: Net, over: Arc<Over>, left: Rc<RefCell<Option<String>>>) {
    over.wait().await;
    let quiet = async {
        while !net.with_engine(|engine| matches!(engine.population(), (0, 0, _, 0))) {
            net.sleep(Duration::from_millis(2)).await;
        }
    };
    if net.timeout(PATIENCE, quiet).await.is_err() {
        let (population, sockets) =
            net.with_engine(|engine| (engine.population(), engine.sockets().take(20).collect::<Vec<_>>()));
        *left.borrow_mut() = Some(format!("{population:?} {sockets:#?}"));
    }
}

/// No buffer of the queue is missing.
fn finish(name: &str, runtime: &mut Runtime<Wire>, free: usize) {
    // Sent buffers come back with the next receive. A few iterations, for frames that still arrive.
    let mut have = 0;
    for _ in 0..1000 {
        runtime.iterate(clock::now()).expect("the device remains");
        have = runtime.queue().free_buffers();
        if have >= free {
            break;
        }
        std::thread::yield_now();
    }
    assert!(have >= free, "{name}: {have} buffers of {free} came back");
}

/// The end of the kernel's side.
#[derive(Debug, Default)]
struct Over {
    over: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Over {
    async fn wait(&self) {
        std::future::poll_fn(|context: &mut Context<'_>| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            if self.over.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Reports the end when it is dropped.
struct Ending(Arc<Over>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
        let waker = self.0.waker.lock().ok().and_then(|mut waker| waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The queue behind its path, with a doorbell that rings for frames of both.
pub(crate) struct Wire {
    cable: Cable<af_xdp::Queue>,
    /// Watches the queue and the timer.
    doorbell: OwnedFd,
    timer: OwnedFd,
}

impl Wire {
    fn new(queue: af_xdp::Queue, conditions: &Conditions) -> io::Result<Self> {
        let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        epoll::add(&doorbell, queue.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(&doorbell, &timer, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let cable = Cable::new(queue, conditions.link.clone(), Random::new(conditions.seed), clock::now);
        Ok(Self { cable, doorbell, timer })
    }

    fn ring_in(&self, nanoseconds: u64) {
        let it_value = Timespec {
            tv_sec: (nanoseconds / 1_000_000_000).cast_signed(),
            tv_nsec: (nanoseconds % 1_000_000_000).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).expect("a time is a time");
    }
}

impl Doorbell for Wire {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        if self.cable.next_deadline().is_none() {
            self.cable.inner().doorbell()
        } else {
            Some(self.doorbell.as_fd())
        }
    }

    fn arm(&mut self) -> bool {
        if let Some(due) = self.cable.next_deadline() {
            let now = clock::now();
            if due <= now {
                return false;
            }
            self.ring_in(due - now);
        }
        true
    }

    fn disarm(&mut self) {
        self.ring_in(0);
    }
}

impl NicQueue for Wire {
    fn mac(&self) -> [u8; 6] {
        self.cable.mac()
    }

    fn mtu(&self) -> usize {
        self.cable.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.cable.receive(out, limit)
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.cable.bytes(frame)
    }

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        self.cable.tail(frame)
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.cable.bytes_mut(frame)
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.cable.allocate(length)
    }

    fn offloads(&self) -> Offloads {
        self.cable.offloads()
    }

    fn release(&mut self, frame: Frame) {
        self.cable.release(frame);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.cable.transmit(frame)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.cable.flush()
    }

    fn free_buffers(&self) -> usize {
        self.cable.free_buffers()
    }

    fn must_flush_again(&self) -> bool {
        self.cable.must_flush_again()
    }
}

/// A tcpdump that writes the frames of a meeting, for debugging.
struct Capture(Child);

impl Capture {
    fn begin(name: &str) -> Option<Self> {
        let file = std::env::var("SIETCH_INTEROP_CAPTURE").ok()?;
        let mut command = Command::new("tcpdump");
        command.args(["-i", HOST_END, "-n", "-s", "128", "-U", "-w", &file]);
        eprintln!("{name}: its frames go to {file}");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok().map(Self)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::INT,
        );
        let _ = self.0.wait();
    }
}
