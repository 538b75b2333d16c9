//! Scripts whose output must be the same on the kernel's sockets and under Sietch.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::testbed::{self, Sides, Testbed};

/// Runs a script on the kernel's sockets and under Sietch, and returns its output.
fn same_as_on_the_kernel(testbed: &Testbed, name: &str, text: &str) -> String {
    testbed.skip_byte_check();
    let script = testbed.write(name, text);
    let of_kernel = testbed.start(testbed.kernel_command("python3", &[&script]), "kernel").succeed().text();
    let of_sietch = testbed.client_output("python3", &[&script]);
    assert_eq!(of_sietch, of_kernel, "{name}");
    of_kernel
}

/// A test that compares `load`.
fn compared(load: fn(&Testbed)) {
    testbed::run(module_path!(), &["python3"], Sides::BOTH, &[Sides::BOTH], load);
}

#[test]
fn names_are_taken_and_free_when_the_kernels_are() {
    compared(|testbed| {
        same_as_on_the_kernel(testbed, "names.py", include_str!("scripts/kernel_comparison/names.py"));
    });
}

#[test]
fn a_listener_takes_as_many_connections_as_the_kernels() {
    compared(|testbed| {
        let printed = same_as_on_the_kernel(
            testbed,
            "backlog.py",
            include_str!("scripts/kernel_comparison/backlog.py"),
        );
        assert!(printed.contains("backlog 1 open 2 False"), "{printed}");
    });
}

#[test]
fn a_health_check_that_resets_at_once_is_not_accepted() {
    compared(|testbed| {
        let script = include_str!("scripts/kernel_comparison/probe.py");
        let printed = same_as_on_the_kernel(testbed, "probe.py", script);
        assert!(printed.ends_with("all accepted False\n"), "{printed}");
    });
}

#[test]
fn options_are_stored_and_inherited_as_by_the_kernel() {
    compared(|testbed| {
        same_as_on_the_kernel(testbed, "options.py", include_str!("scripts/kernel_comparison/options.py"));
    });
}

#[test]
fn a_user_timeout_ends_a_connection_whose_peer_does_not_read() {
    compared(|testbed| {
        let script = include_str!("scripts/kernel_comparison/user_timeout.py");
        let printed = same_as_on_the_kernel(testbed, "user_timeout.py", script);
        assert_eq!(printed.matches("ETIMEDOUT").count(), 6, "{printed}");
    });
}

#[test]
fn with_debug_output_a_socket_that_stays_on_the_kernel_says_why() {
    compared(|testbed| {
        testbed.skip_byte_check();
        let script = testbed.write("explained.py", include_str!("scripts/explained.py"));
        let mut command = testbed.client_command("python3", &[&script]);
        command.env("SIETCH_DEBUG", "1");
        let printed = testbed.start(command, "explained").succeed().text();
        let port = printed.lines().find_map(|line| line.strip_prefix("port ")).unwrap_or_default();
        let connect = format!("sietch: connect to 127.0.0.1:{port} stays on kernel TCP: no program under");
        assert!(printed.contains(&connect), "{printed}");
        assert!(printed.contains("an option was set whose effect only the kernel has"), "{printed}");
        assert!(!testbed.client_output("python3", &[&script]).contains("sietch:"));
    });
}

#[test]
fn a_listener_that_was_shut_down_is_as_the_kernels() {
    compared(|testbed| {
        let script = include_str!("scripts/kernel_comparison/stopped_listener.py");
        let printed = same_as_on_the_kernel(testbed, "stopped_listener.py", script);
        assert_eq!(printed.matches("['0x14'] ['0x10'] ['0x14'] ['0x14'] []").count(), 6, "{printed}");
    });
}

#[test]
fn a_listener_that_was_shut_down_connects_as_the_kernels() {
    compared(|testbed| {
        let script = include_str!("scripts/kernel_comparison/connected_listener.py");
        let printed = same_as_on_the_kernel(testbed, "connected_listener.py", script);
        assert_eq!(printed.matches("connects to a listener None").count(), 6, "{printed}");
    });
}

#[test]
fn urgent_data_are_those_of_the_kernel() {
    compared(|testbed| {
        same_as_on_the_kernel(testbed, "urgent.py", include_str!("scripts/kernel_comparison/urgent.py"));
    });
}

#[test]
fn bad_arguments_give_the_kernels_errors() {
    compared(|testbed| {
        let script = include_str!("scripts/kernel_comparison/arguments.py");
        let printed = same_as_on_the_kernel(testbed, "arguments.py", script);
        assert_eq!(printed.matches("received True True").count(), 2, "{printed}");
    });
}

#[test]
fn zerocopy_cannot_be_switched_on_where_no_completion_would_come() {
    compared(|testbed| {
        testbed.skip_byte_check();
        let script = testbed.write("zerocopy.py", include_str!("scripts/zerocopy.py"));
        let of_kernel =
            testbed.start(testbed.kernel_command("python3", &[&script]), "kernel").succeed().text();
        let of_sietch = testbed.client_output("python3", &[&script]);
        let refused = ["fresh", "client", "server", "listener"];
        for (kernel, sietch) in of_kernel.lines().zip(of_sietch.lines()) {
            match refused.iter().find(|what| kernel == format!("{what} 1 ok 1")) {
                Some(what) => assert_eq!(sietch, format!("{what} 1 ENOPROTOOPT 0")),
                None => assert_eq!(sietch, kernel),
            }
        }
        assert_eq!(of_sietch.lines().count(), of_kernel.lines().count());
        assert_eq!(of_sietch.matches("ENOPROTOOPT").count(), refused.len(), "{of_sietch}");
    });
}

#[test]
fn without_a_service_a_program_with_the_library_has_the_kernels_sockets() {
    compared(|testbed| {
        testbed.skip_byte_check();
        let script = testbed.write("served.py", include_str!("scripts/served.py"));
        let run = |service: Option<&str>| {
            let mut command = testbed.kernel_command("python3", &[&script, "again"]);
            command.env("LD_PRELOAD", testbed::library());
            if let Some(service) = service {
                command.env("SIETCH_SOCKETS", service);
            }
            testbed.start(command, "preloaded").succeed().text()
        };
        let kernels = "b'question'\nb'answer'\nends in the kernel's table: 2\n".repeat(2);
        // As from LD_PRELOAD of a container image: no variable names a service.
        assert_eq!(run(None), kernels);
        assert_eq!(run(Some("")), kernels);
        assert_eq!(run(Some(&testbed.path("run/nobody.sock"))), kernels);
        assert_eq!(
            testbed.client_output("python3", &[&script]),
            kernels.lines().take(2).map(|l| format!("{l}\n")).collect::<String>()
                + "ends in the kernel's table: 0\n"
        );
    });
}

/// As a server that binds as root and listens as another user, who cannot reach root's service.
#[test]
fn a_user_that_cannot_reach_the_service_has_the_kernels_sockets() {
    compared(|testbed| {
        let folder = testbed.path("run");
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).expect("the test's own");
        let script = include_str!("scripts/kernel_comparison/out_of_reach.py");
        let printed = same_as_on_the_kernel(testbed, "out_of_reach.py", script);
        assert_eq!(printed.matches("served").count(), 2, "{printed}");
    });
}

#[test]
fn corked_and_partial_bytes_arrive_as_late_as_on_the_kernel() {
    compared(|testbed| {
        let printed =
            same_as_on_the_kernel(testbed, "held.py", include_str!("scripts/kernel_comparison/held.py"));
        assert!(
            printed.starts_with("more EAGAIN 30\nmessages False EAGAIN 30\ncorked EAGAIN 20\n"),
            "{printed}"
        );
    });
}

/// Makes a pair of interfaces in the test's namespace.
fn interfaces() {
    for words in ["link add one type veth peer name other", "link set one up", "link set other up"] {
        let done = Command::new("ip").args(words.split(' ')).status().expect("iproute2");
        assert!(done.success(), "{words}");
    }
}

#[test]
fn link_local_names_have_their_scope() {
    compared(|testbed| {
        interfaces();
        // An address can be used once the kernel has found no other host with it. The script takes
        // the first of the two.
        testbed.wait_for("the addresses", || {
            let printed = Command::new("ip").args(["-6", "address", "show"]).output().ok()?;
            let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
            (printed.matches("inet6 fe80").count() == 2 && !printed.contains("tentative")).then_some(())
        });
        same_as_on_the_kernel(testbed, "scope.py", include_str!("scripts/kernel_comparison/scope.py"));
    });
}

#[test]
fn sockets_of_an_interface_are_reached_over_it_alone() {
    compared(|testbed| {
        interfaces();
        same_as_on_the_kernel(
            testbed,
            "interface.py",
            include_str!("scripts/kernel_comparison/interface.py"),
        );
    });
}

#[test]
fn a_socket_that_was_bound_before_exec_is_served() {
    compared(|testbed| {
        let text = include_str!("scripts/kernel_comparison/inherited.py");
        same_as_on_the_kernel(testbed, "inherited.py", text);
        // The program was not silently on the kernel: the clients' bytes went through shared
        // memory.
        let before = testbed::loopback_octets();
        testbed.client_output("python3", &[&testbed.path("inherited.py")]);
        let through_kernel = testbed::loopback_octets() - before;
        assert_eq!(through_kernel, 0, "bytes went through the kernel's loopback");
    });
}
