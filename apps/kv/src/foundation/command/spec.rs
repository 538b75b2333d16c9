//! The description of a command: name, arity, flags, and where its keys are.
//!
//! Checks before a command (arity, access, memory, transactions) and COMMAND read it; no handler is
//! needed for that, so this file knows none.

use super::arguments::is;

/// Properties of a command: a set of the `flag` constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(pub u32);

/// The properties that a command can have.
pub(crate) mod flag {
    use super::Flags;

    /// May change the data set.
    pub(crate) const WRITE: Flags = Flags(1);
    /// Only reads the data set.
    pub(crate) const READONLY: Flags = Flags(1 << 1);
    /// Refused when memory is exhausted.
    pub(crate) const DENY_OOM: Flags = Flags(1 << 2);
    /// An administrator's command.
    pub(crate) const ADMIN: Flags = Flags(1 << 3);
    /// Concerns publish and subscribe.
    pub(crate) const PUBSUB: Flags = Flags(1 << 4);
    /// Takes constant or logarithmic time.
    pub(crate) const FAST: Flags = Flags(1 << 5);
    /// May block the client.
    pub(crate) const BLOCKING: Flags = Flags(1 << 6);
    /// Where its keys are depends on the arguments.
    pub(crate) const MOVABLE_KEYS: Flags = Flags(1 << 7);
    /// Refused inside MULTI.
    pub(crate) const NO_MULTI: Flags = Flags(1 << 8);
    /// Allowed before authentication and in every state.
    pub(crate) const NO_AUTH: Flags = Flags(1 << 9);
    /// Not for scripts (shown by COMMAND only).
    pub(crate) const NO_SCRIPT: Flags = Flags(1 << 10);
    /// Allowed while loading (shown by COMMAND only).
    pub(crate) const LOADING: Flags = Flags(1 << 11);
    /// Allowed on stale replicas (shown by COMMAND only).
    pub(crate) const STALE: Flags = Flags(1 << 12);

    /// Names as COMMAND INFO shows them.
    pub(crate) const NAMES: &[(Flags, &str)] = &[
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENY_OOM, "denyoom"),
        (ADMIN, "admin"),
        (PUBSUB, "pubsub"),
        (NO_SCRIPT, "noscript"),
        (BLOCKING, "blocking"),
        (LOADING, "loading"),
        (STALE, "stale"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (NO_MULTI, "no_multi"),
        (MOVABLE_KEYS, "movablekeys"),
    ];
}

impl Flags {
    /// Both sets together.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are in this set.
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where the keys of a command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// It has none.
    None,
    /// From the first to the last (negative: counted from the end) in steps.
    Range(i16, i16, i16),
    /// The number of keys is at this position and the keys follow it.
    Counted(usize),
    /// A destination is at 1, the number of source keys at this position, and they follow it.
    Destination(usize),
}

/// What is known of a command beside its handler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandSpec {
    /// Name in lower case.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub arity: i16,
    /// Properties.
    pub flags: Flags,
    /// Where its keys are.
    pub keys: Keys,
    /// Group as COMMAND DOCS names it.
    pub group: &'static str,
}

impl CommandSpec {
    /// Whether so many arguments (with the name) are allowed.
    pub(crate) fn accepts(&self, count: usize) -> bool {
        if self.arity >= 0 {
            count == self.arity.unsigned_abs() as usize
        } else {
            count >= self.arity.unsigned_abs() as usize
        }
    }

    /// The positions of the keys in these arguments; `None` if the arguments make no sense.
    pub(crate) fn key_positions(&self, arguments: &[&[u8]]) -> Option<Vec<usize>> {
        let mut found = self.declared_positions(arguments)?;
        if self.name == "sort" {
            found.extend(stored_by_sort(arguments));
        }
        Some(found)
    }

    fn declared_positions(&self, arguments: &[&[u8]]) -> Option<Vec<usize>> {
        let counted = |at: usize| -> Option<Vec<usize>> {
            let count = std::str::from_utf8(arguments.get(at)?).ok()?.parse::<usize>().ok()?;
            (count > 0 && count < arguments.len() - at).then(|| (at + 1..=at + count).collect())
        };
        match self.keys {
            Keys::None => Some(Vec::new()),
            Keys::Range(first, last, step) => {
                let length = i64::try_from(arguments.len()).ok()?;
                let last = if last < 0 { length + i64::from(last) } else { i64::from(last) };
                if last >= length {
                    return None;
                }
                let step = usize::try_from(step).ok()?.max(1);
                let first = usize::try_from(first).ok()?;
                Some((first..=usize::try_from(last).ok()?).step_by(step).collect())
            }
            Keys::Counted(at) => counted(at),
            Keys::Destination(at) => {
                let mut all = counted(at)?;
                all.insert(0, 1);
                Some(all)
            }
        }
    }

    /// Whether the work of this command is bounded by its arguments and its reply: it does not
    /// visit other elements. Redis' flag `fast` includes only some of these.
    pub(crate) fn is_bounded(&self) -> bool {
        let bounded = matches!(
            self.name,
            "append"
                | "del"
                | "getrange"
                | "mget"
                | "mset"
                | "msetnx"
                | "psetex"
                | "set"
                | "setex"
                | "setrange"
                | "substr"
        );
        bounded || self.flags.has(flag::FAST)
    }

    /// Whether the arguments of this command may stay in the data set.
    pub(crate) fn may_grow(&self) -> bool {
        let shrinks = matches!(
            self.name,
            "del"
                | "unlink"
                | "getdel"
                | "persist"
                | "srem"
                | "hdel"
                | "lrem"
                | "ltrim"
                | "spop"
                | "flushall"
                | "flushdb"
                | "swapdb"
        );
        let takes = self.name.contains("pop") && !self.name.ends_with("push");
        self.flags.has(flag::WRITE) && !shrinks && !takes && !self.name.starts_with("zrem")
    }
}

/// Where SORT finds the key that it stores to: behind the last STORE that is an option.
fn stored_by_sort(arguments: &[&[u8]]) -> Option<usize> {
    let (mut at, mut found) = (2, None);
    while at < arguments.len() {
        let word = arguments[at];
        at += if is(word, "limit") {
            3
        } else if is(word, "get") || is(word, "by") {
            2
        } else if is(word, "store") && at + 1 < arguments.len() {
            found = Some(at + 1);
            2
        } else {
            1
        };
    }
    found
}
