//! What was done to a structure, and the states that a crash may leave of it.
//!
//! Changes take effect in the order of their records. So after a crash the state is that after the
//! first `k` of them. That `k` covers every change whose sequence was known to be durable.

use std::collections::BTreeMap;

/// What is in a structure: a queue's entries by their ids, or a map's values by their keys.
pub(crate) type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A violation of the promise, in words.
pub(crate) type Verdict = Result<(), String>;

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

fn apply(state: &mut State, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => drop(state.insert(key.clone(), value.clone())),
            Change::Delete(key) => drop(state.remove(key)),
        }
    }
}

/// See the module's account.
#[derive(Clone, Default)]
pub(crate) struct History {
    pub formatted: bool,
    base: State,
    records: Vec<(u64, Vec<Change>)>,
    durable: u64,
    state: State,
}

impl History {
    /// A record was appended.
    pub(crate) fn note(&mut self, sequence: u64, changes: Vec<Change>) {
        apply(&mut self.state, &changes);
        self.records.push((sequence, changes));
    }

    /// Everything up to `durable` is.
    pub(crate) fn advance(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        let done = self.records.partition_point(|(sequence, _)| *sequence <= self.durable);
        for (_, changes) in self.records.drain(..done) {
            apply(&mut self.base, &changes);
        }
    }

    /// The state after all changes.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Whether a crash may leave this state.
    pub(crate) fn judge(&self, found: &State) -> Verdict {
        let mut state = self.base.clone();
        if state == *found {
            return Ok(());
        }
        for (_, changes) in &self.records {
            apply(&mut state, changes);
            if state == *found {
                return Ok(());
            }
        }
        let keys = |state: &State| state.len();
        let lost = self.base.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
        let invented = found.iter().filter(|(key, value)| self.state.get(*key) != Some(value)).count();
        let unsure = self.records.len();
        Err(format!(
            "{} entries found, {} durable, {unsure} changes are not; {lost} changed or lost, {invented} not in the newest state",
            found.len(),
            keys(&self.base)
        ))
    }

    /// A crash left this state.
    pub(crate) fn restart(&mut self, found: &State) {
        self.base = found.clone();
        self.state = found.clone();
        self.records.clear();
        self.durable = 0;
    }
}
