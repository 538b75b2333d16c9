//! What is reported to the peer about bytes that arrived out of order: SACK (RFC 2018) and DSACK
//! (RFC 2883).
//!
//! 1. While bytes wait out of order, acknowledgements carry their ranges, the one that grew last
//!    first (`flow/reassembly`). Each acknowledgement without data has them, and data that leave
//!    room. Several acknowledgements that leave at once share the ranges among them.
//! 2. Bytes that arrived twice are reported once, in the first block. If they are in a waiting
//!    range, that range follows, as RFC 2883 section 4 asks. Only the latest such range is kept: it
//!    is a hint, and an ACK follows at once.
//! 3. [`flag::SACK_DUE`] says that there is something to report, so that the common segment pays
//!    one test.

use crate::context::Context;
use crate::packet::sequence::Seq;
use crate::packet::tcp::{Options, ROOM, SackBlocks, Segment, TIMESTAMP_OPTION};
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;

impl Tcp {
    /// The options of a segment with `length` bytes of payload, of a flow that has something to
    /// report.
    #[cold]
    pub(crate) fn report_options(&self, cx: &Context, index: FlowIndex, length: usize) -> Options {
        let (flow, cold) = (&self.flows.hot[index], &self.flows.cold[index]);
        let timestamps =
            flow.has(flag::TIMESTAMPS).then(|| (cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent));
        let room = ROOM - if timestamps.is_some() { TIMESTAMP_OPTION } else { 0 };
        let spare = if length == 0 { room } else { usize::from(flow.mss).saturating_sub(length) };
        let mut count = SackBlocks::that_fit(room.min(spare));
        let mut blocks = SackBlocks::default();
        if count > 0
            && let Some(dsack) = cold.dsack
        {
            blocks.push(dsack);
            count -= 1;
        }
        if let Some(reassembly) = &cold.reassembly {
            let following = usize::from(flow.owed).saturating_sub(1);
            reassembly.report_in_turn(following, count, &mut blocks);
        }
        Options::Sack { timestamps, blocks }
    }

    /// A segment with these options has left: a DSACK range is reported once.
    #[cold]
    pub(crate) fn reported(&mut self, cx: &mut Context, index: FlowIndex, options: &Options) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if let Options::Sack { blocks, .. } = options
            && cold.dsack.is_some()
            && !blocks.as_slice().is_empty()
        {
            cold.dsack = None;
            cx.metrics.dsacks_sent += 1;
        }
        if cold.dsack.is_none() && cold.reassembly.is_none() {
            flow.flags &= !flag::SACK_DUE;
        }
    }

    /// The bytes from `start` up to but without `end` arrived again.
    pub(super) fn note_dsack_range(&mut self, index: FlowIndex, start: Seq, end: Seq) {
        let flow = &mut self.flows.hot[index];
        if flow.has(flag::SACK) && start.before(end) {
            flow.flags |= flag::SACK_DUE;
            self.flows.cold[index].dsack = Some((start, end));
        }
    }

    /// Notes what of a segment with payload is before the next expected byte.
    pub(super) fn note_old_payload(&mut self, index: FlowIndex, segment: &Segment<'_>) {
        let next = self.flows.hot[index].rcv_nxt;
        if segment.seq.before(next) {
            let end = segment.seq.plus(segment.payload.len() as u32).min(next);
            self.note_dsack_range(index, segment.seq, end);
        }
    }
}
