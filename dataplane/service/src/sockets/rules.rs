//! Who may listen where and connect to what: access control at connection set-up.
//!
//! The first rule that fits decides; where none fits, it is allowed. A rule says nothing about the kernel's own sockets: programs that do not run under
//! Sietch pass it by.

use std::ops::RangeInclusive;

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// To listen on the port.
    Listen,
    /// To connect to the port.
    Connect,
}

/// One line of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether it allows or denies.
    pub allow: bool,
    /// What it is about; both if none.
    pub action: Option<Action>,
    /// Whom it is about; everybody if none.
    pub uid: Option<u32>,
    /// Which ports.
    pub ports: RangeInclusive<u16>,
}

/// Rules in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    /// Whether a user may.
    pub fn allow(&self, action: Action, uid: u32, port: u16) -> bool {
        let fits = |rule: &&Rule| {
            rule.action.is_none_or(|own| own == action)
                && rule.uid.is_none_or(|own| own == uid)
                && rule.ports.contains(&port)
        };
        self.0.iter().find(fits).is_none_or(|rule| rule.allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let all = 0..=u16::MAX;
        let rules = Rules(vec![
            Rule { allow: true, action: Some(Action::Connect), uid: Some(7), ports: 80..=90 },
            Rule { allow: false, action: None, uid: Some(7), ports: all.clone() },
            Rule { allow: false, action: Some(Action::Listen), uid: None, ports: 6379..=6379 },
        ]);
        assert!(rules.allow(Action::Connect, 7, 85) && !rules.allow(Action::Connect, 7, 91));
        assert!(!rules.allow(Action::Listen, 7, 85));
        assert!(!rules.allow(Action::Listen, 8, 6379) && rules.allow(Action::Connect, 8, 6379));
        assert!(Rules::default().allow(Action::Listen, 0, 1));
    }
}
