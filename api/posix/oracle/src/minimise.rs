//! Shortens a program that differs: removes steps as long as the rest still differs.
//!
//! 1. Remove each half, then each quarter, ... down to single steps (Zeller and Hildebrandt,
//!    "Simplifying and Isolating Failure-Inducing Input", 2002).
//! 2. Repeat until no single step can be removed, or the attempts are used up.

use crate::program::Program;

/// The most attempts: each runs a program in both settings.
const ATTEMPTS: usize = 400;

/// A program for which `differs` still holds, and of which no step can be removed.
pub(crate) fn minimise(program: &Program, mut differs: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut attempts = 0;
    let mut length = best.steps.len().div_ceil(2);
    while length > 0 {
        let mut shorter = false;
        let mut at = 0;
        while at < best.steps.len() && attempts < ATTEMPTS {
            let end = (at + length).min(best.steps.len());
            let mut candidate = best.clone();
            candidate.steps.drain(at..end);
            attempts += 1;
            if differs(&candidate) {
                best = candidate;
                shorter = true;
            } else {
                at = end;
            }
        }
        if attempts >= ATTEMPTS {
            break;
        }
        if !(shorter && length == 1) {
            length = if length == 1 { 0 } else { length.div_ceil(2) };
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_matter_remain() {
        let text = "m close f0\nm close f1\nm close f2\nm close f3\nm close f4\nm close f5\nm close f6";
        let program = Program::read(text).expect("a program");
        let matters = |program: &Program| {
            let text = program.to_string();
            text.contains("f2") && text.contains("f5")
        };
        assert_eq!(minimise(&program, matters).to_string(), "m close f2\nm close f5\n");
    }
}
