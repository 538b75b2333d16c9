//! Checks of the kernel, privileges, processors and memory.
//!
//! 1. [`checks`] runs them in the order in which they are printed. Each reads `/proc`, `/sys` or a
//!    limit of this process, and changes nothing.
//! 2. A file that is not there is no failure: a container or another kind of processor may lack it.
//! 3. A check that is not `ok` names the fix: a setting, a privilege, or the option that works
//!    without it.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::check::{Check, Verdict};
use crate::style;

/// The oldest kernel on which everything that Sietch calls exists: pidfd (5.3), XDP links (5.9),
/// need-wakeup (5.4), and io_uring's registered buffers in the form used here.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// From this kernel on a frame may be longer than one buffer on AF_XDP (multi-buffer).
const MULTI_BUFFER_KERNEL: (u32, u32) = (6, 6);

/// A UMEM of 4096 frames of 4 KiB, which an ordinary user would have to lock.
const WANTED_MEMLOCK: u64 = 16 << 20;

/// The privileges of root that the daemon needs.
const DAEMON_CAPABILITIES: [(CapabilitySet, &str); 7] = [
    // Network namespaces of VNICs.
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::SETPCAP, "CAP_SETPCAP"),
];

/// The checks of the machine.
pub(super) fn checks() -> Vec<Check> {
    vec![kernel(), privileges(), processors(), governor(), clock(), memlock(), huge_pages(), client()]
}

fn kernel() -> Check {
    let name = "kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match version(&release) {
        Some(found) if found >= MULTI_BUFFER_KERNEL => Check::ok(name, release),
        Some(found) if found >= OLDEST_KERNEL => Check::not(
            Verdict::Limited,
            name,
            format!("{release}: AF_XDP without multi-buffer frames"),
            "keep the MTU of VNICs at 1500, or use Linux 6.6 or later",
        ),
        _ => Check::not(
            Verdict::Missing,
            name,
            format!("{release} is older than 5.15"),
            "use Linux 5.15 or later for VNICs; `--net linux` works",
        ),
    }
}

/// `(major, minor)` of a release like `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn privileges() -> Check {
    let name = "privileges";
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let lacking: Vec<&str> =
        DAEMON_CAPABILITIES.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, word)| *word).collect();
    if lacking.is_empty() {
        return Check::ok(name, "root's, for the daemon; the store gives all of them up");
    }
    Check::not(
        Verdict::Missing,
        name,
        format!("lacks {}", lacking.join(", ")),
        "run `sietch up` as root for a VNIC, or use `--net linux`",
    )
}

fn processors() -> Check {
    let name = "processors";
    match std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        1 => Check::not(
            Verdict::Limited,
            name,
            "1: the store and its clients share it",
            "give the machine, or this cgroup, a second core",
        ),
        count => Check::ok(name, format!("{count}")),
    }
}

fn governor() -> Check {
    let name = "frequency governor";
    let Some(found) = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") else {
        return Check::ok(name, "none: the machine or its host decides");
    };
    if matches!(found.as_str(), "performance" | "schedutil") {
        return Check::ok(name, found);
    }
    Check::not(
        Verdict::Limited,
        name,
        format!("{found}: a core that wakes up is slow at first"),
        "`cpupower frequency-set -g performance`",
    )
}

fn clock() -> Check {
    let name = "clock source";
    match read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(found)
            if matches!(
                found.as_str(),
                "tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page"
            ) =>
        {
            Check::ok(name, found)
        }
        Some(found) => Check::not(
            Verdict::Limited,
            name,
            format!("{found}: every reading of the time is a system call"),
            "boot with `clocksource=tsc tsc=reliable` if the processor's TSC is stable",
        ),
        None => Check::ok(name, "unknown: /sys is not readable"),
    }
}

fn memlock() -> Check {
    let name = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let privileged = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match limit {
        _ if privileged => Check::ok(name, "no limit for the daemon (CAP_IPC_LOCK)"),
        None => Check::ok(name, "no limit"),
        Some(limit) if limit >= WANTED_MEMLOCK => Check::ok(name, style::bytes(limit)),
        Some(limit) => Check::not(
            Verdict::Limited,
            name,
            format!("at most {}: io_uring may not register its buffers", style::bytes(limit)),
            "raise `ulimit -l` (LimitMEMLOCK= under systemd) to 64 MiB",
        ),
    }
}

fn huge_pages() -> Check {
    let name = "huge pages";
    let reserved = read("/proc/sys/vm/nr_hugepages").and_then(|text| text.parse::<u64>().ok());
    match reserved {
        Some(0) => Check::ok(name, "none reserved; none needed"),
        Some(count) => Check::ok(name, format!("{count} reserved")),
        None => Check::ok(name, "the kernel has none; none needed"),
    }
}

fn client() -> Check {
    let name = "redis-cli";
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("redis-cli")).find(|file| file.is_file())
    });
    match found {
        Some(file) => Check::ok(name, file.display().to_string()),
        None => Check::not(
            Verdict::Limited,
            name,
            "not in PATH",
            "install one to talk to the store by hand (Debian: `apt install redis-tools`)",
        ),
    }
}

/// The trimmed text of a small file of /proc or /sys.
pub(super) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0"), Some((5, 15)));
        assert_eq!(version("6.18"), Some((6, 18)));
        assert_eq!(version("weird"), None);
    }
}
