//! `[kv]`: the store that `sietch up` starts.

use std::net::{IpAddr, Ipv4Addr};

use serde::Deserialize;
use sietch_protocol::types::Size;
use toml::Spanned;

use super::error::ConfigurationError;
use super::limits::{KV_UID, MAX_KV_SHARDS};
use super::rules::{Rules, User};
use super::vnics::Vnic;
use super::vsas::Vsa;

/// The policies Redis has.
const POLICIES: [&str; 8] = [
    "noeviction",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

/// `[kv]`: what `sietch up` starts. The daemon only checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kv {
    /// The user it runs as.
    pub uid: u32,
    /// Its VNIC's name.
    pub vnic: String,
    /// Its VSA's name.
    pub vsa: String,
    /// Addresses of the host that it answers on beside its VNIC's.
    pub listen: Vec<IpAddr>,
    /// Its port, everywhere.
    pub port: u16,
    /// Cores that its keys are divided among; none: 1.
    pub shards: Option<u16>,
    /// Bytes of data at which it evicts or refuses; 0 is no limit.
    pub maxmemory: u64,
    /// What it does then, in Redis' words.
    pub maxmemory_policy: String,
    /// `always`, `interval`, `never` or `none`.
    pub durability: String,
}

impl Kv {
    /// The keys whose values differ.
    pub(crate) fn changed(&self, other: &Self) -> Vec<&'static str> {
        let Self { uid, vnic, vsa, listen, port, shards, maxmemory, maxmemory_policy, durability } = self;
        let keys = [
            ("uid", *uid == other.uid),
            ("vnic", *vnic == other.vnic),
            ("vsa", *vsa == other.vsa),
            ("listen", *listen == other.listen),
            ("port", *port == other.port),
            ("shards", *shards == other.shards),
            ("maxmemory", *maxmemory == other.maxmemory),
            ("maxmemory_policy", *maxmemory_policy == other.maxmemory_policy),
            ("durability", *durability == other.durability),
        ];
        keys.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct KvText {
    uid: Option<Spanned<User>>,
    vnic: Option<String>,
    vsa: Option<String>,
    listen: Option<Spanned<Vec<IpAddr>>>,
    port: Option<Spanned<u16>>,
    shards: Option<Spanned<u16>>,
    maxmemory: Option<Size>,
    maxmemory_policy: Option<Spanned<String>>,
    durability: Option<Spanned<String>>,
}

/// The first port that every user may listen on.
pub(super) fn unprivileged_ports() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

impl Rules<'_> {
    /// Checks `[kv]`. If the table names no user, the user of its area or VNIC applies.
    pub(super) fn kv(&self, kv: KvText, vnics: &[Vnic], vsas: &[Vsa]) -> Result<Kv, ConfigurationError> {
        let one_of = |text: Option<Spanned<String>>, key: &str, words: &[&str]| match text {
            None => Ok(words[0].to_owned()),
            Some(text) if words.contains(&text.get_ref().as_str()) => Ok(text.into_inner()),
            Some(text) => {
                let cause = format!("`{}` is no {key}", text.get_ref().escape_debug());
                let fix = format!("write one of {}", words.join(", "));
                Err(self.refuse(text.span().start, "[kv]".to_owned(), cause, fix))
            }
        };
        if let Some(port) = kv.port.as_ref().filter(|port| *port.get_ref() == 0) {
            let cause = "0 is no port".to_owned();
            return Err(self.refuse(port.span().start, "[kv]".to_owned(), cause, "write 1 to 65535"));
        }
        if let Some(listen) = kv.listen.as_ref().filter(|listen| listen.get_ref().len() > 1) {
            let cause = "the store listens on one address of the host".to_owned();
            let fix = "name one; \"0.0.0.0\" or \"::\" stand for all of a family";
            return Err(self.refuse(listen.span().start, "[kv]".to_owned(), cause, fix));
        }
        let vnic = kv.vnic.unwrap_or_else(|| "kv".to_owned());
        let vsa = kv.vsa.unwrap_or_else(|| "kv".to_owned());
        let uid = match &kv.uid {
            Some(user) => self.uid("[kv]", user)?,
            None => vsas
                .iter()
                .find(|other| other.name == vsa)
                .map(|other| other.uid)
                .or_else(|| vnics.iter().find(|other| other.name == vnic).map(|other| other.uid))
                .unwrap_or(KV_UID),
        };
        let shards = match kv.shards {
            Some(shards) if !(1..=MAX_KV_SHARDS).contains(shards.get_ref()) => {
                let cause = format!("{} is no number of shards", shards.get_ref());
                let fix = format!("write 1 to {MAX_KV_SHARDS}, or leave it out for 1");
                return Err(self.refuse(shards.span().start, "[kv]".to_owned(), cause, fix));
            }
            shards => shards.map(Spanned::into_inner),
        };
        Ok(Kv {
            uid,
            vnic,
            vsa,
            listen: kv.listen.map_or_else(|| vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], Spanned::into_inner),
            port: kv.port.map_or(6379, Spanned::into_inner),
            shards,
            maxmemory: kv.maxmemory.map_or(0, |size| size.bytes),
            maxmemory_policy: one_of(kv.maxmemory_policy, "maxmemory_policy", &POLICIES)?,
            durability: one_of(kv.durability, "durability", &["always", "interval", "never", "none"])?,
        })
    }
}
