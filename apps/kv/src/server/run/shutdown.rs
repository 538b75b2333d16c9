//! The end of the server: no effect that a client may rely on is lost, and no disk is waited for
//! without a limit.

use std::time::Duration;

use super::Server;
use super::members::Members;
use super::process::clock;
use crate::data::keyspace::ShutdownMode;
use crate::server::Error;
use crate::shard::Shard;

/// Longest wait for the disk at the end: less than the limit of `sietch up`, so that the log can
/// still be closed.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two polls of the disk while the store ends.
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(1);

impl Server {
    /// Stops reading, makes the effects durable and sends their replies, closes the clients, then
    /// closes the log in order.
    pub(super) fn end(self) -> Result<(), Error> {
        let Self { mut reactor, lease, area, members, .. } = self;
        tracing::info!(
            "the store ends: it reads no more input, and the effects of earlier commands become durable"
        );
        let requested = reactor.shard().and_then(Shard::shutdown_requested);
        let save = requested != Some(ShutdownMode::NoSave);
        reactor.stop_input();
        // Without one of its members the store waits for none: what was acknowledged is in the log.
        let whole = members.as_ref().is_none_or(Members::all_run);
        let limit = clock().monotonic_ns.saturating_add(SHUTDOWN_LIMIT.as_nanos() as u64);
        let late = loop {
            if !save || !whole {
                break false;
            }
            let now = clock();
            let caught_up = reactor.is_caught_up();
            // The iteration after the last write sends its reply.
            if reactor.iterate(now).is_err() || caught_up {
                break false;
            }
            if now.monotonic_ns > limit {
                break true;
            }
            if let Some(sockets) = reactor.sockets_mut() {
                let _ = sockets.wait(Some(SHUTDOWN_PAUSE));
            }
        };
        if let Err(cause) = reactor.close_clients(clock()) {
            tracing::debug!("clients were not closed in order: {cause}");
        }
        if let Some(members) = members {
            members.join(|| {
                let _ = reactor.iterate(clock());
            });
        }
        let closed = match reactor.into_log_writer() {
            // The disk does not answer within the limit. To close the log, or to drop its queue,
            // would wait once more; the end of the process releases both.
            Some(log_writer) if late => {
                std::mem::forget(log_writer);
                Err(Error::Unfinished { name: area })
            }
            Some(log_writer) if save && log_writer.log().failed().is_none() => log_writer
                .into_log()
                .close()
                .map(drop)
                .map_err(|cause| Error::LogFailed { name: area, cause }),
            _ => Ok(()),
        };
        drop(lease);
        closed
    }
}
