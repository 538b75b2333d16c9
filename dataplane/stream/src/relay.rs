//! A connection of which one program cannot map the memory. Its bytes go on through a kernel's
//! socket, which that program has instead.
//!
//! 1. The caller has the end of that program, and a kernel's socket that is connecting to it.
//! 2. Bytes are copied from ring to socket and back. The end of a stream follows its bytes. An
//!    error of one side resets the other.
//! 3. Until the kernel's connection is set up, the end is one that no program has accepted: if it
//!    is dropped, the peer is reset.
//!
//! One thread relays one connection, and sleeps in `poll(2)` while nothing moves. Its work is
//! bounded by what the peers send.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sietch_ring::stream::Endpoint;

use crate::connection::Connection;
use crate::placeholder::{Direct, Placeholder as _};
use crate::poller::{Interest, Poller, SleepLimit, Token};

/// One direction.
struct Direction {
    from: usize,
    to: usize,
    /// The stream has ended; its end is to be passed on.
    ending: bool,
    /// The end was passed on.
    ended: bool,
}

/// What a direction waits for.
enum Waits {
    /// Nothing: it has moved something.
    Moved,
    /// Bytes.
    Data,
    /// Room.
    Room,
    /// Nothing any more.
    Ended,
}

/// Relays until both streams have ended, or one side fails.
///
/// # Errors
/// Those of the two connections; both are reset then.
pub fn relay(placeholder: OwnedFd, end: Endpoint, socket: OwnedFd) -> io::Result<()> {
    let sides = [Connection::of_memory(placeholder, end), Connection::connecting(socket)].map(Rc::new);
    let relayed = relay_between(&sides);
    if relayed.is_err() {
        sides.iter().for_each(|side| side.abort_on_close());
    }
    relayed
}

fn relay_between(sides: &[Rc<Connection>; 2]) -> io::Result<()> {
    let mut poller = Poller::new()?;
    let tokens = [poller.add_connection(&sides[0])?, poller.add_connection(&sides[1])?];
    while let Err(error) = sides[1].try_connected() {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        poller.want(tokens[1], Interest::ROOM, 0);
        sleep(&mut poller)?;
    }
    sides[0].close_normally();
    let mut directions =
        [(0, 1), (1, 0)].map(|(from, to)| Direction { from, to, ending: false, ended: false });
    loop {
        let mut moved = false;
        for direction in &mut directions {
            moved |= direction.run(sides, &mut poller, &tokens)?;
        }
        if directions.iter().all(|direction| direction.ended) {
            return Ok(());
        }
        if !moved {
            sleep(&mut poller)?;
        }
    }
}

impl Direction {
    /// Moves bytes once, and says to the poller what this waits for. Returns whether it has moved
    /// any.
    fn run(
        &mut self,
        sides: &[Rc<Connection>; 2],
        poller: &mut Poller,
        tokens: &[Token; 2],
    ) -> io::Result<bool> {
        match self.step(&sides[self.from], &sides[self.to])? {
            Waits::Moved => return Ok(true),
            Waits::Data => poller.want(tokens[self.from], Interest::DATA, 0),
            Waits::Room => poller.want(tokens[self.to], Interest::ROOM, 0),
            Waits::Ended => {}
        }
        Ok(false)
    }

    fn step(&mut self, from: &Connection, to: &Connection) -> io::Result<Waits> {
        if self.ended {
            return Ok(Waits::Ended);
        }
        if self.ending {
            return match to.try_shutdown() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Waits::Room),
                // The other side has ended as well.
                Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                _ => {
                    self.ended = true;
                    Ok(Waits::Moved)
                }
            };
        }
        let mut written = Ok(0);
        let read = from.try_read_with(|pieces| {
            written = to.try_write_with(|space| {
                for piece in pieces {
                    if space.put_untrusted(piece) < piece.len() {
                        break;
                    }
                }
            });
            written.as_ref().map_or(0, |written| *written)
        });
        match (read, written) {
            (Ok(None), _) => {
                self.ending = true;
                Ok(Waits::Moved)
            }
            (Ok(Some(_)), Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(Waits::Room),
            (Ok(Some(_)), Err(error)) => Err(error),
            (Ok(Some(0)), Ok(_)) => Ok(Waits::Room),
            (Ok(Some(_)), Ok(_)) => Ok(Waits::Moved),
            // Bytes that the kernel has not taken yet are sent before the next ones come.
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => match to.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Waits::Room),
                Err(error) => Err(error),
                Ok(()) => Ok(Waits::Data),
            },
            (Err(error), _) => Err(error),
        }
    }
}

/// Sleeps until something is ready of what was waited for, or the poller has to check.
fn sleep(poller: &mut Poller) -> io::Result<()> {
    let limit = match poller.prepare_sleep() {
        SleepLimit::None => Some(0),
        SleepLimit::Nanoseconds(nanoseconds) => Some(nanoseconds),
        SleepLimit::Unlimited => None,
    };
    let limit = limit.map(|nanoseconds| Timespec {
        tv_sec: (nanoseconds / 1_000_000_000).cast_signed(),
        tv_nsec: (nanoseconds % 1_000_000_000).cast_signed(),
    });
    match poll(&mut [PollFd::new(&*poller, PollFlags::IN)], limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    poller.poll(Direct::now(), &mut Vec::new())
}
