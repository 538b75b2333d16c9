//! Programs: steps of actors, as text one line each.

use std::fmt::{self, Display, Formatter};

use crate::operation::Operation;
use crate::operation::words::{Name, Word as _};

/// The thread or process that carries out a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    /// The main thread.
    Main,
    /// Another thread of the main process, 1 or 2.
    Thread(u8),
    /// A child that `fork` has made, 1 or 2.
    Child(u8),
}

impl Actor {
    /// Every actor, at its [`index`](Self::index).
    pub(crate) const ALL: [Self; 5] =
        [Self::Main, Self::Thread(1), Self::Thread(2), Self::Child(1), Self::Child(2)];

    /// The index in [`ALL`](Self::ALL).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Main => 0,
            Self::Thread(number) => usize::from(number),
            Self::Child(number) => 2 + usize::from(number),
        }
    }

    fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|actor| actor.to_string() == text)
    }
}

impl Display for Actor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main => f.write_str("m"),
            Self::Thread(number) => write!(f, "t{number}"),
            Self::Child(number) => write!(f, "c{number}"),
        }
    }
}

/// One line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A call. With `start`, the program continues as soon as the call sleeps.
    Call {
        /// The actor that calls.
        actor: Actor,
        /// Whether the program continues without the result.
        start: bool,
        /// The call.
        operation: Operation,
    },
    /// Waits for the result of a started call.
    Join(Actor),
    /// Kills a child with `SIGKILL` and waits for it.
    Kill(Actor),
    /// Has the session read a file, in a process without the shim.
    Look(Name),
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { actor, start, operation } => {
                write!(f, "{actor} {}{operation}", if *start { "start " } else { "" })
            }
            Self::Join(actor) => write!(f, "join {actor}"),
            Self::Kill(actor) => write!(f, "kill {actor}"),
            Self::Look(name) => write!(f, "look {name}"),
        }
    }
}

impl Step {
    /// Reads a line.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().peekable();
        let first = words.next()?;
        let step = match first {
            "join" => Self::Join(Actor::read(words.next()?)?),
            "look" => Self::Look(Name::read(words.next()?)?),
            "kill" => Self::Kill(Actor::read(words.next()?)?),
            _ => {
                let actor = Actor::read(first)?;
                let start = words.next_if_eq(&"start").is_some();
                Self::Call { actor, start, operation: Operation::read(&mut words)? }
            }
        };
        words.next().is_none().then_some(step)
    }
}

/// A list of steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The steps in their order.
    pub(crate) steps: Vec<Step>,
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl Program {
    /// Reads a program; empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// The first line that is no step.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let steps = lines.map(|line| Step::read(line).ok_or_else(|| format!("no step: `{line}`")));
        Ok(Self { steps: steps.collect::<Result<_, _>>()? })
    }
}
