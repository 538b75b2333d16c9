//! `sietch capture`: the frames of a VNIC into a pcapng file, while its holder runs.
//!
//! 1. A ring is made here and passed through the daemon to the process that holds the VNIC. The
//!    data loop of that process copies every frame into it ([`sietch::nic::capture`]). The loop
//!    never waits: frames that find no room are counted, reported at the end, and noted in the
//!    file.
//! 2. The ring is emptied every few milliseconds until the limit of frames or of time is reached,
//!    the user interrupts, or the holder ends.
//! 3. The capture lasts as long as the connection to the daemon: however this program ends, the
//!    copying ends too.

mod pcapng;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use sietch::nic::capture::{MAX_SNAP, Reader};
use sietch_protocol::{CallError, Connection, Notice};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::administration;
use crate::arguments::CaptureArguments;
use crate::error::Error;

/// Bytes of the ring: a hundred milliseconds at 1 Gbit/s.
const RING: u32 = 16 << 20;
/// How often the ring is emptied.
const PAUSE: Duration = Duration::from_millis(5);
/// Frames after which it checks whether it is time to end.
const BATCH: usize = 1024;

/// Why the capture ended.
enum End {
    Complete,
    Closed(String),
}

/// Captures until a limit is reached.
///
/// # Errors
/// [`Error::Control`]: no daemon, or the holder does not answer; [`Error::File`]: the file;
/// [`Error::Capture`]: the ring.
pub(crate) fn run(socket: &Path, arguments: &CaptureArguments) -> Result<(), Error> {
    let mut connection = administration::connect(socket)?;
    let reader = Reader::create(RING, arguments.snap.unwrap_or(MAX_SNAP))?;
    let capturing = connection.capture(&arguments.vnic, reader.as_fd())?;
    let name = arguments.write.display().to_string();
    let failed = Error::file(&arguments.write, "check its owner, and whether the disk is full");
    let mut out: BufWriter<Box<dyn Write>> = BufWriter::new(if name == "-" {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(&arguments.write).map_err(failed)?)
    });
    let written = Error::file(&arguments.write, "check whether the disk is full, or the reader of the pipe");
    let about = format!("VNIC {} on {}", arguments.vnic, capturing.interface);
    let snap = arguments.snap.unwrap_or(MAX_SNAP);
    eprintln!(
        "capturing VNIC {} of {} (pid {}), MTU {}, into {name}; Ctrl-C ends",
        arguments.vnic, capturing.client, capturing.pid, capturing.mtu
    );
    let mut capture = Capture { reader, seen: 0, began: now(), limit: arguments.count };
    let outcome = pcapng::begin(&mut out, &arguments.vnic, &about, capturing.mac.0, snap)
        .map_err(Stop::Write)
        .and_then(|()| capture.run_until_limit(&mut out, &mut connection, arguments.seconds));
    let outcome = outcome.and_then(|end| {
        let dropped = capture.reader.dropped();
        pcapng::statistics(&mut out, capture.began, now(), capture.seen, dropped)
            .and_then(|()| out.flush())
            .map_err(Stop::Write)?;
        Ok((end, dropped))
    });
    let (end, dropped) = outcome.map_err(|stop| match stop {
        Stop::Write(source) => written(source),
        Stop::Other(error) => error,
    })?;
    eprintln!("{} frames captured, {dropped} dropped for want of room", capture.seen);
    match end {
        End::Complete => Ok(()),
        End::Closed(why) => {
            eprintln!("{why}");
            Ok(())
        }
    }
}

/// Why a capture failed.
enum Stop {
    Write(io::Error),
    Other(Error),
}

struct Capture {
    reader: Reader,
    seen: u64,
    began: u64,
    limit: Option<u64>,
}

impl Capture {
    fn run_until_limit(
        &mut self,
        out: &mut impl Write,
        connection: &mut Connection,
        seconds: Option<u32>,
    ) -> Result<End, Stop> {
        let failed = |source| Stop::Other(Error::Start { what: "the event loop", source });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
            let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
            crate::signals::handled();
            let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
            loop {
                let interrupted = tokio::select! {
                    biased;
                    _ = interrupt.recv() => true,
                    _ = terminate.recv() => true,
                    () = tokio::time::sleep(PAUSE) => false,
                };
                let over = interrupted || end.is_some_and(|end| Instant::now() >= end);
                // Frames in the ring by now belong to the capture; frames that arrive later do not.
                if self.empty(out, if over { usize::MAX } else { BATCH })? || over {
                    return Ok(End::Complete);
                }
                match connection.take_notice() {
                    Ok(None) => {}
                    Ok(Some((Notice::EndCapture { .. } | Notice::ShuttingDown { .. }, _))) => {
                        self.empty(out, usize::MAX)?;
                        return Ok(End::Closed("its holder has ended".to_owned()));
                    }
                    Ok(Some(_)) => {}
                    Err(CallError::Closed) => {
                        self.empty(out, usize::MAX)?;
                        return Ok(End::Closed("the daemon has ended, and with it the capture".to_owned()));
                    }
                    Err(error) => return Err(Stop::Other(error.into())),
                }
            }
        })
    }

    /// Writes the frames in the ring, a bounded number at a time. Returns whether a limit is
    /// reached.
    fn empty(&mut self, out: &mut impl Write, batch: usize) -> Result<bool, Stop> {
        let mut bytes = Vec::new();
        let mut left = batch.min(RING as usize / 20);
        loop {
            if self.limit.is_some_and(|limit| self.seen >= limit) {
                return Ok(true);
            }
            let next = self.reader.next(&mut bytes).map_err(|error| Stop::Other(error.into()))?;
            let Some(captured) = next else { break };
            pcapng::packet(out, &captured, &bytes).map_err(Stop::Write)?;
            self.seen += 1;
            left -= 1;
            if left == 0 {
                break;
            }
        }
        // A reader that follows the file sees each frame soon.
        out.flush().map_err(Stop::Write)?;
        self.reader.dropped();
        Ok(false)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
