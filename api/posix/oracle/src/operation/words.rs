//! The words of a step: how each kind of argument is written and read.
//!
//! 1. An argument is one word without spaces ([`Word`]): a number, a slot such as `f3`, a name of a
//!    table, or names joined with `+`.
//! 2. `choice!` makes a type with one name of a table as its value, `flags!` a type with a set of
//!    names.
//! 3. Bits without a name are written as a hexadecimal number, so every value has a text that reads
//!    back as itself.
//!
//! A word that is not in its table is refused; it never becomes a default.

use std::fmt::{self, Display, Formatter};

/// An argument as one word without spaces.
pub(crate) trait Word: Sized + Display {
    /// Reads the word that `Display` writes.
    fn read(text: &str) -> Option<Self>;
}

impl Word for i64 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A slot for a descriptor, `f0` to `f11`. Each process has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub u8);

impl Slot {
    /// How many slots there are.
    pub(crate) const COUNT: u8 = 12;

    /// The index of the slot.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Display for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "f{}", self.0)
    }
}

impl Word for Slot {
    fn read(text: &str) -> Option<Self> {
        let index = text.strip_prefix('f')?.parse().ok()?;
        (index < Self::COUNT).then_some(Self(index))
    }
}

/// Makes a type whose values are one name of a table, each with the number that the kernel knows it
/// by, or names alone.
macro_rules! choice {
    ($(#[$doc:meta])* $type:ident { $( $name:literal => $value:expr ),* $(,)? }) => {
        choice!(@type $(#[$doc])* $type { $( $name ),* });

        impl $type {
            /// The number that the kernel knows it by.
            pub(crate) fn value(self) -> i32 {
                match self.0 { $( $name => $value, )* _ => -1 }
            }
        }
    };
    ($(#[$doc:meta])* $type:ident { $( $name:literal ),* $(,)? }) => {
        choice!(@type $(#[$doc])* $type { $( $name ),* });

        impl $type {
            /// The name.
            pub(crate) fn name(self) -> &'static str {
                self.0
            }
        }
    };
    (@type $(#[$doc:meta])* $type:ident { $( $name:literal ),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $type(&'static str);

        impl $type {
            /// Every name.
            pub(crate) const NAMES: &'static [&'static str] = &[$( $name ),*];

            /// The value with that name; a name that is not in the table is a mistake in this
            /// crate.
            pub(crate) fn named(name: &str) -> Self {
                <Self as Word>::read(name).expect("a name of the table")
            }
        }

        impl Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }
        }

        impl Word for $type {
            fn read(text: &str) -> Option<Self> {
                Self::NAMES.iter().find(|name| **name == text).map(|name| Self(name))
            }
        }
    };
}

/// Makes a type whose values are sets of names, written `a+b`, the empty one `-`.
macro_rules! flags {
    ($(#[$doc:meta])* $type:ident { $( $name:literal => $value:expr ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $type(pub i32);

        impl $type {
            /// Every name with its bits.
            pub(crate) const NAMES: &'static [(&'static str, i32)] = &[$( ($name, $value) ),*];

            /// The flags of a word such as `a+b`; a name that is not in the table is a mistake in
            /// this crate.
            pub(crate) fn of(text: &str) -> Self {
                <Self as Word>::read(text).expect("names of the table")
            }
        }

        impl Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write_flags(f, self.0, Self::NAMES)
            }
        }

        impl Word for $type {
            fn read(text: &str) -> Option<Self> {
                read_flags(text, Self::NAMES).map(Self)
            }
        }
    };
}

fn write_flags(f: &mut Formatter<'_>, bits: i32, names: &[(&str, i32)]) -> fmt::Result {
    let mut left = bits;
    let mut separator = "";
    for (name, value) in names {
        if left & value == *value && *value != 0 {
            write!(f, "{separator}{name}")?;
            separator = "+";
            left &= !value;
        }
    }
    if left != 0 {
        write!(f, "{separator}{left:#x}")
    } else if separator.is_empty() {
        f.write_str("-")
    } else {
        Ok(())
    }
}

fn read_flags(text: &str, names: &[(&str, i32)]) -> Option<i32> {
    if text == "-" {
        return Some(0);
    }
    text.split('+').try_fold(0, |bits, word| {
        let value = match word.strip_prefix("0x") {
            Some(digits) => i32::from_str_radix(digits, 16).ok()?,
            None => names.iter().find(|(name, _)| *name == word)?.1,
        };
        Some(bits | value)
    })
}

choice! {
    /// The first argument of `socket`.
    Family { "inet" => libc::AF_INET, "inet6" => libc::AF_INET6, "unix" => libc::AF_UNIX, "none" => 99 }
}

choice! {
    /// The second argument of `socket`, without flags.
    Kind { "stream" => libc::SOCK_STREAM, "dgram" => libc::SOCK_DGRAM, "seqpacket" => libc::SOCK_SEQPACKET }
}

choice! {
    /// The host of an address.
    Host {
        "lo4", "lo6", "map4", "any4", "any6", "two4", "away4", "unspec", "short",
        "long",
    }
}

choice! {
    /// The command of `epoll_ctl`.
    Control { "add" => libc::EPOLL_CTL_ADD, "mod" => libc::EPOLL_CTL_MOD, "del" => libc::EPOLL_CTL_DEL, "none" => 77 }
}

choice! {
    /// A call with a null pointer in place of an address, a structure or an option.
    Faulty {
        "sendmsg", "recvmsg", "bind", "connect", "getsockname", "getpeername",
        "getsockopt", "setsockopt", "epoll_ctl", "epoll_wait", "poll", "fionread",
        "socketpair", "accept", "read", "write", "recv", "send", "readv", "writev",
        "pread", "pwrite", "fstat",
    }
}

choice! {
    /// A file in the folder of the executor.
    Name { "a", "b", "c", "d" }
}

choice! {
    /// The access mode of `open`.
    Access { "r" => libc::O_RDONLY, "w" => libc::O_WRONLY, "rw" => libc::O_RDWR }
}

choice! {
    /// The last argument of `lseek`.
    Whence {
        "set" => libc::SEEK_SET, "cur" => libc::SEEK_CUR, "end" => libc::SEEK_END,
        "data" => libc::SEEK_DATA, "hole" => libc::SEEK_HOLE, "none" => 9,
    }
}

choice! {
    /// What `fallocate` does.
    Reserve {
        "all" => 0, "keep" => libc::FALLOC_FL_KEEP_SIZE,
        "punch" => libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
    }
}

choice! {
    /// How `mmap` maps: shared for reading and writing, shared for reading, or private.
    Sharing { "shared", "read", "private" }
}

choice! {
    /// The mode of `fopen` and `fdopen`.
    StreamMode { "r", "r+", "w", "w+", "a", "a+" }
}

choice! {
    /// A call within a signal handler.
    InHandler { "read", "write", "pread", "pwrite", "fsync", "fstat", "close", "dup", "ftruncate" }
}

flags! {
    /// Flags of `open`, without the access mode.
    OpenFlags {
        "creat" => libc::O_CREAT, "excl" => libc::O_EXCL, "trunc" => libc::O_TRUNC, "append" => libc::O_APPEND,
        "sync" => libc::O_SYNC, "dsync" => libc::O_DSYNC, "cloexec" => libc::O_CLOEXEC, "path" => libc::O_PATH,
    }
}

flags! {
    /// Flags of `preadv2` and `pwritev2`.
    VectorFlags {
        "hipri" => libc::RWF_HIPRI, "dsync" => libc::RWF_DSYNC, "sync" => libc::RWF_SYNC,
        "append" => libc::RWF_APPEND,
    }
}

flags! {
    /// `SOCK_*` flags, and what else `F_SETFL` takes.
    SocketFlags { "nonblock" => libc::SOCK_NONBLOCK, "cloexec" => libc::SOCK_CLOEXEC, "append" => libc::O_APPEND }
}

flags! {
    /// `MSG_*` flags.
    MessageFlags {
        "peek" => libc::MSG_PEEK, "waitall" => libc::MSG_WAITALL, "dontwait" => libc::MSG_DONTWAIT, "nosignal" => libc::MSG_NOSIGNAL,
        "trunc" => libc::MSG_TRUNC, "ctrunc" => libc::MSG_CTRUNC, "more" => libc::MSG_MORE, "oob" => libc::MSG_OOB,
        "eor" => libc::MSG_EOR, "errqueue" => libc::MSG_ERRQUEUE, "waitforone" => libc::MSG_WAITFORONE,
        "cloexec" => libc::MSG_CMSG_CLOEXEC, "dontroute" => libc::MSG_DONTROUTE, "confirm" => libc::MSG_CONFIRM,
    }
}

flags! {
    /// Events of `poll` and `epoll`, whose numbers agree where both have them.
    Events {
        "in" => libc::EPOLLIN, "pri" => libc::EPOLLPRI, "out" => libc::EPOLLOUT, "err" => libc::EPOLLERR, "hup" => libc::EPOLLHUP,
        "nval" => 0x20, "rdnorm" => libc::EPOLLRDNORM, "rdband" => libc::EPOLLRDBAND, "wrnorm" => libc::EPOLLWRNORM,
        "wrband" => libc::EPOLLWRBAND, "rdhup" => libc::EPOLLRDHUP, "et" => libc::EPOLLET, "oneshot" => libc::EPOLLONESHOT,
        "exclusive" => libc::EPOLLEXCLUSIVE,
    }
}

/// The port of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Zero: the kernel chooses.
    Any,
    /// The port that the descriptor in the slot was bound to last.
    Of(Slot),
}

/// An address of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The host.
    pub host: Host,
    /// Its port.
    pub port: Port,
}

impl Address {
    /// An address by the name of its host.
    pub(crate) fn new(host: &str, port: Port) -> Self {
        Self { host: Host::named(host), port }
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.port {
            Port::Any => write!(f, "{}:0", self.host),
            Port::Of(slot) => write!(f, "{}:{slot}", self.host),
        }
    }
}

impl Word for Address {
    fn read(text: &str) -> Option<Self> {
        let (host, port) = text.split_once(':')?;
        let port = if port == "0" { Port::Any } else { Port::Of(Slot::read(port)?) };
        Some(Self { host: Host::read(host)?, port })
    }
}

/// The descriptors that `poll` and `select` watch, with their events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watched(pub Vec<(Slot, Events)>);

impl Display for Watched {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (slot, events)) in self.0.iter().enumerate() {
            write!(f, "{}{slot}:{events}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Word for Watched {
    fn read(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::default());
        }
        let each = text.split(',').map(|entry| {
            let (slot, events) = entry.split_once(':')?;
            Some((Slot::read(slot)?, Events::read(events)?))
        });
        each.collect::<Option<Vec<_>>>().map(Self)
    }
}
