//! `TCP_INFO` of a connection from its engine's state: `struct tcp_info` of Linux up to
//! `tcpi_delivery_rate`. Fields that an engine does not keep are zero.

use sietch_net::{FlowInfo, RecoveryState, State};

/// The size of the structure in bytes.
pub(super) const BYTES: usize = 168;

/// Returns the structure of a connection.
pub(super) fn of(flow: &FlowInfo) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[0] = match flow.state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
        _ => 7,
    };
    bytes[1] = match flow.recovery {
        RecoveryState::Open => 0,
        RecoveryState::Disorder => 1,
        RecoveryState::Recovery => 3,
        RecoveryState::Loss => 4,
    };
    bytes[2] = flow.backoff;
    bytes[4] = flow.backoff;
    let scaled = flow.send_scale | flow.receive_scale != 0;
    bytes[5] = u8::from(flow.timestamps)
        | u8::from(flow.sack) << 1
        | u8::from(scaled) << 2
        | u8::from(flow.ecn) << 3;
    bytes[6] = flow.send_scale & 15 | flow.receive_scale << 4;
    let size = u32::from(flow.segment_size).max(1);
    let micros = |nanoseconds: u64| u32::try_from(nanoseconds / 1000).unwrap_or(u32::MAX);
    let millis = |nanoseconds: u64| u32::try_from(nanoseconds / 1_000_000).unwrap_or(u32::MAX);
    let words = [
        (8, micros(flow.retransmission_timeout)),
        (12, 40_000),
        (16, size),
        (20, size),
        (24, flow.in_flight.div_ceil(size)),
        (28, flow.sacked.div_ceil(size)),
        (32, flow.lost.div_ceil(size)),
        (44, millis(flow.since_sent)),
        (52, millis(flow.since_received)),
        (56, millis(flow.since_received)),
        (60, size + 52),
        (64, flow.receive_window),
        (68, micros(flow.srtt)),
        (72, micros(flow.rttvar)),
        (
            76,
            if flow.slow_start_threshold == u32::MAX {
                i32::MAX.cast_unsigned()
            } else {
                flow.slow_start_threshold / size
            },
        ),
        (80, flow.congestion_window / size),
        (84, size),
        (88, 3),
        (96, u32::try_from(flow.receive_buffer).unwrap_or(u32::MAX)),
        (100, u32::try_from(flow.retransmits).unwrap_or(u32::MAX)),
        (
            144,
            u32::try_from(flow.unsent_or_unacknowledged).unwrap_or(u32::MAX).saturating_sub(flow.in_flight),
        ),
        (148, micros(flow.min_rtt)),
    ];
    for (at, word) in words {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let pace = if flow.pacing_rate == 0 { u64::MAX } else { flow.pacing_rate };
    let rate =
        u64::from(flow.congestion_window).saturating_mul(1_000_000_000).checked_div(flow.srtt).unwrap_or(0);
    let long = [
        (104, pace),
        (112, u64::MAX),
        (120, flow.acknowledged_bytes),
        (128, flow.received_bytes),
        (160, rate),
    ];
    for (at, word) in long {
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
