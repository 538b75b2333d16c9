//! Who does a call: the kernel, or the client in this process.
//!
//! 1. So many calls of the kernel's on one description ([`mounts::calls_worth`]), and it is worth
//!    a lease: more where leases took long lately. Where a lease was soon lost to others, the next
//!    one comes after twice as many calls. A process that is no client yet becomes one after
//!    [`FIRST`] times as many calls in all.
//! 2. [`take`] asks the mount which inode the descriptor is of, and where its service is. This
//!    process becomes a client of that, and waits for the lease. Then it asks the mount again: the
//!    answer must be the same, and the inode must not be mapped.
//! 3. A claim is numbered. It becomes valid only if no other thread has begun one meanwhile, so the
//!    second answer came after the last lease.
//! 4. [`with_client`] does a call under a valid claim, without waiting. Where the lease is gone the
//!    claim ends, and the kernel does the call.
//! 5. The kernel does not know a size that the client has changed. It computes with it where it
//!    appends, and where sizes are limited. So it asks the mount before its first call after a
//!    client's write ([`prepare_kernel`]).

use std::ffi::c_int;

use sietch_fs::Leased;
use sietch_fs::direct::Way;
use sietch_fs::file_system::{Handle, OpenMode};
use sietch_fs::inode::{Attributes, InodeNumber};
use sietch_fs::lease::Mode;

use super::mounts::MOST_CALLS;
use super::state::{Claim, File, Open, State, may_begin, with};
use super::{mounts, words};
use crate::signal::{faults, handlers};
use crate::system::sys::Errno;
use crate::system::{kernel, seccomp};

/// How many times as many calls a process has made when it first becomes a client: its log takes
/// about ten milliseconds to set up.
const FIRST: u32 = 128;

/// A lease under which the client did so many times as many calls was worth it.
const WORTH: u32 = 16;

/// Bits of a mode that a write clears; the kernel does that.
const SET_ID: u16 = 0o6000;

/// Where a call is done.
pub(crate) enum Done<T> {
    /// Here, with this result.
    Here(Result<T, Errno>),
    /// By the kernel. A call at the position is noted meanwhile ([`KernelCall`]).
    Kernel(Option<KernelCall>),
}

/// A call at the position of a description that the kernel does. One that ends by a jump is counted
/// for good, and such calls stay the kernel's.
pub(crate) struct KernelCall {
    number: usize,
    /// The file may have been closed, and its number be another's.
    serial: u64,
}

impl Drop for KernelCall {
    fn drop(&mut self) {
        with(|state| {
            if let Some(file) = state.file(self.number).filter(|file| file.serial == self.serial) {
                file.in_kernel = file.in_kernel.saturating_sub(1);
            }
        });
    }
}

/// How a call uses the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Not at all. Such a call is no reason for a claim.
    None,
}

/// What a call needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) access: Access,
    /// It uses the position of the description.
    pub(crate) at_position: bool,
}

impl Need {
    /// That of a call that uses no bytes.
    pub(crate) const NONE: Self = Self { access: Access::None, at_position: false };
}

/// The client, the handle and the file of a call.
pub(crate) struct Call<'a> {
    pub(crate) client: &'a mut (dyn Leased + Send),
    pub(crate) handle: Handle,
    pub(crate) inode: InodeNumber,
    pub(crate) device: u64,
    pub(crate) appends: bool,
    pub(crate) syncs: bool,
    /// Who pays for what is added.
    pub(crate) uid: u32,
}

impl Call<'_> {
    /// Whether the client met this error because it has the file no more. The kernel has it then.
    pub(crate) fn has_lost_file(&self, errno: Errno) -> bool {
        errno == libc::EAGAIN || !self.client.is_going()
    }
}

/// Does a call of a descriptor with the client, if that may do it.
pub(crate) fn with_client<T>(
    fd: c_int,
    need: Need,
    mut work: impl FnMut(&mut Call<'_>) -> Result<T, Errno>,
) -> Done<T> {
    if handlers::is_running() || seccomp::is_restricted() {
        prepare_kernel(fd);
        return Done::Kernel(None);
    }
    let mut is_due = false;
    for attempt in 0..2 {
        let mut is_behind = false;
        let done = with(|state| {
            let Some(number) = state.of(fd) else { return Done::Kernel(None) };
            state.note_flags(number, fd);
            if let Some(result) = state.try_call(number, need, &mut work) {
                return Done::Here(result);
            }
            is_due = attempt == 0 && state.count(number, need);
            if is_due {
                return Done::Kernel(None);
            }
            // A limit concerns what another process has changed, too.
            is_behind = state.take_behind(number) || mounts::is_limited();
            Done::Kernel(state.kernel_call(number, need))
        });
        if is_behind {
            mounts::refresh(fd);
        }
        if matches!(done, Done::Here(_)) || !is_due {
            return done;
        }
        take(fd, need);
        is_due = false;
    }
    Done::Kernel(None)
}

/// The kernel does a call that was not given to [`with_client`].
pub(crate) fn prepare_kernel(fd: c_int) {
    let is_behind = with(|state| {
        state.of(fd).is_some_and(|number| {
            // In a handler nothing is given back to the heap.
            let is_behind =
                if handlers::is_running() { state.is_behind(number) } else { state.take_behind(number) };
            is_behind || mounts::is_limited()
        })
    });
    if is_behind {
        mounts::refresh(fd);
    }
}

impl State {
    /// Another process may have changed the flags of a description that it has, too.
    fn note_flags(&mut self, number: usize, fd: c_int) {
        if let Some(file) = self.file(number).filter(|file| file.is_shared)
            && let Ok(flags) = kernel::fcntl(fd, libc::F_GETFL, 0)
        {
            file.appends = flags & libc::O_APPEND as usize != 0;
        }
    }

    /// Does a call under a valid claim. `None`: there is none.
    fn try_call<T>(
        &mut self,
        number: usize,
        need: Need,
        work: &mut impl FnMut(&mut Call<'_>) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        let file = self.file(number)?;
        if !file.may(need) {
            return None;
        }
        let (open, inode, device) = (file.open?, file.inode, file.device);
        let (appends, syncs) = (file.appends, file.syncs);
        let store = self.stores.get(open.store);
        let syncs = syncs || store.is_some_and(|store| store.syncs);
        let uid = store.map_or(0, |store| store.uid);
        let is_claimed = |state: &Self| {
            let claim = state.stores.get(open.store).and_then(|store| store.claims.get(&inode));
            claim.is_some_and(|claim| claim.is_valid)
        };
        if !is_claimed(self) || self.mapped.contains(&(device, inode)) || !self.is_going(open) {
            return None;
        }
        let inode_number = InodeNumber(inode);
        let result = self.call(open, |client, handle| {
            work(&mut Call { client, handle, inode: inode_number, device, appends, syncs, uid })
        });
        if result.as_ref().err() == Some(&libc::EAGAIN) {
            if let Some(store) = self.stores.get_mut(open.store) {
                store.claims.remove(&inode);
            }
            self.file(number).into_iter().for_each(File::lost);
            return None;
        }
        // The client was ended meanwhile. Its log may have what it was doing, so the kernel does
        // the call again unless that makes a difference: it does where it appends.
        let is_repeatable = need.access != Access::Write || !appends;
        if result.is_err() && is_repeatable && !self.is_going(open) {
            return None;
        }
        if result.is_ok() {
            self.did(number, open, need);
        }
        Some(result)
    }

    /// The client has done a call.
    fn did(&mut self, number: usize, open: Open, need: Need) {
        let Some(file) = self.file(number) else { return };
        file.calls = 0;
        file.calls_here = file.calls_here.saturating_add(1);
        let (device, inode) = (file.device, file.inode);
        let claim = self.stores.get_mut(open.store).and_then(|store| store.claims.get_mut(&inode));
        if need.access == Access::Write
            && let Some(claim) = claim.filter(|claim| !claim.has_written)
        {
            claim.has_written = true;
            self.behind.insert((device, inode));
        }
    }

    fn is_behind(&mut self, number: usize) -> bool {
        let key = self.file(number).map(|file| (file.device, file.inode));
        key.is_some_and(|key| self.behind.contains(&key))
    }

    /// Whether the kernel has to ask for the size of a file; it does then.
    fn take_behind(&mut self, number: usize) -> bool {
        let Some(file) = self.file(number) else { return false };
        let (device, inode) = (file.device, file.inode);
        let is_behind = self.behind.remove(&(device, inode));
        if is_behind {
            let claims = self.stores.iter_mut().filter_map(|store| store.claims.get_mut(&inode));
            claims.for_each(|claim| claim.has_written = false);
        }
        is_behind
    }

    /// Counts a call that the kernel does; whether a claim is due.
    fn count(&mut self, number: usize, need: Need) -> bool {
        let Some(file) = self.file(number) else { return false };
        if need.access == Access::None || !file.may(need) || !may_begin() {
            return false;
        }
        file.calls += 1;
        let (calls, patience) = (file.calls, file.patience);
        let key = (file.device, file.inode);
        self.calls = self.calls.saturating_add(1);
        let is_often = calls >= patience.max(mounts::calls_worth(self.lease_nanos));
        let is_worth_it = self.is_client() || self.calls >= FIRST * (mounts::calls().saturating_sub(1));
        if !is_often || !is_worth_it || self.mapped.contains(&key) {
            return false;
        }
        if let Some(file) = self.file(number) {
            file.calls = 0;
        }
        true
    }

    fn kernel_call(&mut self, number: usize, need: Need) -> Option<KernelCall> {
        let file = self.file(number).filter(|_| need.at_position)?;
        file.in_kernel += 1;
        Some(KernelCall { number, serial: file.serial })
    }
}

impl File {
    /// The lease is gone: others want the file, too.
    fn lost(&mut self) {
        let most = MOST_CALLS.max(mounts::calls());
        let was_worth_it = self.calls_here / WORTH >= self.patience;
        self.patience = if was_worth_it { mounts::calls() } else { (self.patience * 2).min(most) };
        self.calls_here = 0;
    }

    /// Whether the client may do such a call of this description.
    fn may(&self, need: Need) -> bool {
        let writes = need.access == Access::Write;
        let has_position =
            !need.at_position || self.has_position() || self.in_kernel == 0 && self.appends && writes;
        let has_mode = match need.access {
            Access::Read => self.may_read,
            Access::Write => self.may_write && !mounts::is_limited(),
            Access::None => true,
        };
        has_position && has_mode
    }
}

/// Takes a file from the kernel, if that is possible.
#[cold]
fn take(fd: c_int, need: Need) {
    let word = words::get(fd);
    let Some(way) = mounts::ask(fd).ok().filter(|way| !way.is_mapped) else { return };
    faults::install();
    let mode = if need.access == Access::Write { Mode::Exclusive } else { Mode::Shared };
    let begun = with(|state| state.begin_claim(word, &way, mode));
    let Some((store, serial, number)) = begun else { return };
    // After the lease: a program that maps the file has said so before, or takes the lease back.
    let again = mounts::ask(fd).ok();
    if again != Some(way) || words::get(fd) != word {
        return;
    }
    with(|state| state.finish_claim(word, store, serial, number));
}

impl State {
    /// Waits for the lease; the file system, the number of its client, and that of the claim.
    fn begin_claim(&mut self, word: u32, way: &Way, mode: Mode) -> Option<(usize, u64, u64)> {
        let number = (word as usize).checked_sub(1)?;
        let file = self.file(number).filter(|file| file.inode == way.inode.0)?;
        let (may_read, may_write) = (file.may_read, file.may_write);
        let inode = file.inode;
        let at = self.store(&way.folder)?;
        self.claims += 1;
        let claim = self.claims;
        let store = self.stores.get_mut(at)?;
        let serial = store.serial;
        store.claims.insert(inode, Claim { number: claim, is_valid: false, has_written: false });
        let begun = kernel::now();
        store.hold(inode, mode).ok()?;
        let taken = kernel::now().saturating_sub(begun);
        self.lease_nanos = (3 * self.lease_nanos + taken) / 4;
        let open = OpenMode { read: may_read, write: may_write, truncate: false };
        let attributes = self.stores.get_mut(at)?.run(|client| plain(client, way.inode)).ok()?;
        if attributes.mode & SET_ID != 0 {
            return None;
        }
        let is_open = self.file(number)?.open.is_some_and(|open| open.store == at && open.serial == serial);
        if !is_open {
            let opened = self
                .stores
                .get_mut(at)?
                .run(|client| client.open_created(way.inode, open).map_err(|errno| errno.raw_os_error()));
            let handle = opened.ok()?;
            let handles = self.stores.get_mut(at)?.handles.entry(inode).or_default();
            handles.count += 1;
            handles.has_writer |= may_write;
            self.file(number)?.open = Some(Open { store: at, serial, handle });
        }
        Some((at, serial, claim))
    }

    fn finish_claim(&mut self, word: u32, store: usize, serial: u64, number: u64) {
        let Some(file) = (word as usize).checked_sub(1).and_then(|file| self.file(file)) else { return };
        let inode = file.inode;
        let Some(store) = self.stores.get_mut(store).filter(|store| store.serial == serial) else { return };
        if let Some(claim) = store.claims.get_mut(&inode).filter(|claim| claim.number == number) {
            claim.is_valid = true;
        }
    }
}

/// The attributes of an inode.
fn plain(client: &mut (dyn Leased + Send), inode: InodeNumber) -> Result<Attributes, Errno> {
    client.attributes(inode).map_err(|errno| errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::mounts::Identity;

    #[test]
    fn a_call_that_outlives_its_file_is_not_one_of_the_next_file() {
        // No test process has it.
        const NUMBER: c_int = 400_000;
        let begin = || {
            with(|state| {
                state.close(words::take(NUMBER));
                let identity = Identity { device: 1, inode: 2 };
                state.put(NUMBER, File::new(identity, (true, true), (false, false)));
                let number = state.of(NUMBER).expect("a file");
                state.kernel_call(number, Need { access: Access::Read, at_position: true })
            })
        };
        let calls = || {
            with(|state| state.of(NUMBER).and_then(|number| state.file(number)).map(|file| file.in_kernel))
        };
        let (first, second) = (begin(), begin());
        drop(first);
        assert_eq!(calls(), Some(1));
        drop(second);
        assert_eq!(calls(), Some(0));
        with(|state| state.close(words::take(NUMBER)));
    }

    #[test]
    fn a_lease_that_is_soon_lost_is_asked_for_later_each_time() {
        let identity = Identity { device: 1, inode: 2 };
        let mut file = File::new(identity, (true, true), (false, false));
        let first = file.patience;
        file.lost();
        assert_eq!(file.patience, 2 * first);
        (0..20).for_each(|_| file.lost());
        assert_eq!(file.patience, MOST_CALLS);
        file.calls_here = WORTH * MOST_CALLS;
        file.lost();
        assert_eq!((file.patience, file.calls_here), (first, 0));
    }
}
