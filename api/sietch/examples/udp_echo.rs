//! Echoes UDP datagrams over a VNIC: `udp_echo [VNIC] [PORT]`.
//!
//! It needs a daemon and a VNIC whose `udp_ports` has the port. The process itself needs no privilege.
//!
//! 1. Ask for the VNIC; from there on the daemon is not part of anything.
//! 2. Each turn: take what arrived, answer all of it, ring the doorbell once.
//! 3. Sleep on the queue's doorbell and the lease's, until the engine's next deadline.

use std::error::Error;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch::{Client, socket_path};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "echo".to_owned());
    let port: u16 = arguments.next().as_deref().unwrap_or("7").parse()?;

    let mut client = Client::connect(&socket_path(), "udp-echo")?;
    let mut vnic = client.acquire_vnic(&name)?;
    let lease = client.hold()?;
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let mut engine = vnic.engine(secret);
    engine.udp_bind(port)?;
    println!("echo on {}:{port}, {}", vnic.description.address, vnic.grant.protection());

    let started = Instant::now();
    while !vnic.grant.is_revoked() {
        let now = u64::try_from(started.elapsed().as_nanos())?;
        engine.receive(&mut vnic.queue, now);
        while let Some(datagram) = engine.udp_receive(port) {
            // A datagram that finds no room is lost, as datagrams are.
            let _ = engine.udp_send(port, datagram.remote, &datagram.payload);
        }
        engine.emit(&mut vnic.queue, now)?;

        let limit = engine.next_deadline().map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let limit = limit.map(Timespec::try_from).transpose()?;
        let mut doorbells = [
            PollFd::new(&vnic.queue, PollFlags::IN),
            PollFd::from_borrowed_fd(lease.doorbell(), PollFlags::IN),
        ];
        poll(&mut doorbells, limit.as_ref())?;
        lease.clear_doorbell();
    }
    println!("VNIC {name} was revoked");
    Ok(())
}
