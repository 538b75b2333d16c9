//! Runs many programs in two settings and reports the first that differs.
//!
//! 1. Each worker has one executor of each setting and runs every program in both at the same time.
//! 2. If the results differ, the other workers pause, and the program runs again several times in
//!    both, with a longer tick. If the kernel disagrees with itself, the program is counted as
//!    undetermined. If the shim differs again, or has hung or ended, the program is a failure.
//!    Otherwise the machine was slow, and the program is counted as differing once.
//! 3. A failure is minimised and reported with its seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::compare::{difference, ended_early, side_by_side};
use crate::generate;
use crate::minimise::minimise;
use crate::program::Program;
use crate::session::{Session, Setting};

/// Milliseconds after which a socket call is interrupted.
const TICK: u32 = 40;
/// The same for repetitions, where a slow machine must not matter.
const LONG_TICK: u32 = 300;
/// The same for files: none of these calls waits for another actor.
const FILE_TICK: u32 = 10_000;
/// How often a program that differed is repeated.
const REPETITIONS: usize = 10;
/// How many repetitions must differ for a failure. Other load on the machine delays calls now and
/// then, in the kernel too.
const MUST_DIFFER: usize = 3;

/// How long a failing program is minimised.
const MINIMISING: Duration = Duration::from_secs(20);

/// A run of the suite.
pub struct Suite {
    /// The kernel's setting.
    pub kernel: Setting,
    /// The shim's setting.
    pub shim: Setting,
    /// What the programs do.
    pub subject: Subject,
    /// The seed of the first program; each further program has the next seed.
    pub seed: u64,
    /// The most programs to run.
    pub programs: u64,
    /// Ends after this time even if programs are left.
    pub time: Duration,
    /// What the shim's results must satisfy.
    pub demand: Demand,
    /// How many programs run at once.
    pub workers: usize,
    /// Seeds to skip.
    pub except: &'static [u64],
}

/// What programs do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// Socket calls.
    #[default]
    Sockets,
    /// Calls on files.
    Files,
}

impl Subject {
    fn program(self, seed: u64) -> Program {
        match self {
            Self::Sockets => generate::program(seed),
            Self::Files => generate::files::program(seed),
        }
    }

    /// The tick of the first run, and that of a repetition.
    fn ticks(self) -> (u32, u32) {
        match self {
            Self::Sockets => (TICK, LONG_TICK),
            Self::Files => (FILE_TICK, FILE_TICK),
        }
    }
}

/// What the shim's results must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// They are the kernel's results.
    Same,
    /// Every call returns, and no process ends early.
    Alive,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Programs that ran.
    pub programs: u64,
    /// Steps of them.
    pub steps: u64,
    /// Programs for which the kernel disagreed with itself.
    pub undetermined: u64,
    /// Programs that differed, but not when repeated alone.
    pub once: u64,
    /// A report of each failure.
    pub failures: Vec<String>,
}

/// The verdict on one program.
enum Verdict {
    Same,
    Undetermined(String),
    Once(String),
    Differs(String),
}

/// A pair of executors.
pub struct Pair {
    subject: Subject,
    kernel: Session,
    shim: Session,
}

/// Workers hold it shared while they run a program, and exclusively while they repeat one: eight
/// programs at once delay one another.
static REPEATING: RwLock<()> = RwLock::new(());

impl Pair {
    /// Starts both.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn start(subject: Subject, kernel: &Setting, shim: &Setting) -> std::io::Result<Self> {
        Ok(Self { subject, kernel: Session::start(kernel)?, shim: Session::start(shim)? })
    }

    /// The results of a program in both settings.
    ///
    /// # Errors
    /// An executor cannot be started anew.
    fn run(&mut self, program: &Program, tick: u32) -> std::io::Result<(Vec<String>, Vec<String>)> {
        let (kernel, shim) = (&mut self.kernel, &mut self.shim);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| kernel.run(program, tick));
            let other = shim.run(program, tick)?;
            let one = one.join().map_err(|_| std::io::Error::other("the kernel's session has failed"))??;
            Ok((one, other))
        })
    }

    /// A report of both results if the program is a failure.
    ///
    /// # Errors
    /// An executor cannot be started anew.
    pub fn differs(&mut self, program: &Program) -> std::io::Result<Option<String>> {
        Ok(match self.verdict(program)? {
            Verdict::Differs(text) => Some(text),
            _ => None,
        })
    }

    fn check_alive(&mut self, program: &Program) -> std::io::Result<Verdict> {
        let (kernel, shim) = self.run(program, self.subject.ticks().0)?;
        let dead = ended_early(&shim) && !ended_early(&kernel);
        Ok(if dead { Verdict::Differs(side_by_side(program, &kernel, &shim)) } else { Verdict::Same })
    }

    fn verdict(&mut self, program: &Program) -> std::io::Result<Verdict> {
        let found = {
            let _shared = REPEATING.read().unwrap_or_else(PoisonError::into_inner);
            let (first, other) = self.run(program, self.subject.ticks().0)?;
            difference(&first, &other)
        };
        let Some(found) = found else { return Ok(Verdict::Same) };
        let _alone = REPEATING.write().unwrap_or_else(PoisonError::into_inner);
        let mut before: Option<Vec<String>> = None;
        let (mut differed, mut doubts) = (0, None);
        for _ in 0..REPETITIONS {
            let (one, other) = self.run(program, self.subject.ticks().1)?;
            let kernel = before.get_or_insert_with(|| one.clone());
            if let Some(found) = difference(kernel, &one) {
                doubts = Some(found);
                *kernel = one;
                continue;
            }
            if difference(&one, &other).is_some() {
                differed += 1;
                if differed == MUST_DIFFER {
                    return Ok(Verdict::Differs(side_by_side(program, &one, &other)));
                }
            }
        }
        Ok(match doubts {
            Some(doubt) => Verdict::Undetermined(describe(program, &doubt)),
            None => Verdict::Once(format!(
                "{} ({differed} of {REPETITIONS} repetitions differed)",
                describe(program, &found)
            )),
        })
    }
}

impl Suite {
    /// Runs the programs.
    ///
    /// # Errors
    /// An executor cannot be started.
    pub fn run(&self, most_failures: usize) -> std::io::Result<Summary> {
        let (next, begun) = (AtomicU64::new(0), Instant::now());
        let summary = Mutex::new(Summary::default());
        let work = || -> std::io::Result<()> {
            let mut pair = Pair::start(self.subject, &self.kernel, &self.shim)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let enough = lock(&summary).failures.len() >= most_failures;
                if number >= self.programs || begun.elapsed() > self.time || enough {
                    return Ok(());
                }
                let seed = self.seed.wrapping_add(number);
                if self.except.contains(&seed) {
                    continue;
                }
                let program = self.subject.program(seed);
                let verdict = match self.demand {
                    Demand::Same => pair.verdict(&program)?,
                    Demand::Alive => pair.check_alive(&program)?,
                };
                if let Verdict::Differs(text) = &verdict {
                    eprintln!("seed {seed} differs; looking for a shorter program");
                    let report = self.report(&mut pair, seed, &program, text)?;
                    eprintln!("{report}");
                    lock(&summary).failures.push(report);
                }
                let mut summary = lock(&summary);
                summary.programs += 1;
                summary.steps += u64::try_from(program.steps.len()).unwrap_or(0);
                match verdict {
                    Verdict::Undetermined(what) => {
                        eprintln!("seed {seed}: the kernel disagrees with itself: {what}");
                        summary.undetermined += 1;
                    }
                    Verdict::Once(what) => {
                        eprintln!("seed {seed}: differed once, but not when repeated alone: {what}");
                        summary.once += 1;
                    }
                    _ => {}
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| std::io::Error::other("a worker has failed"))?
            })
        })?;
        Ok(summary.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn report(&self, pair: &mut Pair, seed: u64, program: &Program, text: &str) -> std::io::Result<String> {
        let mut last = text.to_owned();
        let mut broken = None;
        let begun = Instant::now();
        let differs = |pair: &mut Pair, candidate: &Program| match self.demand {
            Demand::Same => pair.differs(candidate),
            Demand::Alive => pair.check_alive(candidate).map(|verdict| match verdict {
                Verdict::Differs(text) => Some(text),
                _ => None,
            }),
        };
        let small = minimise(program, |candidate| match within(begun, || differs(pair, candidate)) {
            Ok(Some(text)) => {
                last = text;
                true
            }
            Ok(None) => false,
            Err(cause) => {
                broken = Some(cause);
                false
            }
        });
        match broken {
            Some(cause) => Err(cause),
            None => Ok(format!(
                "seed {seed} differs. The shortest program that does ({} of {} steps):\n{last}",
                small.steps.len(),
                program.steps.len()
            )),
        }
    }
}

/// Calls `differs` as long as there is time left for minimising.
fn within(
    begun: Instant,
    differs: impl FnOnce() -> std::io::Result<Option<String>>,
) -> std::io::Result<Option<String>> {
    if begun.elapsed() > MINIMISING { Ok(None) } else { differs() }
}

fn describe(program: &Program, found: &(usize, String, String)) -> String {
    let (number, kernel, shim) = found;
    let step = program.steps.get(*number).map(ToString::to_string).unwrap_or_default();
    format!("{number} {step}: `{kernel}`, then `{shim}`")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
