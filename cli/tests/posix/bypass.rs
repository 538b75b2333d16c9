//! Ways past the library, and calls that it must not touch: libraries opened with RTLD_DEEPBIND,
//! io_uring, the C library's own writes, programs of another C library, and a process without free
//! descriptors.

use crate::testbed::{self, Sides, Testbed};

fn both(needs: &[&str], load: fn(&Testbed)) {
    testbed::run(module_path!(), needs, Sides::BOTH, &[Sides::BOTH], load);
}

/// Compiles a program.
fn compile(testbed: &Testbed, name: &str, text: &str, more: &[&str]) -> String {
    let source = testbed.write(&format!("{name}.c"), text);
    let output = testbed.path(name);
    let arguments = [&[source.as_str(), "-w", "-o", &output][..], more].concat();
    testbed.start(testbed.kernel_command("cc", &arguments), "cc").succeed();
    output
}

/// The output of a program of this test under Sietch.
fn run_program(testbed: &Testbed, program: &str, arguments: &[&str]) -> String {
    testbed.start(testbed.client_command(program, arguments), "program").succeed().text()
}

#[test]
fn a_library_opened_with_deepbind_has_the_programs_connections() {
    both(&["cc"], |testbed| {
        let text = include_str!("scripts/deepbind.c");
        let library = compile(testbed, "extension.so", text, &["-DLIBRARY", "-shared", "-fPIC"]);
        let program = compile(testbed, "deepbind", text, &["-ldl"]);
        let printed = run_program(testbed, &program, &[&library]);
        assert_eq!(printed, "getpeername 0 family 2 recv 5\n".repeat(2));
    });
}

#[test]
fn io_uring_is_unavailable_and_other_calls_are_the_kernels() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "raw", include_str!("scripts/raw.c"), &[]);
        let expected = "io_uring_setup ENOSYS\n\
             mmap 1 errno 0\n\
             sixth argument -1 Invalid argument\n\
             no such call -1 Function not implemented\n\
             poll -1 Bad address\n\
             poll -1 Bad address\n\
             select -1 Bad address\n\
             pending: poll -1 Bad address\n\
             pending: select -1 Bad address\n\
             pending: ppoll -1 Bad address\n\
             closed: poll -1 Bad address\n\
             closed: select -1 Bad address\n\
             closed: ppoll -1 Bad address\n\
             epoll_wait -1 Bad address\n";
        assert_eq!(run_program(testbed, &program, &[]), expected);
    });
}

#[test]
fn calls_by_number_behave_as_on_the_kernel() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "numbers", include_str!("scripts/numbers.c"), &[]);
        let kernel = testbed.start(testbed.kernel_command(&program, &[]), "kernel's").succeed().text();
        assert!(kernel.contains("epoll_wait 1") && kernel.ends_with("write -1 Broken pipe \n"), "{kernel}");
        assert_eq!(run_program(testbed, &program, &[]), kernel);
    });
}

#[test]
fn bytes_written_past_the_library_reset_the_connection() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "past", include_str!("scripts/past.c"), &["-pthread"]);
        let expected = "client -1 Connection reset by peer\n\
             server -1 Connection reset by peer\n\
             past the library Broken pipe\n";
        for how in ["recv", "poll", "select", "epoll"] {
            for payload in ["text", "zeros"] {
                assert_eq!(run_program(testbed, &program, &[how, payload]), expected, "{how} {payload}");
                let mixed = run_program(testbed, &program, &[how, payload, "mixed"]);
                assert_eq!(mixed, expected, "{how} {payload} beside the library");
            }
            let printed = run_program(testbed, &program, &[how, "doorbells"]);
            assert!(printed.starts_with("client 1 \n"), "{how}: doorbells were taken for data: {printed}");
        }
        for payload in ["text", "zeros"] {
            assert_eq!(
                run_program(testbed, &program, &["crowd", payload]),
                "all were notified\n",
                "{payload}"
            );
        }
    });
}

#[test]
fn a_shutdown_past_the_library_resets_the_connection() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "past", include_str!("scripts/past.c"), &["-pthread"]);
        let expected = "client -1 Connection reset by peer\n\
             server -1 Connection reset by peer\n\
             past the library Broken pipe\n";
        for how in ["recv", "poll", "select", "epoll", "edge", "exclusive", "nested"] {
            assert_eq!(run_program(testbed, &program, &[how, "shutdown"]), expected, "{how}");
            let mixed = run_program(testbed, &program, &[how, "shutdown", "mixed"]);
            assert_eq!(mixed, expected, "{how} beside the library");
        }
        assert_eq!(run_program(testbed, &program, &["crowd", "shutdown"]), "all were notified\n");
    });
}

#[test]
fn a_call_that_a_handler_jumps_out_of_leaves_nothing_behind() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "jumps", include_str!("scripts/jumps.c"), &[]);
        let kernel = testbed.start(testbed.kernel_command(&program, &[]), "kernel's").succeed().text();
        assert_eq!(kernel.matches(": 5 jumps, 0 descriptors").count(), 10, "{kernel}");
        assert_eq!(run_program(testbed, &program, &[]), kernel);
        // The kernel's bytes have passed over its loopback.
        testbed.skip_byte_check();
    });
}

#[test]
fn a_call_by_number_does_not_reach_another_library() {
    both(&["cc"], |testbed| {
        let text = include_str!("scripts/interposed.c");
        let library = compile(testbed, "interposed.so", text, &["-DLIBRARY", "-shared", "-fPIC"]);
        let program = compile(testbed, "interposed", text, &[&library]);
        as_on_the_kernel(testbed, &program);
    });
}

#[test]
fn a_waiting_call_ends_when_its_thread_is_cancelled() {
    both(&["cc"], |testbed| {
        let text = include_str!("scripts/cancelled.c");
        let program = compile(testbed, "cancelled", text, &["-O1", "-pthread"]);
        let printed = as_on_the_kernel(testbed, &program);
        assert!(!printed.contains("not cancelled"), "{printed}");
    });
}

#[test]
fn a_connection_is_usable_after_an_exec_that_ended_a_call_on_it() {
    both(&["cc"], |testbed| {
        let text = include_str!("scripts/executed.c");
        let program = compile(testbed, "executed", text, &["-O1", "-pthread"]);
        assert_eq!(run_program(testbed, &program, &[]), "unusable after exec: 0\n");
    });
}

#[test]
fn a_program_with_address_sanitizer_starts_and_is_checked() {
    both(&["cc"], |testbed| {
        let find = testbed.kernel_command("cc", &["-print-file-name=libasan.so"]);
        if !testbed.start(find, "cc").succeed().text().starts_with('/') {
            testbed.skip_byte_check();
            return eprintln!("SKIPPED: needs AddressSanitizer's library");
        }
        let text = include_str!("scripts/sanitized.c");
        let program = compile(testbed, "sanitized", text, &["-fsanitize=address"]);
        let expected = "connect 0\nwrite 5\nrecv 5 hello\nfound 1\n".repeat(2);
        assert_eq!(run_program(testbed, &program, &[]), expected);
    });
}

#[test]
fn splice_moves_bytes_between_connections_and_pipes() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "splices", include_str!("scripts/splices.c"), &["-O1", "-pthread"]);
        let printed = as_on_the_kernel(testbed, &program);
        assert_eq!(printed.matches("relayed 8388608, whole").count(), 4, "{printed}");
    });
}

#[test]
fn what_a_child_closes_before_exec_stays_its_parents() {
    both(&["cc", "python3"], |testbed| {
        let program = compile(testbed, "children", include_str!("scripts/children.c"), &["-O1"]);
        let printed = as_on_the_kernel(testbed, &program);
        let whole = ": 0, epoll 0 1, sent 1, received 1, back 1 1 1 x, far 1 1 z, next 0 1 1 y\n";
        assert_eq!(printed.matches(whole).count(), 12, "{printed}");
        let script = testbed.write("children.py", include_str!("scripts/children.py"));
        assert_eq!(run_program(testbed, "python3", &[&script]), "0 1 b'x' b'y' b'z'\n".repeat(12));
    });
}

#[test]
fn a_listeners_name_is_free_whatever_call_closed_it() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "free", include_str!("scripts/free.c"), &[]);
        let printed = run_program(testbed, &program, &[]);
        let each = ["close", "close_range", "closefrom", "dup2", "dup3"];
        assert_eq!(printed, each.map(|way| format!("{way}: 0 not bound, 0 times taken\n")).concat());
    });
}

#[test]
fn tcp_info_counts_bytes_as_the_kernel_does() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "tcp_info", include_str!("scripts/tcp_info.c"), &[]);
        let printed = as_on_the_kernel(testbed, &program);
        assert!(
            printed.starts_with("client: state 1, 1 bytes, acknowledged 70, received 30000"),
            "{printed}"
        );
    });
}

/// A program prints the same under Sietch as on the kernel's sockets; returns that output.
fn as_on_the_kernel(testbed: &Testbed, program: &str) -> String {
    let kernel = testbed.start(testbed.kernel_command(program, &[]), "kernel's").succeed().text();
    assert_eq!(run_program(testbed, program, &[]), kernel);
    // The kernel's bytes have passed over its loopback.
    testbed.skip_byte_check();
    kernel
}

#[test]
fn a_program_that_can_map_nothing_more_is_on_kernel_sockets() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "short_of_memory", include_str!("scripts/short_of_memory.c"), &[]);
        for who in ["server", "client"] {
            for resource in ["space", "mappings", "locked"] {
                let expected = format!("{who} without {resource}: 25 answered, 0 without a client\n");
                let arguments = [who, resource];
                let kernel = testbed.kernel_command(&program, &arguments);
                assert_eq!(testbed.start(kernel, "kernel's").succeed().text(), expected);
                assert_eq!(run_program(testbed, &program, &arguments), expected);
            }
        }
        // The kernel's bytes have passed over its loopback.
        testbed.skip_byte_check();
    });
}

#[test]
fn buffers_that_are_not_mapped_are_efault_and_nothing_is_taken() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "unmapped", include_str!("scripts/unmapped.c"), &[]);
        let printed = as_on_the_kernel(testbed, &program);
        assert!(printed.matches("-1 Bad address").count() > 50, "{printed}");
        assert!(printed.ends_with("write(client, text, 9): 9 -, 0 there, 9 at the peer\n"), "{printed}");
    });
}

#[test]
fn faults_of_the_program_reach_its_own_handlers() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "dispositions", include_str!("scripts/dispositions.c"), &["-pthread"]);
        let printed = as_on_the_kernel(testbed, &program);
        for expected in
            ["default_death: signal 11", "default_bus: signal 7", "forked: exit 0", "starts: exit 0"]
        {
            assert!(printed.contains(expected), "{expected}: {printed}");
        }
    });
}

#[test]
fn holes_in_the_memory_of_a_connection_reset_it_where_there_are_no_pages() {
    both(&["cc"], |testbed| {
        let program = compile(testbed, "holes", include_str!("scripts/holes.c"), &[]);
        let printed = run_program(testbed, &program, &[]);
        if printed == "no userfaultfd\n" {
            println!("SKIPPED: this kernel has no userfaultfd that refuses pages");
            return;
        }
        let each = |from: u32| {
            let calls = ["read", "peek", "write", "write much", "sendfile", "poll", "epoll"];
            calls.map(|call| format!("{call} from {from}: answered, then it is over\n")).concat()
        };
        assert_eq!(printed, format!("{}{}the program continues\n", each(0), each(4096)));
    });
}

#[test]
fn a_listener_that_is_shut_down_refuses_at_once_and_listens_again() {
    both(&["python3"], |testbed| {
        let script = testbed.write("stopped.py", include_str!("scripts/stopped.py"));
        let kernel =
            testbed.start(testbed.kernel_command("python3", &[&script]), "kernel's").succeed().text();
        assert_eq!(kernel, "refused 200 served 200\n");
        assert_eq!(testbed.client_output("python3", &[&script]), kernel);
        // The kernel's bytes have passed over its loopback.
        testbed.skip_byte_check();
    });
}

/// The path of the loader of this machine's programs.
fn loader() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|file| file.contains("/ld-linux"))
        .map(str::to_owned)
}

#[test]
fn programs_of_another_c_library_are_started_without_the_library() {
    both(&["cc", "python3"], |testbed| {
        // glibc's loader under the name of musl's: it would load the library, so a load would be
        // visible.
        let other = testbed.path("ld-musl-x86_64.so.1");
        std::fs::copy(loader().expect("a loader"), &other).unwrap();
        let link = format!("-Wl,--dynamic-linker={other}");
        let program = compile(testbed, "shows", include_str!("scripts/shows.c"), &[&link]);
        let script = testbed.write("script", format!("#!{program}\n"));
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, permissions).unwrap();
        let starts = testbed.write("foreign.py", include_str!("scripts/foreign.py"));
        let printed = testbed.client_output("python3", &[&starts, &program, &script]);
        let each = |line: &str| format!("subprocess {line}shell {line}{line}{line}");
        let none = "LD_PRELOAD none\n";
        // A script's interpreter gets the script as its argument.
        let by_script = format!("LD_PRELOAD none {script}\n");
        let last = format!("{none}LD_PRELOAD /no/other.so\n{none}own True\n");
        assert_eq!(printed, [each(none), each(&by_script), last].concat());
    });
}

#[test]
fn a_program_started_by_a_static_launcher_has_the_library() {
    both(&["cc"], |testbed| {
        let launcher = "#include <unistd.h>\n\
             int main(int count, char **words) { if (count > 1) execv(words[1], words + 1); return 1; }\n";
        let source = testbed.write("launcher.c", launcher);
        let output = testbed.path("launcher");
        let mut cc = testbed.kernel_command("cc", &[&source, "-static", "-o", &output]);
        if !cc.output().is_ok_and(|output| output.status.success()) {
            return eprintln!(
                "SKIPPED a_program_started_by_a_static_launcher_has_the_library: needs a static C library"
            );
        }
        let program = compile(testbed, "shows", include_str!("scripts/shows.c"), &[]);
        let printed = testbed
            .client_output("sh", &["-c", &format!("{output} {program} 1 2; {output} {output} {program}")]);
        let library = testbed::library();
        let library = library.display();
        assert_eq!(printed, format!("LD_PRELOAD {library} 1 2\nLD_PRELOAD {library}\n"));
    });
}

#[test]
fn arguments_that_are_listed_in_the_source_arrive() {
    both(&["cc"], |testbed| {
        let starts = compile(testbed, "listed", include_str!("scripts/listed.c"), &[]);
        let own = compile(testbed, "shows", include_str!("scripts/shows.c"), &[]);
        let other = testbed.path("ld-musl-x86_64.so.1");
        std::fs::copy(loader().expect("a loader"), &other).unwrap();
        let link = format!("-Wl,--dynamic-linker={other}");
        let foreign = compile(testbed, "foreign", include_str!("scripts/shows.c"), &[&link]);
        let expected = |library: &str| {
            let printed =
                ["", " 1 2 3", " 1 2 3 4 5 6 7 8 9 10", " 1", " 1 2 3 4 5 6 7 8 9", " 1 2 3 4 5 6 7"];
            let lines = printed.map(|arguments| format!("LD_PRELOAD {library}{arguments}\n"));
            format!("{}failed -1\n", lines.concat())
        };
        assert_eq!(run_program(testbed, &starts, &[&foreign]), expected("none"));
        assert_eq!(run_program(testbed, &starts, &[&own]), expected(testbed::library().to_str().unwrap()));
    });
}

#[test]
fn a_process_without_descriptors_leaves_connections_waiting() {
    both(&["python3"], |testbed| {
        let script = testbed.write("exhausted.py", include_str!("scripts/exhausted.py"));
        let printed = testbed.client_output("python3", &[&script]);
        // As many descriptors as a program on the kernel's sockets has: all numbers below the limit
        // but those that it had before.
        assert!(printed.contains("errors ['EMFILE'] highest 63\n"), "{printed}");
        assert!(printed.contains("limit True\ndup EMFILE\nserved 75 of 75\n"), "{printed}");
    });
}

#[test]
fn the_last_descriptor_is_enough_to_accept_where_the_limit_cannot_be_raised() {
    both(&["python3", "setpriv"], |testbed| {
        let script = testbed.write("exhausted.py", include_str!("scripts/exhausted.py"));
        let python = ["python3", script.as_str(), "hard"];
        let printed = if rustix::process::geteuid().is_root() {
            testbed
                .client_output("setpriv", &[["--bounding-set", "-sys_resource"].as_slice(), &python].concat())
        } else {
            testbed.client_output("python3", &python[1..])
        };
        assert!(printed.contains("errors ['EMFILE'] highest 63\n"), "{printed}");
        assert!(printed.contains("limit True\ndup EMFILE\nserved 75 of 75\n"), "{printed}");
        assert!(!printed.contains("not the last number"), "{printed}");
    });
}
