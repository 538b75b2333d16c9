//! Arming a registration: requesting that the peer notify this epoll set.
//!
//! [`EpollSet::arm`](Registrations::arm) counts the registration as a waiter, so that the peer
//! writes to the placeholder, which the kernel's epoll watches. The registration stays counted
//! until it is disarmed, notified or not. So no other waiter of the same end takes the last byte
//! before the kernel has reported it. A request that was answered, or for which the kernel has
//! reported the placeholder, is made again before the next sleep.

use sietch_ring::stream::{Want, flag};
use sietch_stream::foreign_bytes::EXAMINED_DOORBELLS;

use crate::connection::doorbell;
use crate::descriptor::table;
use crate::readiness::check::{
    self, ALWAYS, EDGE, EXCLUSIVE, HANGUP, INPUT, OUTPUT, has_shut_read, readiness,
};
use crate::readiness::nested;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{SlotKind, bit};

impl Registrations {
    /// Requests notifications for the registered events that are not ready. The caller checks once
    /// more before it sleeps.
    #[inline]
    pub(crate) fn arm(&mut self, number: u32) {
        let sleep = self.sleep;
        let (slot, held) = self.slot_and_held(number);
        let Some(held) = held.filter(|_| slot.state & bit::SILENT == 0) else { return };
        if slot.kind() == SlotKind::Nested {
            nested::check(slot.fd, &held.clone(), false, true);
            return;
        }
        let Some(end) = held.end() else { return };
        let notified = slot.state & bit::NOTIFIED != 0;
        slot.state &= !bit::NOTIFIED;
        let again = |want, request| notified || end.is_answered(want, request);
        // After the own FIN the peer's is a hang-up, which is reported unasked; and the peer's FIN
        // is an edge for all registrations.
        let data = slot.events & (INPUT | EDGE) != 0 || end.private().has(flag::SHUT_WR);
        if slot.state & bit::DATA != 0 {
            let answered = again(Want::Data, slot.data_request);
            if slot.state & bit::AMONG_MANY != 0 && answered {
                slot.data_request = end.arm_again_among_many(sleep) as u32;
            } else if slot.state & bit::AMONG_MANY != 0 {
                end.number_sleep(sleep);
            } else if answered {
                slot.data_request = end.arm_again(Want::Data) as u32;
            }
        } else if data {
            // Only a service core uses it, and an end that reads no more is never notified.
            let among_many = sleep != 0 && end.private().has(flag::SERVED) && !has_shut_read(end);
            let request = if among_many { end.arm_among_many(sleep) } else { None };
            slot.state |= bit::DATA | if request.is_some() { bit::AMONG_MANY } else { 0 };
            slot.data_request = request.unwrap_or_else(|| end.arm(Want::Data)) as u32;
        }
        if slot.state & bit::ROOM != 0 {
            if again(Want::Room, slot.room_request) {
                slot.room_request = end.arm_again(Want::Room) as u32;
            }
        } else if slot.events & OUTPUT != 0 && (end.is_short_of_room() || !end.is_writable()) {
            slot.room_request = end.arm(Want::Room) as u32;
            slot.state |= bit::ROOM;
        }
        if table::refers_to(slot.fd, held) {
            doorbell::thin(slot.fd, end);
            if slot.state & bit::EXAMINE != 0 {
                slot.state &= !bit::EXAMINE;
                doorbell::examine(slot.fd, end);
            }
        }
    }

    /// Requests of a registration that are counted.
    pub(crate) fn counted(&mut self, number: u32) -> u32 {
        (self.slot(number).state & (bit::DATA | bit::ROOM)).count_ones()
    }

    /// Another thread took bytes from the doorbell while a registration was armed: the answer to
    /// its request may have been among them.
    #[cold]
    pub(crate) fn arm_after_drain(&mut self, number: u32) {
        let (slot, held) = self.slot_and_held(number);
        if let Some(end) = held.and_then(|held| held.end()) {
            slot.data_request = end.arm_again(Want::Data) as u32;
        }
    }

    /// Cancels the requests for notifications.
    #[inline]
    pub(crate) fn disarm(&mut self, number: u32) {
        if self.slot(number).state & (bit::DATA | bit::ROOM) != 0 {
            self.disarm_some(number, bit::DATA | bit::AMONG_MANY | bit::ROOM);
        }
    }

    /// The same for the requests in `bits`: for data, for room, or both.
    pub(crate) fn disarm_some(&mut self, number: u32, bits: u16) {
        let (slot, held) = self.slot_and_held(number);
        let Some(held) = held else { return };
        let armed = slot.state & bits;
        if armed & (bit::DATA | bit::ROOM) == 0 {
            return;
        }
        let among_many = slot.state & bit::AMONG_MANY != 0;
        slot.state &= !bits;
        let Some(end) = held.end() else { return };
        if armed & bit::DATA != 0 {
            if among_many { end.disarm_among_many() } else { end.disarm(Want::Data) }
        }
        if armed & bit::ROOM != 0 {
            end.disarm(Want::Room);
        }
    }

    /// The kernel reports something of a registration: `events` of its placeholder or nested epoll.
    pub(crate) fn note_kernel_event(&mut self, number: u32, events: u32) {
        let (slot, held) = self.slot_and_held(number);
        let still_forced = slot.state & (bit::FORCED | bit::PENDING) == bit::FORCED;
        slot.state &= !bit::PENDING;
        let Some(held) = held else {
            if slot.kind() == SlotKind::Stream {
                // A relative's: its threads check it in their next scan.
                slot.state |= bit::NOTIFIED;
                self.put_on_list(number);
            }
            return;
        };
        match slot.kind() {
            SlotKind::Stream | SlotKind::Dormant => {
                if let Some(end) = held.end() {
                    if events & (HANGUP | libc::EPOLLRDHUP as u32) != 0 {
                        check::has_hung_up(slot.fd, held, end);
                    }
                    end.withdraw_request(Want::Room);
                    slot.state |= bit::NOTIFIED;
                    if table::refers_to(slot.fd, held) {
                        doorbell::thin(slot.fd, end);
                        let nothing =
                            || readiness(end, slot.events & OUTPUT != 0) & (slot.events | ALWAYS) == 0;
                        // The bytes that woke the thread may be no doorbells, or be beside one. If
                        // there is something to serve as well, that comes first.
                        if events & libc::EPOLLIN as u32 != 0 {
                            if nothing() {
                                doorbell::examine(slot.fd, end);
                            } else if end.notified_since(0) < EXAMINED_DOORBELLS
                                || slot.events & EXCLUSIVE != 0
                            {
                                // The kernel reports no end of an exclusive registration.
                                slot.state |= bit::EXAMINE;
                            }
                        }
                    }
                }
                if slot.kind() == SlotKind::Dormant {
                    return;
                }
            }
            SlotKind::Nested => slot.state |= bit::KERNEL_READY,
            SlotKind::Native | SlotKind::Nothing => return,
        }
        if still_forced && events & !OUTPUT == 0 {
            // The peer took its doorbell, on which nothing here depends.
            self.quieten(number);
        }
        self.put_on_list(number);
    }
}
