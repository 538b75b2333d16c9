//! The steps inside the guest: this program is its process 1.
//!
//! Each step is a promise of the README. It prints its name and runs. The first failed step ends
//! the guest. Every wait is for an event, and has a limit so that a hang is a failure. The limit is
//! long because an emulated machine on a busy one is slow.

mod commands;
mod file_system;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use commands::{command, done, holds, kill, printed, sietch, text, wait};

/// Printed at the end, if every step has passed.
pub(crate) const PASSED: &str = "GUEST PASSED";
/// Printed before the cause of a failure.
pub(crate) const FAILED: &str = "GUEST FAILED";

/// The VNIC's address.
const VNIC: &str = "10.83.0.2";
/// Bytes that may cross the kernel's loopback during a thousand requests. If the requests crossed
/// it, there would be 60,000.
const MOST_LOOPED: u64 = 20_000;
/// The path of the configuration.
const CONFIGURATION: &str = "/run/sietch.toml";

/// The disk is small, and so is the area.
const TEXT: &str = "\
[[vnic]]
name = \"kv\"
uid = 61870
address = \"10.83.0.2/24\"
host_address = \"10.83.0.1\"
tcp_ports = [\"6379\"]

[[vsa]]
name = \"store\"
uid = 61870
size = \"64MiB\"

[kv]
vsa = \"store\"
";

/// Whether this process is the guest's first.
pub(crate) fn is_this() -> bool {
    std::process::id() == 1
}

/// Runs all steps, and powers the guest off.
pub(crate) fn run() -> ! {
    match steps() {
        Ok(()) => println!("{PASSED}"),
        Err(why) => println!("{FAILED} {}", why.replace('\n', " / ")),
    }
    // The process that started the guest ends it after it has read the outcome. A guest whose
    // console is not read powers itself off.
    let _ = std::fs::write("/proc/sysrq-trigger", "o");
    loop {
        std::thread::park();
    }
}

fn steps() -> Result<(), String> {
    prepare()?;
    println!("kernel {}", text("/proc/sys/kernel/osrelease"));
    step("doctor tries a grant", doctor)?;
    let up = step("up gives the store a VNIC", up)?;
    step("requests over the VNIC and over loopback", requests)?;
    step("unmodified programs", programs)?;
    step("the daemon is killed, and the VNIC goes on", kill_daemon)?;
    step("the store is killed, and gets its VNIC again", kill_store)?;
    step("the VNIC is revoked and restored", revoke_vnic)?;
    step("the storage area is revoked and restored", revoke_area)?;
    step("down", || down(up))?;
    let up = step("up again, with the VNIC", self::up)?;
    step("down again", || down(up))?;
    step("a file system, whose service is killed", file_system::run)
}

fn step<T>(name: &str, action: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    println!("== {name}");
    let start = Instant::now();
    let outcome = action().map_err(|why| {
        diagnose();
        format!("{name}: {why}")
    })?;
    println!("took {:.1} s", start.elapsed().as_secs_f64());
    Ok(outcome)
}

/// Prints the counters, the interfaces and the store's log after a failed step.
fn diagnose() {
    for (program, arguments) in [
        ("sietch", &["status"][..]),
        ("sietch", &["stat"]),
        ("ip", &["-s", "neighbour"]),
        ("ip", &["-s", "link"]),
    ] {
        let output =
            command(program, arguments).output().map_or_else(|e| e.to_string(), |output| printed(&output));
        let counted = output.lines().filter(|line| !line.ends_with(" 0"));
        println!("{program} {}:\n{}", arguments.join(" "), counted.collect::<Vec<_>>().join("\n"));
    }
    println!("store:\n{}", text("/var/lib/sietch/kv.log"));
}

fn prepare() -> Result<(), String> {
    let places =
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"), ("tmpfs", "/run")];
    for (kind, place) in places {
        done(&mut command("mount", &["-t", kind, kind, place]))?;
    }
    let modules = std::fs::read_dir("/modules").map_err(|cause| format!("cannot list /modules: {cause}"))?;
    let mut modules: Vec<_> = modules.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    for module in modules {
        done(&mut command("insmod", &[&module.display().to_string()]))?;
    }
    wait("the disk", || done(&mut command("mount", &["-t", "ext4", "/dev/vda", "/var/lib"])))?;
    done(&mut command("ip", &["link", "set", "lo", "up"]))?;
    std::fs::write(CONFIGURATION, TEXT).map_err(|cause| format!("cannot write {CONFIGURATION}: {cause}"))
}

/// Sends a command to the store at `address`. An answer after five seconds counts as none.
fn query(address: &str, words: &[&str]) -> Result<String, String> {
    let mut client = command("redis-cli", &["-h", address]);
    let mut child = client
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|cause| format!("redis-cli: {cause}"))?;
    let end = Instant::now() + Duration::from_secs(5);
    while child.try_wait().map_err(|cause| cause.to_string())?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err("no answer".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|cause| cause.to_string())?;
    Ok(printed(&output).trim().to_owned())
}

fn pong(address: &str) -> Result<(), String> {
    query(address, &["ping"]).and_then(|answer| holds(&answer, "PONG"))
}

fn doctor() -> Result<(), String> {
    let report = sietch(&["doctor", "--data", "/var/lib/sietch"])?;
    println!("{report}");
    holds(&report, "`sietch up` can give the store a VNIC over AF_XDP here")
}

fn up() -> Result<Child, String> {
    let log = std::fs::File::create("/run/up").map_err(|cause| cause.to_string())?;
    let errors = log.try_clone().map_err(|cause| cause.to_string())?;
    let mut up = command("sietch", &["up", "--config", CONFIGURATION, "--data", "/var/lib/sietch"]);
    let up = up.stdout(log).stderr(errors).spawn().map_err(|cause| format!("sietch up: {cause}"))?;
    let banner = wait("sietch up", || holds(&text("/run/up"), "daemon:"));
    println!("{}", text("/run/up"));
    banner.and_then(|()| holds(&text("/run/up"), "af_xdp VNIC kv"))?;
    wait("the VNIC", || pong(VNIC))?;
    Ok(up)
}

/// The last state of each line that was overwritten repeatedly, for those with a result.
fn last(report: &str) -> String {
    let lines = report.lines().filter_map(|line| line.rsplit('\r').next());
    lines.filter(|line| line.contains("per second")).collect::<Vec<_>>().join("; ")
}

fn benchmark(address: &str) -> Result<(), String> {
    let arguments = ["-h", address, "-n", "300", "-c", "5", "-t", "set,get", "-q"];
    let report = done(&mut command("redis-benchmark", &arguments))?;
    println!("{address}: {}", last(&report));
    holds(&report, "GET: ")
}

fn requests() -> Result<(), String> {
    benchmark(VNIC)?;
    benchmark("127.0.0.1")?;
    let status = sietch(&["status"])?;
    println!("{status}");
    holds(&status, "held")?;
    if status.contains("no frame passes") || status.contains("rings are not watched") {
        return Err("status reports a problem".to_owned());
    }
    Ok(())
}

/// Bytes that the kernel's loopback has carried.
fn looped() -> Result<u64, String> {
    let counters = text("/proc/net/dev");
    let line = counters.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| format!("no bytes of lo in: {counters}"))
}

/// A server and a client of Debian, both with the library: their bytes go through shared memory.
fn programs() -> Result<(), String> {
    let server = ["run", "--", "/bin/redis-server", "--port", "7000", "--save", "", "--daemonize", "no"];
    let mut server = command("sietch", &server)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|cause| format!("sietch run: {cause}"))?;
    let outcome = wait("redis-server", || {
        let answer = query("127.0.0.1", &["-p", "7000", "ping"])?;
        holds(&answer, "PONG")
    })
    .and_then(|()| {
        let client = ["-p", "7000", "-n", "1000", "-c", "2", "-t", "get", "-q"];
        let before = looped()?;
        let report = done(command("sietch", &["run", "--", "/bin/redis-benchmark"]).args(client))?;
        let kernels = looped()? - before;
        if kernels > MOST_LOOPED {
            return Err(format!("{kernels} bytes went over the kernel's loopback"));
        }
        println!("sietch run: {}", last(&report));
        let listeners = sietch(&["sockets"])?;
        holds(&report, "GET: ").and_then(|()| holds(&listeners, "7000"))
    });
    let _ = server.kill();
    let _ = server.wait();
    outcome
}

/// The pid of the process that the banner of `sietch up` names `what`.
fn process(what: &str) -> Result<u32, String> {
    let banner = text("/run/up");
    let line = banner.lines().rev().find(|line| line.starts_with(what));
    let number = line.and_then(|line| line.split_once("pid ")?.1.split([',', ' ']).next()?.parse().ok());
    number.ok_or_else(|| format!("no {what} in: {banner}"))
}

/// The store's process, as the daemon reports it.
fn holder() -> Result<String, String> {
    holder_of("VNIC kv")
}

fn holder_of(grant: &str) -> Result<String, String> {
    let status = sietch(&["status"])?;
    let line = status.lines().find(|line| line.contains(grant) && line.contains("pid "));
    let number = line.and_then(|line| line.split_once("pid ")?.1.split(',').next());
    number.map(str::to_owned).ok_or_else(|| format!("{grant} has no holder: {status}"))
}

fn kill_daemon() -> Result<(), String> {
    let (before, daemon) = (holder()?, process("daemon:")?);
    kill(9, &daemon.to_string())?;
    pong(VNIC)?;
    let after = wait("the daemon's successor", holder)?;
    if after != before {
        return Err(format!("the holder was {before} and is {after}"));
    }
    pong(VNIC)
}

fn kill_store() -> Result<(), String> {
    query(VNIC, &["set", "kept", "yes"])?;
    let before = holder()?;
    kill(9, &before)?;
    wait("another store", || holder().and_then(|pid| if pid == before { Err(pid) } else { Ok(()) }))?;
    wait("the VNIC", || pong(VNIC))?;
    query(VNIC, &["get", "kept"]).and_then(|answer| holds(&answer, "yes"))
}

/// The holder of a revoked area cannot write it any more, whatever descriptors it has. The file
/// system guarantees that, and only a real kernel can show it.
fn revoke_area() -> Result<(), String> {
    const STORE: &str = "127.0.0.1";
    query(STORE, &["set", "before", "yes"]).and_then(|answer| holds(&answer, "OK"))?;
    let holder = holder_of("VSA store")?;
    println!("{}", sietch(&["revoke", "store"])?);
    let answer = query(STORE, &["set", "after", "yes"])?;
    println!("a write is answered: {answer}");
    if answer.contains("OK") {
        return Err("the store still writes".to_owned());
    }
    sietch(&["restore", "store"])?;
    // It has reported that it must be restarted.
    kill(9, &holder)?;
    let again = |key: &str| query(STORE, &["get", key]);
    wait("the store", || again("before").and_then(|answer| holds(&answer, "yes")))?;
    query(STORE, &["set", "again", "yes"]).and_then(|answer| holds(&answer, "OK"))
}

fn revoke_vnic() -> Result<(), String> {
    println!("{}", sietch(&["revoke", "kv"])?);
    if query(VNIC, &["ping"]).is_ok_and(|answer| answer.contains("PONG")) {
        return Err("it still answers".to_owned());
    }
    // The store continues without its VNIC, and gets it again after a restart.
    sietch(&["restore", "kv"])?;
    let status = sietch(&["status"])?;
    let line = status.lines().find(|line| line.contains("VNIC kv")).unwrap_or_default();
    holds(line, "free")
}

fn down(mut up: Child) -> Result<(), String> {
    sietch(&["down"])?;
    let ended = up.wait().map_err(|cause| cause.to_string())?;
    let links = done(&mut command("ip", &["-o", "link"]))?;
    if ended.success() && !links.contains("sv-kv") {
        return Ok(());
    }
    Err(format!("{ended}; {links}; {}", text("/run/up")))
}
