//! Every outcome of a procedure that chooses.
//!
//! 1. The procedure asks [`Odometer::choose`] wherever it could go several ways, and gets the first
//!    way each time.
//! 2. [`Odometer::turn`] then counts the last choice up, as an odometer does: the next run takes
//!    the same way up to there, and the first one after it. When no choice is left, every outcome
//!    has been seen once.
//! 3. [`Odometer::combinations`] says how many outcomes there are, if the number of choices does
//!    not depend on what is chosen; else it is the number along this way.

/// See the module's account.
#[derive(Debug, Default)]
pub struct Odometer {
    /// What is chosen, and of how many.
    digits: Vec<(usize, usize)>,
    asked: usize,
}

impl Odometer {
    /// One of `choices` ways.
    pub fn choose(&mut self, choices: usize) -> usize {
        if self.asked == self.digits.len() {
            self.digits.push((0, choices));
        }
        self.asked += 1;
        self.digits[self.asked - 1].0
    }

    /// Begins the next outcome; `false` when there is none.
    pub fn turn(&mut self) -> bool {
        self.asked = 0;
        while let Some((chosen, choices)) = self.digits.pop() {
            if chosen + 1 < choices {
                self.digits.push((chosen + 1, choices));
                return true;
            }
        }
        false
    }

    /// Outcomes along the way that was taken.
    pub fn combinations(&self) -> u64 {
        self.digits.iter().fold(1, |all, (_, choices)| all.saturating_mul(*choices as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_seen_once() {
        let mut odometer = Odometer::default();
        let mut seen = Vec::new();
        loop {
            let first = odometer.choose(3);
            // A choice that is there only on one way.
            let second = if first == 1 { odometer.choose(2) } else { 9 };
            seen.push((first, second, odometer.choose(2)));
            if !odometer.turn() {
                break;
            }
        }
        assert_eq!(
            seen,
            [(0, 9, 0), (0, 9, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (2, 9, 0), (2, 9, 1)]
        );
    }
}
