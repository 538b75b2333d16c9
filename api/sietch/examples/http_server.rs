//! A static HTTP server: the files of a folder, read once at the start, over connections that are
//! kept alive.
//!
//! `cargo run --release -p sietch --example http_server -- --vnic NAME --folder docs [--port 80]`,
//! then `curl http://ADDRESS/index.html`.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use sietch::{Arguments, Net, Runtime, TcpStream};

#[path = "http/message.rs"]
mod message;
use message::Head;

/// Files by their request path.
pub(crate) type Files = HashMap<String, Arc<[u8]>>;

/// Accepts connections for ever.
pub(crate) async fn serve(net: Net, port: u16, files: Files) -> io::Result<()> {
    let mut listener = net.listen(port, 1024)?;
    let files = Rc::new(files);
    loop {
        let (stream, _) = listener.accept().await?;
        let files = Rc::clone(&files);
        // A client that breaks off costs itself its answer.
        net.spawn(async move { converse(stream, &files).await.ok() });
    }
}

async fn converse(mut client: TcpStream, files: &Files) -> io::Result<()> {
    while let Some(request) = Head::read(&mut client).await? {
        let text = String::from_utf8_lossy(&request.bytes);
        let mut words = text.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let target = if target == "/" { "/index.html" } else { target };
        let answer = match (method, files.get(target)) {
            ("GET" | "HEAD", Some(file)) => message::head("200 OK", file.len(), request.keep_alive),
            ("HEAD", None) => message::head("404 Not Found", 0, request.keep_alive),
            ("GET", None) => message::answer("404 Not Found", b"no such file\n", request.keep_alive),
            // A body, if there is one, is not read: the connection ends here.
            _ => message::answer("405 Method Not Allowed", b"only GET and HEAD\n", false),
        };
        client.write_all(&answer).await?;
        if let ("GET", Some(file)) = (method, files.get(target)) {
            // The file is sent without a copy, to any number of clients at a time.
            client.write_zero_copy(Arc::clone(file)).await?;
        }
        if !request.keep_alive || !matches!(method, "GET" | "HEAD") {
            break;
        }
    }
    Ok(())
}

/// All files under `folder`.
fn read(folder: &Path, prefix: &str, files: &mut Files) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read(&entry.path(), &name, files)?;
        } else {
            files.insert(name, std::fs::read(entry.path())?.into());
        }
    }
    Ok(())
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let folder = arguments.value("--folder")?.unwrap_or_else(|| PathBuf::from("."));
    let mut files = Files::new();
    read(&folder, "", &mut files)?;
    let port = arguments.value("--port")?.unwrap_or(80);
    Runtime::open(&arguments)?.run(|net| serve(net, port, files))??;
    Ok(())
}
