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
    /// Times that a flow was passed over because there was no buffer for its next frame.
    flows_deferred,
    /// Frames for another link address or of a protocol that the engine does not speak.
    frames_ignored,
    /// Packets whose headers are malformed.
    malformed,
    /// Packets whose checksum is wrong.
    bad_checksum,
    /// Packets for another address, or from one that cannot be a source.
    wrong_address,
    /// Parts of packets.
    fragments,
    /// Packets put together from them.
    reassembled,
    /// Parts that overlap, disagree or are too many, and packets whose parts did not all come in
    /// time.
    fragments_dropped,
    /// ARP requests answered.
    arp_replies,
    /// ARP requests sent.
    arp_requests,
    /// Neighbours of IPv6 asked for.
    neighbour_solicitations,
    /// Answers to who asked for our IPv6 addresses.
    neighbour_advertisements,
    /// Reports of the groups that are wanted.
    group_reports,
    /// Addresses of ours that the link was told of unasked.
    announcements,
    /// Claims of others to an address of ours.
    address_conflicts,
    /// IPv6 packets whose extension headers forbid to take them.
    extension_headers_refused,
    /// ICMP errors sent.
    icmp_errors_sent,
    /// Packets dropped because their next hop is unknown.
    unresolved,
    /// ICMP echo requests answered.
    echo_replies,
    /// ICMP errors taken to heart by a flow.
    icmp_errors,
    /// Times that a path was suspected to swallow full segments.
    black_holes,
    /// Things not sent because a rate limit said so.
    rate_limited,
    /// Datagrams received.
    datagrams_received,
    /// Datagrams sent.
    datagrams_sent,
    /// Datagrams dropped for want of room.
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
    /// Pieces that applications lent for sending.
    zero_copy_sends,
    /// Receive buffers handed over to applications.
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
    /// Connections given up because the peer fell silent.
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
    /// Data that came with a mark of congestion (RFC 3168).
    ce_marks_received,
    /// Acknowledgements that echoed one.
    ece_received,
    /// Reductions of a congestion window for it.
    ecn_reductions,
    /// Segments sent again.
    retransmits,
    /// Retransmission timeouts.
    timeouts,
    /// Losses found by duplicate acknowledgements.
    fast_retransmits,
    /// Bytes taken for lost because later ones had arrived (RFC 8985).
    bytes_lost,
    /// Ranges that peers reported (RFC 2018).
    sack_blocks,
    /// Reports of peers that bytes came twice (RFC 2883).
    dsacks_received,
    /// Reductions of a congestion window that were taken back.
    reductions_undone,
    /// Probes of the tail of what was sent (RFC 8985).
    tail_probes,
    /// Receivers that threw away what they had reported.
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
    /// Times that a peer was told of bytes that came twice (RFC 2883).
    dsacks_sent,
    /// Gaps beyond which everything was dropped, because memory was short and they had stood
    /// longest.
    out_of_order_pruned,
    /// Segments dropped because buffers or ranges were used up.
    buffer_drops,
    /// Connections in TIME-WAIT forgotten early, to make room or for a new connection.
    time_wait_recycled,
}
