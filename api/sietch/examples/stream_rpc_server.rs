//! An RPC server on streams, which unmodified clients reach. A call is a line, and so is its
//! answer, in the order of the calls:
//!
//! | call | answer |
//! | --- | --- |
//! | `echo TEXT` | `TEXT` |
//! | `add A B ...` | the sum |
//! | `path` | `memory` or `kernel`: how this client is connected |
//! | `open` | how many connections are open |
//!
//! Clients under `sietch run`, and those that link Sietch, come through memory; all others through
//! the kernel. Calls may be pipelined: those that arrive together are answered together.
//!
//! `cargo run --release -p sietch --example stream_rpc_server -- [--listen 127.0.0.1:7000]`
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sietch::stream::Path;
use sietch::{Arguments, Net, Runtime, Stream};

/// Between two attempts to accept while descriptors are short.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

/// The longest call, in bytes.
const LONGEST: usize = 64 << 10;

/// Accepts connections until the application is revoked.
pub(crate) async fn serve(net: Net, address: SocketAddr) -> io::Result<()> {
    let streams = net.streams(sietch::socket_service()?)?;
    let mut listener = streams.listen(address, 1024)?;
    let open = Rc::new(Cell::new(0_u64));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => return Err(cause),
            Err(cause) => {
                // Without a free descriptor the connection goes on waiting.
                eprintln!("accept: {cause}");
                net.sleep(SHORTAGE_PAUSE).await;
                continue;
            }
        };
        let open = Rc::clone(&open);
        net.spawn(async move {
            open.set(open.get() + 1);
            if let Err(cause) = answer(stream, &open).await {
                eprintln!("{peer:?}: {cause}");
            }
            open.set(open.get() - 1);
        });
    }
}

/// Answers the calls of one connection.
async fn answer(mut stream: Stream, open: &Cell<u64>) -> io::Result<()> {
    let path = match stream.path() {
        Path::Memory => "memory",
        Path::Kernel => "kernel",
    };
    let (mut calls, mut answers) = (Vec::new(), Vec::new());
    loop {
        // Bytes of the ring may change while they are looked at: a copy is parsed.
        let read = stream.read_with(|pieces| {
            for piece in pieces {
                let before = calls.len();
                calls.resize(before + piece.len(), 0);
                piece.copy_to(0, &mut calls[before..]);
            }
            pieces[0].len() + pieces[1].len()
        });
        if read.await?.is_none() {
            return stream.shutdown().await;
        }
        let whole = calls.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for call in calls[..whole].split_inclusive(|byte| *byte == b'\n') {
            reply(&call[..call.len() - 1], path, open.get(), &mut answers);
        }
        calls.drain(..whole);
        if calls.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a call of more than 64 KiB"));
        }
        let mut sent = 0;
        while sent < answers.len() {
            sent += stream.write_with(|space| _ = space.put(&answers[sent..])).await?;
        }
        answers.clear();
    }
}

/// Appends the answer to one call.
fn reply(call: &[u8], path: &str, open: u64, answers: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(call);
    let (name, words) = text.split_once(' ').unwrap_or((&text, ""));
    let answer = match name {
        "echo" => words.to_owned(),
        "add" => words
            .split_whitespace()
            .map(str::parse::<i64>)
            .try_fold(0_i64, |sum, number| Some(sum.wrapping_add(number.ok()?)))
            .map_or_else(|| "error: not a number".to_owned(), |sum| sum.to_string()),
        "path" => path.to_owned(),
        "open" => open.to_string(),
        _ => "error: no such call".to_owned(),
    };
    answers.extend_from_slice(answer.as_bytes());
    answers.push(b'\n');
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address =
        Arguments::from_env()?.value("--listen")?.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7000)));
    Runtime::without_device()?.run(|net| serve(net, address))??;
    Ok(())
}
