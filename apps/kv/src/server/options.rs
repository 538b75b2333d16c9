//! The options that the store is started with.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::foundation::settings::{Durability, Policy};

/// Which data path carries the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetChoice {
    /// A VNIC if the control plane grants one, else kernel sockets.
    #[default]
    Auto,
    /// A VNIC or an error.
    AfXdp,
    /// Kernel sockets.
    Linux,
}

/// The options that the store is started with.
#[derive(Debug)]
pub struct Options {
    /// The data path.
    pub net: NetChoice,
    /// Name of its VNIC.
    pub vnic: String,
    /// Name of its storage area; not used without a log.
    pub vsa: String,
    /// The port it serves on its VNIC.
    pub port: u16,
    /// The address of its kernel socket, if it has one.
    pub listen: Option<SocketAddr>,
    /// Cores that the keys are divided among, from 1 to [`crate::settings::MAX_SHARDS`].
    pub shards: usize,
    /// When replies to writes leave.
    pub durability: Durability,
    /// Bytes that the data set may take; 0: no limit.
    pub maxmemory: u64,
    /// What happens when they are used up.
    pub policy: Policy,
    /// The daemon's socket; `None`: the default path.
    pub control_socket: Option<PathBuf>,
    /// Gets one line of JSON when the store serves (`sietch::StartupReport`).
    pub ready: Option<OwnedFd>,
    /// Use epoll and `pwritev2` even where io_uring works.
    pub without_io_uring: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            net: NetChoice::Auto,
            vnic: "kv".into(),
            vsa: "kv".into(),
            port: 6379,
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 6379))),
            shards: 1,
            durability: Durability::Always,
            maxmemory: 0,
            policy: Policy::NoEviction,
            control_socket: None,
            ready: None,
            without_io_uring: false,
        }
    }
}
