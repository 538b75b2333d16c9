//! The process: its clocks, random bytes, signals, and its limit of open files.

use std::os::unix::net::UnixStream;

use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use crate::server::Error;
use crate::shard::Now;

/// Both clocks, read once per iteration.
pub(super) fn clock() -> Now {
    Now { monotonic_ns: monotonic_ns(), unix_ms: nanoseconds(ClockId::Realtime) / 1_000_000 }
}

/// The monotonic clock, in nanoseconds.
pub(super) fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Both are positive on every running Linux.
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Bytes that no client can predict.
pub(super) fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|cause| Error::System { action: "reading random bytes", cause: cause.into() })?;
    Ok(bytes)
}

/// Raises the limit of open files to the hard limit, and returns it.
pub(super) fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // With fewer descriptors the store serves fewer connections, which is no reason to fail.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Whether the machine has one core. A server pinned to one core of several still polls.
pub(super) fn has_single_core() -> bool {
    std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|cores| cores.trim() == "0")
}

/// A stream that becomes readable at SIGTERM or SIGINT.
pub(super) fn signals() -> Result<UnixStream, Error> {
    let system = |cause| Error::System { action: "watching for signals", cause };
    let (reader, writer) = UnixStream::pair().map_err(system)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let writer = writer.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(system)?;
    }
    Ok(reader)
}

/// Whether a stream has bytes to read; they are not consumed.
pub(super) fn is_readable(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(stream, &mut [0u8; 1], flags).is_ok_and(|(count, _)| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_signal_stays_readable_until_it_is_consumed() {
        let (reader, mut writer) = UnixStream::pair().expect("sockets are there");
        assert!(!is_readable(&reader));
        writer.write_all(&[1]).expect("there is room");
        assert!(is_readable(&reader) && is_readable(&reader));
    }
}
