//! `[[vsa]]`: a storage area that one user may have.

use serde::Deserialize;
use sietch_protocol::MAIN_VOLUME;
use sietch_protocol::types::Size;
use toml::Spanned;

use super::error::ConfigurationError;
use super::rules::{Rules, User};
use super::volumes::Volume;

/// A VSA that one user may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vsa {
    /// Its name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The volume that stores it.
    pub volume: String,
    /// Bytes it is made with.
    pub size: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VsaText {
    name: Spanned<String>,
    uid: Spanned<User>,
    volume: Option<Spanned<String>>,
    size: Spanned<Size>,
}

impl Rules<'_> {
    /// Checks one area. `others` are the areas so far.
    pub(super) fn vsa(
        &self,
        vsa: VsaText,
        others: &[Vsa],
        volumes: &[Volume],
    ) -> Result<Vsa, ConfigurationError> {
        let taken = others.iter().any(|other| other.name == *vsa.name.get_ref());
        let name = self.name("VSA", &vsa.name, taken)?;
        let what = format!("VSA {name}");
        let size = self.whole(&what, &vsa.size)?;
        let uid = self.uid(&what, &vsa.uid)?;
        let volume = match vsa.volume {
            Some(volume) if !volumes.iter().any(|other| other.name == *volume.get_ref()) => {
                let shown: String = volume.get_ref().chars().take(40).collect();
                let cause = format!("there is no volume `{}`", shown.escape_debug());
                return Err(self.refuse(volume.span().start, what, cause, "add a [[volume]] of that name"));
            }
            Some(volume) => volume.into_inner(),
            None => MAIN_VOLUME.to_owned(),
        };
        Ok(Vsa { name, uid, volume, size })
    }
}
