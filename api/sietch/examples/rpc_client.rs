//! An RPC client: makes calls over one connection, a number of them in flight at once, and reports
//! how long they took.
//!
//! `cargo run --release -p sietch --example rpc_client -- --vnic NAME --to 10.77.0.2:7000 [--calls
//! 100000] [--pipeline 16]`
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;

use sietch::{Arguments, Net, Runtime};

#[path = "rpc/protocol.rs"]
mod protocol;

/// What the calls took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// Calls that were answered.
    pub calls: u64,
    /// Nanoseconds for all of them.
    pub elapsed: u64,
}

/// Makes `calls` calls to `server`, `pipeline` at a time.
pub(crate) async fn call(net: Net, server: SocketAddr, calls: u64, pipeline: u64) -> io::Result<Report> {
    let (mut reader, mut writer) = net.connect(server).await?.split();
    let begin = net.now();
    let (mut sent, mut answered) = (0, 0);
    let mut batch = Vec::new();
    while answered < calls {
        while sent < calls && sent - answered < pipeline {
            protocol::put(&mut batch, sent, b"the spice must flow");
            sent += 1;
        }
        writer.write_all(&batch).await?;
        batch.clear();
        let mut wrong = false;
        let check = |number, body: &[u8]| {
            wrong |= number != answered || body != b"THE SPICE MUST FLOW";
            answered += 1;
        };
        if !protocol::take(&mut reader, check).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if wrong {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that does not fit its call"));
        }
    }
    Ok(Report { calls, elapsed: net.now() - begin })
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let server = arguments.value("--to")?.ok_or("name the server: --to ADDRESS:PORT")?;
    let calls = arguments.value("--calls")?.unwrap_or(100_000);
    let pipeline = arguments.value("--pipeline")?.unwrap_or(16).max(1);
    let report = Runtime::open(&arguments)?.run(|net| call(net, server, calls, pipeline))??;
    let rate = report.calls as f64 * 1e9 / report.elapsed.max(1) as f64;
    println!("{} calls, {pipeline} at a time: {rate:.0} a second", report.calls);
    Ok(())
}
