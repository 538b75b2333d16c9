//! A storage area from the outside in: made if need be, written durably, made longer and shorter
//! while it is held, trimmed, released.
//!
//! `cargo run --release -p sietch --example area -- --vsa NAME [--size BYTES]`. The user needs a
//! quota on the volume, or `sietch.toml` names the area.
#![forbid(unsafe_code)]

use std::time::Duration;

use sietch::disk::{Buffer, Completion, DiskQueue, Operation};
use sietch::{Arguments, Client, Vsa};

/// A write or a read of the block at `offset`, waited for.
fn block(
    queue: &mut impl DiskQueue,
    operation: Operation,
) -> Result<Option<Buffer>, Box<dyn std::error::Error>> {
    queue.submit(0, operation).map_err(|_| "the queue accepts no request for that range")?;
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        queue.wait(Duration::from_secs(1))?;
        queue.complete(&mut done);
    }
    let Completion { result, buffer, .. } = done.remove(0);
    result?;
    Ok(buffer)
}

fn write(vsa: &mut Vsa, offset: u64, byte: u8) -> Result<(), Box<dyn std::error::Error>> {
    let mut buffer = Buffer::new(4096);
    buffer.fill(byte);
    block(&mut vsa.queue, Operation::Write { offset, length: 4096, buffer, durable: true })?;
    Ok(())
}

fn read(vsa: &mut Vsa, offset: u64) -> Result<u8, Box<dyn std::error::Error>> {
    let read = Operation::Read { offset, length: 4096, buffer: Buffer::new(4096) };
    let buffer = block(&mut vsa.queue, read)?.ok_or("a read brings its buffer back")?;
    Ok(buffer[0])
}

/// Does all of it with the area `name`, which has `size` bytes, and leaves it as long as it was.
pub(crate) fn tour(client: &mut Client, name: &str, size: u64) -> Result<(), Box<dyn std::error::Error>> {
    if !client.vsas()?.iter().any(|area| area.path == name || area.path == format!("/main/{name}")) {
        client.create_vsa(name, size)?;
    }
    let mut vsa = client.acquire_vsa(name)?;
    println!("{}: {} bytes, {}", vsa.description.name, vsa.description.size, vsa.queue.description());
    write(&mut vsa, 0, 1)?;

    // Longer: what is added reads as zeros, and can be written like the rest.
    client.resize_vsa(&mut vsa, 2 * size)?;
    assert_eq!((read(&mut vsa, 0)?, read(&mut vsa, 2 * size - 4096)?), (1, 0));
    write(&mut vsa, 2 * size - 4096, 2)?;

    // The range is zeros again. Its blocks remain allocated, so a later write there cannot fail for
    // lack of space.
    client.trim_vsa(&vsa, 0, Some(4096))?;
    assert_eq!((read(&mut vsa, 0)?, read(&mut vsa, 2 * size - 4096)?), (0, 2));

    // A smaller size: the bytes beyond it are removed, and requests for them are refused at
    // submission.
    client.resize_vsa(&mut vsa, size)?;
    assert!(read(&mut vsa, 2 * size - 4096).is_err());

    // The queue is dropped first: the next holder waits until every descriptor of this one is
    // closed.
    let grant = vsa.grant.clone();
    drop(vsa);
    client.release(&grant)?;
    Ok(())
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let name: String = arguments.value("--vsa")?.ok_or("say which area: --vsa NAME")?;
    let size = arguments.value("--size")?.unwrap_or(1 << 20);
    let mut client = Client::connect(&sietch::socket_path(), "area")?;
    tour(&mut client, &name, size)
}
