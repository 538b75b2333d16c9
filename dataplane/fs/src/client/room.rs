//! Room in the pool, for what is in the log and not digested.
//!
//! 1. What an operation may use is counted before it is logged. What does not fit waits for the
//!    digest, which frees what was removed before, and gets `ENOSPC` when nothing can come.
//! 2. Where clients share a pool, the service gives each a budget. An operation that does not fit
//!    asks for more, and the service answers when it has asked the others. One question is
//!    unanswered at a time.
//! 3. A question is of the operation that asked it: within a try ([`super::tries`]) others run
//!    before its answer. That there is no room for one says nothing to an operation that needs
//!    less, or that began later. So the operation that asked has the answer ([`Question`]), and
//!    takes it along when it is given up.
//!
//! What it must never do: refuse an operation for an answer from before the last digest.

use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::question::Question;
use super::{Client, Service, spare_blocks};
use crate::base::Base as _;

/// Commits that an operation without room waits for when its log is digested, at most: one for each
/// step of removing what it freed. The service says when there are no more.
pub(super) const ROOM_WAITS: u32 = 64;

impl<S: Service<M>, M: Medium> Client<S, M> {
    /// Waits for room of `blocks` blocks, if it can come.
    ///
    /// # Errors
    /// `ENOSPC`: it cannot. `EAGAIN`: the operation ends, and runs again.
    pub(super) fn reserve(&mut self, blocks: u64) -> Result<(), Errno> {
        // What no pool of this size has room for does not wait.
        let (_, total) = self.service.base().free_blocks();
        if blocks > total.saturating_sub(spare_blocks(total)) {
            return Err(Errno::NOSPC);
        }
        let logged = self.log.next_position();
        while !self.fits(blocks) {
            let end = self.tries.waited.room.since(logged);
            let mut before = self.digested;
            if S::IS_SHARED {
                let (digested, is_there) = self.ask_for_room(blocks)?;
                if is_there || self.fits(blocks) {
                    continue;
                }
                before = digested;
            }
            if self.tries.waited.room.commits >= ROOM_WAITS {
                return Err(Errno::NOSPC);
            }
            self.service.logged(logged);
            let Some(position) = self.wait_for_digest()? else {
                // What the answer counted may have been digested before it came.
                if self.digested == before {
                    return Err(Errno::NOSPC);
                }
                self.tries.waited.room.commits += 1;
                continue;
            };
            // A full pool takes few records at a time, so many digests may come before.
            self.tries.waited.room.commits += u32::from(position >= end);
        }
        Ok(())
    }

    /// Asks for room for `blocks` blocks more than were promised; what was digested then, and
    /// whether there is some.
    fn ask_for_room(&mut self, blocks: u64) -> Result<(u64, bool), Errno> {
        let ends = self.tries.may_repeat();
        let mut pending = None;
        loop {
            self.answer_within()?;
            let own = &mut self.tries.waited.question;
            if let Some(question) = own.take_if(|question| question.answer.get().is_some()) {
                self.progress();
                return Ok((question.digested, question.answer.get() == Some(&true)));
            }
            if self.leases.question.is_none() {
                self.progress();
                self.service.request_room(self.promised_blocks + blocks)?;
                let question = Arc::new(Question { digested: self.digested, answer: OnceLock::new() });
                self.leases.question = Some(Arc::clone(&question));
                self.tries.waited.question = Some(question);
                continue;
            }
            if let Some(pending) = pending {
                return Err(self.wait_for_message(pending));
            }
            pending = if ends { self.service.begin_wait_message()? } else { None };
            if pending.is_none() {
                self.service.wait_message()?;
            }
        }
    }

    /// The service says whether there is room, for the operation that asked.
    pub(super) fn room_is_there(&mut self, is_there: bool) {
        if let Some(question) = self.leases.question.take() {
            // Its first answer: it is asked once.
            let _ = question.answer.set(is_there);
        }
    }

    /// Whether so many blocks can be promised.
    fn fits(&mut self, blocks: u64) -> bool {
        let most = self.service.budget();
        self.promised_blocks + blocks <= most.unwrap_or_else(|| self.usable_blocks())
    }

    /// Blocks that are free, without those that are never promised.
    pub(super) fn usable_blocks(&mut self) -> u64 {
        let (free, total) = self.service.base().free_blocks();
        free.saturating_sub(spare_blocks(total))
    }
}
