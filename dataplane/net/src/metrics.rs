//! Counters: plain 64-bit words, one writer, never reset.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the engine has counted since it was made.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Metrics {
            /// Calls `visit` with the name and value of every counter.
            pub fn each(&self, mut visit: impl FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name);)*
            }
        }
    };
}

counters! {
    /// Frames received.
    frames_received,
    /// Bytes in them.
    bytes_received,
    /// Frames sent.
    frames_sent,
    /// Bytes in them.
    bytes_sent,
    /// Sends put off because the queue had no buffer or no room.
    transmit_stalls,
    /// Times that a flow was deferred because there was no buffer for its next frame.
    flows_deferred,
    /// Frames for another link address or of a protocol that the engine does not speak.
    frames_ignored,
    /// Packets whose headers are malformed.
    malformed,
    /// Packets whose checksum is wrong.
    bad_checksum,
    /// Packets for another address, or from one that cannot be a source.
    wrong_address,
    /// Fragments received.
    fragments,
    /// Packets reassembled from them.
    reassembled,
    /// Fragments that overlap, disagree or are too many, and packets that did not complete in time.
    fragments_dropped,
    /// ARP requests answered.
    arp_replies,
    /// ARP requests sent.
    arp_requests,
    /// Neighbour solicitations sent.
    neighbour_solicitations,
    /// Neighbour advertisements sent.
    neighbour_advertisements,
    /// Reports of joined groups sent.
    group_reports,
    /// Announcements of our addresses.
    announcements,
    /// Claims of other hosts to our addresses.
    address_conflicts,
    /// IPv6 packets dropped for their extension headers.
    extension_headers_refused,
    /// ICMP errors sent.
    icmp_errors_sent,
    /// Packets dropped because their next hop is unknown.
    unresolved,
    /// ICMP echo requests answered.
    echo_replies,
    /// ICMP errors that affected a flow or a port.
    icmp_errors,
    /// Path-MTU black holes suspected.
    black_holes,
    /// Replies not sent because of a rate limit.
    rate_limited,
    /// Datagrams received.
    datagrams_received,
    /// Datagrams sent.
    datagrams_sent,
    /// Datagrams dropped because no room was left.
    datagrams_dropped,
    /// TCP segments received with a valid checksum.
    segments_received,
    /// Of them, those that the fast path took.
    segments_fast,
    /// TCP segments sent.
    segments_sent,
    /// Of them, those that carried no data, SYN, FIN or RST.
    acks_sent,
    /// Payload bytes delivered in order.
    payload_received,
    /// Payload bytes acknowledged by peers.
    payload_acknowledged,
    /// Pieces that applications sent without copying.
    zero_copy_sends,
    /// Receive buffers that applications took.
    zero_copy_receives,
    /// Connections opened by us.
    connections_opened,
    /// Connections accepted.
    connections_accepted,
    /// Connections that ended in order.
    connections_closed,
    /// Connections that a peer reset.
    connections_reset,
    /// Connections that we reset.
    connections_aborted,
    /// Connections ended because the peer no longer answered.
    connections_timed_out,
    /// Attempts to connect that were refused or had no route.
    connections_failed,
    /// SYNs that found the table of half-open connections full and were answered with a cookie (RFC
    /// 4987).
    syn_cookies_sent,
    /// Connections that such a cookie brought about.
    syn_cookies_accepted,
    /// Segments that might have carried a cookie and did not.
    syn_cookies_refused,
    /// Handshakes held back because the accept queue or the flow table was full.
    accept_overflow,
    /// CE-marked segments with data received (RFC 3168).
    ce_marks_received,
    /// Acknowledgements with ECE received.
    ece_received,
    /// Reductions of a congestion window for ECE.
    ecn_reductions,
    /// Segments retransmitted.
    retransmits,
    /// Retransmission timeouts.
    timeouts,
    /// Losses found by duplicate acknowledgements.
    fast_retransmits,
    /// Bytes marked lost because later ones had arrived (RFC 8985).
    bytes_lost,
    /// Ranges that peers reported (RFC 2018).
    sack_blocks,
    /// DSACKs received (RFC 2883).
    dsacks_received,
    /// Reductions of a congestion window that were undone.
    reductions_undone,
    /// Tail loss probes (RFC 8985).
    tail_probes,
    /// Receivers that reneged on a SACK.
    sack_reneges,
    /// Probes of a closed window.
    window_probes,
    /// Keepalive probes.
    keepalive_probes,
    /// Resets sent.
    resets_sent,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// Segments refused by PAWS (RFC 7323).
    paws_drops,
    /// Times that a receive window was made larger for good.
    receive_windows_grown,
    /// Segments outside the window.
    out_of_window,
    /// Segments kept out of order.
    out_of_order,
    /// DSACKs sent (RFC 2883).
    dsacks_sent,
    /// Gaps beyond which all bytes were dropped because memory was short.
    out_of_order_pruned,
    /// Segments dropped because buffers or ranges were used up.
    buffer_drops,
    /// Connections in TIME-WAIT forgotten early, to make room or for a new connection.
    time_wait_recycled,
}
