//! UDP echo: sends every datagram back. Poll-style.
//!
//! `cargo run --release -p sietch --example udp_echo -- --vnic NAME [--port 7]`
#![forbid(unsafe_code)]

use sietch::net::EventKind;
use sietch::nic::NicQueue;
use sietch::{Arguments, Stack};

/// Answers the datagrams that arrived in the last iteration.
pub(crate) fn answer<Q: NicQueue>(stack: &mut Stack<Q>) {
    while let Some(event) = stack.next_event() {
        let EventKind::Datagram { port } = event.kind else { continue };
        while let Some(datagram) = stack.engine.udp_receive(port) {
            // A full queue loses the answer, as any link may.
            let _ = stack.engine.udp_send(port, datagram.remote, &datagram.payload);
        }
    }
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let mut stack = Stack::open(&arguments)?;
    stack.engine.udp_bind(arguments.value("--port")?.unwrap_or(7))?;
    loop {
        stack.poll(None)?;
        answer(&mut stack);
    }
}
