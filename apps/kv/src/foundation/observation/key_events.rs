//! Events of keys, for the clients that subscribe to them (`notify-keyspace-events`).
//!
//! 1. A command notes the events that it causes; nothing is noted, and nothing allocated, while
//!    their class is off.
//! 2. After the command, the events leave for their channels, in order: `__keyspace@DB__:KEY` with
//!    the name of the event (class K), then `__keyevent@DB__:NAME` with the key (class E).
//! 3. Classes, letters and names are those of Redis 7.0. Streams (`t`) and modules (`d`) have no
//!    events here; their letters are accepted.

/// A set of classes of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EventClasses(u16);

/// The classes.
pub(crate) mod class {
    use super::EventClasses;

    /// Messages to the channel of the key.
    pub(crate) const KEYSPACE: EventClasses = EventClasses(1);
    /// Messages to the channel of the event.
    pub(crate) const KEYEVENT: EventClasses = EventClasses(1 << 1);
    /// Commands for keys of any type.
    pub(crate) const GENERIC: EventClasses = EventClasses(1 << 2);
    /// Commands of strings.
    pub(crate) const STRING: EventClasses = EventClasses(1 << 3);
    /// Commands of lists.
    pub(crate) const LIST: EventClasses = EventClasses(1 << 4);
    /// Commands of sets.
    pub(crate) const SET: EventClasses = EventClasses(1 << 5);
    /// Commands of hashes.
    pub(crate) const HASH: EventClasses = EventClasses(1 << 6);
    /// Commands of sorted sets.
    pub(crate) const SORTED_SET: EventClasses = EventClasses(1 << 7);
    /// Keys that were deleted because their time was over.
    pub(crate) const EXPIRED: EventClasses = EventClasses(1 << 8);
    /// Keys that were deleted because memory was full.
    pub(crate) const EVICTED: EventClasses = EventClasses(1 << 9);
    /// Streams.
    pub(crate) const STREAM: EventClasses = EventClasses(1 << 10);
    /// Modules.
    pub(crate) const MODULE: EventClasses = EventClasses(1 << 11);
    /// Keys that are created.
    pub(crate) const NEW: EventClasses = EventClasses(1 << 12);
    /// Keys that are looked up and not there.
    pub(crate) const MISS: EventClasses = EventClasses(1 << 13);
}

/// The letters of the classes, in the order in which Redis shows them.
const LETTERS: [(char, EventClasses); 14] = [
    ('g', class::GENERIC),
    ('$', class::STRING),
    ('l', class::LIST),
    ('s', class::SET),
    ('h', class::HASH),
    ('z', class::SORTED_SET),
    ('x', class::EXPIRED),
    ('e', class::EVICTED),
    ('t', class::STREAM),
    ('d', class::MODULE),
    ('n', class::NEW),
    ('K', class::KEYSPACE),
    ('E', class::KEYEVENT),
    ('m', class::MISS),
];

/// The classes of the letter `A`: the first ten.
const ALL: EventClasses = EventClasses(0b1111_1111_1100);

/// Events of one command among which a repeated `keymiss` is searched.
const RECENT: usize = 64;

impl EventClasses {
    /// The classes of these letters.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.chars().try_fold(Self::default(), |classes, letter| {
            let (_, class) = LETTERS.iter().chain([&('A', ALL)]).find(|(known, _)| *known == letter)?;
            Some(Self(classes.0 | class.0))
        })
    }

    /// Whether all of `other` are in this set.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has both a class of messages and a class of events.
    pub(crate) fn are_sent(self) -> bool {
        let channels = class::KEYSPACE.0 | class::KEYEVENT.0;
        self.0 & channels != 0 && self.0 & !channels != 0
    }
}

impl std::fmt::Display for EventClasses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // As in Redis, `A` hides `n`.
        let (shown, letters) = if self.has(ALL) { ("A", &LETTERS[11..]) } else { ("", &LETTERS[..]) };
        f.write_str(shown)?;
        letters.iter().filter(|(_, class)| self.has(*class)).try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

/// An event of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyEvent {
    database: usize,
    name: &'static str,
    key: Box<[u8]>,
}

impl KeyEvent {
    /// The messages of the event, each with its channel.
    pub(crate) fn messages(&self, classes: EventClasses) -> impl Iterator<Item = (Vec<u8>, &[u8])> {
        let database = self.database;
        let keyspace = classes.has(class::KEYSPACE).then(|| {
            let mut channel = format!("__keyspace@{database}__:").into_bytes();
            channel.extend_from_slice(&self.key);
            (channel, self.name.as_bytes())
        });
        let keyevent = classes
            .has(class::KEYEVENT)
            .then(|| (format!("__keyevent@{database}__:{}", self.name).into_bytes(), &*self.key));
        keyspace.into_iter().chain(keyevent)
    }
}

/// The events that have not been sent yet.
#[derive(Debug, Default)]
pub(crate) struct KeyEvents {
    /// The classes that are noted; none while no event would be sent.
    enabled: EventClasses,
    queue: Vec<KeyEvent>,
}

impl KeyEvents {
    /// Notes only these classes from now on.
    pub(crate) fn enable(&mut self, classes: EventClasses) {
        self.enabled = if classes.are_sent() { classes } else { EventClasses::default() };
    }

    /// Whether any event is noted.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled != EventClasses::default()
    }

    /// The classes that are noted.
    pub(crate) fn enabled(&self) -> EventClasses {
        self.enabled
    }

    /// Notes an event if its class is enabled.
    #[inline]
    pub(crate) fn note(&mut self, class: EventClasses, name: &'static str, database: usize, key: &[u8]) {
        if self.enabled.0 & class.0 != 0 {
            self.push(name, database, key);
        }
    }

    #[cold]
    fn push(&mut self, name: &'static str, database: usize, key: &[u8]) {
        let event = KeyEvent { database, name, key: key.into() };
        // Commands may look a key up twice; that is one miss.
        let recent = self.queue.len().saturating_sub(RECENT);
        if name != "keymiss" || !self.queue[recent..].contains(&event) {
            self.queue.push(event);
        }
    }

    /// Events noted and not sent.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Moves the events from `first` to `second` behind those that follow.
    pub(crate) fn move_to_end(&mut self, first: usize, second: usize) {
        self.queue[first..].rotate_left(second - first);
    }

    /// Drops the events from `first` on.
    pub(crate) fn truncate(&mut self, first: usize) {
        self.queue.truncate(first);
    }

    /// Takes all events.
    pub(crate) fn take(&mut self) -> Vec<KeyEvent> {
        std::mem::take(&mut self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_and_shown_as_in_redis() {
        for (given, shown) in [
            ("", ""),
            ("KA", "AK"),
            ("AKEmn", "AKEm"),
            ("g$lshzxetdnEKm", "AKEm"),
            ("nEl$g", "g$lnE"),
            ("K", "K"),
        ] {
            assert_eq!(EventClasses::parse(given).expect("letters").to_string(), shown);
        }
        assert_eq!(EventClasses::parse("Kq"), None);
    }

    #[test]
    fn only_events_that_are_sent_are_noted() {
        let mut events = KeyEvents::default();
        for (classes, noted) in [("", 0), ("K", 0), ("A", 0), ("El", 0), ("Kg$", 1), ("AKE", 2)] {
            let classes = EventClasses::parse(classes).expect("letters");
            events.enable(classes);
            events.note(class::STRING, "set", 3, b"key");
            let sent: usize = events.take().iter().map(|event| event.messages(classes).count()).sum();
            assert_eq!(sent, noted, "{classes}");
        }
        events.note(class::STRING, "set", 3, b"key");
        let noted = events.take();
        let all = EventClasses::parse("AKE").expect("letters");
        let messages: Vec<_> = noted[0].messages(all).collect();
        assert_eq!(
            messages,
            [(b"__keyspace@3__:key".to_vec(), &b"set"[..]), (b"__keyevent@3__:set".to_vec(), &b"key"[..])]
        );
    }
}
