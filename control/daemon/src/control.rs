//! The one task that decides. It handles one [`Event`] after another and owns all state.
//!
//! 1. A name is looked up in `sietch.toml`. The kernel's report of the client's uid decides. A name
//!    that is revoked or held is refused; the refusal names the holder.
//! 2. Granting: a number from the state, the record into the state, then the device. Ending: the
//!    device, then the record. So a restart finds whatever a crash leaves (`Control::restore`).
//! 3. A grant ends when it is released or revoked, or when its process ends (pidfd). It also ends
//!    if its living process has been without a connection for `GRACE`. After a restart of the
//!    daemon a process that still runs keeps its grants without connecting.
//! 4. Making or changing an area (`areas`) can take long, so it runs on a blocking thread and its
//!    result comes back as an event. Making a VNIC of the kernel (`vnics`) does so on a thread of
//!    its own.
//! 5. Areas on volumes of extents are reached through the service core (`areas::brokered`).
//! 6. Revoking works without the application. It acts on VNICs by their programs and veth, VSAs by
//!    their inode, links (`links`) by a word in their memory that both sides check.
//!
//! The files are layers, lowest first: events and the tables of each subject (`event`, `tables`,
//! `warnings`);
//! the shared state (`controller`); one file for each subject; the handling of events (`dispatch`).
//! A subject's methods may call those of another: the state is one.

mod admin;
mod areas;
mod controller;
mod diagnostics;
mod dispatch;
mod event;
mod grants;
mod links;
mod ports;
mod reload;
mod tables;
mod vnics;
mod warnings;

pub(crate) use controller::{Control, INSPECTION, MOST_PAGES, RING_CHECK_INTERVAL};
pub(crate) use event::{Answer, Event, Outgoing};
