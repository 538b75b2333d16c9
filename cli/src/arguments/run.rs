//! `sietch run`.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use sietch_protocol::socket_service::Published;

/// What to run, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArguments {
    /// Give the program this VNIC's addresses, and reach other machines through it [default: the
    /// host's addresses; connections to programs that are not under Sietch go through the kernel]
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,

    /// Also accept connections for the program's PORT on a port of the host: PORT (with --vnic),
    /// HOST_PORT:PORT, or ADDRESS:HOST_PORT:PORT [default address: 127.0.0.1]; may be given several
    /// times
    #[arg(long, value_name = "[[ADDRESS:]HOST_PORT:]PORT")]
    pub publish: Vec<Publish>,

    /// Read and write the files on this mount without the kernel, where that is faster; its file
    /// system must be served (`sietch fs serve`). The program holds the media then, whatever owners
    /// and modes files have, until it gives up rights (setuid, chroot, ...); may be given several
    /// times
    #[arg(long, value_name = "DIR")]
    pub fs: Vec<PathBuf>,

    /// The service's socket [default: sockets.sock beside the daemon's socket, if `--socket` names
    /// one; else $SIETCH_SOCKETS; else beside the daemon's]
    #[arg(long, value_name = "PATH")]
    pub sockets: Option<PathBuf>,

    /// Run the program on the kernel's sockets if Sietch cannot serve it, or does not run
    #[arg(long)]
    pub anyway: bool,

    /// Keep short-lived connections too (by default they stay on kernel TCP, where setup is
    /// cheaper, if a program makes many of them a second)
    #[arg(long)]
    pub always: bool,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// A port of the host that leads to one of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publish(pub Published);

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} names no ports; write 6379, 80:8080, 0.0.0.0:80:8080 or [::]:80:8080");
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(wrong()),
        };
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let Some((before, inside)) = text.rsplit_once(':') else {
            let port = port(text)?;
            return Ok(Self(Published { host: SocketAddr::new(localhost, port), port }));
        };
        let (address, host_port) = match before.rsplit_once(':') {
            None => (localhost, before),
            Some((address, host_port)) => {
                let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let parsed: IpAddr = bare.unwrap_or(address).parse().map_err(|_| wrong())?;
                // Without brackets an IPv6 address and the ports after it are one.
                if parsed.is_ipv6() != bare.is_some() {
                    return Err(wrong());
                }
                (parsed, host_port)
            }
        };
        Ok(Self(Published { host: SocketAddr::new(address, port(host_port)?), port: port(inside)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_are_read_and_written_in_one_form() {
        for (text, written) in [
            ("6379", "127.0.0.1:6379:6379"),
            ("80:8080", "127.0.0.1:80:8080"),
            ("0.0.0.0:80:8080", "0.0.0.0:80:8080"),
            ("[::1]:80:8080", "[::1]:80:8080"),
        ] {
            let publish: Publish = text.parse().expect(text);
            assert_eq!(publish.to_string(), written);
            assert_eq!(written.parse(), Ok(publish));
        }
        for wrong in [
            "",
            "0",
            "80:",
            ":80",
            "::1:80:80",
            "[127.0.0.1]:80:80",
            "70000",
            "a:b:c",
            "80:0",
            "1.2.3.4:80:80:80",
        ] {
            assert!(wrong.parse::<Publish>().is_err(), "{wrong}");
        }
    }
}
