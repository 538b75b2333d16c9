//! A durable log: prints the content of the area's log, appends a line, and returns once the line
//! survives power loss.
//!
//! `cargo run --release -p sietch --example durable_log -- --vsa NAME [--line TEXT]`. `sietch vsa
//! create NAME 64MiB` creates an area for the user that runs it.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use sietch::disk::DiskQueue;
use sietch::persist::{Entry, FormatOptions, Log, Options, is_formatted};
use sietch::{Arguments, Client};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Formats an area that was never used, and opens its log. Returns the log and its records, oldest
/// first.
pub(crate) fn open<D: DiskQueue>(mut disk: D) -> Outcome<(Log<D>, Vec<String>)> {
    if !is_formatted(&mut disk)? {
        let mut identity = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut identity)?;
        Log::format(&mut disk, FormatOptions::new(u128::from_ne_bytes(identity)))?;
    }
    let mut lines = Vec::new();
    let (log, _report) = Log::open(disk, Options::default(), &mut |entry| {
        if let Entry::Record(_, payload) = entry {
            lines.push(String::from_utf8_lossy(payload).into_owned());
        }
        Ok(())
    })?;
    Ok((log, lines))
}

/// Appends a line, and returns once it is durable.
pub(crate) fn append<D: DiskQueue>(log: &mut Log<D>, line: &str) -> Outcome<()> {
    let sequence = log.append(line.as_bytes())?;
    log.submit()?;
    while log.wait(Duration::from_secs(1))? < sequence {}
    Ok(())
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Outcome<()> {
    let arguments = Arguments::from_env()?;
    let name: String = arguments.value("--vsa")?.ok_or("name an area: --vsa NAME")?;
    let mut client = Client::connect(&sietch::socket_path(), "durable_log")?;
    let area = client.acquire_vsa(&name)?;
    let (mut log, lines) = open(area.queue)?;
    lines.iter().for_each(|line| println!("{line}"));
    if let Some(line) = arguments.value::<String>("--line")? {
        append(&mut log, &line)?;
        println!("durable: {line}");
    }
    Ok(())
}
