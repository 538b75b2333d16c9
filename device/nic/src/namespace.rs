//! Network namespaces of the control plane's own, each with one end of a veth pair and nothing
//! else.
//!
//! 1. An AF_XDP socket can be bound to interfaces of the namespace that it was made in, and to no
//!    others, whichever process holds it. A socket made in a namespace that holds one interface is
//!    therefore a capability for that interface even before it is bound.
//! 2. [`Namespace::create`] makes one on a thread that ends at once; the descriptor keeps it.
//!    [`Namespace::enter`] runs a function on a thread inside it. The calling thread never leaves
//!    its own namespace.
//! 3. A socket keeps the namespace it was made in. The namespace ends, and the veth pair with it,
//!    when no descriptor, socket or mapping of a socket's rings is left. So nothing stays behind
//!    when daemon and application die together.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace that this descriptor keeps alive.
#[derive(Debug)]
pub struct Namespace {
    descriptor: OwnedFd,
}

impl Namespace {
    /// Makes an empty one: a loopback interface that is down.
    ///
    /// # Errors
    /// Above all EPERM: it takes CAP_SYS_ADMIN; and ENOSPC: `user.max_net_namespaces` are there
    /// already.
    pub fn create() -> io::Result<Self> {
        let made: io::Result<io::Result<OwnedFd>> = on_a_thread(|| {
            // SAFETY: a new network namespace changes nothing that other threads share.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            let flags = OFlags::RDONLY.union(OFlags::CLOEXEC);
            Ok(open("/proc/thread-self/ns/net", flags, Mode::empty())?)
        });
        Ok(Self { descriptor: made?? })
    }

    /// Runs `action` inside.
    ///
    /// # Errors
    /// The kernel refuses the namespace, or has no thread to spare.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(action())
        })?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Runs `action` on a thread that ends with it, and passes a panic on.
fn on_a_thread<T: Send>(action: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("sietch-netns".to_owned()).spawn_scoped(scope, action)?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}
