//! `sietch status`: the daemon, its grants and their holders, and where the store answers.
//!
//! 1. The daemon reports its state over its socket. The record of `sietch up` beside the socket
//!    names the store's process and addresses ([`crate::up::instance`]).
//! 2. `--json` prints the same report as one object.
//! 3. Names that applications chose are printed without control characters.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use sietch_protocol::{GrantStatus, Protection, Status};

use crate::administration;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::style::{self, Cell, Palette, Table, Tone};
use crate::up::instance::{self, Record};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    socket: String,
    /// The `sietch up` that started this daemon, if one runs.
    instance: Option<Record>,
    daemon: Status,
}

/// Prints the daemon's status.
///
/// # Errors
/// [`Error::Control`]: no daemon.
pub(crate) fn run(socket: &Path, json: bool) -> Result<(), Error> {
    let report = Report {
        daemon: administration::connect(socket)?.status()?,
        instance: instance::find(&paths::record(socket))?,
        socket: socket.display().to_string(),
    };
    let text = if json { output::json(&report)? } else { render(&report, Palette::of_stdout()) };
    output::print(&text)
}

fn render(report: &Report, palette: Palette) -> String {
    let daemon = &report.daemon;
    let mut facts = Table::new(0);
    let mut fact = |name: &str, text: String| {
        facts.row(vec![Cell::text(name).tone(Tone::Faint), Cell::text(text)]);
    };
    fact(
        "daemon",
        format!("pid {}, version {}, generation {}", daemon.pid, daemon.version, daemon.generation),
    );
    fact("socket", report.socket.clone());
    fact("configuration", daemon.configuration.clone());
    fact("data", daemon.data.clone());
    match &daemon.network {
        Ok(how) => fact("VNICs", how.clone()),
        Err(why) => fact("VNICs", format!("none, because {why}")),
    }
    if let Some(pid) = daemon.service {
        fact("service core", format!("pid {pid}"));
    }
    if let Some(uplink) = &daemon.uplink {
        fact("uplink", uplink.clone());
    }
    fact("clients", daemon.connections.to_string());
    if let Some(record) = &report.instance {
        fact("store", store(record));
    }
    let mut text = facts.render(palette);
    if !daemon.vnics.is_empty() || !daemon.vsas.is_empty() {
        text.push('\n');
        text.push_str(&grants(daemon).render(palette));
    }
    for warning in &daemon.warnings {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {warning}", palette.paint(Tone::Warning, "warning:"));
    }
    text
}

/// The store's addresses, on one line.
fn store(record: &Record) -> String {
    match &record.ready {
        Some(ready) => {
            format!("{} over {}, durability {}", instance::addresses(ready), ready.network, ready.durability)
        }
        None => "starting".to_owned(),
    }
}

fn grants(daemon: &Status) -> Table {
    let mut table = Table::new(0);
    table.headings(&["grant", "what", "protection", "state", "generation", "holder"]);
    for vnic in &daemon.vnics {
        let six = vnic.address6.map_or_else(String::new, |six| format!(", {six}"));
        let rate = vnic.rate.map_or_else(String::new, |rate| format!(", {rate}"));
        table.row(row(
            &format!("VNIC {}", vnic.name),
            &format!("{}{six}{rate}", vnic.address),
            &vnic.protection,
            vnic.revoked,
            vnic.holder.as_ref(),
        ));
        if let Some(problem) = vnic.problem.as_deref().filter(|_| vnic.holder.is_some()) {
            let name = format!("VNIC {}", vnic.name);
            table.row(vec![Cell::text(name), Cell::text(problem).tone(Tone::Warning)]);
        }
    }
    for vsa in &daemon.vsas {
        table.row(row(
            &format!("VSA {}", vsa.name),
            &vsa.model.map_or_else(
                || style::bytes(vsa.size),
                |model| format!("{} ({model})", style::bytes(vsa.size)),
            ),
            &vsa.protection,
            vsa.revoked,
            vsa.holder.as_ref(),
        ));
    }
    table
}

fn row(
    name: &str,
    what: &str,
    protection: &Protection,
    revoked: bool,
    holder: Option<&GrantStatus>,
) -> Vec<Cell> {
    let class = Cell::text(protection).tone(match protection {
        Protection::None(_) => Tone::Warning,
        _ => Tone::Good,
    });
    let state = match (revoked, holder) {
        (true, _) => Cell::text("revoked").tone(Tone::Bad),
        (false, Some(_)) => Cell::text("held").tone(Tone::Good),
        (false, None) => Cell::text("free"),
    };
    let (generation, holder) = match holder {
        Some(grant) => {
            let away = if grant.connected { "" } else { ", not connected" };
            let holder = format!("{}: pid {}, uid {}{away}", grant.client, grant.pid, grant.uid);
            (Cell::text(grant.generation), Cell::text(holder))
        }
        None => (Cell::text("-"), Cell::text("-")),
    };
    vec![Cell::text(name), Cell::text(what), class, state, generation, holder]
}

#[cfg(test)]
mod tests {
    use sietch::StartupReport;
    use sietch_protocol::VsaStatus;

    use super::*;

    fn daemon() -> Status {
        Status {
            pid: 12,
            version: "0.1.0".to_owned(),
            generation: 3,
            configuration: "/etc/sietch/sietch.toml".to_owned(),
            data: "/var/lib/sietch".to_owned(),
            network: Err("CAP_NET_ADMIN is missing".to_owned()),
            service: Some(13),
            uplink: None,
            connections: 1,
            vnics: Vec::new(),
            vsas: vec![VsaStatus {
                name: "store".to_owned(),
                uid: 61870,
                size: 64 << 20,
                model: None,
                path: "/var/lib/sietch/areas/store.vsa".to_owned(),
                protection: Protection::KernelEnforced,
                revoked: false,
                holder: Some(GrantStatus {
                    grant: 1,
                    generation: 3,
                    pid: 14,
                    uid: 61870,
                    client: "kv".to_owned(),
                    connected: false,
                }),
            }],
            warnings: vec!["volume main: 90 % full".to_owned()],
        }
    }

    #[test]
    fn a_status_shows_the_daemon_its_grants_and_the_store() {
        let ready = StartupReport {
            network: "linux".to_owned(),
            reason: None,
            vnic: None,
            vnic6: None,
            kernel: "127.0.0.1:6379".parse().ok(),
            storage: "io_uring".to_owned(),
            durability: "always".to_owned(),
            keys: 0,
        };
        let instance =
            Record { pid: 11, store: Some(14), data: "/var/lib/sietch".into(), ready: Some(ready) };
        let report = Report {
            socket: "/run/sietch/sietch.sock".to_owned(),
            instance: Some(instance),
            daemon: daemon(),
        };
        insta::assert_snapshot!(render(&report, Palette::plain()), @r"
        daemon         pid 12, version 0.1.0, generation 3
        socket         /run/sietch/sietch.sock
        configuration  /etc/sietch/sietch.toml
        data           /var/lib/sietch
        VNICs          none, because CAP_NET_ADMIN is missing
        service core   pid 13
        clients        1
        store          127.0.0.1:6379 over linux, durability always

        grant      what    protection       state  generation  holder
        VSA store  64 MiB  kernel-enforced  held   3           kv: pid 14, uid 61870, not connected
        warning: volume main: 90 % full
        ");
    }

    #[test]
    fn a_store_that_starts_has_no_address_yet() {
        let instance = Record { pid: 11, store: None, data: "/var/lib/sietch".into(), ready: None };
        let daemon = Status { vsas: Vec::new(), warnings: Vec::new(), ..daemon() };
        let report = Report { socket: "/run/s".to_owned(), instance: Some(instance), daemon };
        insta::assert_snapshot!(render(&report, Palette::plain()), @r"
        daemon         pid 12, version 0.1.0, generation 3
        socket         /run/s
        configuration  /etc/sietch/sietch.toml
        data           /var/lib/sietch
        VNICs          none, because CAP_NET_ADMIN is missing
        service core   pid 13
        clients        1
        store          starting
        ");
    }
}
