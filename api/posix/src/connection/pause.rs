//! Polling shared memory on behalf of one description, as long as that pays.

use sietch_ring::stream::Endpoint;

use crate::connection::spin::{LONGEST, Pause, Spun};
use crate::descriptor::description::Held;
use crate::signal::handlers;
use crate::system::processor;

/// Which of a description's spin words: the reader's.
pub(crate) const READER: usize = 0;

/// The writer's.
pub(crate) const WRITER: usize = 1;

/// Polls until `ready` returns true, no longer than it pays and for `most` nanoseconds at most.
/// [`Spun::Interrupted`] means that a handler ran that was installed without `SA_RESTART`: return
/// EINTR. A caller that then sleeps keeps the pause, and calls [`Pause::finished`] when what it
/// waited for has come. Nothing is learned from a timeout.
pub(crate) fn pause<'a>(
    held: &'a Held,
    which: usize,
    most: Option<u64>,
    mut ready: impl FnMut() -> bool,
) -> (Spun, Pause<'a>) {
    let pause = Pause::begin(&held.spin[which & 1]);
    let peer = held.end().and_then(Endpoint::peer_cpu);
    let most = most.unwrap_or(LONGEST);
    let interrupting = handlers::interrupting();
    let spun = loop {
        match pause.poll(peer, most, handlers::count(), &mut ready) {
            Spun::Interrupted if handlers::interrupting() == interrupting => {}
            spun => break spun,
        }
    };
    if let Some(end) = held.end() {
        end.set_cpu(processor::processor());
    }
    if spun != Spun::Ready {
        return (spun, pause);
    }
    pause.finish();
    (spun, pause)
}
