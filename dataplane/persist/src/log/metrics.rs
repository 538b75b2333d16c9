//! What a log counts.

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMetrics {
    /// Payloads appended.
    pub appends: u64,
    /// Their bytes.
    pub appended_bytes: u64,
    /// Writes passed to the device, for log and snapshots.
    pub writes: u64,
    /// Bytes of these writes, headers and padding included.
    pub written_bytes: u64,
    /// Flushes passed to the device.
    pub flushes: u64,
    /// Snapshots finished.
    pub snapshots: u64,
    /// Truncations finished.
    pub truncations: u64,
    /// Changes of size finished.
    pub resizes: u64,
    /// Superblocks written only to prove how far the log is durable.
    pub proofs: u64,
    /// Reads of cursors passed to the device.
    pub reads: u64,
    /// Reads of cursors that have come back.
    pub reads_done: u64,
    /// Appends refused because the area was full.
    pub full: u64,
    /// Appends refused because too much was queued.
    pub busy: u64,
}

impl LogMetrics {
    /// Every counter with its name, in the order of the fields. A report shows all of them: a
    /// field that is missing here does not compile.
    pub fn each(&self, mut show: impl FnMut(&'static str, u64)) {
        let Self {
            appends,
            appended_bytes,
            writes,
            written_bytes,
            flushes,
            snapshots,
            truncations,
            resizes,
            proofs,
            reads,
            reads_done,
            full,
            busy,
        } = *self;
        show("appends", appends);
        show("appended_bytes", appended_bytes);
        show("writes", writes);
        show("written_bytes", written_bytes);
        show("flushes", flushes);
        show("snapshots", snapshots);
        show("truncations", truncations);
        show("resizes", resizes);
        show("proofs", proofs);
        show("reads", reads);
        show("reads_done", reads_done);
        show("full", full);
        show("busy", busy);
    }
}
