//! Settings: defaults as in Redis 7.0, and CONFIG GET and SET by name.
//!
//! 1. Settings that Sietch honours are fields of [`Settings`]; CONFIG SET changes those that can
//!    change at run time.
//! 2. Settings that tools only query (redis-benchmark queries `save` and `appendonly`) are shown
//!    with the value that is true here. CONFIG SET refuses another one.
//! 3. A few have no effect and are accepted nevertheless, because tools set them
//!    (`settings/compatible.rs`).

mod compatible;
mod encoding;
mod memory;
mod output_limits;

pub(crate) use compatible::names as names_without_effect;
pub(crate) use encoding::{EncodingLimits, ListNode};
pub(crate) use memory::parse_memory;
pub use output_limits::{OutputLimit, OutputLimits};

use compatible::{number, within, yes_or_no};

use super::observation::key_events::EventClasses;
use crate::foundation::protocol::Fault;

/// The version of Redis whose behaviour this is; tools read it from HELLO and INFO.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// The eviction policy: what happens when `maxmemory` is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Writes are refused.
    #[default]
    NoEviction,
    /// Any key, least recently used first.
    AllKeysLru,
    /// Any key, least frequently used first.
    AllKeysLfu,
    /// Any key, at random.
    AllKeysRandom,
    /// Keys with an expiry, least recently used first.
    VolatileLru,
    /// Keys with an expiry, least frequently used first.
    VolatileLfu,
    /// Keys with an expiry, at random.
    VolatileRandom,
    /// Keys with an expiry, nearest expiry first.
    VolatileTtl,
}

impl Policy {
    /// In the order in which Redis lists them.
    const NAMES: [(Self, &'static str); 8] = [
        (Self::VolatileLru, "volatile-lru"),
        (Self::VolatileLfu, "volatile-lfu"),
        (Self::VolatileRandom, "volatile-random"),
        (Self::VolatileTtl, "volatile-ttl"),
        (Self::AllKeysLru, "allkeys-lru"),
        (Self::AllKeysLfu, "allkeys-lfu"),
        (Self::AllKeysRandom, "allkeys-random"),
        (Self::NoEviction, "noeviction"),
    ];

    /// The policy of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|&(policy, _)| policy)
    }

    /// Its name in CONFIG.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(policy, _)| policy == self).map_or("noeviction", |&(_, name)| name)
    }

    /// Whether only keys with an expiry may go.
    pub(crate) fn volatile(self) -> bool {
        matches!(self, Self::VolatileLru | Self::VolatileLfu | Self::VolatileRandom | Self::VolatileTtl)
    }

    /// Whether the access counters hold frequencies.
    pub(crate) fn counts_frequency(self) -> bool {
        matches!(self, Self::AllKeysLfu | Self::VolatileLfu)
    }
}

/// When a reply to a write may leave. The event loop acts on it; the shard only shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once the log is on the device.
    #[default]
    Always,
    /// At once; the log is flushed about once a second.
    Interval,
    /// At once; the log is written, and flushed only when it is closed.
    Never,
    /// At once; there is no log, and nothing outlives the process.
    None,
}

impl Durability {
    /// The name of the setting, as `--durability` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "interval",
            Self::Never => "never",
            Self::None => "none",
        }
    }

    /// Whether there is a log at all.
    pub(crate) fn keeps_log(self) -> bool {
        self != Self::None
    }

    /// The corresponding value of Redis' `appendfsync`.
    pub(crate) fn append_fsync(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "everysec",
            Self::Never | Self::None => "no",
        }
    }
}

/// The most shards of a store. Each pair of cores has two channels of a few kilobytes, and a
/// machine with more cores has several sockets, between which one log serves the store badly.
pub const MAX_SHARDS: usize = 64;

/// The largest `maxclients` of Redis. A client's slot here is a `u32`, too.
const MOST_CLIENTS: usize = u32::MAX as usize;

/// The settings of a shard.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of databases.
    pub databases: usize,
    /// Cores that the keys are divided among.
    pub shards: usize,
    /// Bytes that the data set and the clients' buffers may take; 0: no limit.
    pub maxmemory: u64,
    /// The eviction policy.
    pub policy: Policy,
    /// Keys sampled for each eviction.
    pub maxmemory_samples: usize,
    /// Clients at a time.
    pub maxclients: usize,
    /// The most that `maxclients` may be: what the process has descriptors for.
    pub most_clients: usize,
    /// Seconds after which an idle client is closed; 0: never.
    pub timeout: u64,
    /// Longest argument, in bytes.
    pub proto_max_bulk_len: u64,
    /// Most bytes of a client's unexecuted input.
    pub client_query_buffer_limit: u64,
    /// Most bytes of output that wait for a client.
    pub output_limits: OutputLimits,
    /// Bytes of waiting output from which on a client's commands are neither read nor run.
    pub output_soft_limit: usize,
    /// When replies to writes leave.
    pub durability: Durability,
    /// TCP keepalive in seconds (the event loop acts on it).
    pub tcp_keepalive: u64,
    /// The port that CONFIG GET and INFO show.
    pub port: u16,
    /// The address that CONFIG GET shows.
    pub bind: String,
    /// The directory that CONFIG GET shows.
    pub dir: String,
    /// Where collections change their representation.
    pub(crate) encodings: EncodingLimits,
    /// Microseconds from which on a command is logged as slow; negative: none is.
    pub slowlog_log_slower_than: i64,
    /// Entries of the slow log.
    pub slowlog_max_len: usize,
    /// Milliseconds from which on a latency is recorded as an event; 0: none is.
    pub latency_monitor_threshold: u64,
    /// Whether every command is timed for LATENCY HISTOGRAM.
    pub latency_tracking: bool,
    /// The classes of events of keys that subscribers receive.
    pub(crate) notify_keyspace_events: EventClasses,
    /// Settings that are kept and shown but change nothing here.
    pub(crate) shown: Vec<(&'static str, String)>,
}

/// 512 MiB, Redis' `proto-max-bulk-len`.
const MAX_BULK: u64 = 512 << 20;
/// 1 GiB, Redis' `client-query-buffer-limit`.
const MAX_QUERY: u64 = 1 << 30;
/// The least that either may be, as in Redis.
const LEAST_INPUT: i64 = 1 << 20;
/// Most samples for an eviction: more would take longer than they improve the choice.
const MOST_SAMPLES: i64 = 64;
/// 1 MiB: enough to keep a link busy for a round trip, small enough for ten thousand clients.
const SOFT_OUTPUT: usize = 1 << 20;

/// The initial values of [`Settings::shown`].
const SHOWN: &[(&str, &str)] = &[
    ("activedefrag", "no"),
    ("active-expire-effort", "1"),
    ("aof-use-rdb-preamble", "yes"),
    ("appenddirname", "appendonlydir"),
    ("appendfilename", "appendonly.aof"),
    ("auto-aof-rewrite-min-size", "67108864"),
    ("auto-aof-rewrite-percentage", "100"),
    ("cluster-enabled", "no"),
    ("daemonize", "no"),
    ("dbfilename", ""),
    ("enable-debug-command", "local"),
    ("hz", "10"),
    ("io-threads", "1"),
    ("latency-tracking-info-percentiles", "50 99 99.9"),
    ("lazyfree-lazy-eviction", "no"),
    ("lazyfree-lazy-expire", "no"),
    ("lazyfree-lazy-server-del", "no"),
    ("lazyfree-lazy-user-del", "no"),
    ("lazyfree-lazy-user-flush", "yes"),
    ("lfu-decay-time", "1"),
    ("lfu-log-factor", "10"),
    ("list-compress-depth", "0"),
    ("logfile", ""),
    ("loglevel", "notice"),
    ("masterauth", ""),
    ("min-replicas-to-write", "0"),
    ("protected-mode", "yes"),
    ("rdbcompression", "yes"),
    ("replicaof", ""),
    ("requirepass", ""),
    ("save", ""),
    ("stop-writes-on-bgsave-error", "yes"),
    ("stream-node-max-bytes", "4096"),
    ("stream-node-max-entries", "100"),
    ("tcp-backlog", "511"),
    ("unixsocket", ""),
];

impl Default for Settings {
    fn default() -> Self {
        Self {
            databases: 16,
            shards: 1,
            maxmemory: 0,
            policy: Policy::NoEviction,
            maxmemory_samples: 5,
            maxclients: 10_000,
            most_clients: MOST_CLIENTS,
            timeout: 0,
            proto_max_bulk_len: MAX_BULK,
            client_query_buffer_limit: MAX_QUERY,
            output_limits: OutputLimits::default(),
            output_soft_limit: SOFT_OUTPUT,
            durability: Durability::Always,
            tcp_keepalive: 300,
            port: 6379,
            bind: "127.0.0.1".to_owned(),
            dir: String::new(),
            encodings: EncodingLimits::default(),
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            latency_monitor_threshold: 0,
            latency_tracking: false,
            notify_keyspace_events: EventClasses::default(),
            shown: SHOWN.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
        }
    }
}

/// Whether a setting has an effect in Redis and none here: only its current value can be set.
fn is_fixed(name: &str) -> bool {
    name == "activedefrag" || name == "latency-tracking-info-percentiles" || name.contains("-max-")
}

impl Settings {
    /// All names and values, as CONFIG GET shows them.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        let mut all = self.shown.clone();
        all.extend(self.encodings.list());
        all.extend([
            ("appendfsync", self.durability.append_fsync().to_owned()),
            ("appendonly", if self.durability.keeps_log() { "yes" } else { "no" }.to_owned()),
            ("bind", self.bind.clone()),
            ("client-output-buffer-limit", self.output_limits.to_string()),
            ("client-query-buffer-limit", self.client_query_buffer_limit.to_string()),
            ("databases", self.databases.to_string()),
            ("dir", self.dir.clone()),
            ("durability", self.durability.name().to_owned()),
            ("latency-monitor-threshold", self.latency_monitor_threshold.to_string()),
            ("latency-tracking", if self.latency_tracking { "yes" } else { "no" }.to_owned()),
            ("maxclients", self.maxclients.to_string()),
            ("maxmemory", self.maxmemory.to_string()),
            ("maxmemory-policy", self.policy.name().to_owned()),
            ("maxmemory-samples", self.maxmemory_samples.to_string()),
            ("notify-keyspace-events", self.notify_keyspace_events.to_string()),
            ("port", self.port.to_string()),
            ("proto-max-bulk-len", self.proto_max_bulk_len.to_string()),
            ("shards", self.shards.to_string()),
            ("slowlog-log-slower-than", self.slowlog_log_slower_than.to_string()),
            ("slowlog-max-len", self.slowlog_max_len.to_string()),
            ("tcp-keepalive", self.tcp_keepalive.to_string()),
            ("timeout", self.timeout.to_string()),
        ]);
        all.sort();
        all
    }

    /// Changes one setting at run time.
    ///
    /// # Errors
    /// Redis' wording for an unknown name, a value that does not fit, or a setting that is fixed.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        let failed = |reason: &str| {
            Fault::new(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"))
        };
        let number = |least, most| number(value, least, most).map_err(|reason| failed(&reason));
        let yes_or_no = || yes_or_no(value).map_err(|reason| failed(&reason));
        let memory = || parse_memory(value).ok_or_else(|| failed("argument must be a memory value"));
        let input_bytes = || {
            let bytes = i64::try_from(memory()?).unwrap_or(0);
            let bytes = within(bytes, LEAST_INPUT, i64::MAX).map_err(|reason| failed(&reason))?;
            Ok::<u64, Fault>(bytes.unsigned_abs())
        };
        match name {
            "maxmemory" => self.maxmemory = memory()?,
            "maxmemory-policy" => {
                self.policy = Policy::parse(value).ok_or_else(|| {
                    let names = Policy::NAMES.map(|(_, name)| name).join(", ");
                    failed(&format!("argument(s) must be one of the following: {names}"))
                })?;
            }
            "maxmemory-samples" => {
                self.maxmemory_samples = number(1, MOST_SAMPLES)? as usize;
            }
            "maxclients" => {
                let count = number(1, MOST_CLIENTS as i64)? as usize;
                if count > self.most_clients {
                    return Err(failed(&format!(
                        "The operating system is not able to handle the specified number of clients, try with {}",
                        self.most_clients
                    )));
                }
                self.maxclients = count;
            }
            "timeout" => self.timeout = number(0, i32::MAX.into())?.unsigned_abs(),
            "slowlog-log-slower-than" => self.slowlog_log_slower_than = number(-1, i64::MAX)?,
            "slowlog-max-len" => self.slowlog_max_len = number(0, i64::MAX)? as usize,
            "latency-monitor-threshold" => {
                self.latency_monitor_threshold = number(0, i64::MAX)?.unsigned_abs();
            }
            "latency-tracking" => self.latency_tracking = yes_or_no()?,
            "tcp-keepalive" => self.tcp_keepalive = number(0, i32::MAX.into())?.unsigned_abs(),
            "proto-max-bulk-len" => self.proto_max_bulk_len = input_bytes()?,
            "client-query-buffer-limit" => self.client_query_buffer_limit = input_bytes()?,
            "client-output-buffer-limit" => {
                self.output_limits = self.output_limits.changed_by(value).map_err(failed)?;
            }
            // Durability is chosen at start; only the current value is accepted.
            "appendonly" | "appendfsync" | "save" => {
                let current = self.list().into_iter().find(|(known, _)| *known == name);
                if current.is_none_or(|(_, current)| current != value) {
                    return Err(failed("can't be changed at run time; see `sietch up --durability`"));
                }
            }
            "protected-mode" => self.show(name, if yes_or_no()? { "yes" } else { "no" }),
            // The caller of `set` passes it to the users.
            "requirepass" => self.show(name, value),
            "notify-keyspace-events" => {
                self.notify_keyspace_events = EventClasses::parse(value)
                    .ok_or_else(|| failed("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."))?;
            }
            _ if EncodingLimits::knows(name) => self.encodings.set(name, value).map_err(failed)?,
            _ => self.set_shown(name, value, &failed)?,
        }
        Ok(())
    }

    /// Changes a setting that is only shown, if that may be.
    fn set_shown(&mut self, name: &str, value: &str, failed: &dyn Fn(&str) -> Fault) -> Result<(), Fault> {
        if let Some(accepted) = compatible::value(name, value) {
            self.show(name, &accepted.map_err(|reason| failed(&reason))?);
            return Ok(());
        }
        let Some((_, current)) = self.list().into_iter().find(|(known, _)| *known == name) else {
            return Err(Fault::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        };
        match is_fixed(name) {
            true if current == value => Ok(()),
            true => Err(failed(&format!("this has no effect in Sietch; only {current} can be set"))),
            false => Err(failed("can't set immutable config")),
        }
    }

    /// Changes the shown value of a setting.
    pub(crate) fn show(&mut self, name: &str, value: &str) {
        if let Some(entry) = self.shown.iter_mut().find(|(known, _)| *known == name) {
            value.clone_into(&mut entry.1);
        }
    }

    /// Whether clients of other hosts are refused while there is no password.
    pub(crate) fn is_protected(&self) -> bool {
        self.shown.iter().any(|(name, value)| *name == "protected-mode" && value == "yes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_listed_once() {
        let list = Settings::default().list();
        assert!(list.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn no_more_clients_are_allowed_than_there_are_descriptors_for() {
        let mut settings = Settings { most_clients: 500, ..Settings::default() };
        settings.set("maxclients", "500").expect("as many as there may be");
        let refused = |settings: &mut Settings, value: &str| {
            let fault = settings.set("maxclients", value).expect_err("it must be refused");
            String::from_utf8_lossy(&fault.0).into_owned()
        };
        let reason = refused(&mut settings, "501");
        assert!(reason.ends_with("specified number of clients, try with 500"), "{reason}");
        for value in ["0", "4294967296"] {
            let reason = refused(&mut settings, value);
            assert!(reason.ends_with("must be between 1 and 4294967295 inclusive"), "{value}: {reason}");
        }
        assert_eq!(settings.maxclients, 500);
    }

    #[test]
    fn policies_can_be_named() {
        let mut settings = Settings::default();
        settings.set("maxmemory-policy", "allkeys-lru").expect("a known policy");
        assert_eq!(settings.policy, Policy::AllKeysLru);
        assert!(settings.set("maxmemory-policy", "sometimes").is_err());
        assert!(settings.set("no-such-thing", "1").is_err());
        settings.set("save", "").expect("it is empty already");
    }

    #[test]
    fn a_value_that_would_have_no_effect_is_refused() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("maxmemory-samples", "0"),
            ("maxmemory-samples", "65"),
            ("timeout", "2147483648"),
            ("tcp-keepalive", "-1"),
            ("proto-max-bulk-len", "10"),
            ("client-query-buffer-limit", "10"),
            ("client-query-buffer-limit", "9223372036854775808"),
            ("activedefrag", "yes"),
            ("lfu-log-factor", "1"),
            ("appendfsync", "no"),
            ("protected-mode", "1"),
        ] {
            assert!(settings.set(name, value).is_err(), "{name} {value}");
        }
        let before = Settings::default().list();
        assert_eq!(settings.list(), before);
        // Each setting that is shown takes its value, has no effect at all, or cannot be changed.
        for (name, current) in before {
            if let Err(fault) = settings.set(name, &current) {
                let reason = String::from_utf8_lossy(&fault.0).into_owned();
                assert!(reason.ends_with("can't set immutable config"), "{name}: {reason}");
            }
        }
    }
}
