//! An RPC server: answers each call with its body, in capitals. Calls may be pipelined; those that
//! arrive together are answered with one write.
//!
//! `cargo run --release -p sietch --example rpc_server -- --vnic NAME [--port 7000]`
#![forbid(unsafe_code)]

use std::io;

use sietch::{Arguments, Net, Runtime, TcpStream};

#[path = "rpc/protocol.rs"]
mod protocol;

/// Accepts connections for ever.
pub(crate) async fn serve(net: Net, port: u16) -> io::Result<()> {
    let mut listener = net.listen(port, 1024)?;
    loop {
        let (stream, peer) = listener.accept().await?;
        net.spawn(async move {
            if let Err(cause) = answer(stream).await {
                eprintln!("{peer}: {cause}");
            }
        });
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut answers = Vec::new();
    loop {
        let call = |number, body: &[u8]| protocol::put(&mut answers, number, &body.to_ascii_uppercase());
        if !protocol::take(&mut reader, call).await? {
            return Ok(());
        }
        writer.write_all(&answers).await?;
        answers.clear();
    }
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let port = arguments.value("--port")?.unwrap_or(7000);
    Runtime::open(&arguments)?.run(|net| serve(net, port))??;
    Ok(())
}
