//! What other threads send to the socket service's loop.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use sietch_protocol::socket_service::Rules;
use sietch_ring::stream::Memory;

use crate::requests::application::Connection;
use crate::requests::listing::Revocation;
use crate::requests::vnic::VnicRequest;

/// A command for the socket service's loop.
#[derive(Debug)]
pub enum Command {
    /// Apply other rules from now on. Existing listeners and connections stay.
    Rules(Rules),
    /// Find the connections that were closed, now.
    Sweep,
    /// Send requests that name a VNIC here; without a VNIC sender they are refused.
    Vnics(Sender<VnicRequest>),
    /// Two applications of one VNIC were connected. From now on the connection is treated like one
    /// of the host's addresses.
    AddConnection(Box<LocalConnection>),
    /// The VNICs have ended what they had of an application. The socket service ends its own part,
    /// and answers.
    FinishRevocation(Box<VnicRequest>, Revocation),
    /// End the loop.
    Stop,
}

/// A connection between two applications of one VNIC.
#[derive(Debug)]
pub struct LocalConnection {
    /// The applications and the names.
    pub connection: Connection,
    /// The memory of both ends.
    pub memory: Memory,
    /// The cookies of both placeholders.
    pub cookies: [u64; 2],
}

/// Sends commands to the socket service, and wakes it.
#[derive(Debug)]
pub struct CommandSender {
    /// The channel to its loop.
    pub commands: Sender<Command>,
    /// The eventfd on which it sleeps.
    pub doorbell: OwnedFd,
}

impl CommandSender {
    /// Sends a command. A service that has ended needs none, so an error is ignored.
    pub fn send(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Makes another sender.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { commands: self.commands.clone(), doorbell: self.doorbell.try_clone()? })
    }
}
