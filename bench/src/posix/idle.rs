//! The cost of ten connected applications that send nothing: the processor time of all of them,
//! their server and the service, over ten seconds.
//!
//! The columns are measured at the same time, because no program does anything. Linux is a column
//! too, for comparison: a sleep in the kernel costs nothing.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::program::Program;
use super::rows::Server;
use super::stage::{Running, Stage};
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
struct Scene {
    server: Running,
    applications: Vec<Program>,
}

impl Scene {
    fn set(stage: &Stage, variant: Variant) -> Result<Self, Error> {
        let server = stage.start(Server::Silent, variant)?;
        let mut applications = Vec::new();
        for number in 0..APPLICATIONS {
            let mut words = stage.agent("silent", server.address);
            words.extend((number % 2 == 1).then(|| "--epoll".into()));
            let log = stage.log(&format!("silent-{number}"));
            let mut application = Program::start("silent", &stage.client(variant, words)?, &log)?;
            let connected = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("connected"));
            application.wait_until(START, &stage.stop, connected)?;
            applications.push(application);
        }
        Ok(Self { server, applications })
    }

    /// Nanoseconds of processor time that they have used.
    fn used(&mut self, stage: &Stage, variant: Variant) -> Result<u64, Error> {
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
            processes.extend(stage.service());
        }
        processor_time(&processes)
    }
}

/// Measures all columns at once.
pub(super) fn measure(stage: &Stage, variants: &[Variant]) -> Result<Vec<Idle>, Error> {
    let mut scenes: Vec<Result<Scene, Error>> =
        variants.iter().map(|variant| Scene::set(stage, *variant)).collect();
    stage.check_interrupt()?;
    let used = |at: usize, scene: &mut Result<Scene, Error>| match scene {
        Ok(scene) => scene.used(stage, variants[at]).map_err(|cause| cause.cause()),
        Err(cause) => Err(cause.cause()),
    };
    sleep(stage, SETTLE)?;
    let begin = Instant::now();
    let before: Vec<_> = scenes.iter_mut().enumerate().map(|(at, scene)| used(at, scene)).collect();
    sleep(stage, WINDOW)?;
    let after: Vec<_> = scenes.iter_mut().enumerate().map(|(at, scene)| used(at, scene)).collect();
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
fn sleep(stage: &Stage, time: Duration) -> Result<(), Error> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        stage.check_interrupt().map_err(|_| program::interrupted())?;
        std::thread::sleep(Duration::from_millis(100).min(time.saturating_sub(begin.elapsed())));
    }
    Ok(())
}
