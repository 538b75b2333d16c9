//! Limits that messages share, the rule for names, and how text of an untrusted process is shown.

/// The longest name of a VNIC, a VSA or a client, in bytes. Interface names are made from it
/// (`sv-NAME-a` fits IFNAMSIZ, 15 characters, only for shorter ones: the daemon shortens).
pub(crate) const MAX_NAME: usize = 32;

/// The most grants one Adopt may name.
pub const MAX_HELD: usize = 64;

/// The most bytes of one [`crate::Reply::Piece`]: the most that the kernel requests of a FUSE file
/// system at once.
pub const MAX_PIECE: u32 = 1 << 20;

/// The most characters of a text of an untrusted process that are shown.
const MAX_SHOWN: usize = 200;

/// The beginning of a text of an untrusted process, for a log line, a terminal or an error: control
/// characters are escaped, so it stays one line and commands no terminal.
pub fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect::<String>().escape_debug().collect()
}

/// Whether `name` may name a VNIC, a VSA or a client: 1 to `MAX_NAME` of `a-z A-Z 0-9 _ -`,
/// starting with a letter or digit. Such a name is safe as a file name and in a log line.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(plain)
        && name.as_bytes()[0].is_ascii_alphanumeric()
}
