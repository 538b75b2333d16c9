//! Shortens a program that fails, as long as it still does (delta debugging).

use super::operation::Operation;

/// The shortest program found that still fails. `fails` must be deterministic.
pub fn minimise(program: &[Operation], fails: &mut dyn FnMut(&[Operation]) -> bool) -> Vec<Operation> {
    let mut kept = program.to_vec();
    let mut piece = kept.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shortened = false;
        while at < kept.len() {
            let mut rest = kept.clone();
            rest.drain(at..(at + piece).min(kept.len()));
            if fails(&rest) {
                kept = rest;
                shortened = true;
            } else {
                at += piece;
            }
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if !shortened {
            return kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::{HandleSlot, InodeSlot};
    use super::*;

    #[test]
    fn only_the_operations_that_a_failure_needs_stay() {
        let close = Operation::Close { handle: HandleSlot(1) };
        let forget = Operation::Forget { inode: InodeSlot(2) };
        let mut program = vec![Operation::Sync; 37];
        program[11] = close.clone();
        program[30] = forget.clone();
        let mut fails = |program: &[Operation]| {
            let at = program.iter().position(|operation| *operation == close);
            at.is_some_and(|at| program[at..].contains(&forget))
        };
        assert_eq!(minimise(&program, &mut fails), [close.clone(), forget.clone()]);
    }
}
