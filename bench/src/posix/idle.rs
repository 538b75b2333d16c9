//! The cost of ten connected applications that send nothing: the processor time of all of them,
//! their server and the service, over ten seconds.
//!
//! The columns are measured at the same time, because no program does anything. Linux is a column
//! too, for comparison: a sleep in the kernel costs nothing.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::environment::{Environment, Running};
use super::program::Program;
use super::rows::Server;
use super::variants::Variant;
use super::{program, tree};
use crate::error::Error;
use crate::machine::processor_time;

/// The row's name.
pub(super) const NAME: &str = "idle: 10 silent applications";

/// The share of a core that all of them together may use.
pub(super) const GOAL: f64 = 0.01;

/// Applications of a column.
const APPLICATIONS: usize = 10;

/// The settling time: spinning has to end by itself.
const SETTLE: Duration = Duration::from_secs(2);

/// The length of the measurement.
const WINDOW: Duration = Duration::from_secs(10);

/// How long an application may take to connect.
const START: Duration = Duration::from_secs(10);

/// The cost of a column.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Idle {
    pub variant: &'static str,
    /// Processor time as a fraction of one core.
    pub cores: Option<f64>,
    pub failed: Option<String>,
}

/// The processes of a column.
struct SilentApplications {
    server: Running,
    applications: Vec<Program>,
}

impl SilentApplications {
    fn start(environment: &Environment, variant: Variant) -> Result<Self, Error> {
        let server = environment.start(Server::Silent, variant)?;
        let mut applications = Vec::new();
        for number in 0..APPLICATIONS {
            let mut words = environment.agent("silent", server.address);
            words.extend((number % 2 == 1).then(|| "--epoll".into()));
            let log = environment.log(&format!("silent-{number}"));
            let mut application = Program::start("silent", &environment.client(variant, words)?, &log)?;
            let connected = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("connected"));
            application.wait_until(START, &environment.stop, connected)?;
            applications.push(application);
        }
        Ok(Self { server, applications })
    }

    /// Nanoseconds of processor time that they have used.
    fn used(&mut self, environment: &Environment, variant: Variant) -> Result<u64, Error> {
        self.server.program.is_up()?;
        let mut processes = vec![self.server.program.pid()];
        for application in &mut self.applications {
            application.is_up()?;
            processes.push(application.pid());
        }
        let below: Vec<u32> =
            processes.iter().flat_map(|pid| tree::below(*pid)).map(|process| process.pid).collect();
        processes.extend(below);
        if variant.server || variant.client {
            processes.extend(environment.service());
        }
        processor_time(&processes)
    }
}

/// Measures all columns at once.
pub(super) fn measure(environment: &Environment, variants: &[Variant]) -> Result<Vec<Idle>, Error> {
    let mut columns: Vec<Result<SilentApplications, Error>> =
        variants.iter().map(|variant| SilentApplications::start(environment, *variant)).collect();
    environment.check_interrupt()?;
    let used = |at: usize, column: &mut Result<SilentApplications, Error>| match column {
        Ok(column) => column.used(environment, variants[at]).map_err(|cause| cause.cause()),
        Err(cause) => Err(cause.cause()),
    };
    sleep(environment, SETTLE)?;
    let begin = Instant::now();
    let before: Vec<_> = columns.iter_mut().enumerate().map(|(at, column)| used(at, column)).collect();
    sleep(environment, WINDOW)?;
    let after: Vec<_> = columns.iter_mut().enumerate().map(|(at, column)| used(at, column)).collect();
    let elapsed = begin.elapsed().as_nanos() as f64;
    let cost = |(before, after): (Result<u64, String>, Result<u64, String>)| -> Result<f64, String> {
        Ok((after?.saturating_sub(before?)) as f64 / elapsed)
    };
    let costs = before.into_iter().zip(after).map(cost);
    Ok(variants
        .iter()
        .zip(costs)
        .map(|(variant, cost)| Idle { variant: variant.name, failed: cost.clone().err(), cores: cost.ok() })
        .collect())
}

/// Sleeps, unless the user has interrupted.
fn sleep(environment: &Environment, time: Duration) -> Result<(), Error> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        environment.check_interrupt().map_err(|_| program::interrupted())?;
        std::thread::sleep(Duration::from_millis(100).min(time.saturating_sub(begin.elapsed())));
    }
    Ok(())
}
