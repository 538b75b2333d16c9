//! `sietch sockets`, and `sietch revoke APPLICATION`: the sockets of programs under `sietch run`,
//! and their revocation.
//!
//! 1. The socket service lists them: everything over the administrators' socket, where this user
//!    may use it, else the user's own.
//! 2. To revoke, the service closes the application's listeners and marks its connections as reset.
//!    A program that sleeps in a call does not poll memory. So the placeholder sockets of those
//!    connections are shut down as well, in every process that has them and that this user may
//!    access ([`wake`]). Where access is denied, the program notices at its next call.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sietch_protocol::administration;
use sietch_protocol::socket_service::{Descriptors, ReplyKind, Request, RequestKind, call};
use sietch_service::sockets::{Listing, Revocation};

use crate::arguments::SocketsArguments;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::style::{Cell, Palette, Table};

/// Bytes of a list at most.
const MOST: u64 = 64 << 20;

/// The id of an application, as lists show it: 32 hexadecimal digits; then perhaps `@` and its
/// user's number.
pub(crate) fn application(text: &str) -> Option<([u8; 16], Option<u32>)> {
    let (text, user) = match text.split_once('@') {
        Some((text, user)) => (text, Some(user.parse().ok()?)),
        None => (text, None),
    };
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(|id| (id.to_be_bytes(), user))
}

/// Lists.
///
/// # Errors
/// [`Error::SocketService`]: no service runs.
pub(crate) fn run(daemon: Option<&Path>, arguments: &SocketsArguments) -> Result<(), Error> {
    let path = arguments.sockets.clone().unwrap_or_else(|| paths::sockets(daemon));
    let listing: Listing = query(&path, &Request::new(RequestKind::List, [0; 16]))?;
    let text = if arguments.json { output::json(&listing)? } else { render(&listing, Palette::of_stdout()) };
    output::print(&text)
}

/// Closes the listeners and connections of an application.
///
/// # Errors
/// [`Error::SocketService`]: no service runs, or there is no such application of this user.
pub(crate) fn revoke(daemon: Option<&Path>, name: &str) -> Result<(), Error> {
    let path = paths::sockets(daemon);
    let (id, user) = application(name).unwrap_or_default();
    let mut request = Request::new(RequestKind::Revoke, id);
    user.into_iter().for_each(|uid| request.set_user(uid));
    let revocation: Revocation = query(&path, &request)?;
    wake(&revocation.connections.iter().flatten().copied().collect());
    output::print(&format!(
        "{name}: {} listeners closed, {} connections reset\n",
        revocation.listeners,
        revocation.connections.len()
    ))
}

/// Sends a request to the socket service at `path`, and parses the list in its reply.
///
/// # Errors
/// [`Error::SocketService`]: no service runs, or it refuses.
pub(crate) fn query<T: serde::de::DeserializeOwned>(path: &Path, request: &Request) -> Result<T, Error> {
    let failed = |source: std::io::Error, fix| Error::SocketService { path: path.to_owned(), fix, source };
    let mut received = Descriptors::default();
    let start = "start one with `sietch up`, or name its socket";
    let administrators = administration::administrator_socket(path);
    let mut answer = call(administrators.as_os_str().as_bytes(), request, &[], &mut received);
    if let Err(error) = answer
        && administration::is_unreachable(error)
    {
        answer = call(path.as_os_str().as_bytes(), request, &[], &mut received);
    }
    let reply = answer.map_err(|error| match error {
        // It closed the connection without an answer.
        Errno::PROTO | Errno::CONNRESET => {
            failed(error.into(), "administer from the service's own namespaces")
        }
        _ => failed(error.into(), start),
    })?;
    let file = match (reply.kind(), received.into_iter().flatten().next()) {
        (ReplyKind::Listed, Some(file)) => file,
        (ReplyKind::Refused, _) if reply.error() == Errno::NOTUNIQ => {
            let several = std::io::Error::other("applications of several users have this number");
            return Err(failed(several, "name the user: `sietch revoke NUMBER@UID`"));
        }
        (ReplyKind::Refused, _) if reply.error() == Errno::AGAIN => {
            let limited = std::io::Error::other("this user sends too many requests a second");
            return Err(failed(limited, "try again in a second"));
        }
        (ReplyKind::Refused, _) if reply.error() == Errno::SRCH => {
            let none = std::io::Error::other("no application of this number has anything");
            return Err(failed(none, "`sietch sockets` lists those that there are"));
        }
        _ => return Err(failed(Errno::PROTO.into(), "run service and command from one release")),
    };
    let bytes = sietch_protocol::sealed::read(file, MOST)
        .map_err(|error| failed(std::io::Error::other(error), "try again"))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| failed(error.into(), "run service and command from one release"))
}

/// Shuts down the sockets with these cookies, wherever they are.
fn wake(cookies: &BTreeSet<u64>) {
    if cookies.is_empty() {
        return;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in numbers.filter_map(Pid::from_raw) {
        // The process is another user's, or has ended: there is nothing to do in either case.
        let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
        let (Ok(found), Ok(process)) = (std::fs::read_dir(folder), pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        for entry in found.flatten() {
            let is_socket = std::fs::read_link(entry.path())
                .is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"socket:"));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|_| is_socket) else { continue };
            let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
            let known =
                rustix::net::sockopt::socket_cookie(&socket).is_ok_and(|cookie| cookies.contains(&cookie));
            if known {
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            }
        }
    }
}

fn render(listing: &Listing, palette: Palette) -> String {
    let mut text = String::new();
    let mut applications = Table::new(0);
    applications.headings(&["APPLICATION", "UID", "VNIC", "LISTENERS", "CONNECTED", "ACCEPTED"]);
    for found in &listing.applications {
        applications.row(vec![
            Cell::text(&found.id),
            Cell::text(found.uid).right(),
            Cell::text(found.vnic.as_deref().unwrap_or("-")),
            Cell::number(found.listeners as u64),
            Cell::number(found.connections as u64),
            Cell::number(found.accepted as u64),
        ]);
    }
    text.push_str(&applications.render(palette));
    if !listing.listeners.is_empty() {
        let mut listeners = Table::new(0);
        listeners.headings(&["LISTENS", "BACKLOG", "PID", "APPLICATION", "LEADS TO"]);
        for found in &listing.listeners {
            listeners.row(vec![
                Cell::text(found.name),
                Cell::number(u64::from(found.backlog)),
                Cell::text(found.pid).right(),
                Cell::text(&found.application),
                Cell::text(found.leads_to.as_deref().unwrap_or_default()),
            ]);
        }
        let _ = write!(text, "\n{}", listeners.render(palette));
    }
    if !listing.connections.is_empty() {
        let mut connections = Table::new(0);
        connections.headings(&["CONNECTED", "TO", "APPLICATION", "OF"]);
        for found in &listing.connections {
            connections.row(vec![
                Cell::text(found.local),
                Cell::text(found.peer),
                Cell::text(&found.applications[0]),
                Cell::text(&found.applications[1]),
            ]);
        }
        let _ = write!(text, "\n{}", connections.render(palette));
    }
    if listing.omitted > 0 {
        let _ = writeln!(text, "{} more connections", listing.omitted);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use sietch_service::sockets::{ListedApplication, ListedConnection, ListedListener};

    #[test]
    fn an_application_is_named_by_all_its_digits() {
        assert_eq!(
            application("000102030405060708090a0b0c0d0eff").map(|(id, _)| (id[1], id[15])),
            Some((1, 255))
        );
        let of = application("000102030405060708090a0b0c0d0eff@1000");
        assert_eq!(of.and_then(|(_, user)| user), Some(1000));
        assert_eq!(application("kv"), None);
        assert_eq!(application("000102030405060708090a0b0c0d0ef"), None);
        assert_eq!(application("+00102030405060708090a0b0c0d0eff"), None);
    }

    #[test]
    fn a_list_shows_applications_listeners_and_connections() {
        let id = "07".repeat(16);
        let listing = Listing {
            applications: vec![ListedApplication {
                id: id.clone(),
                uid: 1000,
                listeners: 1,
                connections: 2,
                accepted: 3,
                ..ListedApplication::default()
            }],
            listeners: vec![ListedListener {
                application: id.clone(),
                pid: 77,
                name: "127.0.0.1:6379".parse().expect("an address"),
                namespace: 1,
                backlog: 511,
                leads_to: Some("web 10.85.0.2:80".to_owned()),
                vnic: None,
            }],
            connections: vec![ListedConnection {
                applications: [id.clone(), id.clone()],
                local: "127.0.0.1:61000".parse().expect("an address"),
                peer: "127.0.0.1:6379".parse().expect("an address"),
            }],
            omitted: 4,
        };
        insta::assert_snapshot!(render(&listing, Palette::plain()), @r"
        APPLICATION                       UID   VNIC  LISTENERS  CONNECTED  ACCEPTED
        07070707070707070707070707070707  1000  -             1          2         3

        LISTENS         BACKLOG  PID  APPLICATION                       LEADS TO
        127.0.0.1:6379      511   77  07070707070707070707070707070707  web 10.85.0.2:80

        CONNECTED        TO              APPLICATION                       OF
        127.0.0.1:61000  127.0.0.1:6379  07070707070707070707070707070707  07070707070707070707070707070707
        4 more connections
        ");
    }
}
