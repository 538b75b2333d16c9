//! Users (access control lists): the commands, keys and channels that each may use.
//!
//! 1. The user `default` always exists; a client is that user until it authenticates. At first
//!    `default` needs no password and may do everything. While that holds and there is no other
//!    user, all checks are skipped ([`Users::is_open`]).
//! 2. Rules are written as in Redis: `on`, `off`, `>password`, `~pattern`, `&pattern`, `+command`,
//!    `-command`, `+command|subcommand`, `+@category` and so on. They are applied in order, and all
//!    of them or none.
//! 3. Only the SHA-256 of a password is kept.
//! 4. Users are not part of the data set: they are lost when the process ends.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use crate::foundation::command::{CommandSpec, Flags, Keys, flag, full_name, is, subcommands};
use crate::foundation::protocol::Fault;
use crate::foundation::text::glob;

/// The user that every client is at first.
pub(crate) const DEFAULT: &[u8] = b"default";

/// Names of the categories, in Redis' order.
pub(crate) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Commands of category `dangerous` that are not administrative.
const DANGEROUS: &[&str] =
    &["flushall", "flushdb", "info", "keys", "restore", "role", "sort", "sort_ro", "swapdb"];

/// Whether a command belongs to a category.
pub(crate) fn belongs(command: &CommandSpec, category: &str) -> bool {
    let has = |flag: Flags| command.flags.has(flag);
    match category {
        "all" => true,
        "keyspace" => command.group == "generic" || DANGEROUS[..2].contains(&command.name),
        "read" => has(flag::READONLY) && command.keys != Keys::None,
        "write" => has(flag::WRITE),
        "sortedset" => command.group == "sorted-set",
        "pubsub" => has(flag::PUBSUB),
        "admin" => has(flag::ADMIN),
        "fast" => has(flag::FAST),
        "slow" => !has(flag::FAST),
        "blocking" => has(flag::BLOCKING),
        "dangerous" => has(flag::ADMIN) || DANGEROUS.contains(&command.name),
        "transaction" => command.group == "transactions",
        other => command.group == other,
    }
}

/// Administrative subcommands of commands that are not administrative.
const ADMINISTRATIVE: &[&str] =
    &["client|kill", "client|list", "client|no-evict", "client|pause", "client|unblock", "client|unpause"];

/// Subcommands without the categories of their command (`admin` and `dangerous`, `read`, or
/// `pubsub`).
const ORDINARY: &[&str] = &[
    "acl|cat",
    "acl|help",
    "acl|whoami",
    "config|help",
    "latency|help",
    "memory|doctor",
    "memory|help",
    "memory|malloc-stats",
    "memory|purge",
    "memory|stats",
    "object|help",
    "pubsub|help",
    "slowlog|help",
];

/// Whether a subcommand belongs to a category, as in Redis 7.0, which classifies each by itself.
pub(crate) fn subcommand_belongs(command: &CommandSpec, subcommand: &str, category: &str) -> bool {
    let full = format!("{}|{subcommand}", command.name);
    let named = |list: &[&str]| list.contains(&full.as_str());
    match category {
        "admin" | "dangerous" if named(ADMINISTRATIVE) => true,
        "admin" | "dangerous" | "read" | "pubsub" if named(ORDINARY) => false,
        _ => belongs(command, category),
    }
}

/// The names of a command and its subcommands, of those that belong to a category.
pub(crate) fn members(command: &'static CommandSpec, category: &str) -> Vec<String> {
    let own = belongs(command, category).then(|| command.name.to_owned());
    let of = subcommands(command).filter(|name| subcommand_belongs(command, name, category));
    own.into_iter().chain(of.map(|name| format!("{}|{name}", command.name))).collect()
}

/// Warns in the log that the setting of a command is lost at the next restart, which may happen on
/// its own.
pub(crate) fn warn_of_restart(command: &str) {
    tracing::warn!(
        "{command}: users and passwords that are set at run time are lost when the store restarts, also after a crash; to keep a password for the default user, put it in the file that SIETCH_KV_PASSWORD_FILE names"
    );
}

/// Why a user may not run a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Not at all.
    Command(String),
    /// Not with one of these keys.
    Key,
    /// Not with one of these channels.
    Channel,
}

impl Denied {
    /// The error reply.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::Command(name) => {
                Fault::new(format!("NOPERM this user has no permissions to run the '{name}' command"))
            }
            Self::Key => {
                Fault::of("NOPERM this user has no permissions to access one of the keys used as arguments")
            }
            Self::Channel => Fault::of(
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ),
        }
    }
}

/// Patterns of names, or all names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    All,
    Some(Vec<Vec<u8>>),
}

impl Names {
    fn add(&mut self, pattern: &[u8]) -> bool {
        match self {
            Self::All => pattern == b"*",
            Self::Some(_) if pattern == b"*" => {
                *self = Self::All;
                true
            }
            Self::Some(patterns) => {
                if !patterns.iter().any(|known| known == pattern) {
                    patterns.push(pattern.to_vec());
                }
                true
            }
        }
    }

    fn hold(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Some(patterns) => patterns.iter().any(|pattern| glob::matches(pattern, name)),
        }
    }

    /// Whether a pattern of a client selects no more than one of these, conservatively: it is one
    /// of them.
    fn hold_pattern(&self, pattern: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Some(patterns) => patterns.iter().any(|known| known == pattern),
        }
    }

    fn print(&self, sign: char) -> String {
        match self {
            Self::All => format!("{sign}*"),
            Self::Some(patterns) => {
                let shown =
                    patterns.iter().map(|pattern| format!("{sign}{}", String::from_utf8_lossy(pattern)));
                shown.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// One user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    enabled: bool,
    any_password: bool,
    passwords: Vec<[u8; 32]>,
    keys: Names,
    channels: Names,
    /// By number of the command.
    allowed: Vec<bool>,
    /// Subcommands with a permission of their own: `config|get`.
    subcommands: BTreeMap<String, bool>,
    /// The same permissions, as rules.
    words: Vec<String>,
}

impl User {
    fn new(commands: usize) -> Self {
        Self {
            enabled: false,
            any_password: false,
            passwords: Vec::new(),
            keys: Names::Some(Vec::new()),
            channels: Names::Some(Vec::new()),
            allowed: vec![false; commands],
            subcommands: BTreeMap::new(),
            words: vec!["-@all".into()],
        }
    }

    fn everything(commands: usize) -> Self {
        Self {
            enabled: true,
            any_password: true,
            passwords: Vec::new(),
            keys: Names::All,
            channels: Names::All,
            allowed: vec![true; commands],
            subcommands: BTreeMap::new(),
            words: vec!["+@all".into()],
        }
    }

    /// Whether it may do everything without a password.
    fn is_open(&self) -> bool {
        self.enabled
            && self.any_password
            && self.keys == Names::All
            && self.channels == Names::All
            && self.subcommands.is_empty()
            && self.allowed.iter().all(|&allowed| allowed)
    }

    /// Its flags, as ACL GETUSER shows them.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        flags.extend(self.any_password.then_some("nopass"));
        flags
    }

    /// Its passwords, as hexadecimal SHA-256.
    pub(crate) fn passwords(&self) -> Vec<String> {
        self.passwords.iter().map(|hash| hexadecimal(hash)).collect()
    }

    /// Its command permissions, as rules.
    pub(crate) fn commands(&self) -> String {
        self.words.join(" ")
    }

    /// The keys it may use.
    pub(crate) fn keys(&self) -> String {
        self.keys.print('~')
    }

    /// The channels it may use.
    pub(crate) fn channels(&self) -> String {
        self.channels.print('&')
    }

    /// The line of ACL LIST.
    pub(crate) fn describe(&self, name: &[u8]) -> String {
        let mut words = vec!["user".to_owned(), String::from_utf8_lossy(name).into_owned()];
        words.extend(self.flags().into_iter().map(str::to_owned));
        words.extend(self.passwords().into_iter().map(|hash| format!("#{hash}")));
        words.push(self.keys());
        if self.channels != Names::All {
            words.push("resetchannels".into());
        }
        words.extend([self.channels(), self.commands()]);
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }

    /// Records a rule about commands, in place of an earlier one about the same commands.
    fn note(&mut self, sign: bool, what: &str) {
        if what == "@all" {
            self.words.clear();
        }
        self.words.retain(|word| word[1..] != *what || word.ends_with("@all"));
        self.words.push(format!("{}{what}", if sign { '+' } else { '-' }));
    }

    /// Applies a rule about commands. As in Redis, one about a single command that changes nothing
    /// is not shown.
    fn command_rule(&mut self, sign: bool, what: &str, table: &[&CommandSpec]) -> Result<(), &'static str> {
        self.apply_command_rule(sign, what, table)?;
        if !what.starts_with('@') {
            let mut without = Self::new(table.len());
            let words = self.words.split_last().map_or(&[][..], |(_, before)| before);
            for word in words {
                without.apply_command_rule(word.starts_with('+'), &word[1..], table)?;
            }
            if without.allowed == self.allowed && without.subcommands == self.subcommands {
                self.words.pop();
            }
        }
        Ok(())
    }

    fn apply_command_rule(
        &mut self,
        sign: bool,
        what: &str,
        table: &[&CommandSpec],
    ) -> Result<(), &'static str> {
        const UNKNOWN: &str = "Unknown command or category name in ACL";
        let lowered = what.to_ascii_lowercase();
        if let Some(category) = lowered.strip_prefix('@') {
            if category != "all" && !CATEGORIES.contains(&category) {
                return Err(UNKNOWN);
            }
            for (number, command) in table.iter().enumerate() {
                self.category_rule(sign, category, number, command);
            }
        } else {
            let (name, subcommand) = lowered.split_once('|').map_or((&*lowered, None), |(a, b)| (a, Some(b)));
            let number = table.iter().position(|command| command.name == name).ok_or(UNKNOWN)?;
            match subcommand {
                Some(word) => {
                    if full_name(table[number], &[name.as_bytes(), word.as_bytes()]) == name {
                        return Err(UNKNOWN);
                    }
                    self.subcommands.insert(lowered.clone(), sign);
                    self.forget_needless(number, name);
                }
                None => {
                    self.allowed[number] = sign;
                    self.forget_subcommands(name);
                }
            }
        }
        self.note(sign, &lowered);
        Ok(())
    }

    /// Applies a rule about a category to one command: to the whole command if all or none of its
    /// subcommands belong to the category, else to those that do.
    fn category_rule(&mut self, sign: bool, category: &str, number: usize, command: &CommandSpec) {
        let all: Vec<&str> = subcommands(command).collect();
        let inside = |name: &&str| subcommand_belongs(command, name, category);
        let some: Vec<&str> = all.iter().copied().filter(inside).collect();
        if some.len() == all.len() {
            if !all.is_empty() || belongs(command, category) {
                self.allowed[number] = sign;
                self.forget_subcommands(command.name);
            }
            return;
        }
        for name in some {
            let full = format!("{}|{name}", command.name);
            self.words.retain(|word| word[1..] != full);
            self.subcommands.insert(full, sign);
        }
        self.forget_needless(number, command.name);
    }

    /// Removes the entries of subcommands that have the permission of their command.
    fn forget_needless(&mut self, number: usize, command: &str) {
        let allowed = self.allowed[number];
        let own = format!("{command}|");
        self.subcommands.retain(|name, &mut sign| !name.starts_with(&own) || sign != allowed);
    }

    fn forget_subcommands(&mut self, name: &str) {
        let of = |known: &str| known.split('|').next() == Some(name);
        self.subcommands.retain(|known, _| !of(known));
        self.words.retain(|word| !word.contains('|') || !of(&word[1..]));
    }

    /// Applies one rule.
    fn apply(&mut self, rule: &[u8], table: &[&CommandSpec]) -> Result<(), &'static str> {
        const AFTER_ALL: &str = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns";
        let text = String::from_utf8_lossy(rule);
        match (&*text.to_ascii_lowercase(), rule) {
            ("on", _) => self.enabled = true,
            ("off", _) => self.enabled = false,
            ("nopass", _) => {
                self.any_password = true;
                self.passwords.clear();
            }
            ("resetpass", _) => {
                self.any_password = false;
                self.passwords.clear();
            }
            ("allkeys", _) => self.keys = Names::All,
            ("resetkeys", _) => self.keys = Names::Some(Vec::new()),
            ("allchannels", _) => self.channels = Names::All,
            ("resetchannels", _) => self.channels = Names::Some(Vec::new()),
            ("allcommands", _) => return self.command_rule(true, "@all", table),
            ("nocommands", _) => return self.command_rule(false, "@all", table),
            ("reset", _) => *self = Self::new(table.len()),
            (_, [b'>', password @ ..]) => self.add_password(hash(password)),
            (_, [b'#', digits @ ..]) => self.add_password(parse_hash(digits)?),
            (_, [b'<', password @ ..]) => self.remove_password(hash(password))?,
            (_, [b'!', digits @ ..]) => self.remove_password(parse_hash(digits)?)?,
            (_, [b'~', pattern @ ..]) => self.keys.add(pattern).then_some(()).ok_or(AFTER_ALL)?,
            (_, [b'&', pattern @ ..]) => self.channels.add(pattern).then_some(()).ok_or(AFTER_ALL)?,
            (_, [b'+', ..]) => return self.command_rule(true, &text[1..], table),
            (_, [b'-', ..]) => return self.command_rule(false, &text[1..], table),
            _ => return Err("Syntax error"),
        }
        Ok(())
    }

    fn add_password(&mut self, password: [u8; 32]) {
        self.any_password = false;
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
    }

    fn remove_password(&mut self, password: [u8; 32]) -> Result<(), &'static str> {
        let position = self.passwords.iter().position(|known| *known == password);
        let position =
            position.ok_or("The password you are trying to remove from the user does not exist")?;
        self.passwords.remove(position);
        Ok(())
    }

    /// Whether it may use a key.
    pub(crate) fn may_use_key(&self, key: &[u8]) -> bool {
        self.keys.hold(key)
    }

    /// Whether it may be subscribed to these.
    pub(crate) fn may_keep(&self, channels: &BTreeSet<Box<[u8]>>, patterns: &BTreeSet<Box<[u8]>>) -> bool {
        channels.iter().all(|name| self.channels.hold(name))
            && patterns.iter().all(|pattern| self.channels.hold_pattern(pattern))
    }

    /// Whether it may run this.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn permit(
        &self,
        number: u16,
        command: &CommandSpec,
        arguments: &[&[u8]],
    ) -> Result<(), Denied> {
        if command.flags.has(flag::NO_AUTH) {
            return Ok(());
        }
        let full = || full_name(command, arguments);
        let exception = if self.subcommands.is_empty() { None } else { self.subcommands.get(&full()) };
        if !exception.copied().unwrap_or(self.allowed[number as usize]) {
            return Err(Denied::Command(full()));
        }
        if self.keys != Names::All {
            // Arguments that the command will refuse have no key positions.
            let positions = command.key_positions(arguments).unwrap_or_default();
            if !positions.iter().all(|&at| self.keys.hold(arguments[at])) {
                return Err(Denied::Key);
            }
            // The patterns of SORT reach any key.
            let reaches = |word: &&[u8]| is(word, "by") || is(word, "get");
            if command.name.starts_with("sort") && arguments[2..].iter().any(reaches) {
                return Err(Denied::Key);
            }
        }
        if self.channels != Names::All && command.flags.has(flag::PUBSUB) {
            let named = match command.name {
                "subscribe" | "ssubscribe" => arguments[1..].iter().all(|name| self.channels.hold(name)),
                "psubscribe" => arguments[1..].iter().all(|pattern| self.channels.hold_pattern(pattern)),
                "publish" | "spublish" => self.channels.hold(arguments[1]),
                _ => true,
            };
            if !named {
                return Err(Denied::Channel);
            }
        }
        Ok(())
    }
}

fn hash(password: &[u8]) -> [u8; 32] {
    Sha256::digest(password).into()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hash(digits: &[u8]) -> Result<[u8; 32], &'static str> {
    const BAD: &str =
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";
    let lower = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 64 || !digits.iter().all(lower) {
        return Err(BAD);
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| BAD)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| BAD)?;
    }
    Ok(hash)
}

/// All users; see the module documentation.
#[derive(Debug, Clone)]
pub(crate) struct Users {
    users: BTreeMap<Vec<u8>, User>,
    open: bool,
}

impl Users {
    /// The default user alone, with all permissions.
    pub(crate) fn new(commands: usize) -> Self {
        Self { users: BTreeMap::from([(DEFAULT.to_vec(), User::everything(commands))]), open: true }
    }

    /// Whether every client has all permissions.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    fn settle(&mut self) {
        self.open = self.users.len() == 1 && self.users.get(DEFAULT).is_some_and(User::is_open);
    }

    /// Whether clients need not authenticate.
    pub(crate) fn admits_unauthenticated(&self) -> bool {
        self.users.get(DEFAULT).is_some_and(|user| user.enabled && user.any_password)
    }

    /// Whether the default user has a password, or cannot be used.
    pub(crate) fn is_protected(&self) -> bool {
        self.users.get(DEFAULT).is_none_or(|user| !user.any_password)
    }

    /// The user of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&User> {
        self.users.get(name)
    }

    /// All, in order of their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &User)> {
        self.users.iter().map(|(name, user)| (name.as_slice(), user))
    }

    /// Whether this is a user with this password.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> bool {
        let given = hash(password);
        let right = |user: &User| user.enabled && (user.any_password || user.passwords.contains(&given));
        self.users.get(name).is_some_and(right)
    }

    /// Applies all rules, or none, to a user, which is created if it does not exist.
    ///
    /// # Errors
    /// The first invalid rule, and why it is invalid.
    pub(crate) fn set(&mut self, name: &[u8], rules: &[&[u8]], table: &[&CommandSpec]) -> Result<(), Fault> {
        let mut user = self.users.get(name).cloned().unwrap_or_else(|| User::new(table.len()));
        for rule in rules {
            user.apply(rule, table).map_err(|reason| {
                let mut text = b"ERR Error in ACL SETUSER modifier '".to_vec();
                text.extend_from_slice(rule);
                text.extend_from_slice(format!("': {reason}").as_bytes());
                Fault::new(text)
            })?;
        }
        self.users.insert(name.to_vec(), user);
        self.settle();
        Ok(())
    }

    /// Removes users; how many there were of these names.
    ///
    /// # Errors
    /// The default user stays.
    pub(crate) fn remove(&mut self, names: &[&[u8]]) -> Result<BTreeSet<Vec<u8>>, Fault> {
        if names.contains(&DEFAULT) {
            return Err(Fault::of("ERR The 'default' user cannot be removed"));
        }
        let deleted = names.iter().filter(|name| self.users.remove(**name).is_some());
        let deleted = deleted.map(|name| name.to_vec()).collect();
        self.settle();
        Ok(deleted)
    }

    /// Sets the only password of the default user, or removes it if it is empty: `requirepass`.
    pub(crate) fn require(&mut self, password: &[u8]) {
        if let Some(user) = self.users.get_mut(DEFAULT) {
            user.passwords.clear();
            user.any_password = password.is_empty();
            if !password.is_empty() {
                user.passwords.push(hash(password));
            }
        }
        self.settle();
    }
}
