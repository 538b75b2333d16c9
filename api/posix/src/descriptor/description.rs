//! Descriptions: what is behind one or more descriptors that are ours.
//!
//! 1. Descriptions are in chunks of memory that are mapped when first needed and never unmapped.
//!    The state word of a description holds its generation and its reference count: one reference
//!    for each word of the table, one for each call that uses it ([`Held`]).
//! 2. A call takes a reference by compare-and-swap on the state word. It succeeds only if the count
//!    is not 0 and the generation is the one that was read from the table. Suppose that another
//!    thread closes the descriptor just after a call read the table. Then the call either keeps the
//!    description until it is done, or reads the table again. It never touches a description that
//!    was reused.
//! 3. The thread that drops the last reference drops the content, which unmaps the connection, and
//!    raises the generation. It then puts the description on the free list, a stack with a tag
//!    against reuse (ABA).
//! 4. There is no lock that a fork could leave held or a signal handler would wait for. A child of
//!    fork has a copy of everything. References of calls that ran in other threads stay counted
//!    there for ever. That costs the child the memory of those descriptions and nothing else,
//!    because the descriptors are the kernel's.
//! 5. A description's kind changes only forward: [`Kind::Pending`] to [`Kind::Stream`] or
//!    [`Kind::Listener`]. The new content is written once, before the kind is published.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use sietch_protocol::socket_service::Name;
use sietch_ring::stream::Endpoint;

use crate::descriptor::hidden::HiddenDescriptor;
use crate::signal::faults;

/// The name that a listener was registered with, or that a pending socket has on a VNIC.
pub(crate) fn listener_name(held: &Held) -> Name {
    let mut name = Name { bytes: [0; 28], length: held.socket.local_length.load(Acquire).min(28) };
    for (to, word) in name.bytes.chunks_exact_mut(4).zip(&held.socket.local) {
        to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    name
}

/// Records a listener's name.
pub(crate) fn set_listener_name(held: &Held, name: &Name) {
    for (word, bytes) in held.socket.local.iter().zip(name.bytes.chunks_exact(4)) {
        word.store(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Relaxed);
    }
    held.socket.local_length.store(name.length, Release);
}

/// Descriptors that the table covers: the kernel's default for `fs.nr_open`. Higher numbers are
/// never ours.
pub(crate) const DESCRIPTORS: usize = 1 << 20;

/// Descriptions in a chunk: some hundred kilobytes, enough for most programs.
const CHUNK: usize = 512;

/// Chunks: as many descriptions as there are descriptors.
const CHUNKS: usize = DESCRIPTORS / CHUNK;

/// Socket options that a description remembers (as many as an end's private page has).
pub(crate) const OPTIONS: usize = sietch_ring::stream::option::COUNT;

static SLAB: [AtomicPtr<Description>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Descriptions that were ever taken.
static FRESH: AtomicU32 = AtomicU32::new(0);

/// Top of the free list: tag in the upper half, number + 1 in the lower.
static FREE: AtomicU64 = AtomicU64::new(0);

/// Streams and listeners that exist now. A child of fork may count some of its parent's as long as
/// it runs.
static SOCKETS: AtomicU32 = AtomicU32::new(0);

/// The kind of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing (on the free list).
    Free = 0,
    /// A kernel's TCP socket that may become ours by connect or listen.
    Pending = 1,
    /// An end of a connection; the descriptor is its placeholder.
    Stream = 2,
    /// A listening socket; the descriptor is its placeholder.
    Listener = 3,
    /// An epoll; the descriptor is the kernel's epoll. What belongs to it is behind
    /// `Description::epoll`.
    Epoll = 4,
}

impl Kind {
    const fn of(value: u8) -> Self {
        match value {
            1 => Self::Pending,
            2 => Self::Stream,
            3 => Self::Listener,
            4 => Self::Epoll,
            _ => Self::Free,
        }
    }
}

/// State of a socket that is not in the shared memory of its end.
#[derive(Debug)]
pub struct SocketState {
    /// `AF_INET` or `AF_INET6`.
    pub domain: AtomicU32,
    /// State of a nonblocking connect, and the like: bits of [`socket_flag`].
    pub(crate) flags: AtomicU32,
    /// The backlog of a listener.
    pub(crate) backlog: AtomicU32,
    /// The process that made a listener of it.
    pub(crate) process: AtomicU32,
    /// Bytes of `local`.
    pub(crate) local_length: AtomicU32,
    /// A listener's own kernel socket.
    pub(crate) listening_socket: HiddenDescriptor,
    /// A listener's name (`sockaddr_in` or `sockaddr_in6`), in words.
    pub(crate) local: [AtomicU32; 7],
    /// The descriptor that holds the name on a VNIC until there is a listener or a connection
    /// (`crate::service::reservation`).
    pub(crate) reservation: HiddenDescriptor,
    /// Bit n: option n of `options` was set by the program.
    pub(crate) set: AtomicU64,
    /// A pending socket's and a listener's options, encoded (`crate::options::known`).
    pub(crate) options: [AtomicU64; OPTIONS],
    /// ... and those that are only stored (`crate::options::others`).
    pub(crate) other_options: [AtomicU64; sietch_ring::stream::option::OTHERS],
}

/// Bits of [`SocketState::flags`].
pub(crate) mod socket_flag {
    /// A connect returned EINPROGRESS, and its result was not reported yet.
    pub(crate) const CONNECTING: u32 = 1;
    /// The program has given the socket its port.
    pub(crate) const BOUND: u32 = 2;
    /// Being registered again after a restart of the service, by one thread at a time.
    pub(crate) const REREGISTERING: u32 = 4;
    /// A listener that was shut down: accept answers EINVAL.
    pub(crate) const STOPPED: u32 = 8;
    /// A listener without a service: the descriptor is the kernel's listening socket.
    pub(crate) const ON_KERNEL: u32 = 16;
    /// A listener on the kernel whose accept blocks. Its kernel socket, which the service had too,
    /// is nonblocking.
    pub(crate) const BLOCKING: u32 = 32;
}

/// The head of what a module above keeps for a description, never unmapped.
///
/// It begins with the release operation that runs when the last reference to the description is
/// dropped, like `release` in the kernel's `struct file_operations`. The table cannot name the type
/// behind it, because the registrations of an epoll set are themselves references to descriptions.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Attached {
    /// Called once, by the thread that dropped the last reference.
    ///
    /// # Safety
    /// The argument is the pointer that [`Description::epoll`] held.
    pub(crate) release: unsafe fn(*mut Self),
}

/// The object behind one or more descriptors, like the kernel's open file description.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Description {
    /// Generation in the upper half, references in the lower.
    state: AtomicU64,
    kind: AtomicU8,
    /// Words of the table that name it.
    descriptors: AtomicU32,
    number: AtomicU32,
    next_free: AtomicU32,
    end: UnsafeCell<MaybeUninit<Endpoint>>,
    /// Registrations of this description in epoll sets (null: none). Zeroed when the description is
    /// taken.
    pub(crate) watchers: AtomicPtr<c_void>,
    /// The epoll set of an epoll ([`crate::readiness::set`]).
    pub(crate) epoll: AtomicPtr<Attached>,
    /// The state learned by the reader's and the writer's spin ([`crate::connection::spin`]).
    pub(crate) spin: [AtomicU64; 4],
    /// Calls of this process that sleep on it, or may.
    pub(crate) sleepers: AtomicU32,
    /// A spare descriptor for them in place of one that was closed, plus one; 0 for none.
    pub(crate) spare: AtomicU32,
    /// The peer's published position when a nonblocking call last found nothing.
    pub(crate) emptied: AtomicU64,
    /// Threads that sleep in this epoll while no stream is registered in it
    /// ([`crate::wait::kernel_only`]).
    pub(crate) kernel_only_waiters: AtomicU32,
    /// Reads and writes so far, and where this process connected it to (0: it did not), for
    /// [`crate::connection::short_lived`].
    pub(crate) uses: AtomicU32,
    /// See above.
    pub(crate) destination: AtomicU32,
    /// The socket's own socket.
    pub socket: SocketState,
}

// SAFETY: `end` is written once, by the thread that changes the kind, before the kind is published.
// It is dropped by the thread that drops the last reference. In between it is only shared, and
// `Endpoint` is `Sync`.
unsafe impl Sync for Description {}

/// A reference to a description: it stays what it is until this is dropped.
#[derive(Debug)]
pub struct Held(&'static Description);

impl Deref for Held {
    type Target = Description;

    #[inline]
    fn deref(&self) -> &Description {
        self.0
    }
}

impl Held {
    /// Whether it is a listener that was not shut down.
    pub(crate) fn listens(&self) -> bool {
        self.kind() == Kind::Listener && self.socket.flags.load(Acquire) & socket_flag::STOPPED == 0
    }

    /// The word of the table that represents this reference and takes it over.
    pub(crate) fn into_word(self) -> u64 {
        self.0.descriptors.fetch_add(1, AcqRel);
        let word = self.0.identity();
        std::mem::forget(self);
        word
    }

    /// The reference that a word of the table was; the word is no longer in the table.
    pub(crate) fn of_word(word: u64) -> Option<Self> {
        let held = Self(description((word as u32).wrapping_sub(1))?);
        held.0.descriptors.fetch_sub(1, AcqRel);
        Some(held)
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        self.0.state.fetch_add(1, Relaxed);
        Self(self.0)
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, AcqRel);
        if before as u32 == 1 {
            self.0.release();
        }
    }
}

impl Description {
    /// Its kind.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.kind.load(Acquire))
    }

    /// The end of the connection, if it is a stream.
    #[inline]
    pub fn end(&self) -> Option<&Endpoint> {
        // SAFETY: the kind was published after the end was written, and the end is dropped only
        // after the last reference, one of which the caller has.
        (self.kind() == Kind::Stream).then(|| unsafe { (*self.end.get()).assume_init_ref() })
    }

    /// Whether this is its end.
    pub(crate) fn is_end(&self, end: &Endpoint) -> bool {
        ptr::eq(self.end.get().cast::<Endpoint>(), end)
    }

    /// How many descriptors of this process refer to it.
    pub(crate) fn descriptors(&self) -> u32 {
        self.descriptors.load(Acquire)
    }

    /// A number that no other description in use has.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// The word that names it in the table: number and generation. Differs from that of
    /// every earlier description (until a generation wraps around after four billion reuses).
    pub(crate) fn identity(&self) -> u64 {
        word(self.number(), (self.state.load(Relaxed) >> 32) as u32)
    }

    /// Makes a stream of a pending socket. Returns the end if it is none (another thread was
    /// first).
    pub(crate) fn become_stream(&self, end: Endpoint) -> Result<(), Endpoint> {
        // The kind `Free` serves as the lock: no other thread changes a kind that is not `Pending`.
        if self.kind.compare_exchange(Kind::Pending as u8, Kind::Free as u8, AcqRel, Acquire).is_err() {
            return Err(end);
        }
        // SAFETY: only the thread that changed the kind from `Pending` gets here, so no other
        // writes, and no reader uses an end before the kind says so.
        unsafe { (*self.end.get()).write(end) };
        SOCKETS.fetch_add(1, AcqRel);
        self.kind.store(Kind::Stream as u8, Release);
        Ok(())
    }

    /// Makes a listener of a pending socket; false if it is none.
    pub(crate) fn become_listener(&self) -> bool {
        let pending = Kind::Pending as u8;
        let listens = self.kind.compare_exchange(pending, Kind::Listener as u8, AcqRel, Acquire).is_ok();
        if listens {
            SOCKETS.fetch_add(1, AcqRel);
        }
        listens
    }

    /// Makes an unconnected socket of a listener that was shut down; false if it is none.
    pub(crate) fn become_pending(&self) -> bool {
        let listener = Kind::Listener as u8;
        let stopped = self.kind.compare_exchange(listener, Kind::Pending as u8, AcqRel, Acquire).is_ok();
        if stopped {
            SOCKETS.fetch_sub(1, AcqRel);
        }
        stopped
    }

    fn release(&self) {
        if is_counted(self.kind()) {
            SOCKETS.fetch_sub(1, AcqRel);
        }
        match self.kind() {
            // SAFETY: this was the last reference, and no thread can take another: the count is 0.
            Kind::Stream => unsafe { (*self.end.get()).assume_init_drop() },
            Kind::Epoll => {
                let set = self.epoll.swap(ptr::null_mut(), AcqRel);
                if !set.is_null() {
                    // SAFETY: what `epoll` was set to, which is never unmapped; called once.
                    unsafe { ((*set).release)(set) };
                }
            }
            Kind::Pending | Kind::Listener | Kind::Free => {}
        }
        self.socket.reservation.close();
        self.kind.store(Kind::Free as u8, Release);
        let generation = (self.state.load(Relaxed) >> 32) as u32;
        self.state.store(u64::from(generation.wrapping_add(1)) << 32, Release);
        put_on_free_list(self);
    }
}

const fn word(number: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | (number as u64 + 1)
}

/// The description with a number that was taken before.
pub(crate) fn description(number: u32) -> Option<&'static Description> {
    let number = number as usize;
    let chunk = SLAB.get(number / CHUNK)?.load(Acquire);
    // SAFETY: chunks are `CHUNK` descriptions of zeroes (valid for every field), never unmapped.
    (!chunk.is_null()).then(|| unsafe { &*chunk.add(number % CHUNK) })
}

/// Maps the chunk of a number if it is not yet there.
fn provide(number: u32) -> Option<&'static Description> {
    let slot = SLAB.get(number as usize / CHUNK)?;
    if slot.load(Acquire).is_null() {
        let length = CHUNK * size_of::<Description>();
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of its own.
        let chunk = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        if chunk == libc::MAP_FAILED {
            return None;
        }
        if slot.compare_exchange(ptr::null_mut(), chunk.cast(), AcqRel, Acquire).is_err() {
            // SAFETY: the mapping of above, to which nothing refers.
            unsafe { libc::munmap(chunk, length) };
        }
    }
    description(number)
}

fn put_on_free_list(description: &Description) {
    let number = description.number.load(Relaxed);
    let mut top = FREE.load(Acquire);
    loop {
        description.next_free.store(top as u32, Relaxed);
        let new = (top >> 32).wrapping_add(1) << 32 | (u64::from(number) + 1);
        match FREE.compare_exchange_weak(top, new, AcqRel, Acquire) {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

fn take() -> Option<&'static Description> {
    let mut top = FREE.load(Acquire);
    while top as u32 != 0 {
        let found = description(top as u32 - 1)?;
        let new = (top >> 32).wrapping_add(1) << 32 | u64::from(found.next_free.load(Relaxed));
        match FREE.compare_exchange_weak(top, new, AcqRel, Acquire) {
            Ok(_) => return Some(found),
            Err(now) => top = now,
        }
    }
    let number = FRESH.fetch_add(1, Relaxed);
    let found = provide(number);
    match found {
        Some(fresh) => fresh.number.store(number, Relaxed),
        None => {
            FRESH.fetch_sub(1, Relaxed);
        }
    }
    found
}

/// A new description of a kind; `end` for a stream. None: no memory (or as many as there can be
/// descriptors).
pub fn describe(kind: Kind, end: Option<Endpoint>) -> Option<Held> {
    if is_counted(kind) {
        faults::install();
    }
    let new = take()?;
    new.watchers.store(ptr::null_mut(), Relaxed);
    new.epoll.store(ptr::null_mut(), Relaxed);
    new.emptied.store(0, Relaxed);
    for word in [&new.sleepers, &new.uses, &new.destination] {
        word.store(0, Relaxed);
    }
    new.spare.store(0, Relaxed);
    new.kernel_only_waiters.store(0, Relaxed);
    new.descriptors.store(0, Relaxed);
    new.spin.iter().for_each(|word| word.store(0, Relaxed));
    let socket = &new.socket;
    for word in [&socket.domain, &socket.flags, &socket.backlog, &socket.process, &socket.local_length] {
        word.store(0, Relaxed);
    }
    socket.listening_socket.clear();
    socket.reservation.clear();
    socket.set.store(0, Relaxed);
    socket.options.iter().chain(&socket.other_options).for_each(|word| word.store(0, Relaxed));
    if let Some(end) = end {
        // SAFETY: the description was just taken from the free list: no other thread has it.
        unsafe { (*new.end.get()).write(end) };
    }
    if is_counted(kind) {
        SOCKETS.fetch_add(1, AcqRel);
    }
    new.kind.store(kind as u8, Release);
    // Stale look-ups see the count 0 up to here. The generation stays: it was raised when the last
    // life ended.
    new.state.fetch_add(1, AcqRel);
    Some(Held(new))
}

const fn is_counted(kind: Kind) -> bool {
    matches!(kind, Kind::Stream | Kind::Listener)
}

/// Whether there is any stream or listener. Without one a call that names many descriptors is the
/// kernel's, which also checks addresses.
#[inline]
pub(crate) fn has_sockets() -> bool {
    SOCKETS.load(Acquire) != 0
}

pub(crate) fn hold(entry: u64) -> Option<Held> {
    let found = description((entry as u32).wrapping_sub(1))?;
    let generation = entry >> 32;
    let mut state = found.state.load(Acquire);
    loop {
        if state >> 32 != generation || state as u32 == 0 {
            return None;
        }
        match found.state.compare_exchange_weak(state, state + 1, AcqRel, Acquire) {
            Ok(_) => return Some(Held(found)),
            Err(now) => state = now,
        }
    }
}

/// Counts a registration of a description, or one less.
pub(crate) fn count_watch(held: &Held, more: bool) {
    let _ = held.watchers.fetch_update(AcqRel, Acquire, |now| {
        let count = if more { now.addr() + 1 } else { now.addr().saturating_sub(1) };
        Some(ptr::without_provenance_mut(count))
    });
}
