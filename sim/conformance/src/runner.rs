//! Runs a script against a [`Host`] in virtual time.
//!
//! 1. Before an event the clock moves to its time, deadline by deadline. An unexpected packet that
//!    the engine sends *before* that time is a failure. A packet that it sends at exactly that time
//!    waits for an expectation at the same time.
//! 2. Calls are made (`calls`), packets built and compared (`peers`), assertions checked.
//! 3. At the end, no unexpected packet may be left.
//! 4. Sequence numbers of a script count from zero; the engine's begin anywhere. The first SYN that
//!    a script expects fixes the difference, and its first timestamp that of the timestamps. The
//!    script's own SYN has the number that the script gives it. Later numbers count from there, in
//!    both directions.
//! 5. Every payload byte depends on its position in the stream (`payload`). The bytes that the
//!    engine sends and those that the application reads are compared with it.

use std::collections::BTreeMap;
use std::fmt;

use crate::host::{Errno, Host, Outcome, START};
use crate::script::{Action, Assertion, Call, Event, Operator, Script, ScriptError, When, errno_name};

mod calls;
mod payload;
mod peers;

use peers::Peers;

/// How long to continue for a missing packet, to report when it would have come: four minutes.
const LOOK_AHEAD: u64 = 240_000_000_000;
/// Lines of the trace in a failure.
const TRACE: usize = 40;

/// The reason why a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line of the script, from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
    /// The expectation and the observation.
    pub message: String,
    /// The preceding events, oldest first.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "line {}: {}", self.line, self.text.trim())?;
        for line in self.message.lines() {
            writeln!(formatter, "    {line}")?;
        }
        if !self.trace.is_empty() {
            writeln!(formatter, "  what happened until then:")?;
        }
        for line in &self.trace {
            writeln!(formatter, "    {line}")?;
        }
        Ok(())
    }
}

/// Reads and runs a script.
///
/// # Errors
/// The first difference from the script.
pub fn run(text: &str) -> Result<(), Failure> {
    let line_text = |line: usize| text.lines().nth(line.saturating_sub(1)).unwrap_or_default().to_owned();
    let script = Script::parse(text).map_err(|ScriptError { line, message }| Failure {
        line,
        text: line_text(line),
        message,
        trace: Vec::new(),
    })?;
    let mut runner = Runner::new(&script);
    let mut line = 0;
    let result = script.events.iter().try_for_each(|event| {
        line = event.line;
        runner.event(event)
    });
    result.and_then(|()| runner.finish()).map_err(|message| {
        let skipped = runner.trace.len().saturating_sub(TRACE);
        let trace = runner.trace.split_off(skipped);
        Failure { line, text: line_text(line), message, trace }
    })
}

/// A blocked call.
#[derive(Clone, Debug)]
struct Waiting {
    call: Call,
    until: u64,
}

struct Runner {
    host: Host,
    peers: Peers,
    tolerance: u64,
    /// The time of the last event.
    last: u64,
    waiting: Option<Waiting>,
    /// The host's socket for each number of the script.
    fds: BTreeMap<i64, i32>,
    /// Bytes that went through each of the host's sockets: written and read.
    streams: BTreeMap<i32, (u64, u64)>,
    /// The socket that assertions refer to.
    under_test: Option<i32>,
    trace: Vec<String>,
}

impl Runner {
    fn new(script: &Script) -> Self {
        Self {
            host: Host::new(&script.settings),
            peers: Peers::new(script),
            tolerance: script.tolerance,
            last: START,
            waiting: None,
            fds: BTreeMap::new(),
            streams: BTreeMap::new(),
            under_test: None,
            trace: Vec::new(),
        }
    }

    fn note(&mut self, at: u64, text: &str) {
        self.trace.push(format!("{:>12} {text}", seconds(at)));
    }

    /// The earliest and the latest time of an event.
    fn times(&self, when: When) -> (u64, u64) {
        match when {
            When::Absolute(time) => (START + time, START + time),
            When::Relative(time) => (self.last + time, self.last + time),
            When::AbsoluteRange(first, last) => (START + first, START + last),
            When::RelativeRange(first, last) => (self.last + first, self.last + last),
            When::Any => (self.last, self.last + LOOK_AHEAD),
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), String> {
        let (first, last) = self.times(event.when);
        if let Action::Expect(expected) = &event.action {
            return self.expect(expected, first, last);
        }
        self.move_to(first)?;
        let base = self.last;
        self.last = first;
        match &event.action {
            Action::Call(call) => {
                let until = call.until.map(|time| match event.when {
                    When::Absolute(_) | When::AbsoluteRange(..) => START + time,
                    _ => base + time,
                });
                self.begin_call(call, until)?;
            }
            Action::Inject(packet) => {
                let (bytes, text) = self.peers.build(packet)?;
                self.note(first, &format!("< {text}"));
                if !self.host.receive(&bytes) {
                    return Err(format!("a packet of {} bytes is longer than the MTU", bytes.len()));
                }
            }
            Action::Assert(assertions) => assertions.iter().try_for_each(|one| self.check(one))?,
            Action::Expect(_) => {}
        }
        self.retry()
    }

    /// Moves the clock to `time`. No packet may be sent before.
    fn move_to(&mut self, time: u64) -> Result<(), String> {
        if time < self.host.now() {
            return Err(format!("it is {} already: time does not go back", seconds(self.host.now())));
        }
        self.step_until_sent(time)?;
        if let Some(sent) = self.host.next_sent().filter(|sent| sent.at < time).cloned() {
            let text = self.peers.describe(&sent.bytes);
            return Err(format!(
                "before it, at {}, this was sent and not expected:\n> {text}",
                seconds(sent.at)
            ));
        }
        self.host.advance_to(time);
        self.retry()
    }

    /// Runs deadlines until a packet is sent, at most to `limit`.
    fn step_until_sent(&mut self, limit: u64) -> Result<(), String> {
        while self.host.next_sent().is_none() {
            let Some(deadline) = self.host.next_deadline().filter(|deadline| *deadline <= limit) else {
                break;
            };
            self.host.advance_to(deadline);
            self.retry()?;
        }
        Ok(())
    }

    fn expect(&mut self, expected: &crate::script::Packet, first: u64, last: u64) -> Result<(), String> {
        let limit = last + self.tolerance;
        self.step_until_sent(limit)?;
        let Some(sent) = self.host.take_sent() else {
            let wanted = self.peers.describe_expected(expected);
            let _ = self.step_until_sent(limit + LOOK_AHEAD);
            let later = self.host.next_sent().cloned().map_or_else(
                || "nothing, for four minutes".into(),
                |sent| format!("at {}\n> {}", seconds(sent.at), self.peers.describe(&sent.bytes)),
            );
            return Err(format!("expected until {}:\n> {wanted}\nbut there came {later}", seconds(last)));
        };
        let text = self.peers.describe(&sent.bytes);
        self.note(sent.at, &format!("> {text}"));
        if let Err(difference) = self.peers.compare(expected, &sent.bytes) {
            let wanted = self.peers.describe_expected(expected);
            return Err(format!("expected:\n> {wanted}\ngot:\n> {text}\n{difference}"));
        }
        if sent.at + self.tolerance < first || sent.at > limit {
            return Err(format!(
                "right, but at {} and not at {}",
                seconds(sent.at),
                if first == last {
                    seconds(first)
                } else {
                    format!("{} to {}", seconds(first), seconds(last))
                }
            ));
        }
        self.last = sent.at;
        Ok(())
    }

    fn check(&mut self, assertion: &Assertion) -> Result<(), String> {
        let found = match assertion.field.as_str() {
            "isn_advance" => self.peers.isn_advance(),
            field => self.host.info(self.under_test.unwrap_or(-1), field),
        };
        let found = found.ok_or_else(|| format!("there is nothing called `{}`", assertion.field))?;
        let (value, holds) = (
            assertion.value,
            match assertion.operator {
                Operator::Equal => found == assertion.value,
                Operator::NotEqual => found != assertion.value,
                Operator::Less => found < assertion.value,
                Operator::LessOrEqual => found <= assertion.value,
                Operator::Greater => found > assertion.value,
                Operator::GreaterOrEqual => found >= assertion.value,
            },
        );
        self.note(self.host.now(), &format!("{} is {found}", assertion.field));
        if holds {
            Ok(())
        } else {
            Err(format!("{} is {found}, not {:?} {value}", assertion.field, assertion.operator))
        }
    }

    fn begin_call(&mut self, call: &Call, until: Option<u64>) -> Result<(), String> {
        if self.waiting.is_some() {
            return Err("a call still waits; only one can at a time".into());
        }
        match self.call(call, false)? {
            Err(Errno(libc::EAGAIN)) if until.is_some() => {
                self.note(self.host.now(), &format!("{}(..) waits", call.name));
                self.waiting = until.map(|until| Waiting { call: call.clone(), until });
                Ok(())
            }
            outcome => self.end_call(call, &outcome, until),
        }
    }

    /// Retries the blocked call.
    fn retry(&mut self) -> Result<(), String> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        match self.call(&waiting.call, true)? {
            Err(Errno(libc::EAGAIN)) => {
                self.waiting = Some(waiting);
                Ok(())
            }
            outcome => self.end_call(&waiting.call, &outcome, Some(waiting.until)),
        }
    }

    fn end_call(&mut self, call: &Call, outcome: &Outcome, until: Option<u64>) -> Result<(), String> {
        let now = self.host.now();
        self.note(now, &format!("{}(..) = {}", call.name, outcome_text(outcome)));
        self.check_outcome(call, outcome)?;
        match until {
            Some(until) if now.abs_diff(until) > self.tolerance => {
                Err(format!("the call returned at {}, not at {}", seconds(now), seconds(until)))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some(waiting) = &self.waiting {
            let until = waiting.until;
            self.move_to(until)?;
        }
        if let Some(waiting) = &self.waiting {
            return Err(format!("the script is over, and {}(..) still waits", waiting.call.name));
        }
        match self.host.take_sent() {
            None => Ok(()),
            Some(sent) => Err(format!(
                "the script is over, but at {} this was sent and not expected:\n> {}",
                seconds(sent.at),
                self.peers.describe(&sent.bytes)
            )),
        }
    }
}

/// A time since the script began, as a script writes it.
fn seconds(at: u64) -> String {
    let since = at.saturating_sub(START);
    let text = format!("{}.{:09}", since / 1_000_000_000, since % 1_000_000_000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.into() }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Ok(value) => value.to_string(),
        Err(Errno(number)) => format!("-1 {}", errno_name(*number)),
    }
}

#[cfg(test)]
mod tests;
