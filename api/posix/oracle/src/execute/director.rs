//! The director: reads programs and has the actors carry them out.
//!
//! The input is `program TICK` (milliseconds), the program's steps, `end`. The director answers
//! each step that has a result with `NUMBER RESULT`, and the program with `end`. If no signal
//! interrupts a call, it writes `hung` and ends the process. For a step `look` it writes `look
//! NAME`, and the next line of its input is the result.

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::pipes::{self, Pipes};
use super::{actor, processes, signals, syscalls};
use crate::operation::Operation;
use crate::program::{Actor, Step};

/// Ticks after which a call that signals do not interrupt counts as hung.
const HUNG_AFTER: u32 = 60;
/// How long a started call may take until it sleeps.
const SLEEPS_WITHIN: Duration = Duration::from_secs(2);
/// Milliseconds that `exec` may take.
const EXECUTES_WITHIN: i32 = 10_000;
/// The director's files in `/proc` have descriptors from here on, beyond the pipes.
const FIRST_PROC_FILE: i32 = pipes::FIRST_PIPE + 40;
/// Between two polls of a thread's state.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// An actor, as the director sees it.
struct Remote {
    actor: Actor,
    pipes: Pipes,
    process: i32,
    thread: i32,
    alive: bool,
    /// The thread's files in `/proc`: its current system call, and its state.
    thread_files: Option<[File; 2]>,
    /// The number of a started step that has not been joined.
    started: Option<usize>,
    /// The result of that step, once it has returned.
    result: Option<String>,
    buffered: Vec<u8>,
}

struct Director {
    actors: Vec<Remote>,
    tick: i32,
    output: Vec<String>,
}

/// How a call ended.
enum Outcome {
    Result(String),
    /// The child has executed another program.
    Executed,
    Died(String),
    Hung,
}

/// Runs programs until the standard input ends.
pub(super) fn run() -> ExitCode {
    signals::install(false);
    let mut actors = Vec::new();
    for actor in Actor::ALL {
        if !Pipes::of(actor).open() {
            return ExitCode::FAILURE;
        }
        actors.push(Remote {
            actor,
            pipes: Pipes::of(actor),
            process: 0,
            thread: 0,
            alive: false,
            thread_files: None,
            started: None,
            result: None,
            buffered: Vec::new(),
        });
    }
    for remote in &mut actors {
        if let Actor::Child(_) = remote.actor {
            continue;
        }
        let actor = remote.actor;
        std::thread::spawn(move || actor::serve(actor));
        remote.read_introduction();
    }
    let mut director = Director { actors, tick: 40, output: Vec::new() };
    let mut steps = Vec::new();
    let mut input = std::io::stdin().lock().lines().map_while(Result::ok);
    while let Some(line) = input.next() {
        if let Some(tick) = line.strip_prefix("program ") {
            director.tick = tick.parse().unwrap_or(40);
            steps.clear();
        } else if line == "end" {
            let whole = director.program(&steps, &mut input);
            let mut text = director.output.join("\n");
            text += if whole { "\nend\n" } else { "\nhung\n" };
            director.output.clear();
            let written =
                std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
            if !whole || written.is_err() {
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

/// Opens the files of a thread that the director reads while calls are in flight. Their descriptors
/// have numbers above those of the program: a low number would change which descriptor the
/// program's next call gets.
fn open_thread_files(process: i32, thread: i32) -> std::io::Result<[File; 2]> {
    let open = |name: &str| {
        let file = File::open(format!("/proc/{process}/task/{thread}/{name}"))?;
        let high = syscalls::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_PROC_FILE);
        if !high.is_ok() {
            return Err(std::io::Error::from(std::io::ErrorKind::Other));
        }
        // SAFETY: a new descriptor without another owner.
        Ok(unsafe { File::from_raw_fd(i32::try_from(high.length()).unwrap_or(-1)) })
    };
    Ok([open("syscall")?, open("stat")?])
}

impl Remote {
    /// Reads the actor's first line: its process and thread.
    fn read_introduction(&mut self) {
        let hello = pipes::read_line(self.pipes.results, &mut self.buffered).unwrap_or_default();
        self.introduce(&hello);
    }

    fn introduce(&mut self, hello: &str) {
        let mut numbers = hello.split(' ').skip(1).map(|word| word.parse().unwrap_or(0));
        self.process = numbers.next().unwrap_or(0);
        self.thread = numbers.next().unwrap_or(0);
        self.thread_files = open_thread_files(self.process, self.thread).ok();
        self.alive = true;
    }

    /// A line of the actor, if one arrives within that time.
    fn receive(&mut self, milliseconds: i32) -> Option<String> {
        if let Some(line) = pipes::take_line(&mut self.buffered) {
            return Some(line);
        }
        if syscalls::wait_for(self.pipes.results, libc::POLLIN, milliseconds) {
            return pipes::read_line(self.pipes.results, &mut self.buffered);
        }
        None
    }

    /// Whether the thread sleeps in a system call other than a write to the director. A thread that
    /// has ended counts as asleep, a stopped one does not.
    fn sleeps(&self) -> bool {
        let Some(files) = &self.thread_files else { return true };
        let [call, state] = files.each_ref().map(|file| {
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

    /// Waits until the started call sleeps or has returned.
    fn quiesce(&mut self) {
        if self.started.is_none() || self.result.is_some() {
            return;
        }
        let begun = Instant::now();
        let mut asleep = 0;
        while asleep < 2 && begun.elapsed() < SLEEPS_WITHIN {
            // The state is read before the pipe: a thread that sleeps has written its lines by
            // then.
            asleep = if self.sleeps() { asleep + 1 } else { 0 };
            if let Some(line) = self.receive(0) {
                self.result = Some(line.trim_start_matches("= ").to_owned());
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Drains the pipes of a child that has ended, and forgets it.
    fn clear(&mut self) {
        for fd in [self.pipes.commands, self.pipes.results] {
            while syscalls::wait_for(fd, libc::POLLIN, 0) && syscalls::read(fd, &mut [0; 1024]).length() > 0 {
            }
        }
        self.buffered.clear();
        (self.alive, self.started, self.result) = (false, None, None);
    }
}

impl Director {
    /// Carries out a program; false if a call hangs.
    fn program(&mut self, steps: &[Option<Step>], input: &mut impl Iterator<Item = String>) -> bool {
        for (number, step) in steps.iter().enumerate() {
            let (result, whole) = match step {
                None => ("no step".to_owned(), true),
                Some(Step::Call { actor, start, operation }) => {
                    self.call(number, actor.index(), *start, operation)
                }
                Some(Step::Join(actor)) => self.join(actor.index()),
                Some(Step::Kill(actor)) => (self.kill(actor.index()), true),
                Some(Step::Look(name)) => {
                    println!("look {name}");
                    (input.next().unwrap_or_default(), true)
                }
            };
            self.output.push(format!("{number} {result}"));
            if !whole {
                return false;
            }
            self.actors.iter_mut().for_each(Remote::quiesce);
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
        pipes::write_line(self.actors[0].pipes.command, "reset");
        matches!(self.outcome(0, self.tick), Outcome::Result(_))
    }

    fn call(&mut self, number: usize, index: usize, start: bool, operation: &Operation) -> (String, bool) {
        let remote = &mut self.actors[index];
        if !remote.alive {
            return ("absent".to_owned(), true);
        }
        if remote.started.is_some() {
            return ("busy".to_owned(), true);
        }
        if let Operation::Fork { child } = operation
            && (self.actors[2 + if *child == 2 { 2 } else { 1 }].alive || index != 0)
        {
            return ("cannot".to_owned(), true);
        }
        let remote = &mut self.actors[index];
        pipes::write_line(remote.pipes.command, &format!("{number} {} {operation}", i32::from(start)));
        if start {
            match remote.receive(SLEEPS_WITHIN.as_millis().try_into().unwrap_or(0)) {
                Some(begun) if begun == ">" => {}
                other => return (format!("did not begin: {other:?}"), false),
            }
            remote.started = Some(number);
            remote.quiesce();
            return ("started".to_owned(), true);
        }
        let outcome = match operation {
            // A program that has just begun has no signal handlers yet.
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
            self.actors[2 + if *child == 2 { 2 } else { 1 }].read_introduction();
        }
        self.describe(index, outcome)
    }

    fn describe(&mut self, index: usize, outcome: Outcome) -> (String, bool) {
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
        self.describe(index, outcome)
    }

    /// Waits for the result of a call, and interrupts the call after each tick.
    fn outcome(&mut self, index: usize, tick: i32) -> Outcome {
        let remote = &mut self.actors[index];
        for ticks in 0..HUNG_AFTER {
            if let Some(line) = remote.receive(tick) {
                if line.starts_with("+ ") {
                    remote.introduce(&line);
                    return Outcome::Executed;
                }
                return Outcome::Result(line.trim_start_matches('=').trim_start().to_owned());
            }
            if let Actor::Child(_) = remote.actor
                && let Some(how) = processes::wait(remote.process, false)
            {
                return Outcome::Died(how);
            }
            let signal = if ticks == 0 { signals::FIRST } else { signals::SECOND };
            signals::send(remote.process, remote.thread, signal);
        }
        Outcome::Hung
    }

    fn kill(&mut self, index: usize) -> String {
        let remote = &mut self.actors[index];
        if !remote.alive || !matches!(remote.actor, Actor::Child(_)) {
            return "absent".to_owned();
        }
        processes::kill(remote.process);
        remote.clear();
        "killed".to_owned()
    }

    fn kill_children(&mut self) {
        for index in 0..self.actors.len() {
            self.kill(index);
        }
    }
}
