//! The rules that every table of `sietch.toml` shares: names, users, sizes, and errors that name
//! the line.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde::Deserialize;
use sietch_protocol::message::is_name;
use sietch_protocol::types::{Mac, Size};
use toml::Spanned;

use super::error::ConfigurationError;
use super::limits::{BLOCK, MAX_DEVICES};
use crate::identity::{stable_hash, uid_of};

/// A user as it is written: a uid or a name.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a uid or a user's name")]
pub(super) enum User {
    Number(u32),
    Name(String),
}

/// The text that is checked, for errors that name the line.
pub(super) struct Rules<'a> {
    pub(super) text: &'a str,
    pub(super) path: &'a Path,
}

impl Rules<'_> {
    pub(super) fn refuse(
        &self,
        at: usize,
        what: String,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfigurationError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = 1 + before.bytes().filter(|&byte| byte == b'\n').count();
        ConfigurationError::Rule { path: self.path.into(), line, what, cause: cause.into(), fix: fix.into() }
    }

    pub(super) fn count(&self, table: &str, count: usize) -> Result<(), ConfigurationError> {
        if count <= MAX_DEVICES {
            return Ok(());
        }
        let cause = format!("{count} are over the limit of {MAX_DEVICES}");
        Err(self.refuse(0, format!("[[{table}]]"), cause, "remove some"))
    }

    pub(super) fn name(
        &self,
        sort: &str,
        name: &Spanned<String>,
        taken: bool,
    ) -> Result<String, ConfigurationError> {
        let at = name.span().start;
        let text = name.get_ref();
        let what = format!("{sort} {}", text.chars().take(40).collect::<String>().escape_debug());
        if !is_name(text) {
            return Err(self.refuse(at, what, "not a name", "use 1 to 32 letters, digits, `-` and `_`"));
        }
        if taken {
            return Err(self.refuse(at, what, "the name is there twice", "give one of them another name"));
        }
        Ok(text.clone())
    }

    pub(super) fn uid(&self, what: &str, user: &Spanned<User>) -> Result<u32, ConfigurationError> {
        match user.get_ref() {
            User::Number(uid) => Ok(*uid),
            User::Name(name) => uid_of(name).ok_or_else(|| {
                let cause = format!("no user `{}` in /etc/passwd", name.escape_debug());
                self.refuse(user.span().start, what.to_owned(), cause, "write an existing user or a number")
            }),
        }
    }

    /// The bytes of a size, which must be whole blocks.
    pub(super) fn whole(&self, what: &str, size: &Spanned<Size>) -> Result<u64, ConfigurationError> {
        let bytes = size.get_ref().bytes;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
            let cause = format!("a size of {bytes} bytes is not a positive multiple of {BLOCK}");
            return Err(self.refuse(size.span().start, what.to_owned(), cause, "write it in MiB or GiB"));
        }
        Ok(bytes)
    }
}

/// Whether a host can have `address`: it is neither unspecified, loopback, multicast nor broadcast.
pub(super) fn is_host(address: IpAddr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST))
}

/// A locally administered unicast address that stays the same for this machine, name and end.
pub(crate) fn derived_mac(machine: &str, name: &str, end: &str) -> Mac {
    let [_, _, a, b, c, d, e, f] =
        stable_hash(&[machine.as_bytes(), name.as_bytes(), end.as_bytes()]).to_be_bytes();
    Mac([a & 0xfc | 0x02, b, c, d, e, f])
}
