//! The rules of `sietch run` on listening and connecting: access control at connection set-up.
//!
//! 1. A rule is words: `allow` or `deny`; `listen`, `connect` or `all`. Then follow, in any order
//!    and each at most once, `user UID`, `address NETWORK` and `port PORT` or `port FIRST-LAST`. A
//!    missing word matches all. The first rule that matches decides; if none matches, access is
//!    allowed.
//! 2. Address and port are the listener's own name, or the destination. A listener on `0.0.0.0` or
//!    `::` is reached at every address of the host. A rule that denies matches it if any address of
//!    the network could be meant, one that allows only if all are. `::` covers IPv4 too.
//! 3. Rules name users, not programs: a user can start a program under any name, and the kernel
//!    verifies only the user.
//! 4. A rule does not affect the kernel's own sockets: programs that do not run under Sietch bypass
//!    it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::types::{Network, Network6};

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// To listen.
    Listen,
    /// To connect.
    Connect,
}

/// Addresses of one family with a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleNetwork {
    /// Of IPv4.
    Four(Network),
    /// Of IPv6.
    Six(Network6),
}

/// One line of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether it allows or denies.
    pub allow: bool,
    /// What it is about; both if none.
    pub action: Option<Action>,
    /// The user that it applies to; every user if `None`.
    pub uid: Option<u32>,
    /// Which addresses; all if none.
    pub network: Option<RuleNetwork>,
    /// Which ports.
    pub ports: RangeInclusive<u16>,
}

/// Rules in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no rule: {cause}; write `deny listen port 1-1023` or `allow connect user 1000 address 10.0.0.0/8 port 6379`"
)]
pub struct RuleError {
    text: String,
    cause: String,
}

impl Rules {
    /// Whether a user may do that at a name.
    pub fn allow(&self, action: Action, uid: u32, name: SocketAddr) -> bool {
        let fits = |rule: &&Rule| {
            rule.action.is_none_or(|own| own == action)
                && rule.uid.is_none_or(|own| own == uid)
                && rule.ports.contains(&name.port())
                && rule.network.is_none_or(|network| network.fits(name.ip(), rule.allow))
        };
        self.0.iter().find(fits).is_none_or(|rule| rule.allow)
    }
}

impl RuleNetwork {
    /// Whether it is about an address; about an unspecified one, whether it is about `all` that
    /// this stands for, or any.
    fn fits(self, ip: IpAddr, all: bool) -> bool {
        match (self, ip.to_canonical()) {
            (Self::Four(network), IpAddr::V4(ip)) if ip.is_unspecified() => !all || network.prefix == 0,
            (Self::Four(_), IpAddr::V6(ip)) if ip.is_unspecified() => !all,
            (Self::Six(network), IpAddr::V6(ip)) if ip.is_unspecified() => !all || network.prefix == 0,
            (Self::Four(network), IpAddr::V4(ip)) => network.contains(ip),
            (Self::Six(network), IpAddr::V6(ip)) => network.contains(ip),
            _ => false,
        }
    }
}

impl FromStr for RuleNetwork {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if !text.contains(':') {
            return text.parse().map(Self::Four).map_err(|_| ());
        }
        let whole = if text.contains('/') { text.to_owned() } else { format!("{text}/128") };
        whole.parse().map(Self::Six).map_err(|_| ())
    }
}

impl fmt::Display for RuleNetwork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Four(network) => network.fmt(formatter),
            Self::Six(network) => network.fmt(formatter),
        }
    }
}

impl Rule {
    /// Parses a text. `uid_of` returns the uid of a user's name.
    ///
    /// # Errors
    /// [`RuleError`], with the reason.
    pub fn read(text: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Result<Self, RuleError> {
        let wrong = |cause: String| RuleError { text: text.to_owned(), cause };
        let mut words = text.split_whitespace();
        let allow = match words.next() {
            Some("allow") => true,
            Some("deny") => false,
            _ => return Err(wrong("it begins with neither `allow` nor `deny`".to_owned())),
        };
        let action = match words.next() {
            Some("listen") => Some(Action::Listen),
            Some("connect") => Some(Action::Connect),
            Some("all") => None,
            _ => return Err(wrong("its second word is none of `listen`, `connect` and `all`".to_owned())),
        };
        let (mut uid, mut network, mut ports) = (None, None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| wrong(format!("nothing follows {word:?}")))?;
            let no = |what: &str| wrong(format!("{value:?} is {what}"));
            let twice = match word {
                "user" => {
                    let found = value.parse().ok().or_else(|| uid_of(value));
                    uid.replace(found.ok_or_else(|| no("no user here"))?).is_some()
                }
                "address" => {
                    let found = value.parse::<RuleNetwork>().map_err(|()| no("no address and no network"))?;
                    network.replace(found).is_some()
                }
                "port" => {
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    let found = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
                    let found = found.filter(|(first, last)| first <= last && *first != 0);
                    let (first, last) = found.ok_or_else(|| no("no port and no range of ports"))?;
                    ports.replace(first..=last).is_some()
                }
                _ => return Err(wrong(format!("{word:?} is none of `user`, `address` and `port`"))),
            };
            if twice {
                return Err(wrong(format!("{word:?} is there twice")));
            }
        }
        Ok(Self { allow, action, uid, network, ports: ports.unwrap_or(0..=u16::MAX) })
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::read(text, |_| None)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.allow { "allow " } else { "deny " })?;
        formatter.write_str(match self.action {
            Some(Action::Listen) => "listen",
            Some(Action::Connect) => "connect",
            None => "all",
        })?;
        if let Some(uid) = self.uid {
            write!(formatter, " user {uid}")?;
        }
        if let Some(network) = self.network {
            write!(formatter, " address {network}")?;
        }
        match (*self.ports.start(), *self.ports.end()) {
            (0, u16::MAX) => Ok(()),
            (first, last) if first == last => write!(formatter, " port {first}"),
            (first, last) => write!(formatter, " port {first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[&str]) -> Rules {
        Rules(all.iter().map(|rule| rule.parse().expect("a rule")).collect())
    }

    fn at(name: &str) -> SocketAddr {
        name.parse().expect("a name")
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(&["allow connect user 7 port 80-90", "deny all user 7", "deny listen port 6379"]);
        let may = |action, uid, port: u16| rules.allow(action, uid, SocketAddr::from(([10, 0, 0, 1], port)));
        assert!(may(Action::Connect, 7, 85) && !may(Action::Connect, 7, 91));
        assert!(!may(Action::Listen, 7, 85));
        assert!(!may(Action::Listen, 8, 6379) && may(Action::Connect, 8, 6379));
        assert!(Rules::default().allow(Action::Listen, 0, at("0.0.0.0:1")));
    }

    #[test]
    fn a_listener_on_all_addresses_is_denied_for_any_and_allowed_only_for_all() {
        let inside = rules(&["allow listen address 127.0.0.0/8", "allow listen address ::1", "deny listen"]);
        let may = |rules: &Rules, name| rules.allow(Action::Listen, 1, at(name));
        assert!(
            may(&inside, "127.0.0.5:80") && may(&inside, "[::1]:80") && may(&inside, "[::ffff:127.0.0.1]:80")
        );
        assert!(!may(&inside, "0.0.0.0:80") && !may(&inside, "[::]:80") && !may(&inside, "10.0.0.1:80"));
        let outside = rules(&["deny listen address 192.168.0.0/16"]);
        assert!(
            !may(&outside, "0.0.0.0:80") && !may(&outside, "[::]:80") && !may(&outside, "192.168.1.1:80")
        );
        assert!(may(&outside, "127.0.0.1:80") && may(&outside, "[fd00::1]:80"));
        let everywhere = rules(&["allow listen address 0.0.0.0/0", "allow listen address ::/0", "deny all"]);
        assert!(may(&everywhere, "0.0.0.0:80") && may(&everywhere, "[::]:80"));
    }

    #[test]
    fn rules_are_written_as_they_are_read_and_users_have_names() {
        let all = [
            "deny all",
            "allow listen user 1000",
            "deny connect address 10.0.0.0/8 port 1-1023",
            "allow all user 0 address fd00::/8 port 6379",
        ];
        for (rule, text) in rules(&all).0.iter().zip(all) {
            assert_eq!(rule.to_string(), text);
        }
        let other_order = "deny connect port 80 address 10.0.0.1 user redis";
        let rule = Rule::read(other_order, |name| (name == "redis").then_some(77)).expect("a rule");
        assert_eq!(rule.to_string(), "deny connect user 77 address 10.0.0.1/32 port 80");
    }

    #[test]
    fn an_invalid_rule_is_refused_with_the_reason_and_an_example() {
        for (text, cause) in [
            ("", "allow"),
            ("permit all", "allow"),
            ("deny", "second word"),
            ("deny talk", "second word"),
            ("deny listen port", "nothing follows"),
            ("deny listen user root", "no user"),
            ("deny listen port 9-1", "no port"),
            ("deny listen port 0", "no port"),
            ("allow all port 65536", "no port"),
            ("allow all address 10.0.0.0/33", "no address"),
            ("allow all address kv", "no address"),
            ("allow all program redis", "none of"),
            ("allow all port 1 port 2", "twice"),
        ] {
            let said = text.parse::<Rule>().expect_err(text).to_string();
            assert!(said.contains(cause) && said.contains("deny listen port 1-1023"), "{said}");
        }
    }
}
