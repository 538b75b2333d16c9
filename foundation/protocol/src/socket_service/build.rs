//! The build of a sender. Two incompatible builds detect that before anything is set up.
//!
//! 1. Two builds are compatible if their messages are of one version ([`VERSION`]) and their
//!    streams start with the same word. Each layout of a stream's memory has a word of its own. The
//!    name is for people and decides nothing: most builds are compatible.
//! 2. A service sends its build in the answer to a hello ([`super::Reply::welcome`]), and when it
//!    refuses an unknown message.
//! 3. The library carries its own in a section of its file, [`SECTION`]: `sietch run` compares the
//!    two before it starts a program.
//! 4. The first 8 bytes of a reply, and the offset of the build in it, are the same in every
//!    version. All zero: a service from before builds were sent, whose build is unknown.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::limits::{MAGIC, REPLY_BYTES, VERSION};

/// Bytes of a build.
pub const BUILD_BYTES: usize = 64;
/// Its offset in a reply.
const IN_REPLY: usize = 80;
/// The section of the library's file that holds its build.
pub const SECTION: &str = ".sietch.build";
/// The name of this build. A packager gives `SIETCH_BUILD` to the compiler: a commit, a package's
/// revision.
const NAME: &str = match option_env!("SIETCH_BUILD") {
    Some(name) => name,
    None => concat!("sietch ", env!("CARGO_PKG_VERSION")),
};

/// A build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Build {
    /// `MAGIC`.
    magic: u32,
    /// The version of the messages.
    pub version: u16,
    /// Zero.
    zero: u16,
    /// The first word of a stream's memory.
    pub stream: [u8; 8],
    /// A text, padded with zeros.
    name: [u8; 48],
}

const _: () = assert!(size_of::<Build>() == BUILD_BYTES && IN_REPLY + BUILD_BYTES <= REPLY_BYTES);

impl Build {
    /// This build, whose streams begin with that word.
    pub const fn own(stream: u64) -> Self {
        let mut name = [0; 48];
        let mut at = 0;
        while at < name.len() && at < NAME.len() {
            name[at] = NAME.as_bytes()[at];
            at += 1;
        }
        Self { magic: MAGIC, version: VERSION, zero: 0, stream: stream.to_ne_bytes(), name }
    }

    /// The build of these bytes, which came from outside; `None` if they hold none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (build, _) = Self::read_from_prefix(bytes).ok()?;
        (build.magic == MAGIC).then_some(build)
    }

    /// The sender of a reply, which may be of another version: the version of its messages, and its
    /// build if the reply has one. `None`: no reply of a socket service.
    pub(crate) fn of_reply(bytes: &[u8]) -> Option<(u16, Option<Self>)> {
        let (magic, version) = (bytes.first_chunk::<4>()?, bytes.get(4..6)?.first_chunk::<2>()?);
        if u32::from_le_bytes(*magic) != MAGIC {
            return None;
        }
        let build = bytes.get(IN_REPLY..).and_then(Self::parse);
        Some((u16::from_le_bytes(*version), build))
    }

    /// Whether the two understand one another.
    pub fn fits(&self, other: &Self) -> bool {
        self.version == other.version && self.stream == other.stream
    }

    /// What it is called; what no terminal should be sent is left out.
    pub fn name(&self) -> String {
        self.name.iter().map(|byte| char::from(*byte)).filter(|letter| matches!(letter, ' '..='~')).collect()
    }
}

impl std::fmt::Display for Build {
    /// `sietch 0.1.0 (messages 1, streams SIETCHS7)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letters = self.stream.iter().map(|byte| char::from(*byte));
        let stream: String = letters.filter(|letter| matches!(letter, '!'..='~')).collect();
        write!(f, "{} (messages {}, streams {stream})", self.name(), self.version)
    }
}
