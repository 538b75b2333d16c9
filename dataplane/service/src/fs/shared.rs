//! A file system of several processes: one serves it, the others have logs of their own.
//!
//! 1. [`serve()`] opens a file system, digests what each log has from before, and listens on a
//!    socket in its folder ([`server`]). A process that may connect could open the files of the
//!    media as well: the socket is for the user that serves, whom the kernel names
//!    (`SO_PEERCRED`).
//! 2. A client ([`attach()`]) gets the memory of a log, the files of the media for reading, and the
//!    root. It appends to its log and reads the media itself; messages carry only leases, room,
//!    inode numbers and progress ([`messages`]).
//! 3. One thread has the digest and the table of leases ([`hub`]). It digests a log when its client
//!    waits, when another client waits for what that log changed, when a quarter of it is full, or
//!    when its records are old.
//! 4. In the client, a thread takes what the service says ([`inbox`]); the operations take it from
//!    there ([`remote`]). A front end that is idle must look after it, so that leases pass on:
//!    [`Attention`].
//! 5. A client that dies, or closes its connection, is noticed by its socket. Its log is digested
//!    to its end, and the next client gets its number.
//! 6. A client that does not answer is fenced: a word of memory that both sides have says so, and
//!    the log is read to its end after the word is written. A client looks at the word after each
//!    record, so it never acknowledges one that is lost.
//! 7. When the service ends or dies, clients get `EIO`. The files stay locked until the last of
//!    them has ended, so that the next service reads logs that have no writer.
//! 8. Data move between the media as in a file system that one process has ([`moving`]). What
//!    clients read is not counted: data that are not written count as cold.
//!
//! What it must never do: wait for a client; let what one client sends end the service.
//!
//! The layers, lowest first: `messages`; `fence`, `moving`; `inbox`, `hub`; `remote`, `server`;
//! `check`.

mod check;
mod fence;
mod hub;
mod inbox;
mod messages;
mod moving;
mod remote;
mod server;

pub use check::check;
pub use inbox::Attention;
pub use remote::{Attached, Remote, attach, attach_within, is_served};
pub use server::{Server, serve};

use super::description::SOCKET;

/// Clients at a time. Each has a log in memory.
pub(super) const MAX_CLIENTS: u32 = 16;
