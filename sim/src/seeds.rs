//! Runs a test over many seeds.
//!
//! 1. `SIETCH_SIM_SEED=n`: that seed alone, without catching panics, so that a debugger sees the
//!    failure.
//! 2. Otherwise: the given regression seeds, then a series of further seeds. `SIETCH_SIM_SEEDS` or
//!    the default limits their number, `SIETCH_SIM_SECONDS` or the default their time.
//!    - The series starts at [`FIRST`]. So a plain `cargo test` runs the same seeds each time, and
//!      fails because of a change and not by chance. A slow machine runs fewer of them; no machine
//!      runs more than the number.
//!    - In a long run ([`is_soak`]), or when `SIETCH_SIM_FRESH` is set, the series starts at a
//!      number from the clock. Each run is then different, and finds failures that no run has seen
//!      yet. A seed that fails there joins the regression seeds.
//! 3. `SIETCH_SIM_THREADS=n` threads share the seeds. The default is one, because tests already run
//!    in parallel. A seed is a whole world of one thread, so its result does not depend on the
//!    number of threads.
//! 4. A test that checks many states of one world reports their number ([`explored`]); the run
//!    prints their sum.
//! 5. When a seed panics, the run prints the command that repeats it and starts no further seed;
//!    then it panics too.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The extent of a run without settings in the environment.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Seeds beside the regression seeds.
    pub seeds: u64,
    /// Seconds after which no further seed starts.
    pub seconds: u64,
}

thread_local! {
    /// States that this thread has explored since the last reset.
    static EXPLORED: Cell<u64> = const { Cell::new(0) };
}

/// Counts states of the current seed that were checked: media after a crash, for example.
pub fn explored(states: u64) {
    EXPLORED.set(EXPLORED.get() + states);
}

/// Whether this is a long run, as `cargo xtask soak` starts it: seeds are fresh then, and tests
/// that enumerate go further than in CI.
pub fn is_soak() -> bool {
    std::env::var_os("SIETCH_SIM_SOAK").is_some()
}

/// The start of the series, in every test. Seeds that tests name explicitly are below, seeds of the
/// clock far above.
const FIRST: u64 = 1000;

/// The first seed of a series: `fixed`, or one of the clock in a long run and with
/// `SIETCH_SIM_FRESH`.
pub fn first(fixed: u64) -> u64 {
    if !is_soak() && std::env::var_os("SIETCH_SIM_FRESH").is_none() {
        return fixed;
    }
    // Small numbers are easier to repeat; these must differ from run to run.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    (now % 1_000_000_000_000) as u64
}

/// How often a long run reports its progress.
const REPORT: Duration = Duration::from_secs(60);

/// The state that the threads of a run share.
struct Run<'a, T> {
    name: &'a str,
    regressions: &'a [u64],
    /// The first seed of the series, and how many there are.
    series: (u64, u64),
    test: T,
    started: Instant,
    limit: Duration,
    next: AtomicUsize,
    done: AtomicU64,
    states: AtomicU64,
    reported: AtomicU64,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Runs `test` for the seeds of the environment, or the regression seeds and the series within
/// `budget`. `name` is the test's file and function, as in `tcp transfer`.
///
/// # Panics
/// As `test` does, after printing the seed.
pub fn run(name: &str, regressions: &[u64], budget: Budget, test: impl Fn(u64) + Sync) {
    if let Some(seed) = number("SIETCH_SIM_SEED") {
        eprintln!("{name}: seed {seed}");
        return test(seed);
    }
    let count = number("SIETCH_SIM_SEEDS").unwrap_or(budget.seeds);
    let run = Run {
        name,
        regressions,
        series: (first(FIRST), count),
        test,
        started: Instant::now(),
        limit: Duration::from_secs(number("SIETCH_SIM_SECONDS").unwrap_or(budget.seconds)),
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        states: AtomicU64::new(0),
        reported: AtomicU64::new(0),
        failure: Mutex::new(None),
    };
    let threads = number("SIETCH_SIM_THREADS").unwrap_or(1).clamp(1, 256);
    if threads == 1 {
        run.work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| run.work());
            }
        });
    }
    let seconds = run.started.elapsed().as_secs_f64();
    let seeds = run.done.load(Ordering::Relaxed);
    match run.states.load(Ordering::Relaxed) {
        0 => println!("{name}: {seeds} seeds in {seconds:.1} s"),
        states => println!("{name}: {seeds} seeds, {states} states in {seconds:.1} s"),
    }
    if let Some(cause) = run.failure.into_inner().unwrap_or(None) {
        resume_unwind(cause);
    }
}

impl<T: Fn(u64) + Sync> Run<'_, T> {
    /// The seed at `place`, if there are that many.
    fn seed(&self, place: usize) -> Option<u64> {
        if let Some(seed) = self.regressions.get(place) {
            return Some(*seed);
        }
        let step = (place - self.regressions.len()) as u64;
        (step < self.series.1).then(|| self.series.0.wrapping_add(step))
    }

    fn work(&self) {
        while self.started.elapsed() < self.limit
            && let Some(seed) = self.seed(self.next.fetch_add(1, Ordering::Relaxed))
        {
            EXPLORED.set(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.test)(seed)));
            self.states.fetch_add(EXPLORED.take(), Ordering::Relaxed);
            if let Err(cause) = outcome {
                self.next.store(usize::MAX / 2, Ordering::Relaxed);
                let (file, function) = self.name.split_once(' ').unwrap_or((self.name, ""));
                // Cargo sets a variable with the package of a test.
                let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "sietch-sim".to_owned());
                eprintln!(
                    "{}: seed {seed} failed; repeat it with: SIETCH_SIM_SEED={seed} cargo test -p {package} --test {file} {function}",
                    self.name
                );
                if let Ok(mut failure) = self.failure.lock() {
                    *failure = Some(cause);
                }
                return;
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            self.report();
        }
    }

    fn report(&self) {
        let (elapsed, minute) = (self.started.elapsed(), REPORT.as_secs());
        let minutes = elapsed.as_secs() / minute;
        if minutes > self.reported.fetch_max(minutes, Ordering::Relaxed) {
            let (done, all) =
                (self.done.load(Ordering::Relaxed), self.regressions.len() as u64 + self.series.1);
            let states = self.states.load(Ordering::Relaxed);
            eprintln!("{}: {done} of {all} seeds, {states} states in {} s", self.name, elapsed.as_secs());
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
