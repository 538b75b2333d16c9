//! Programs that the steps run, and what they wait for.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The limit of every single wait.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Between two polls of a condition that has no event.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(format!("/bin/{program}"));
    command.args(arguments).env("PATH", "/bin").env("HOME", "/tmp").stdin(Stdio::null());
    command
}

pub(super) fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Both outputs of a command.
pub(super) fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command that must succeed, and returns its output.
pub(super) fn done(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|cause| format!("{command:?}: {cause}"))?;
    if output.status.success() {
        Ok(printed(&output))
    } else {
        Err(format!("{command:?}: {}", printed(&output)))
    }
}

pub(super) fn sietch(arguments: &[&str]) -> Result<String, String> {
    done(&mut command("sietch", arguments))
}

/// Repeats `poll` until it succeeds.
pub(super) fn wait<T>(what: &str, mut poll: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let end = Instant::now() + TIMEOUT;
    loop {
        match poll() {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() > end => return Err(format!("waited for {what}: {why}")),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

pub(super) fn holds(text: &str, wanted: &str) -> Result<(), String> {
    if text.contains(wanted) { Ok(()) } else { Err(format!("no {wanted:?} in: {text}")) }
}

/// Sends a signal.
pub(super) fn kill(signal: i32, pid: &str) -> Result<(), String> {
    done(&mut command("sh", &["-c", &format!("kill -{signal} {pid}")])).map(|_| ())
}
