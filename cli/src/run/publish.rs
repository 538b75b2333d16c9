//! Ports of the host that lead to the program's: `--publish`.
//!
//! 1. The program's own library opens the kernel's sockets for them when the program listens
//!    ([`socket_service::Published`]); here they are written into its environment.
//! 2. Each name is bound once as a test. An unavailable one is thus reported here, rather than by
//!    an error of the program's `listen`. A name in use may be that of a program that has just
//!    ended: a request to the service gives the service time to notice.
//! 3. Without a VNIC the program has the host's addresses. Then only another port or another
//!    address makes sense.

use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use sietch_protocol::socket_service::{MAX_PUBLISHED, MAX_PUBLISHED_PER_PORT};

use super::environment::Service;
use super::error::RunError;
use crate::arguments::run::Publish;

/// How often a name that is taken is tried again.
const BIND_RETRIES: u32 = 2;

/// The value of the variable, if a port is to be published.
///
/// # Errors
/// [`RunError::Publish`], [`RunError::PublishedAlready`], [`RunError::PublishMost`].
pub(super) fn variable(
    all: &[Publish],
    on_vnic: bool,
    service: &Service<'_>,
) -> Result<Option<String>, RunError> {
    if all.len() > MAX_PUBLISHED {
        return Err(RunError::PublishMost { most: MAX_PUBLISHED, what: "a program".to_owned() });
    }
    for Publish(publish) in all {
        let (ports, port) = (publish.to_string(), publish.port);
        if !on_vnic && publish.host.port() == port && publish.host.ip().is_loopback() {
            return Err(RunError::PublishedAlready { ports, port });
        }
        if all.iter().filter(|Publish(other)| other.port == port).count() > MAX_PUBLISHED_PER_PORT {
            let what = format!("port {port}");
            return Err(RunError::PublishMost { most: MAX_PUBLISHED_PER_PORT, what });
        }
        let host = publish.host;
        let mut tried = try_name(host);
        for _ in 0..BIND_RETRIES {
            if tried != Err(Errno::ADDRINUSE) || service.greet().is_err() {
                break;
            }
            tried = try_name(host);
        }
        tried.map_err(|cause| RunError::Publish { ports, host, cause })?;
    }
    let list: Vec<String> = all.iter().map(Publish::to_string).collect();
    Ok((!list.is_empty()).then(|| list.join(",")))
}

/// Whether the kernel lets this user listen there.
fn try_name(name: SocketAddr) -> Result<(), Errno> {
    let family = if name.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &name)?;
    rustix::net::listen(&socket, 1)
}

/// The advice for an error.
pub(super) fn fix(cause: &Errno) -> &'static str {
    match *cause {
        Errno::ADDRINUSE => {
            "another process has it (`ss -ltnp` shows which): end that, or choose another port of the host"
        }
        Errno::ACCESS | Errno::PERM => {
            "ports below 1024 take root or CAP_NET_BIND_SERVICE, as without Sietch (net.ipv4.ip_unprivileged_port_start): choose a higher port of the host"
        }
        Errno::ADDRNOTAVAIL => {
            "it is no address of this host (`ip address` lists them): name one, or 0.0.0.0 for all"
        }
        Errno::AFNOSUPPORT => "this host has no IPv6: name an IPv4 address",
        _ => "choose another port of the host",
    }
}
