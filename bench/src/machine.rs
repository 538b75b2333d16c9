//! What the machine did during a block: CPU time of all cores, time stolen, and how fast each core
//! was.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, system};

/// Steps of the calibration loop: about 2 ms on a core at full speed.
const STEPS: u64 = 2_000_000;

/// How long each core is watched for time that is taken from it.
const WATCHED: Duration = Duration::from_secs(1);

/// A gap between two readings of the clock that counts as taken by another process: interrupts
/// take less.
const ABSENT: Duration = Duration::from_micros(100);

/// Round trips of a cache line in one sample, and the samples.
const ROUND_TRIPS: u32 = 20_000;
const SAMPLES: usize = 20;

/// Nanoseconds of a tick of `/proc/stat` (USER_HZ is 100 on every Linux).
pub(crate) const TICK_NS: u64 = 10_000_000;

/// A block in which a core took this many times its best calibration is dropped with its round.
pub(crate) const SLOW: f64 = 1.4;

/// A round in which this share of a block's time was stolen is dropped.
pub(crate) const STOLEN: f64 = 0.05;

/// CPU counters of the whole machine, in nanoseconds since boot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    /// Time in which cores were neither idle nor stolen. Not the user and system time of
    /// `/proc/stat`, which many kernels sample at their tick: a process that wakes thousands of
    /// times a second and sleeps at each tick is never seen. Idle time is measured.
    pub busy: u64,
    /// The part of it that interrupts took, as sampled: no process is charged for it.
    pub interrupts: u64,
    /// Time that the host gave to others.
    pub stolen: u64,
}

impl Cpu {
    /// Reads the counters.
    pub(crate) fn read() -> Result<Self, Error> {
        let text = std::fs::read_to_string("/proc/stat").map_err(system("reading /proc/stat"))?;
        let fields: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        // user nice system idle iowait irq softirq steal
        let at = |index: usize| fields.get(index).copied().unwrap_or(0) * TICK_NS;
        let is_core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let cores = text.lines().filter(is_core).count() as u64;
        let now = clock_gettime(ClockId::Monotonic);
        let passed = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64) * cores;
        // Since boot that is off by the time in which cores were not there yet.
        let busy = passed.saturating_sub(at(3) + at(4) + at(7));
        Ok(Self { busy, interrupts: at(5) + at(6), stolen: at(7) })
    }

    /// The differences since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }
}

/// The result of `act` on each core that this process may use.
fn on_each_core<T>(mut act: impl FnMut() -> T) -> Result<Vec<T>, Error> {
    let all = sched_getaffinity(None).map_err(system("reading the CPU affinity"))?;
    let mut results = Vec::new();
    for core in (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)) {
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).map_err(system("setting the CPU affinity"))?;
        results.push(act());
    }
    sched_setaffinity(None, &all).map_err(system("setting the CPU affinity"))?;
    Ok(results)
}

/// Nanoseconds that the calibration loop takes on each core.
pub(crate) fn calibrate() -> Result<Vec<u64>, Error> {
    on_each_core(|| {
        let started = Instant::now();
        let mut word = 1u64;
        for step in 0..STEPS {
            word = black_box(word.rotate_left(5) ^ step);
        }
        black_box(word);
        started.elapsed().as_nanos() as u64
    })
}

/// A line on the tails that the machine has by itself: what each core lost, of [`WATCHED`] or
/// little more, while a program did nothing but read the clock.
pub(crate) fn absences() -> Result<String, Error> {
    let lost = on_each_core(|| {
        let (begun, mut last) = (Instant::now(), Instant::now());
        let (mut lost, mut longest) = (Duration::ZERO, Duration::ZERO);
        while begun.elapsed() < WATCHED {
            let now = Instant::now();
            let gap = now - last;
            if gap > ABSENT {
                lost += gap;
                longest = longest.max(gap);
            }
            last = now;
        }
        (100.0 * lost.as_secs_f64() / begun.elapsed().as_secs_f64(), longest.as_secs_f64() * 1e3)
    })?;
    let cores: Vec<String> = lost
        .iter()
        .map(|(share, longest)| format!("{share:.2} % (at most {longest:.1} ms at once)"))
        .collect();
    Ok(format!("time that was taken from a program that only reads the clock, by core: {}", cores.join(", ")))
}

/// A line on the distance of the first two cores: what a cache line takes from one to the other and
/// back. Two programs that exchange bytes through memory copy twice as fast on two hardware threads
/// of one core (20 ns) as on two cores (100 ns), and a host may move a virtual processor from one
/// place to the other at any time.
pub(crate) fn distance() -> Result<String, Error> {
    let all = sched_getaffinity(None).map_err(system("reading the CPU affinity"))?;
    let mut two = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
    let (Some(near), Some(far)) = (two.next(), two.next()) else {
        return Ok("one core: every exchange of two programs is a switch between them".into());
    };
    let pin = |core| {
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).map_err(system("setting the CPU affinity"))
    };
    let line = AtomicU32::new(0);
    let wait = |value| {
        while line.load(Acquire) != value {
            spin_loop();
        }
    };
    let total = ROUND_TRIPS * SAMPLES as u32;
    let samples = std::thread::scope(|threads| -> Result<Vec<u64>, Error> {
        let answers = threads.spawn(|| -> Result<(), Error> {
            let pinned = pin(far);
            for trip in 0..total {
                wait(2 * trip + 1);
                line.store(2 * trip + 2, Release);
            }
            pinned
        });
        let pinned = pin(near);
        let mut trip = 0;
        let samples = (0..SAMPLES).map(|_| {
            let started = Instant::now();
            for _ in 0..ROUND_TRIPS {
                line.store(2 * trip + 1, Release);
                wait(2 * trip + 2);
                trip += 1;
            }
            started.elapsed().as_nanos() as u64 / u64::from(ROUND_TRIPS)
        });
        let samples = samples.collect();
        let answered = answers.join().unwrap_or(Ok(()));
        pinned.and(answered).map(|()| samples)
    })?;
    sched_setaffinity(None, &all).map_err(system("setting the CPU affinity"))?;
    let (least, most) = (samples.iter().min().unwrap_or(&0), samples.iter().max().unwrap_or(&0));
    Ok(format!("a cache line goes from core {near} to core {far} and back in {least} to {most} ns"))
}

/// How slow the slowest core was before or after a block, in parts of what it can be at best.
pub(crate) fn slowness(before: &[u64], after: &[u64], best: &[u64]) -> f64 {
    before
        .iter()
        .chain(after)
        .zip(best.iter().cycle())
        .map(|(now, best)| *now as f64 / *best as f64)
        .fold(0.0, f64::max)
}

/// Processor time that processes have used, in nanoseconds, all threads together.
pub(crate) fn processor_time(processes: &[u32]) -> Result<u64, Error> {
    let mut total = 0;
    for process in processes {
        let threads =
            std::fs::read_dir(format!("/proc/{process}/task")).map_err(system("listing threads"))?;
        for thread in threads.flatten() {
            let file = thread.path().join("schedstat");
            // A thread may have ended meanwhile.
            let text = std::fs::read_to_string(file).unwrap_or_default();
            total += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(total)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One line on the machine: kernel, cores, load, congestion control.
pub(crate) fn describe() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = cores();
    format!(
        "kernel {}, {cores} cores, load {}, kernel TCP {}",
        read("/proc/sys/kernel/osrelease"),
        read("/proc/loadavg").split(' ').next().unwrap_or_default(),
        read("/proc/sys/net/ipv4/tcp_congestion_control"),
    )
}
