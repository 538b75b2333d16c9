//! The ends of connections: what the calls need of the memory that two programs share.

/// The names of the two sides, as raw `sockaddr_in` or `sockaddr_in6`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// This side's name.
    pub local: [u8; 28],
    /// The other side's name.
    pub peer: [u8; 28],
    /// Bytes of `local`.
    pub local_length: u32,
    /// Bytes of `peer`.
    pub peer_length: u32,
}

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Bytes to read, or the end.
    Data,
    /// Room to write.
    Room,
}

/// How the other side went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It had read everything.
    Finished,
    /// It had not, or wanted a reset.
    Reset,
}

/// What was published at some moment: it changes if something arrives or room appears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge(pub u64, pub u64);

/// One end of a connection (a stand-in with the signatures of `sietch_ring::stream::End`).
#[derive(Debug)]
pub struct End(());

#[expect(missing_docs, reason = "a stand-in with the signatures of sietch_ring::stream::End")]
impl End {
    pub fn readable(&self) -> usize {
        0
    }
    pub fn ended(&self) -> bool {
        false
    }
    pub fn writable(&self) -> usize {
        0
    }
    pub fn is_writable(&self) -> bool {
        false
    }
    pub fn hung_up(&self) -> Hangup {
        Hangup::Finished
    }
    pub fn peer_cpu(&self) -> u32 {
        0
    }
    pub fn set_cpu(&self, _cpu: u32) {}
    pub fn arm(&self, _want: Want) {}
    pub fn disarm(&self, _want: Want) {}
    pub fn others_wait(&self) -> bool {
        false
    }
    pub fn ring_for_data(&self) -> u32 {
        0
    }
    pub fn ring_for_room(&self) -> u32 {
        0
    }
    pub fn rung(&self) -> u32 {
        0
    }
    pub fn snapshot(&self) -> Edge {
        Edge::default()
    }
}
