//! TCP as a service: engines that run here, for applications that live on a VNIC and link none.
//!
//! ```text
//!  application          | service                                   | network
//!  socket <-- rings --> | channel <-- host: pump --> engine flow <--|--> peer
//!         <- placeholder->  (doorbell, hang-up)                     |
//! ```
//!
//! - [`channel`]: the service's side of one connection with an application: its bytes, its end, its
//!   doorbell.
//! - [`settings`]: the socket options of a connection that an engine knows.
//! - [`information`]: what `TCP_INFO` tells of one.
//! - [`gather`]: what is asked of all VNICs at once.
//! - [`ports`]: who has which port of the VNIC: reservations, listeners.
//! - [`link`]: a channel over the memory of a connection and a pair of placeholders.
//! - [`vnic`]: a host on a queue, with its applications' requests and doorbells.
//! - [`placement`]: which thread drives which VNIC, and how many threads there are.
//! - [`run`]: those threads.
//! - [`host`]: an engine with its applications, sans-I/O: connections, listeners, and bytes moved
//!   both ways.
//!
//! What stands in memory that an application can write is hostile ([`channel`] says what follows
//! from that). What an application does wrong costs it its own connections.

pub mod channel;
pub mod gather;
pub mod host;
pub mod information;
pub mod limits;
pub mod link;
pub mod metrics;
pub mod placement;
pub mod ports;
pub mod run;
pub mod settings;
mod slots;
pub mod vnic;

pub use channel::{Channel, Departure, Wanted};
pub use host::{Arrival, Host, Share};
pub use metrics::Counters;
pub use ports::{Claim, Listening, Name, Ports, Refused};
pub use run::{Board, Options, Pool, Shown, ThreadShown, VnicShown};
pub use settings::Settings;
pub use vnic::{Access, Asked, Device, Vnic};
