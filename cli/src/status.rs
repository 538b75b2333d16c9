//! `sietch status`: the daemon, its grants and their holders, and where the store answers.
//!
//! 1. The daemon reports its state over its socket. The record of `sietch up` beside the socket
//!    names the store's process and addresses ([`crate::up::instance`]), and what does not run
//!    although it should, which may be the daemon itself.
//! 2. `--json` prints the same report as one object.
//! 3. Names that applications chose are printed without control characters.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use sietch_protocol::{GrantStatus, Protection, Status, VsaStatus};

use crate::administration;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::process;
use crate::style::{self, Cell, Palette, Table, Tone};
use crate::up::instance::{self, Record};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    socket: String,
    /// The `sietch up` that started this daemon, if one runs.
    instance: Option<Record>,
    /// None while the daemon does not run.
    daemon: Option<Status>,
    /// The processes of both that are stopped.
    stopped: Vec<Stopped>,
}

/// A process that is there and does nothing.
#[derive(Debug, Serialize)]
struct Stopped {
    what: &'static str,
    pid: u32,
}

/// Prints the daemon's status.
///
/// # Errors
/// [`Error::Control`]: no daemon. What an instance without one does is printed all the same.
pub(crate) fn run(socket: &Path, json: bool) -> Result<(), Error> {
    let daemon = administration::connect(socket).and_then(|mut daemon| Ok(daemon.status()?));
    let instance = instance::find(&paths::record(socket))?;
    let (daemon, failure) = match daemon {
        Ok(status) => (Some(status), None),
        Err(cause) if instance.is_none() => return Err(cause),
        Err(cause) => (None, Some(cause)),
    };
    let store = instance.as_ref().and_then(|record| record.store);
    let service = daemon.as_ref().and_then(|daemon| daemon.service);
    let stopped = [("store", store), ("service core", service)].into_iter();
    let stopped = stopped.filter_map(|(what, pid)| Some(Stopped { what, pid: pid? }));
    let stopped = stopped.filter(|Stopped { pid, .. }| process::is_stopped(*pid)).collect();
    let report = Report { daemon, instance, socket: socket.display().to_string(), stopped };
    let text = if json { output::json(&report)? } else { render(&report, Palette::of_stdout()) };
    output::print(&text)?;
    failure.map_or(Ok(()), Err)
}

fn render(report: &Report, palette: Palette) -> String {
    let mut facts = Table::new(0);
    let mut fact = |name: &str, text: String| {
        facts.row(vec![Cell::text(name).tone(Tone::Faint), Cell::text(text)]);
    };
    if let Some(daemon) = &report.daemon {
        fact(
            "daemon",
            format!("pid {}, version {}, generation {}", daemon.pid, daemon.version, daemon.generation),
        );
    }
    fact("socket", report.socket.clone());
    if let Some(daemon) = &report.daemon {
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
    }
    if let Some(record) = &report.instance {
        fact("store", store(record));
    }
    let mut text = facts.render(palette);
    if let Some(daemon) =
        report.daemon.as_ref().filter(|daemon| !(daemon.vnics.is_empty() && daemon.vsas.is_empty()))
    {
        text.push('\n');
        text.push_str(&grants(daemon).render(palette));
    }
    let failing = report.instance.iter().flat_map(|record| &record.failing).map(ToString::to_string);
    let unmounted = report.instance.iter().flat_map(|record| &record.unmounted);
    let unmounted = unmounted.map(|name| format!("{name} was unmounted: {}", instance::UNMOUNTED));
    let warnings = report.daemon.iter().flat_map(|daemon| daemon.warnings.clone());
    let full = report.daemon.iter().flat_map(|daemon| &daemon.vsas).filter_map(full);
    let stopped = report.stopped.iter().map(|Stopped { what, pid }| {
        format!("the {what}, pid {pid}, is stopped (SIGSTOP): `kill -CONT {pid}` lets it go on")
    });
    for warning in failing.chain(unmounted).chain(stopped).chain(full).chain(warnings) {
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
        None if record.failing.iter().any(|failing| failing.part == "the store") => "does not run".to_owned(),
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
            style::state(vnic.revoked, vnic.holder.is_some(), None),
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
            &area(vsa),
            &vsa.protection,
            style::state(vsa.revoked, vsa.holder.is_some(), vsa.usage),
            vsa.holder.as_ref(),
        ));
    }
    table
}

/// Size of an area, how much of it is used, and its memory model.
fn area(vsa: &VsaStatus) -> String {
    let used = vsa.usage.map_or_else(String::new, |usage| format!(", {} used", style::bytes(usage.used)));
    let model = vsa.model.map_or_else(String::new, |model| format!(" ({model})"));
    format!("{}{used}{model}", style::bytes(vsa.size))
}

/// The warning that an area is full.
fn full(vsa: &VsaStatus) -> Option<String> {
    let usage = vsa.usage.filter(|usage| usage.full)?;
    let (name, used, size) = (&vsa.name, style::bytes(usage.used), style::bytes(vsa.size));
    Some(format!(
        "VSA {name} is full: {used} of {size} are used, and writes are refused; delete data, or grow it while it is used: `sietch vsa resize {name} SIZE`"
    ))
}

fn row(
    name: &str,
    what: &str,
    protection: &Protection,
    state: Cell,
    holder: Option<&GrantStatus>,
) -> Vec<Cell> {
    let class = Cell::text(protection).tone(match protection {
        Protection::None(_) => Tone::Warning,
        _ => Tone::Good,
    });
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
    use sietch_protocol::AreaUsage;

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
                usage: Some(AreaUsage { used: 63 << 20, full: true }),
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
        let instance = Record {
            pid: 11,
            store: Some(14),
            data: "/var/lib/sietch".into(),
            ready: Some(ready),
            failing: Vec::new(),
            unmounted: Vec::new(),
        };
        let report = Report {
            socket: "/run/sietch/sietch.sock".to_owned(),
            instance: Some(instance),
            daemon: Some(daemon()),
            stopped: vec![Stopped { what: "store", pid: 14 }],
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

        grant      what                 protection       state  generation  holder
        VSA store  64 MiB, 63 MiB used  kernel-enforced  full   3           kv: pid 14, uid 61870, not connected
        warning: the store, pid 14, is stopped (SIGSTOP): `kill -CONT 14` lets it go on
        warning: VSA store is full: 63 MiB of 64 MiB are used, and writes are refused; delete data, or grow it while it is used: `sietch vsa resize store SIZE`
        warning: volume main: 90 % full
        ");
    }

    #[test]
    fn a_store_that_starts_has_no_address_yet() {
        let instance = Record { pid: 11, store: None, data: "/var/lib/sietch".into(), ..Record::default() };
        let daemon = Status { vsas: Vec::new(), warnings: Vec::new(), ..daemon() };
        let report = Report {
            socket: "/run/s".to_owned(),
            instance: Some(instance),
            daemon: Some(daemon),
            stopped: Vec::new(),
        };
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
