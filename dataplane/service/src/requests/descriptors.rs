//! Descriptors of a request on their way to a VNIC: no thread of a VNIC closes them.
//!
//! A close may take as long as the sender likes ([`Closer`]), so both types return to the closer
//! wherever they are dropped.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sietch_protocol::closer::{Closer, Outgoing};
use sietch_protocol::socket_service::{Descriptors, Reply};
use sietch_ring::socket_pair::pairs_refuse_descriptors;

/// The descriptors of a request that a VNIC answers. Dropped, the threads of the closer close them.
#[derive(Debug, Default)]
pub struct RequestDescriptors {
    descriptors: Descriptors,
    closer: Option<(u32, Closer)>,
    /// Counts the request as open as long as this exists.
    _counted: Option<Arc<()>>,
}

impl RequestDescriptors {
    /// Wraps what a user sent.
    pub(crate) fn new(uid: u32, descriptors: Descriptors, closer: Closer, counted: Arc<()>) -> Self {
        Self { descriptors, closer: Some((uid, closer)), _counted: Some(counted) }
    }

    /// Returns the first descriptor.
    pub(crate) fn first(&self) -> Option<&OwnedFd> {
        self.descriptors.iter().flatten().next()
    }

    /// Takes the first descriptor out.
    pub(crate) fn take_first(&mut self) -> Option<OwnedFd> {
        self.descriptors.iter_mut().find_map(Option::take)
    }

    /// Closes the descriptors, then answers.
    pub fn answer(mut self, socket: OwnedFd, reply: Reply, descriptors: Vec<OwnedFd>) {
        let answer = Outgoing { socket, reply, descriptors, are_empty: pairs_refuse_descriptors() };
        let close: Vec<_> = self.descriptors.iter_mut().filter_map(Option::take).collect();
        match self.closer.take() {
            Some((uid, closer)) if !close.is_empty() => {
                closer.close_and_answer(uid, (close, Vec::new()), answer)
            }
            Some((uid, closer)) => closer.answer(uid, answer),
            None => {
                drop(close);
                drop(answer.send());
            }
        }
    }
}

/// For descriptors that this process made, which any thread may close.
impl From<Descriptors> for RequestDescriptors {
    fn from(descriptors: Descriptors) -> Self {
        Self { descriptors, closer: None, _counted: None }
    }
}

impl Drop for RequestDescriptors {
    fn drop(&mut self) {
        if let Some((uid, closer)) = self.closer.take() {
            closer.close_all(uid, self.descriptors.iter_mut().filter_map(Option::take).collect());
        }
    }
}

/// A listener's pair, the service's end and the placeholder, on its way to a VNIC. Dropped, the
/// threads of the closer close it, because connections to published ports may be queued in it.
#[derive(Debug)]
pub struct ListenerPair {
    ends: Option<[OwnedFd; 2]>,
    closer: Option<(u32, Closer)>,
}

impl ListenerPair {
    /// Wraps the pair of a user's listener.
    pub(crate) fn new(uid: u32, ends: [OwnedFd; 2], closer: Closer) -> Self {
        Self { ends: Some(ends), closer: Some((uid, closer)) }
    }

    /// Returns both ends, until they are taken out.
    pub(crate) fn ends(&self) -> Option<&[OwnedFd; 2]> {
        self.ends.as_ref()
    }

    /// Takes both ends out.
    pub(crate) fn take(mut self) -> Option<[OwnedFd; 2]> {
        self.ends.take()
    }
}

/// For a pair that this process made and has not yet sent anywhere.
impl From<[OwnedFd; 2]> for ListenerPair {
    fn from(ends: [OwnedFd; 2]) -> Self {
        Self { ends: Some(ends), closer: None }
    }
}

impl Drop for ListenerPair {
    fn drop(&mut self) {
        if let (Some(ends), Some((uid, closer))) = (self.ends.take(), self.closer.take()) {
            closer.close_all(uid, ends.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    /// A socket whose last close waits for an hour, and its peer, whose close ends that.
    fn lingering() -> (TcpStream, TcpStream) {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut one = TcpStream::connect(listening.local_addr().expect("bound")).expect("a listener");
        let (other, _) = listening.accept().expect("it has connected");
        one.set_nonblocking(true).expect("a socket");
        while one.write(&[0; 65536]).is_ok() {}
        one.set_nonblocking(false).expect("a socket");
        rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).expect("a socket");
        (one, other)
    }

    #[test]
    fn neither_drop_nor_answer_waits_for_the_close() {
        let (closer, counted) = (Closer::default(), Arc::new(()));
        for answers in [false, true] {
            let (one, other) = lingering();
            let mut descriptors = Descriptors::default();
            descriptors[0] = Some(one.into());
            let sent = RequestDescriptors::new(7, descriptors, closer.clone(), Arc::clone(&counted));
            assert_eq!(Arc::strong_count(&counted), 2);
            if answers {
                sent.answer(
                    other.try_clone().expect("a descriptor").into(),
                    Reply::refused(rustix::io::Errno::NODEV),
                    Vec::new(),
                );
            } else {
                drop(sent);
            }
            assert_eq!(Arc::strong_count(&counted), 1);
            assert!(closer.is_closing_named(7));
            rustix::net::shutdown(&other, rustix::net::Shutdown::Both).expect("a socket");
            drop(other);
            while closer.is_closing_named(7) {
                std::thread::yield_now();
            }
        }
    }
}
