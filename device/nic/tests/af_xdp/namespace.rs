//! A network namespace of the test's own, with a veth pair in it. Both vanish with the test's
//! thread.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The end that the queue is bound to.
pub(crate) const QUEUE_END: &str = "sq0";
/// The end that belongs to the kernel's own stack.
pub(crate) const KERNEL_END: &str = "sk0";
/// Of the queue's end.
pub(crate) const QUEUE_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
/// Of the kernel's end.
pub(crate) const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
/// The station that the queue plays.
pub(crate) const QUEUE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The kernel's own.
pub(crate) const KERNEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// Runs `test` in a fresh network namespace with the veth pair up, or says why it cannot.
pub(crate) fn with_veth(name: &str, test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root for a network namespace of its own");
        return;
    }
    if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED {name}: needs the `ip` command (iproute2)");
        return;
    }
    std::thread::scope(|scope| {
        // A thread of its own even under --test-threads=1: the namespace goes when the thread does.
        let body = scope.spawn(|| {
            // SAFETY: a new network namespace changes nothing that other threads share.
            if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
                eprintln!("SKIPPED {name}: needs CAP_SYS_ADMIN for a network namespace ({error})");
                return;
            }
            build();
            test();
        });
        if let Err(panic) = body.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn build() {
    ip("link set lo up");
    ip(&format!(
        "link add {QUEUE_END} address {} numtxqueues 1 numrxqueues 1 type veth peer name {KERNEL_END} address {} \
         numtxqueues 1 numrxqueues 1",
        text(QUEUE_MAC),
        text(KERNEL_MAC)
    ));
    for end in [QUEUE_END, KERNEL_END] {
        // No IPv6 chatter among the frames that the tests count.
        ip(&format!("link set {end} addrgenmode none up"));
    }
    ip(&format!("addr add {KERNEL_ADDRESS}/24 dev {KERNEL_END}"));
    ip(&format!("neigh add {QUEUE_ADDRESS} lladdr {} dev {KERNEL_END}", text(QUEUE_MAC)));
}

/// Runs `ip ARGUMENTS` in the thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("`ip -V` has just run");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The index of an interface of the thread's namespace.
pub(crate) fn ifindex(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("an interface name has no zero byte");
    // SAFETY: a string that ends in a zero byte and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "interface {name:?} exists");
    index
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
