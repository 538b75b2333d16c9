//! The director: reads programs and has the actors carry them out.
//!
//! A program comes as `program TICK` (milliseconds), its steps, `end`. Each step that gives a
//! result is answered with `NUMBER RESULT`, the program with `end`. If a call can be interrupted by
//! nothing, the director says `hung` and ends the process.

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::actor::{self, Pipes};
use super::{processes, raw, signals};
use crate::operation::Operation;
use crate::program::{Actor, Step};

/// Ticks after which a call that signals do not interrupt is said to hang.
const HUNG_AFTER: u32 = 60;
/// How long a call that was started may take until it sleeps.
const SLEEPS_WITHIN: Duration = Duration::from_secs(2);
/// Milliseconds that `exec` may take.
const EXECUTES_WITHIN: i32 = 10_000;
/// Descriptors of what is looked at begin here: beyond the pipes.
const LOOKS_FROM: i32 = actor::FIRST_PIPE + 40;
/// Between two looks at a thread.
const LOOK: Duration = Duration::from_micros(100);

/// What the director knows of an actor.
struct Known {
    actor: Actor,
    pipes: Pipes,
    process: i32,
    thread: i32,
    alive: bool,
    /// What the kernel says of its thread: the system call in which it is, and its state.
    told: Option<[File; 2]>,
    /// The number of a step whose result has not been asked for.
    started: Option<usize>,
    /// That result, once it is there.
    result: Option<String>,
    left: Vec<u8>,
}

struct Director {
    actors: Vec<Known>,
    tick: i32,
    output: Vec<String>,
}

/// What became of a call.
enum Outcome {
    Result(String),
    /// The child is another program now.
    Executed,
    Died(String),
    Hung,
}

/// Runs programs until the standard input ends.
pub fn run() -> ExitCode {
    signals::install(false);
    let mut actors = Vec::new();
    for actor in Actor::ALL {
        if !processes::make_pipes(actor) {
            return ExitCode::FAILURE;
        }
        actors.push(Known {
            actor,
            pipes: Pipes::of(actor),
            process: 0,
            thread: 0,
            alive: false,
            told: None,
            started: None,
            result: None,
            left: Vec::new(),
        });
    }
    for known in &mut actors {
        if let Actor::Child(_) = known.actor {
            continue;
        }
        let actor = known.actor;
        std::thread::spawn(move || actor::serve(actor));
        known.meet();
    }
    let mut director = Director { actors, tick: 40, output: Vec::new() };
    let mut steps = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Some(tick) = line.strip_prefix("program ") {
            director.tick = tick.parse().unwrap_or(40);
            steps.clear();
        } else if line == "end" {
            let whole = director.program(&steps);
            let mut text = director.output.join("\n");
            text += if whole { "\nend\n" } else { "\nhung\n" };
            director.output.clear();
            let told = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
            if !whole || told.is_err() {
                director.kill_children();
                return ExitCode::FAILURE;
            }
        } else {
            steps.push(Step::read(&line));
        }
    }
    director.kill_children();
    ExitCode::SUCCESS
}

/// What is read of a thread while calls are under way, at numbers beyond those of the program: a
/// file that were opened then would take the number from under a call that is about to set the
/// lowest one aside.
fn out_of_the_way(process: i32, thread: i32) -> std::io::Result<[File; 2]> {
    let open = |name: &str| {
        let file = File::open(format!("/proc/{process}/task/{thread}/{name}"))?;
        let high = raw::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOOKS_FROM);
        if !high.is_ok() {
            return Err(std::io::Error::from(std::io::ErrorKind::Other));
        }
        // SAFETY: a new descriptor that nobody else has.
        Ok(unsafe { File::from_raw_fd(i32::try_from(high.length()).unwrap_or(-1)) })
    };
    Ok([open("syscall")?, open("stat")?])
}

impl Known {
    /// Hears who the actor is.
    fn meet(&mut self) {
        let hello = actor::line(self.pipes.results, &mut self.left).unwrap_or_default();
        self.introduce(&hello);
    }

    fn introduce(&mut self, hello: &str) {
        let mut numbers = hello.split(' ').skip(1).map(|word| word.parse().unwrap_or(0));
        self.process = numbers.next().unwrap_or(0);
        self.thread = numbers.next().unwrap_or(0);
        self.told = out_of_the_way(self.process, self.thread).ok();
        self.alive = true;
    }

    /// A line of the actor, if one comes within that time.
    fn hear(&mut self, milliseconds: i32) -> Option<String> {
        if let Some(line) = actor::take_line(&mut self.left) {
            return Some(line);
        }
        if raw::wait_for(self.pipes.results, libc::POLLIN, milliseconds) {
            return actor::line(self.pipes.results, &mut self.left);
        }
        None
    }

    /// Whether the kernel says that the thread sleeps, in a system call that is not one of those by
    /// which it speaks with the director; a thread that is gone does, one that somebody has stopped
    /// does not.
    fn sleeps(&self) -> bool {
        let Some(told) = &self.told else { return true };
        let [call, state] = told.each_ref().map(|file| {
            let mut bytes = [0; 256];
            let length = file.read_at(&mut bytes, 0).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        });
        let mut words = call.split_whitespace();
        let (call, first) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if call == "running" || first == format!("{:#x}", self.pipes.result) {
            return false;
        }
        state.rsplit(") ").next().is_none_or(|rest| !rest.starts_with(['R', 'D', 'T', 't']))
    }

    /// Waits until a started call sleeps or has returned.
    fn quiesce(&mut self) {
        if self.started.is_none() || self.result.is_some() {
            return;
        }
        let begun = Instant::now();
        let mut asleep = 0;
        while asleep < 2 && begun.elapsed() < SLEEPS_WITHIN {
            // Looked at before the pipe: what it says before it sleeps is in the pipe by then.
            asleep = if self.sleeps() { asleep + 1 } else { 0 };
            if let Some(line) = self.hear(0) {
                self.result = Some(line.trim_start_matches("= ").to_owned());
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Forgets what is still in the pipes of a child that is gone.
    fn clear(&mut self) {
        for fd in [self.pipes.commands, self.pipes.results] {
            while raw::wait_for(fd, libc::POLLIN, 0) && raw::read(fd, &mut [0; 1024]).length() > 0 {}
        }
        self.left.clear();
        (self.alive, self.started, self.result) = (false, None, None);
    }
}

impl Director {
    /// Carries out a program; false if a call hangs.
    fn program(&mut self, steps: &[Option<Step>]) -> bool {
        for (number, step) in steps.iter().enumerate() {
            let (result, whole) = match step {
                None => ("no step".to_owned(), true),
                Some(Step::Call { actor, start, operation }) => {
                    self.call(number, actor.index(), *start, operation)
                }
                Some(Step::Join(actor)) => self.join(actor.index()),
                Some(Step::Kill(actor)) => (self.kill(actor.index()), true),
            };
            self.output.push(format!("{number} {result}"));
            if !whole {
                return false;
            }
            self.actors.iter_mut().for_each(Known::quiesce);
        }
        for index in 0..self.actors.len() {
            if let Some(number) = self.actors[index].started {
                let (result, whole) = self.join(index);
                self.output.push(format!("{number} at the end: {result}"));
                if !whole {
                    return false;
                }
            }
        }
        self.kill_children();
        actor::write_line(self.actors[0].pipes.command, "reset");
        matches!(self.outcome(0, self.tick), Outcome::Result(_))
    }

    fn call(&mut self, number: usize, index: usize, start: bool, operation: &Operation) -> (String, bool) {
        let known = &mut self.actors[index];
        if !known.alive {
            return ("absent".to_owned(), true);
        }
        if known.started.is_some() {
            return ("busy".to_owned(), true);
        }
        if let Operation::Fork { child } = operation
            && (self.actors[2 + if *child == 2 { 2 } else { 1 }].alive || index != 0)
        {
            return ("cannot".to_owned(), true);
        }
        let known = &mut self.actors[index];
        actor::write_line(known.pipes.command, &format!("{number} {} {operation}", i32::from(start)));
        if start {
            match known.hear(SLEEPS_WITHIN.as_millis().try_into().unwrap_or(0)) {
                Some(begun) if begun == ">" => {}
                other => return (format!("did not begin: {other:?}"), false),
            }
            known.started = Some(number);
            known.quiesce();
            return ("started".to_owned(), true);
        }
        let outcome = match operation {
            // A program that begins has no handlers yet.
            Operation::Execute {} => self.outcome(index, EXECUTES_WITHIN),
            _ => self.outcome(index, self.tick),
        };
        if let (Operation::Exit { .. }, Outcome::Result(_)) = (operation, &outcome) {
            let ended = processes::wait(self.actors[index].process, true);
            self.actors[index].clear();
            return (ended.unwrap_or_default(), true);
        }
        if let (Operation::Fork { child }, Outcome::Result(text)) = (operation, &outcome)
            && text.starts_with("forked")
        {
            self.actors[2 + if *child == 2 { 2 } else { 1 }].meet();
        }
        self.told(index, outcome)
    }

    fn told(&mut self, index: usize, outcome: Outcome) -> (String, bool) {
        match outcome {
            Outcome::Result(text) => (text, true),
            Outcome::Executed => ("executed".to_owned(), true),
            Outcome::Died(how) => {
                self.actors[index].clear();
                (how, true)
            }
            Outcome::Hung => ("hangs".to_owned(), false),
        }
    }

    fn join(&mut self, index: usize) -> (String, bool) {
        self.actors[index].quiesce();
        if self.actors[index].started.take().is_none() {
            return ("nothing started".to_owned(), true);
        }
        if let Some(result) = self.actors[index].result.take() {
            return (result, true);
        }
        let outcome = self.outcome(index, self.tick);
        self.told(index, outcome)
    }

    /// Waits for the result of a call, and interrupts it if it takes too long.
    fn outcome(&mut self, index: usize, tick: i32) -> Outcome {
        let known = &mut self.actors[index];
        for ticks in 0..HUNG_AFTER {
            if let Some(line) = known.hear(tick) {
                if line.starts_with("+ ") {
                    known.introduce(&line);
                    return Outcome::Executed;
                }
                return Outcome::Result(line.trim_start_matches('=').trim_start().to_owned());
            }
            if let Actor::Child(_) = known.actor
                && let Some(how) = processes::wait(known.process, false)
            {
                return Outcome::Died(how);
            }
            let signal = if ticks == 0 { signals::FIRST } else { signals::SECOND };
            signals::send(known.process, known.thread, signal);
        }
        Outcome::Hung
    }

    fn kill(&mut self, index: usize) -> String {
        let known = &mut self.actors[index];
        if !known.alive || !matches!(known.actor, Actor::Child(_)) {
            return "absent".to_owned();
        }
        processes::kill(known.process);
        known.clear();
        "killed".to_owned()
    }

    fn kill_children(&mut self) {
        for index in 0..self.actors.len() {
            self.kill(index);
        }
    }
}
