//! Programs from seeds.
//!
//! 1. A program is one to three [`scenes`] (a connection, an `epoll`, a fork, a sleeping thread,
//!    ...) with single [`steps`] between and after them.
//! 2. A [`model`] of the slots guides the choice. Most calls use a descriptor for which they are
//!    meaningful, some use any. The model may be wrong: the kernel is the oracle.
//! 3. The generator avoids everything with an outcome that varies on the kernel:
//!    * which of two listeners on one port gets a connection;
//!    * nearly full buffers, and more connections than a listener's queue holds;
//!    * TCP timers that expire during a program.
//! 4. It also avoids documented differences of the shim (`docs/posix.md`):
//!    * using a connection to a process that was just killed, before any process has waited for it;
//!    * binding a socket to the port of a connection;
//!    * closing a descriptor that another thread polls;
//!    * connecting a socket again after a refused non-blocking connect.

pub mod files;
mod model;
mod random;
mod scenes;
mod steps;

use model::Model;
use random::Random;

use crate::operation::Operation;
use crate::program::{Actor, Program, Step};

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

    /// An actor that is not busy: mostly the main thread.
    fn actor(&mut self) -> Actor {
        let children: Vec<_> =
            [1, 2].into_iter().filter(|child| self.model.children[usize::from(*child) - 1]).collect();
        if !children.is_empty() && self.random.percent(30) {
            return Actor::Child(self.random.one(&children));
        }
        if self.random.percent(8) && !self.model.thread_sleeps { Actor::Thread(1) } else { Actor::Main }
    }
}
