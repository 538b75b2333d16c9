//! Scripts that print what they see: the same on the kernel's sockets and under Sietch.

use std::process::Command;

use crate::place::{self, Place, Sides};

/// Runs a script on the kernel's sockets and under Sietch. What it prints.
fn same_as_on_the_kernel(place: &Place, name: &str, text: &str) -> String {
    place.has_no_measure();
    let script = place.write(name, text);
    let of_kernel = place.start(place.bystander("python3", &[&script]), "kernel").succeed().text();
    let of_sietch = place.ask("python3", &[&script]);
    assert_eq!(of_sietch, of_kernel, "{name}");
    of_kernel
}

/// A test that compares `load`.
fn compared(load: fn(&Place)) {
    place::run(module_path!(), &["python3"], Sides::BOTH, &[Sides::BOTH], load);
}

#[test]
fn names_are_taken_and_free_when_the_kernels_are() {
    compared(|place| {
        same_as_on_the_kernel(place, "names.py", include_str!("scripts/compared/names.py"));
    });
}

#[test]
fn a_listener_takes_as_many_connections_as_the_kernels() {
    compared(|place| {
        let said = same_as_on_the_kernel(place, "backlog.py", include_str!("scripts/compared/backlog.py"));
        assert!(said.contains("backlog 1 open 2 False"), "{said}");
    });
}

#[test]
fn zerocopy_cannot_be_switched_on_where_no_completion_would_come() {
    compared(|place| {
        place.has_no_measure();
        let script = place.write("zerocopy.py", include_str!("scripts/zerocopy.py"));
        let of_kernel = place.start(place.bystander("python3", &[&script]), "kernel").succeed().text();
        let of_sietch = place.ask("python3", &[&script]);
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
    compared(|place| {
        place.has_no_measure();
        let script = place.write("served.py", include_str!("scripts/served.py"));
        let run = |service: Option<&str>| {
            let mut command = place.bystander("python3", &[&script, "again"]);
            command.env("LD_PRELOAD", place::library());
            if let Some(service) = service {
                command.env("SIETCH_SOCKETS", service);
            }
            place.start(command, "preloaded").succeed().text()
        };
        let kernels = "b'question'\nb'answer'\nends in the kernel's table: 2\n".repeat(2);
        // As from LD_PRELOAD of a container image: nothing says where a service is.
        assert_eq!(run(None), kernels);
        assert_eq!(run(Some("")), kernels);
        assert_eq!(run(Some(&place.path("run/nobody.sock"))), kernels);
        assert_eq!(
            place.ask("python3", &[&script]),
            kernels.lines().take(2).map(|l| format!("{l}\n")).collect::<String>()
                + "ends in the kernel's table: 0\n"
        );
    });
}

#[test]
fn what_is_held_back_is_not_there_at_once() {
    compared(|place| {
        let said = same_as_on_the_kernel(place, "held.py", include_str!("scripts/compared/held.py"));
        assert!(said.starts_with("more EAGAIN 30\nmessages False EAGAIN 30\ncorked EAGAIN 20\n"), "{said}");
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
    compared(|place| {
        interfaces();
        // An address serves when the kernel has seen that no other host has it. The script takes
        // the first of the two.
        place.wait_for("the addresses", || {
            let said = Command::new("ip").args(["-6", "address", "show"]).output().ok()?;
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            (said.matches("fe80").count() == 2 && !said.contains("tentative")).then_some(())
        });
        same_as_on_the_kernel(place, "scope.py", include_str!("scripts/compared/scope.py"));
    });
}

#[test]
fn sockets_of_an_interface_are_reached_over_it_alone() {
    compared(|place| {
        interfaces();
        same_as_on_the_kernel(place, "interface.py", include_str!("scripts/compared/interface.py"));
    });
}

#[test]
fn a_socket_that_was_bound_before_exec_is_served() {
    compared(|place| {
        let text = include_str!("scripts/compared/inherited.py");
        same_as_on_the_kernel(place, "inherited.py", text);
        // Not silently the kernel's: what the clients sent went by memory.
        let before = place::loopback_octets();
        place.ask("python3", &[&place.path("inherited.py")]);
        let through_kernel = place::loopback_octets() - before;
        assert_eq!(through_kernel, 0, "bytes went through the kernel's loopback");
    });
}
