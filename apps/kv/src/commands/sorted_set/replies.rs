//! Replies of several commands of sorted sets.

use crate::foundation::protocol::Reply;

/// Writes members, with their scores if asked: pairs of their own in RESP3, all in one array in
/// RESP2.
pub(super) fn write_members<N: std::ops::Deref<Target = [u8]>>(
    reply: &mut Reply,
    many: usize,
    with_scores: bool,
    members: impl Iterator<Item = (N, f64)>,
) {
    let nested = with_scores && reply.resp3;
    reply.array(if with_scores && !nested { 2 * many } else { many });
    for (name, score) in members {
        if nested {
            reply.array(2);
        }
        reply.bulk(&name);
        if with_scores {
            reply.double(score);
        }
    }
}
