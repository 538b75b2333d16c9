//! The keys that eviction considers next, kept between evictions.

/// Candidates kept between evictions, as many as Redis keeps.
pub(super) const CANDIDATES: usize = 16;
/// A key that may be evicted.
pub(super) struct Candidate {
    /// The greater, the sooner it is evicted.
    pub(super) idleness: u64,
    pub(super) database: usize,
    pub(super) key: Box<[u8]>,
}

/// The best candidates seen so far, least idle first.
#[derive(Default)]
pub(super) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// Takes the idlest candidate out.
    pub(super) fn pop(&mut self) -> Option<Candidate> {
        self.0.pop()
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a candidate if it is idle enough.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        let known = |other: &Candidate| other.database == candidate.database && other.key == candidate.key;
        if self.0.iter().any(known) {
            return;
        }
        let at = self.0.partition_point(|other| other.idleness <= candidate.idleness);
        if self.0.len() == CANDIDATES {
            if at == 0 {
                return;
            }
            self.0.remove(0);
            self.0.insert(at - 1, candidate);
        } else {
            self.0.insert(at, candidate);
        }
    }
}
