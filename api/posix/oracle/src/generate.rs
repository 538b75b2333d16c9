//! Programs from seeds.
//!
//! 1. A program is one to three [`scenes`] (a connection, an `epoll`, a fork, a thread that sleeps,
//!    ...) with loose [`steps`] between and after them.
//! 2. A [`model`] of what each slot holds steers the choice: most calls are made on a descriptor
//!    for which they mean something, some on any. The model may be wrong: the kernel is the oracle.
//! 3. Left out is what the kernel itself does not do alike each time: which of two listeners on one
//!    port gets a connection, buffers that are nearly full, more connections than a listener's
//!    queue holds, clocks of TCP that run while a program does.
//! 4. Left out are further, because the shim differs there and says so (`docs/posix.md`): using a
//!    connection to who was killed a moment ago before anybody has waited for it; binding a socket
//!    to the port of a connection; closing what another thread polls; connecting anew what was
//!    refused without waiting.

mod model;
mod scenes;
mod steps;

use model::Model;

use sietch_structures::SplitMix64;

use crate::operation::Operation;
use crate::program::{Actor, Program, Step};

/// Draws from the numbers of a seed. The programs of recorded seeds depend on each of them.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// Draws that depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.word()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(1);
        usize::try_from(self.number() % bound).unwrap_or(0)
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of a list that is not empty.
    pub fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A program under construction.
struct Generator {
    random: Random,
    model: Model,
    steps: Vec<Step>,
}

/// The program of a seed.
pub fn program(seed: u64) -> Program {
    let mut generator = Generator { random: Random::new(seed), model: Model::default(), steps: Vec::new() };
    for _ in 0..=generator.random.below(3) {
        generator.scene();
        for _ in 0..generator.random.below(6) {
            generator.step();
        }
    }
    for _ in 0..generator.random.below(8) {
        generator.step();
    }
    Program { steps: generator.steps }
}

impl Generator {
    fn by(&mut self, actor: Actor, operation: Operation) {
        self.steps.push(Step::Call { actor, start: false, operation });
    }

    fn main(&mut self, operation: Operation) {
        self.by(Actor::Main, operation);
    }

    fn start(&mut self, actor: Actor, operation: Operation) {
        self.steps.push(Step::Call { actor, start: true, operation });
    }

    fn join(&mut self, actor: Actor) {
        self.steps.push(Step::Join(actor));
    }

    /// Some actor that can act: mostly the main thread.
    fn actor(&mut self) -> Actor {
        let children: Vec<_> =
            [1, 2].into_iter().filter(|child| self.model.children[usize::from(*child) - 1]).collect();
        if !children.is_empty() && self.random.percent(30) {
            return Actor::Child(self.random.one(&children));
        }
        if self.random.percent(8) && !self.model.thread_sleeps { Actor::Thread(1) } else { Actor::Main }
    }
}
