//! Programs by name (`tests/programs/*.txt`): each must do under the shim what it does under the
//! kernel.
//!
//! `pair fA fB [HOST]` is short for the steps that make a connection, A the client, through a
//! listener that is closed afterwards.

use sietch_posix_oracle::program::Program;
use sietch_posix_oracle::session::{Session, Setting};
use sietch_posix_oracle::suite::{Pair, Subject};

use crate::settings;

/// The text of each file.
const FILES: [&str; 7] = [
    include_str!("../programs/fork.txt"),
    include_str!("../programs/exec.txt"),
    include_str!("../programs/rights.txt"),
    include_str!("../programs/threads.txt"),
    include_str!("../programs/epoll.txt"),
    include_str!("../programs/signals.txt"),
    include_str!("../programs/streams.txt"),
];

/// Every program with its name.
fn programs() -> Vec<(&'static str, Program)> {
    let sections = FILES.iter().flat_map(|text| text.split("\n== ").skip(1));
    sections
        .map(|section| {
            let (name, steps) = section.split_once('\n').unwrap_or((section, ""));
            let steps: Vec<_> = steps.lines().map(connected).collect();
            match Program::read(&steps.join("\n")) {
                Ok(program) => (name, program),
                Err(cause) => panic!("{name}: {cause}"),
            }
        })
        .collect()
}

/// A line, or the steps that `pair` is short for.
fn connected(line: &str) -> String {
    let mut words = line.split_whitespace();
    let (Some("pair"), Some(client), Some(server)) = (words.next(), words.next(), words.next()) else {
        return line.to_owned();
    };
    let host = words.next().unwrap_or("lo4");
    let family = if host == "lo6" { "inet6" } else { "inet" };
    format!(
        "m socket f11 {family} stream - 0\nm bind f11 {host}:0\nm listen f11 5\nm socket {client} {family} stream - 0\n\
         m connect {client} {host}:f11\nm accept f11 {server} 128\nm close f11"
    )
}

fn same(name: &str, other: &Setting) {
    let programs = programs();
    let (_, program) = programs.iter().find(|(each, _)| *each == name).expect("a program of that name");
    let mut pair = Pair::start(Subject::Sockets, &settings::kernel(), other).expect("executors");
    if let Some(text) = pair.differs(program).expect("executors") {
        panic!("{name}\n{text}");
    }
}

/// The programs after `---` still differ.
macro_rules! named {
    ($( $name:ident )* --- $( $pending:ident )*) => {
        /// The tests below.
        const TESTS: &[&str] = &[$( stringify!($name), )* $( stringify!($pending), )*];

        $(
            #[test]
            fn $name() {
                same(stringify!($name), &settings::shim());
            }
        )*

        $(
            #[test]
            #[ignore = "the shim still differs from the kernel"]
            fn $pending() {
                same(stringify!($pending), &settings::shim());
            }
        )*
    };
}

named! {
    fork_a_child_sends_and_receives_on_its_parents_connection
    fork_a_close_in_the_child_leaves_the_parents_end_open
    fork_the_last_close_is_the_end_in_any_process
    fork_a_shutdown_counts_for_everyone
    fork_both_processes_accept_from_one_listener
    fork_a_child_that_sleeps_in_accept_is_woken_by_its_parent
    fork_a_child_that_is_killed_closes_its_sockets
    fork_a_child_that_is_killed_with_unread_data_resets
    fork_a_child_that_was_the_last_holder_of_a_listener_is_killed
    fork_a_child_shuts_the_listener_of_all_down
    fork_two_children_speak_with_each_other
    fork_a_sleeping_child_gets_bytes_that_its_parent_does_not_take
    fork_options_and_status_flags_are_shared
    exec_a_connection_goes_on
    exec_data_that_waits_is_received_afterwards
    exec_a_close_on_exec_descriptor_is_closed
    exec_a_close_on_exec_listener_of_the_last_holder_refuses
    exec_a_listener_goes_on
    exec_an_unaccepted_connection_is_accepted_afterwards
    exec_twice
    exec_options_and_flags_stay
    exec_half_closed_stays_half_closed
    exec_duplicates_are_one_connection
    rights_a_connection_within_the_process
    rights_a_connection_to_a_child
    rights_a_connection_made_after_the_fork
    rights_a_listener_made_after_the_fork
    rights_closed_while_it_travels
    rights_lost_while_it_travels
    rights_close_on_exec
    rights_from_a_child_to_its_parent
    rights_an_unconnected_socket
    threads_recv_is_woken_by_data
    threads_recv_is_woken_by_the_end
    threads_recv_is_woken_by_a_close
    threads_recv_is_woken_by_a_reset
    threads_recv_is_woken_by_a_reset_of_unread_data
    threads_recv_is_woken_by_its_own_shutdown
    threads_recv_goes_on_when_its_descriptor_is_closed
    threads_recv_goes_on_when_its_number_is_another_socket
    threads_waitall_waits_for_all
    threads_waitall_ends_with_the_stream
    threads_accept_goes_on_when_its_descriptor_is_closed
    threads_send_is_woken_by_room
    threads_send_is_woken_by_a_reset
    threads_send_is_woken_by_a_close
    threads_send_is_woken_by_the_death_of_its_peer
    threads_both_directions_at_once
    threads_a_timeout_ends_a_call
    epoll_exclusive_listener_wakes_one_waiter
    epoll_refused
    epoll_loops_are_refused
    epoll_a_closed_descriptor_is_removed
    epoll_errors
    epoll_unix_entry_is_not_disturbed
    signals_receiving
    signals_receiving_with_a_timeout_is_never_restarted
    signals_sending
    signals_sending_restarted
    signals_waiting
    signals_waiting_is_never_restarted
    signals_in_a_child
    signals_in_a_thread_leave_the_others_alone
    signals_sigpipe_after_shutdown
    streams_data_then_reset
    streams_a_listener_that_closes_resets_waiting_clients
    streams_a_client_that_leaves_before_it_is_accepted
    streams_connect_without_waiting
    streams_refused_without_waiting
    streams_of_version_six_and_mapped
    streams_v6only
    streams_a_socket_that_meets_itself
    streams_names_are_cut
    streams_vectors_and_messages
    streams_sendfile
    streams_status_flags
    streams_duplicates
    streams_dup2_over_a_connection_closes_it
    streams_close_range
    streams_a_number_used_again
    streams_a_listener_started_again
    streams_options
    streams_queues
    streams_full_then_closed_arrives_whole
    streams_not_sockets
    fork_a_close_in_the_parent_leaves_the_childs_end_open
    threads_one_accepts_another_receives_a_third_sends
    threads_poll_is_woken
    threads_select_is_woken
    threads_epoll_wait_is_woken
    threads_two_epolls_two_threads_one_socket
    threads_a_level_wakes_every_thread_that_waits
    epoll_level
    epoll_edge_is_given_anew_by_mod
    epoll_edge_of_writing
    epoll_level_of_writing
    epoll_oneshot
    epoll_exclusive
    epoll_edge_added_before_connect
    epoll_nested
    epoll_nested_wakes
    epoll_one_socket_in_two_epolls
    epoll_a_duplicate_keeps_the_entry_of_a_closed_descriptor
    epoll_a_number_that_is_another_socket_now
    epoll_two_duplicates_are_two_entries
    epoll_the_end_and_resets
    epoll_of_a_parent_closed_after_its_child_that_registered_there
    epoll_within_another_is_ready_for_a_kernel_descriptor_beside_another
    epoll_within_another_does_not_report_a_fired_one_shot_that_has_shut_down
    epoll_timeouts
    streams_half_close
    streams_unread_data_at_a_close_is_a_reset
    streams_linger_zero_is_a_reset
    streams_full_and_emptied
    streams_pointers_to_nothing
    streams_select
    streams_an_address_in_use
    epoll_listener_level_and_edge
    epoll_added_before_listen_and_connect
    signals_receiving_restarted
    signals_accepting
    signals_sigpipe
    streams_sending_to_a_closed_peer
    streams_much_is_sent_to_a_closed_peer
    streams_much_is_sent_to_a_peer_shut_down_both_ways
    streams_much_of_a_file_is_sent_to_a_closed_peer
    streams_a_mapped_connection_becomes_one_of_version_four
    streams_data_nowhere
    streams_flags_of_receiving
    streams_listeners
    streams_timeouts
    fork_a_listener_of_a_dead_child_refuses
    threads_accept_is_woken_by_shutdown
    threads_send_is_woken_by_its_own_shutdown
    streams_connect_in_every_state
    streams_sending_to_a_peer_shut_down_both_ways
    streams_reset_of_a_filled_and_shut_down_one
    streams_a_queue_that_goes_away_after_data_was_sent
    streams_bound_again_after_the_end
    streams_nothing_is_sent_and_received
    streams_sendfile_to_a_closed_peer
    streams_peeking_for_all_at_the_end
    streams_options_of_states
    threads_recv_goes_on_to_its_end_when_its_descriptor_is_closed
    threads_accept_sets_its_number_aside
    streams_errors_in_their_order
    streams_shut_down_from_both_sides
    streams_held_back_bytes_come_without_another_call
    streams_held_back_bytes_come_before_the_end
    streams_held_back_bytes_of_a_killed_child_come
    streams_corked
    epoll_held_back_bytes_come_without_another_call
    threads_a_restarted_call_finds_its_descriptor_closed
    threads_a_closed_descriptor_ends_with_the_select_or_poll_that_slept_on_it
    fork_each_close_is_looked_into
    fork_a_child_peeks_while_its_parent_reads
    threads_epoll_wait_is_woken_by_a_registration_of_another_thread
    epoll_edge
    epoll_nested_edge
    epoll_mixed_with_pipes_and_eventfds
    exec_an_epoll_goes_on
    epoll_shared_by_a_fork_after_a_close_in_the_parent
    epoll_shared_by_a_fork
    ---
}

#[test]
fn every_program_is_a_test() {
    let mut names: Vec<_> = programs().iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let mut tests = TESTS.to_vec();
    tests.sort_unstable();
    assert_eq!(names, tests);
}

#[test]
fn the_kernel_does_the_same_each_time() {
    let mut kernel = Session::start(&settings::kernel()).expect("an executor");
    for (name, program) in programs() {
        same(name, &settings::kernel());
        // Nor does a program say what cannot be done.
        let answer = kernel.run(&program, 40).expect("an executor");
        let idle = ["absent", "busy", "cannot", "no step", "nothing started", "no descriptor", "hangs"];
        let idle = answer.iter().find(|line| idle.iter().any(|word| line.contains(word)));
        assert_eq!(idle, None, "{name}");
    }
}
