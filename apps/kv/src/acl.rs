//! Users: who may run what, on which keys and channels.
//!
//! 1. There is always the user `default`, whom a client is until it says who it is. At first he
//!    needs no password and may do everything; as long as that is so and there is nobody else,
//!    nothing is looked up ([`Users::is_open`]).
//! 2. Rules are Redis' words: `on`, `off`, `>password`, `~pattern`, `&pattern`, `+command`,
//!    `-command`, `+command|subcommand`, `+@category` and what belongs to them. They are applied in
//!    order, and all of them or none.
//! 3. Of a password only its SHA-256 is kept.
//! 4. Users live as long as the process: they are no part of the data set.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use crate::commands::{Command, Fault, Flags, flag, full_name, subcommands};
use crate::glob;

/// The user that every client is at first.
pub const DEFAULT: &[u8] = b"default";

/// Names of the categories, in Redis' order.
pub const CATEGORIES: [&str; 21] = [
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

/// Commands that are dangerous although they are no administrator's.
const DANGEROUS: &[&str] =
    &["flushall", "flushdb", "info", "keys", "restore", "role", "sort", "sort_ro", "swapdb"];

/// Whether a command belongs to a category.
pub fn belongs(command: &Command, category: &str) -> bool {
    let has = |flag: Flags| command.flags.has(flag);
    match category {
        "all" => true,
        "keyspace" => command.group == "generic" || DANGEROUS[..2].contains(&command.name),
        "read" => has(flag::READONLY) && command.keys != crate::commands::Keys::None,
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

/// Subcommands that are an administrator's, of a command that is not.
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

/// Whether a subcommand belongs to a category, as in Redis 7.0, which sorts each by itself.
pub fn subcommand_belongs(command: &Command, subcommand: &str, category: &str) -> bool {
    let full = format!("{}|{subcommand}", command.name);
    let named = |list: &[&str]| list.contains(&full.as_str());
    match category {
        "admin" | "dangerous" if named(ADMINISTRATIVE) => true,
        "admin" | "dangerous" | "read" | "pubsub" if named(ORDINARY) => false,
        _ => belongs(command, category),
    }
}

/// The names of a command and its subcommands, of those that belong to a category.
pub fn members(command: &'static Command, category: &str) -> Vec<String> {
    let own = belongs(command, category).then(|| command.name.to_owned());
    let of = subcommands(command).filter(|name| subcommand_belongs(command, name, category));
    own.into_iter().chain(of.map(|name| format!("{}|{name}", command.name))).collect()
}

/// Says in the log that what a command has set is gone after a restart, which may come by itself.
pub fn warn_of_restart(command: &str) {
    tracing::warn!(
        "{command}: users and passwords that are set at run time are forgotten when the store starts anew, also after a crash; the password of the default user that stays is in the file that SIETCH_KV_PASSWORD_FILE names"
    );
}

/// Why a user may not run a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// Not at all.
    Command(String),
    /// Not with one of these keys.
    Key,
    /// Not with one of these channels.
    Channel,
}

impl Denied {
    /// What the client is told.
    pub fn fault(self) -> Fault {
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

    /// Whether a pattern of a client selects no more than one of these, as far as can be told: it
    /// is one of them.
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
pub struct User {
    enabled: bool,
    any_password: bool,
    passwords: Vec<[u8; 32]>,
    keys: Names,
    channels: Names,
    /// By number of the command.
    allowed: Vec<bool>,
    /// Subcommands that are decided apart: `config|get`.
    subcommands: BTreeMap<String, bool>,
    /// The words that say the same.
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
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        flags.extend(self.any_password.then_some("nopass"));
        flags
    }

    /// Its passwords, as hexadecimal SHA-256.
    pub fn passwords(&self) -> Vec<String> {
        self.passwords.iter().map(|hash| hexadecimal(hash)).collect()
    }

    /// What it may run, in words.
    pub fn commands(&self) -> String {
        self.words.join(" ")
    }

    /// The keys it may use.
    pub fn keys(&self) -> String {
        self.keys.print('~')
    }

    /// The channels it may use.
    pub fn channels(&self) -> String {
        self.channels.print('&')
    }

    /// The line of ACL LIST.
    pub fn describe(&self, name: &[u8]) -> String {
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

    /// Remembers a word about commands; one about the same before is of no account any more.
    fn note(&mut self, sign: bool, what: &str) {
        if what == "@all" {
            self.words.clear();
        }
        self.words.retain(|word| word[1..] != *what || word.ends_with("@all"));
        self.words.push(format!("{}{what}", if sign { '+' } else { '-' }));
    }

    fn command_rule(&mut self, sign: bool, what: &str, table: &[&Command]) -> Result<(), &'static str> {
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

    /// Applies a rule about a category to one command: as a whole where all or none of it belongs
    /// there, else to the subcommands that do.
    fn category_rule(&mut self, sign: bool, category: &str, number: usize, command: &Command) {
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
        // What is decided as the command is not decided apart.
        let allowed = self.allowed[number];
        let own = format!("{}|", command.name);
        self.subcommands.retain(|name, &mut sign| !name.starts_with(&own) || sign != allowed);
    }

    fn forget_subcommands(&mut self, name: &str) {
        let of = |known: &str| known.split('|').next() == Some(name);
        self.subcommands.retain(|known, _| !of(known));
        self.words.retain(|word| !word.contains('|') || !of(&word[1..]));
    }

    /// Applies one rule.
    fn apply(&mut self, rule: &[u8], table: &[&Command]) -> Result<(), &'static str> {
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
        let place = self.passwords.iter().position(|known| *known == password);
        let place = place.ok_or("The password you are trying to remove from the user does not exist")?;
        self.passwords.remove(place);
        Ok(())
    }

    /// Whether it may be subscribed to these.
    pub fn may_keep(&self, channels: &BTreeSet<Box<[u8]>>, patterns: &BTreeSet<Box<[u8]>>) -> bool {
        channels.iter().all(|name| self.channels.hold(name))
            && patterns.iter().all(|pattern| self.channels.hold_pattern(pattern))
    }

    /// Whether it may run this.
    ///
    /// # Errors
    /// Why not.
    pub fn permit(&self, number: u16, command: &Command, arguments: &[&[u8]]) -> Result<(), Denied> {
        if command.flags.has(flag::NO_AUTH) {
            return Ok(());
        }
        let full = || full_name(command, arguments);
        let apart = if self.subcommands.is_empty() { None } else { self.subcommands.get(&full()) };
        if !apart.copied().unwrap_or(self.allowed[number as usize]) {
            return Err(Denied::Command(full()));
        }
        if self.keys != Names::All {
            // Where keys stand cannot be told of arguments that the command will refuse.
            let places = command.key_positions(arguments).unwrap_or_default();
            if !places.iter().all(|&at| self.keys.hold(arguments[at])) {
                return Err(Denied::Key);
            }
            // The patterns of SORT reach any key.
            let reaches = |word: &&[u8]| crate::commands::is(word, "by") || crate::commands::is(word, "get");
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

/// All users; see the module's account.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<Vec<u8>, User>,
    open: bool,
}

impl Users {
    /// The default user alone, who may do everything.
    pub fn new(commands: usize) -> Self {
        Self { users: BTreeMap::from([(DEFAULT.to_vec(), User::everything(commands))]), open: true }
    }

    /// Whether every client may do everything.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    fn settle(&mut self) {
        self.open = self.users.len() == 1 && self.users.get(DEFAULT).is_some_and(User::is_open);
    }

    /// Whether clients are let in who have not said who they are.
    pub fn admits_anybody(&self) -> bool {
        self.users.get(DEFAULT).is_some_and(|user| user.enabled && user.any_password)
    }

    /// Whether the default user has a password, or cannot be used.
    pub fn is_protected(&self) -> bool {
        self.users.get(DEFAULT).is_none_or(|user| !user.any_password)
    }

    /// The user of this name.
    pub fn get(&self, name: &[u8]) -> Option<&User> {
        self.users.get(name)
    }

    /// All, in order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], &User)> {
        self.users.iter().map(|(name, user)| (name.as_slice(), user))
    }

    /// Whether this is a user with this password.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> bool {
        let given = hash(password);
        let right = |user: &User| user.enabled && (user.any_password || user.passwords.contains(&given));
        self.users.get(name).is_some_and(right)
    }

    /// Applies all rules to a user, who is made if there is none of this name, or none of them.
    ///
    /// # Errors
    /// The rule that is wrong, and why.
    pub fn set(&mut self, name: &[u8], rules: &[&[u8]], table: &[&Command]) -> Result<(), Fault> {
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
    pub fn remove(&mut self, names: &[&[u8]]) -> Result<BTreeSet<Vec<u8>>, Fault> {
        if names.contains(&DEFAULT) {
            return Err(Fault::of("ERR The 'default' user cannot be removed"));
        }
        let gone = names.iter().filter(|name| self.users.remove(**name).is_some());
        let gone = gone.map(|name| name.to_vec()).collect();
        self.settle();
        Ok(gone)
    }

    /// Gives the default user this password, or lets it in without one if it is empty:
    /// `requirepass`.
    pub fn require(&mut self, password: &[u8]) {
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
