//! The settings of a machine: `name=value`, separated by commas. The same words are used in a
//! script's `--so_flags` line and on packetdrill's command line.
//!
//! | name | value |
//! | --- | --- |
//! | `local` | the machine's IPv4 address |
//! | `mtu` | bytes of the largest IP packet |
//! | `receive_buffer`, `send_buffer` | most bytes in a flow's buffers |
//! | `flows` | most flows |
//! | `half_open` | most half-open connections |
//! | `time_waits` | most connections in TIME-WAIT |
//! | `congestion` | the congestion control of new flows, by its name |
//! | `ecn` | `off`, `passive` or `on`: whether marks of congestion are agreed on |
//! | `nagle` | `0`: small segments do not wait by default |

use std::net::{Ipv4Addr, Ipv6Addr};

use sietch_net::congestion::Kind;
use sietch_net::{Config, Ecn};

/// The settings of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// IPv4 address.
    pub local: Ipv4Addr,
    /// IPv6 address.
    pub local6: Ipv6Addr,
    /// MTU in bytes.
    pub mtu: usize,
    /// Whether new sockets hold small segments back until TCP_NODELAY is set, as POSIX requires.
    pub nagle: bool,
    receive_buffer: Option<usize>,
    send_buffer: Option<usize>,
    flows: Option<usize>,
    half_open: Option<usize>,
    time_waits: Option<usize>,
    congestion: Option<Kind>,
    ecn: Option<Ecn>,
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No such name.
    #[error("there is no setting `{0}`; see the table in sim/conformance/scripts/README.md")]
    Name(String),
    /// An invalid value.
    #[error("`{value}` is no value for the setting `{name}`")]
    Value {
        /// The setting.
        name: String,
        /// The given value.
        value: String,
    },
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            local: Ipv4Addr::new(192, 168, 0, 1),
            local6: Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1),
            mtu: 1500,
            nagle: true,
            receive_buffer: None,
            send_buffer: None,
            flows: None,
            half_open: None,
            time_waits: None,
            congestion: None,
            ecn: None,
        }
    }
}

impl Settings {
    /// Applies a list of settings.
    ///
    /// # Errors
    /// The first invalid name or value.
    pub fn apply(&mut self, list: &str) -> Result<(), SettingsError> {
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            let number = || value.parse::<usize>().ok();
            let taken = match name {
                "local" => value.parse().map(|address| self.local = address).ok(),
                "mtu" => number().map(|number| self.mtu = number),
                "receive_buffer" => number().map(|number| self.receive_buffer = Some(number)),
                "send_buffer" => number().map(|number| self.send_buffer = Some(number)),
                "flows" => number().map(|number| self.flows = Some(number)),
                "half_open" => number().map(|number| self.half_open = Some(number)),
                "time_waits" => number().map(|number| self.time_waits = Some(number)),
                "congestion" => value.parse().map(|kind| self.congestion = Some(kind)).ok(),
                "ecn" => ecn(value).map(|ecn| self.ecn = Some(ecn)),
                "nagle" => number().map(|number| self.nagle = number != 0),
                _ => return Err(SettingsError::Name(name.into())),
            };
            taken.ok_or_else(|| SettingsError::Value { name: name.into(), value: value.into() })?;
        }
        Ok(())
    }

    /// The engine's configuration. The secret is fixed: the same script gives the same packets
    /// every time.
    pub(super) fn config(&self) -> Config {
        // With a prefix of zero bits every host is on the link, whatever addresses a script uses.
        let mut config = Config::new(self.local, 0, *b"conformance-2026");
        config.receive_buffer = self.receive_buffer.unwrap_or(config.receive_buffer);
        config.send_buffer = self.send_buffer.unwrap_or(config.send_buffer);
        config.flows = self.flows.unwrap_or(config.flows);
        config.congestion = self.congestion.unwrap_or(config.congestion);
        config.ecn = self.ecn.unwrap_or(config.ecn);
        config.half_open = self.half_open.unwrap_or(config.half_open);
        config.time_waits = self.time_waits.unwrap_or(config.time_waits);
        config
    }
}

fn ecn(word: &str) -> Option<Ecn> {
    match word {
        "off" => Some(Ecn::Off),
        "passive" => Some(Ecn::Passive),
        "on" => Some(Ecn::On),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_or_value_is_named() {
        let mut settings = Settings::default();
        assert_eq!(settings.apply("mtu=1400, nagle=0"), Ok(()));
        assert_eq!((settings.mtu, settings.nagle), (1400, false));
        assert_eq!(settings.apply("mut=1"), Err(SettingsError::Name("mut".into())));
        assert_eq!(
            settings.apply("mtu=wide"),
            Err(SettingsError::Value { name: "mtu".into(), value: "wide".into() })
        );
    }
}
