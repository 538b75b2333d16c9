//! The store's settings.
//!
//! 1. A setting is that of the command line, else that of `[kv]` in sietch.toml, else the default
//!    ([`Settings::with`]).
//! 2. `sietch up` resolves the settings once and passes all of them to the store as options
//!    ([`Settings::to_options`]). So the store does not read sietch.toml, and a change of the file
//!    takes effect at the next start alone.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZero;

use clap::ValueEnum as _;
use sietch_daemon::configuration::Kv;

use crate::arguments::{Bytes, DEFAULT_PORT, Durability, Listen, MAX_SHARDS, Net, StoreArguments};

/// Every option of the store with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Data path.
    pub net: Net,
    /// When a reply to a write may leave.
    pub durability: Durability,
    /// TCP port.
    pub port: u16,
    /// Cores that its keys are divided among.
    pub shards: u16,
    /// Its address on kernel sockets.
    pub listen: Listen,
    /// Memory for keys and values; 0 is no limit.
    pub maxmemory: Bytes,
    /// The policy when it is full.
    pub maxmemory_policy: String,
    /// Name of the VNIC.
    pub vnic: String,
    /// Name of the storage area.
    pub vsa: String,
    /// Whether io_uring is left alone.
    pub without_io_uring: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self::on(std::thread::available_parallelism().map_or(1, NonZero::get))
    }
}

impl Settings {
    /// The defaults, if this process may use so many processors. Each but one runs a shard. One is
    /// left to the kernel, to the other processes of Sietch and to clients on this machine.
    fn on(processors: usize) -> Self {
        Self {
            net: Net::Auto,
            durability: Durability::Always,
            port: DEFAULT_PORT,
            shards: processors.saturating_sub(1).clamp(1, usize::from(MAX_SHARDS)) as u16,
            listen: Listen::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            maxmemory: Bytes(0),
            maxmemory_policy: "noeviction".to_owned(),
            vnic: "kv".to_owned(),
            vsa: "kv".to_owned(),
            without_io_uring: false,
        }
    }
}

impl From<&Kv> for Settings {
    fn from(kv: &Kv) -> Self {
        Self {
            net: Net::Auto,
            // The daemon has checked the word.
            durability: Durability::from_str(&kv.durability, false).unwrap_or_default(),
            port: kv.port,
            shards: kv.shards.unwrap_or_else(|| Self::default().shards),
            listen: kv.listen.first().map_or(Listen::None, |address| Listen::Address(*address)),
            maxmemory: Bytes(kv.maxmemory),
            maxmemory_policy: kv.maxmemory_policy.clone(),
            vnic: kv.vnic.clone(),
            vsa: kv.vsa.clone(),
            without_io_uring: false,
        }
    }
}

impl Settings {
    /// These, but what `arguments` says wins.
    pub(crate) fn with(self, arguments: &StoreArguments) -> Self {
        let StoreArguments {
            net,
            durability,
            port,
            shards,
            listen,
            maxmemory,
            maxmemory_policy,
            vnic,
            vsa,
            without_io_uring,
        } = arguments.clone();
        Self {
            net,
            durability: durability.unwrap_or(self.durability),
            port: port.unwrap_or(self.port),
            shards: shards.unwrap_or(self.shards),
            listen: listen.unwrap_or(self.listen),
            maxmemory: maxmemory.unwrap_or(self.maxmemory),
            maxmemory_policy: maxmemory_policy.unwrap_or(self.maxmemory_policy),
            vnic: vnic.unwrap_or(self.vnic),
            vsa: vsa.unwrap_or(self.vsa),
            without_io_uring: without_io_uring || self.without_io_uring,
        }
    }

    /// `kv`, but what these say wins.
    pub(crate) fn merged(&self, kv: &Kv) -> Kv {
        let address = self.listen.resolve(self.port);
        Kv {
            vnic: self.vnic.clone(),
            vsa: self.vsa.clone(),
            listen: address.map(|address| address.ip()).into_iter().collect(),
            port: address.map_or(self.port, |address| address.port()),
            durability: self.durability.word().to_owned(),
            ..kv.clone()
        }
    }

    /// The options of `sietch kv` that say the same.
    pub(crate) fn to_options(&self) -> Vec<String> {
        [
            ("--net", self.net.word().to_owned()),
            ("--durability", self.durability.word().to_owned()),
            ("--port", self.port.to_string()),
            ("--shards", self.shards.to_string()),
            ("--listen", self.listen.to_string()),
            ("--maxmemory", self.maxmemory.to_string()),
            ("--maxmemory-policy", self.maxmemory_policy.clone()),
            ("--vnic", self.vnic.clone()),
            ("--vsa", self.vsa.clone()),
        ]
        .into_iter()
        // In one word, so that a value that starts with a dash stays a value.
        .map(|(option, value)| format!("{option}={value}"))
        .chain(self.without_io_uring.then(|| "--without-io-uring".to_owned()))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parse(words: &[String]) -> StoreArguments {
        let line = ["sietch", "kv"].map(str::to_owned).into_iter().chain(words.iter().cloned());
        match Arguments::try_parse_from(line).expect("valid").command {
            Command::Kv(kv) => kv.store,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_store_is_started_with_the_resolved_settings() {
        let settings = Settings {
            net: Net::AfXdp,
            durability: Durability::Interval,
            port: 7000,
            shards: 3,
            listen: "[::1]:7001".parse().expect("valid"),
            maxmemory: Bytes(1 << 20),
            maxmemory_policy: "allkeys-lru".to_owned(),
            vnic: "one".to_owned(),
            vsa: "two".to_owned(),
            without_io_uring: true,
        };
        assert_eq!(Settings::default().with(&parse(&settings.to_options())), settings);
    }

    #[test]
    fn one_processor_is_left_and_one_shard_is_there_at_least() {
        for (processors, shards) in [(1, 1), (2, 1), (3, 2), (64, 63), (65, 64), (1000, 64)] {
            assert_eq!(Settings::on(processors).shards, shards, "{processors} processors");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_default() {
        let file = Settings { port: 7000, vsa: "two".to_owned(), ..Settings::default() };
        let both = file.with(&parse(&["--port=7001".to_owned()]));
        assert_eq!((both.port, both.vsa.as_str(), both.vnic.as_str()), (7001, "two", "kv"));
    }
}
