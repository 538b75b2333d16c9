//! The output of `sietch up` once everything serves.

use std::fmt::Write as _;

use sietch::StartupReport;
use sietch_daemon::configuration::FileSystem;
use sietch_protocol::Status;

use super::instance::{self, Failing};
use super::plan::Plan;
use crate::style::{self, Palette, Tone};

/// What serves, and what does not.
pub(super) struct Serving<'a> {
    /// The store's process and report.
    pub store: Option<(u32, &'a StartupReport)>,
    /// Bytes of its area.
    pub area: Option<u64>,
    /// The service core's process.
    pub service: Option<u32>,
    pub file_systems: Vec<(&'a FileSystem, u32)>,
    pub failing: Vec<Failing>,
    /// What the service core reported of its start; usually nothing.
    pub warning: &'a str,
}

/// The lines, each a name and a value.
pub(super) fn render(plan: &Plan, status: &Status, serving: &Serving<'_>, palette: Palette) -> String {
    let mut text = String::new();
    let mut line = |name: &str, what: &str| {
        let name = format!("{name}:");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {what}", palette.paint(Tone::Faint, &format!("{name:<11}")));
    };
    if let Some((_, ready)) = serving.store {
        line("network", &network(plan, status, ready));
        line("addresses", &instance::addresses(ready));
        line("storage", &storage(plan, status, ready, serving.area));
        line("durability", &ready.durability);
    }
    let new = if plan.is_new { " (new)" } else { "" };
    line("data", &format!("{}{new}", plan.data.display()));
    let user = plan
        .account
        .map_or_else(String::new, |account| format!(", uid {} without capabilities", account.uid));
    if let Some((pid, _)) = serving.store {
        line("store", &format!("pid {pid}{user}"));
    }
    if let Some(pid) = serving.service {
        let user = plan
            .service_account
            .map_or_else(String::new, |account| format!(", uid {} without capabilities", account.uid));
        line("service", &format!("pid {pid}{user}"));
    }
    for (FileSystem { name, folder, directory, .. }, pid) in &serving.file_systems {
        let (folder, directory) = (folder.display(), directory.display());
        line("files", &format!("{name}: {directory} shows {folder}, pid {pid}"));
    }
    for failing in &serving.failing {
        line("failing", &failing.to_string());
    }
    line("daemon", &format!("pid {}, generation {}", status.pid, status.generation));
    let own = Some(serving.warning).filter(|warning| !warning.is_empty());
    for warning in own.into_iter().chain(status.warnings.iter().map(String::as_str)) {
        line("warning", warning);
    }
    text
}

fn network(plan: &Plan, status: &Status, ready: &StartupReport) -> String {
    if let Some(address) = ready.vnic {
        let name = &plan.settings.vnic;
        let vnic = status.vnics.iter().find(|vnic| vnic.name == *name);
        let class = vnic.map_or_else(String::new, |vnic| format!(" ({})", vnic.protection));
        return format!("{} VNIC {name} {address}{class}", ready.network);
    }
    let why = ready.reason.clone().or_else(|| status.network.clone().err());
    match why {
        Some(why) => format!("{} sockets, because {why}", ready.network),
        None => format!("{} sockets", ready.network),
    }
}

fn storage(plan: &Plan, status: &Status, ready: &StartupReport, area: Option<u64>) -> String {
    let Some(size) = area else {
        return "none: every key is lost when the store ends".to_owned();
    };
    let name = &plan.settings.vsa;
    let area = status.vsas.iter().find(|vsa| vsa.name == *name);
    let class = area.map_or_else(String::new, |vsa| format!(" ({})", vsa.protection));
    let through = if ready.storage.is_empty() { String::new() } else { format!(", {}", ready.storage) };
    let keys = match ready.keys {
        0 => String::new(),
        keys => format!(", {} keys recovered", style::grouped(keys)),
    };
    format!("VSA {name}, {}{class}{through}{keys}", style::bytes(size))
}
