//! `sietch vsa`: storage areas and the volumes they are on.
//!
//! 1. Each command is one request to the daemon, which decides. This module prints the reply.
//! 2. `cat` and `ls` read piece by piece, so an area or a directory of any size needs little
//!    memory. A file of a view comes from the area's holder, through the daemon.
//! 3. Making or growing an area writes all of it, so the wait for the reply is long
//!    ([`WORK_TIMEOUT`]).

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use sietch_protocol::message::MAX_PIECE;
use sietch_protocol::{
    AreaStatus, CallError, Connection, FileKind, Protection, ViewOperation, ViewReply, ViewRequest,
    VolumeStatus,
};

use crate::administration;
use crate::arguments::vsa::{CatArguments, LsArguments, VsaCommand};
use crate::error::Error;
use crate::output;
use crate::style::{self, Cell, Palette, Table, Tone, escaped};

/// How long making or growing an area may take: 10 TiB are written at 1 GB/s in three hours.
const WORK_TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// Does what the command says.
///
/// # Errors
/// [`Error::Control`]: no daemon, or it refuses.
pub(crate) fn run(socket: &Path, command: &VsaCommand) -> Result<(), Error> {
    let mut connection = administration::connect(socket)?;
    connection.set_timeout(WORK_TIMEOUT);
    let text = match command {
        VsaCommand::Create(create) => {
            line("made", &connection.create_vsa(&create.name, create.size.0, create.uid)?)
        }
        VsaCommand::Resize(resize) => line("resized", &connection.resize_vsa(&resize.name, resize.size.0)?),
        VsaCommand::Trim(trim) => {
            let length = trim.length.map(|length| length.0);
            line("trimmed", &connection.trim_vsa(&trim.name, trim.offset.0, length)?)
        }
        VsaCommand::Delete(area) => {
            connection.delete_vsa(&area.name)?;
            format!("{} is deleted\n", area.name)
        }
        VsaCommand::Cat(area) => return cat(&mut connection, area),
        VsaCommand::Ls(view) => return list(&mut connection, view),
        VsaCommand::List(list) => {
            let areas = connection.vsas()?;
            if list.json { output::json(&areas)? } else { render_areas(&areas, Palette::of_stdout()) }
        }
        VsaCommand::Usage(usage) => {
            let volumes = connection.volumes()?;
            if usage.json { output::json(&volumes)? } else { render_volumes(&volumes, Palette::of_stdout()) }
        }
    };
    output::print(&text)
}

/// Writes the bytes of an area to standard output.
fn cat(connection: &mut Connection, arguments: &CatArguments) -> Result<(), Error> {
    if let Some(view) = &arguments.view {
        return cat_view(connection, arguments, view);
    }
    let (area, file) = connection.read_vsa(&arguments.name)?;
    let mut at = arguments.offset.0;
    let length = arguments.length.map_or(u64::MAX, |length| length.0);
    let end = at.saturating_add(length).min(area.size);
    let mut out = std::io::stdout().lock();
    let mut bytes = vec![0; MAX_PIECE as usize];
    while at < end {
        let wanted = (end - at).min(MAX_PIECE.into());
        let piece = match &file {
            Some(file) => {
                let count = rustix::io::pread(file, &mut bytes[..wanted as usize], at)
                    .map_err(|source| Error::file(Path::new(&area.path), "check its disk")(source.into()))?;
                &bytes[..count]
            }
            None => {
                bytes = connection.read_vsa_at(&area.path, at, wanted as u32)?;
                &bytes[..]
            }
        };
        if piece.is_empty() {
            break;
        }
        out.write_all(piece).map_err(output::failed)?;
        at += piece.len() as u64;
    }
    out.flush().map_err(output::failed)
}

/// Writes a file of a view to standard output.
fn cat_view(connection: &mut Connection, arguments: &CatArguments, view: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let mut at = arguments.offset.0;
    let mut left = arguments.length.map_or(u64::MAX, |length| length.0);
    while left > 0 {
        let length = left.min(MAX_PIECE.into()) as u32;
        let operation = ViewOperation::Read { offset: at, length };
        let request = ViewRequest { path: view.to_owned(), operation };
        let (_, piece) = connection.view(&arguments.name, request)?;
        out.write_all(&piece).map_err(output::failed)?;
        at += piece.len() as u64;
        left -= piece.len() as u64;
        if piece.len() < length as usize {
            break;
        }
    }
    out.flush().map_err(output::failed)
}

/// Lists a directory of a view, a name a line, those of directories with a `/` behind them.
fn list(connection: &mut Connection, arguments: &LsArguments) -> Result<(), Error> {
    // Another program gets the names as they are.
    let is_terminal = std::io::stdout().is_terminal();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let request =
            ViewRequest { path: arguments.directory.clone(), operation: ViewOperation::List { cursor: at } };
        let (ViewReply::Page(page), _) = connection.view(&arguments.name, request)? else {
            return Err(CallError::Unexpected("no page").into());
        };
        let mut text = String::new();
        for entry in page.entries {
            if is_terminal {
                text += &escaped(&entry.name)
            } else {
                text += &entry.name
            }
            text.push_str(if entry.attributes.kind == FileKind::Directory { "/\n" } else { "\n" });
        }
        output::print(&text)?;
        cursor = page.next;
    }
    Ok(())
}

fn line(verb: &str, area: &AreaStatus) -> String {
    format!("{} is {verb}: {}, uid {}, {}\n", area.path, style::bytes(area.size), area.uid, area.protection)
}

fn render_areas(areas: &[AreaStatus], palette: Palette) -> String {
    if areas.is_empty() {
        return "no areas yet; `sietch vsa create` makes one\n".to_owned();
    }
    let mut table = Table::new(0);
    table.headings(&["area", "uid", "size", "used", "allocated", "extents", "protection", "state", "holder"]);
    for area in areas {
        let class = Cell::text(&area.protection).tone(match area.protection {
            Protection::None(_) => Tone::Warning,
            _ => Tone::Good,
        });
        let state = style::state(area.revoked, area.holder.is_some(), area.usage);
        let holder = area.holder.as_ref().map(|grant| format!("{}: pid {}", grant.client, grant.pid));
        table.row(vec![
            Cell::text(&area.path),
            Cell::text(area.uid),
            Cell::text(style::bytes(area.size)).right(),
            Cell::text(area.usage.map_or_else(|| "-".to_owned(), |usage| style::bytes(usage.used))).right(),
            Cell::text(style::bytes(area.allocated)).right(),
            Cell::text(area.extents.map_or_else(|| "-".to_owned(), |count| count.to_string())).right(),
            class,
            state,
            Cell::text(holder.unwrap_or_else(|| "-".to_owned())),
        ]);
    }
    table.render(palette)
}

fn render_volumes(volumes: &[VolumeStatus], palette: Palette) -> String {
    let mut table = Table::new(0);
    table.headings(&["volume", "kind", "capacity", "free", "areas", "at power loss", "where"]);
    let mut quotas = Table::new(0);
    quotas.headings(&["quota", "uid", "used", "of"]);
    let mut limited = false;
    for volume in volumes {
        let model = volume.model.map(|model| format!(" ({model})")).unwrap_or_default();
        let (promise, tone) = match &volume.broken {
            Some(why) => (format!("broken: {why}"), Tone::Bad),
            None => (format!("{}{model}", volume.durability), Tone::Plain),
        };
        table.row(vec![
            Cell::text(&volume.name),
            Cell::text(volume.kind),
            Cell::text(style::bytes(volume.capacity)).right(),
            Cell::text(style::bytes(volume.free)).right(),
            Cell::number(volume.areas.into()),
            Cell::text(promise).tone(tone),
            Cell::text(&volume.path),
        ]);
        for quota in &volume.quotas {
            limited = true;
            quotas.row(vec![
                Cell::text(&volume.name),
                Cell::text(quota.uid),
                Cell::text(style::bytes(quota.used)).right(),
                Cell::text(style::bytes(quota.bytes)).right(),
            ]);
        }
    }
    let mut text = table.render(palette);
    if limited {
        text.push('\n');
        text.push_str(&quotas.render(palette));
    }
    text
}

#[cfg(test)]
mod tests {
    use sietch_protocol::{MemoryModel, QuotaStatus, VolumeKind};

    use super::*;

    #[test]
    fn a_volume_of_memory_shows_its_durability_and_its_memory_model() {
        let volume = VolumeStatus {
            name: "ram".to_owned(),
            kind: VolumeKind::Memory,
            path: "/run/ram".to_owned(),
            broken: None,
            capacity: 1 << 30,
            free: 1 << 29,
            areas: 1,
            model: Some(MemoryModel { read_ns: 300, bytes_per_second: 2_000_000_000 }),
            durability: "memory, lost at power off".to_owned(),
            quotas: vec![QuotaStatus { uid: 1000, bytes: 1 << 30, used: 1 << 29 }],
        };
        insta::assert_snapshot!(render_volumes(&[volume], Palette::plain()), @r"
        volume  kind    capacity  free     areas  at power loss                                                   where
        ram     memory     1 GiB  512 MiB      1  memory, lost at power off (+300 ns a read, 2000000000 bytes/s)  /run/ram

        quota  uid   used     of
        ram    1000  512 MiB  1 GiB
        ");
    }

    #[test]
    fn without_areas_the_list_says_how_to_make_one() {
        insta::assert_snapshot!(render_areas(&[], Palette::plain()), @"no areas yet; `sietch vsa create` makes one");
    }
}
