//! Enumerates every outcome of a procedure that makes choices.
//!
//! 1. The procedure calls [`ExhaustiveChooser::choose`] at each choice, and gets alternative 0 at
//!    every choice that is new.
//! 2. [`ExhaustiveChooser::advance`] increments the last choice, with carry, like a counter. The
//!    next run repeats the choices before it. When no choice is left, every outcome has been seen
//!    once.
//! 3. [`ExhaustiveChooser::combinations`] returns the number of outcomes if the number of
//!    alternatives never depends on earlier choices; otherwise the number along the current path.

/// Enumerates the outcomes; the module's header has the algorithm.
#[derive(Debug, Default)]
pub struct ExhaustiveChooser {
    /// The alternative taken at each choice, and the number of alternatives.
    digits: Vec<(usize, usize)>,
    /// Choices made in the current run.
    made: usize,
}

impl ExhaustiveChooser {
    /// Returns one of `choices` alternatives.
    pub fn choose(&mut self, choices: usize) -> usize {
        if self.made == self.digits.len() {
            self.digits.push((0, choices));
        }
        self.made += 1;
        self.digits[self.made - 1].0
    }

    /// Begins the next outcome; `false` when all have been seen.
    pub fn advance(&mut self) -> bool {
        self.made = 0;
        while let Some((chosen, choices)) = self.digits.pop() {
            if chosen + 1 < choices {
                self.digits.push((chosen + 1, choices));
                return true;
            }
        }
        false
    }

    /// The number of outcomes along the current path.
    pub fn combinations(&self) -> u64 {
        self.digits.iter().fold(1, |all, (_, choices)| all.saturating_mul(*choices as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_seen_once() {
        let mut chooser = ExhaustiveChooser::default();
        let mut seen = Vec::new();
        loop {
            let first = chooser.choose(3);
            // A choice that exists on one path only.
            let second = if first == 1 { chooser.choose(2) } else { 9 };
            seen.push((first, second, chooser.choose(2)));
            if !chooser.advance() {
                break;
            }
        }
        assert_eq!(
            seen,
            [(0, 9, 0), (0, 9, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (2, 9, 0), (2, 9, 1)]
        );
    }
}
