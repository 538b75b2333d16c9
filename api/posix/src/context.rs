//! The settings that the process gets from Sietch, read once from the environment, before `main`.
//!
//! 1. [`begin`] copies the variables that `sietch run` sets. Without `SIETCH_SOCKETS` no descriptor
//!    ever becomes ours, and every call goes to the C library.
//! 2. Nothing is allocated: the copies are in a static.

use std::ffi::CStr;
use std::fmt::{Display, Write};
use std::sync::OnceLock;

use sietch_protocol::socket_service::{
    APPLICATION_VARIABLE, MAX_PUBLISHED, PUBLISH_VARIABLE, Published, SHORT_LIVED_VARIABLE, SOCKET_VARIABLE,
    VNIC_VARIABLE,
};

use crate::system::sys;

/// Bytes of a Unix socket's path.
const PATH: usize = 108;

/// The values from the environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    path: [u8; PATH],
    path_length: usize,
    /// Groups the processes of one `sietch run`.
    pub(crate) application: [u8; 16],
    vnic: [u8; 32],
    vnic_length: usize,
    /// Ports of the host that lead to ports of the program; the first ones are filled.
    published: [Option<Published>; MAX_PUBLISHED],
    /// Whether short-lived connections stay on kernel TCP ([`crate::connection::short_lived`]).
    pub(crate) short_lived_to_kernel: bool,
    /// Whether to report on standard error what falls back to the kernel, and why.
    pub(crate) debug: bool,
}

static CONTEXT: OnceLock<Context> = OnceLock::new();

impl Context {
    /// A context of values that are known: for [`begin`] and for tests.
    pub(crate) fn new(path: &[u8], application: &[u8], vnic: &[u8]) -> Option<Self> {
        let mut context = Self {
            path: [0; PATH],
            path_length: path.len(),
            application: [0; 16],
            vnic: [0; 32],
            vnic_length: vnic.len(),
            published: [None; MAX_PUBLISHED],
            short_lived_to_kernel: false,
            debug: false,
        };
        context.path.get_mut(..path.len())?.copy_from_slice(path);
        context.vnic.get_mut(..vnic.len())?.copy_from_slice(vnic);
        for (to, digits) in context.application.iter_mut().zip(application.chunks_exact(2)) {
            *to = digit(digits[0]) << 4 | digit(digits[1]);
        }
        Some(context)
    }

    /// The path of the service's socket.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path[..self.path_length]
    }

    /// Parses the ports to be published from their variable. Invalid entries are skipped: `sietch
    /// run` writes none.
    #[must_use]
    pub(crate) fn publishing(mut self, list: &[u8]) -> Self {
        let entries = list.split(|&byte| byte == b',').filter_map(|entry| std::str::from_utf8(entry).ok());
        for (to, found) in self.published.iter_mut().zip(entries.filter_map(Published::parse)) {
            *to = Some(found);
        }
        self
    }

    /// Ports of the host that lead to `port` of the program.
    pub(crate) fn published(&self, port: u16) -> impl Iterator<Item = &Published> {
        self.published.iter().flatten().filter(move |found| found.port == port)
    }

    /// The VNIC's name; none in host addressing.
    pub(crate) fn vnic(&self) -> Option<&str> {
        if self.vnic_length == 0 {
            return None;
        }
        std::str::from_utf8(&self.vnic[..self.vnic_length]).ok()
    }
}

fn digit(character: u8) -> u8 {
    char::from(character).to_digit(16).map_or(0, |digit| digit as u8)
}

/// A variable of the environment, as it was before `main`; none if it is empty.
pub(crate) fn variable(name: &str) -> Option<&'static [u8]> {
    let mut buffer = [0_u8; 64];
    buffer.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    // SAFETY: a text that ends with a zero; the answer is a text of the environment, which does not
    // change before `main`.
    let value = unsafe { libc::getenv(buffer.as_ptr().cast()) };
    // SAFETY: as above.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes()).filter(|value| !value.is_empty())
}

/// Reads the environment. To be called once, before `main`.
pub(crate) fn begin() {
    let Some(path) = variable(SOCKET_VARIABLE) else { return };
    let application = variable(APPLICATION_VARIABLE).unwrap_or_default();
    let Some(context) = Context::new(path, application, variable(VNIC_VARIABLE).unwrap_or_default()) else {
        return;
    };
    let mut context = context.publishing(variable(PUBLISH_VARIABLE).unwrap_or_default());
    context.short_lived_to_kernel = variable(SHORT_LIVED_VARIABLE).is_some();
    context.debug = variable("SIETCH_DEBUG").is_some();
    set(context);
}

/// Takes a context; the first one stays.
pub(crate) fn set(context: Context) {
    let _ = CONTEXT.set(context);
}

/// The settings, if the process runs under Sietch.
#[inline]
pub(crate) fn get() -> Option<&'static Context> {
    CONTEXT.get()
}

/// Writes a line to standard error, if `SIETCH_DEBUG` is set. `why` is an error of a system call,
/// or 0.
pub(crate) fn debug_line(what: impl Display, why: i32) {
    if !get().is_some_and(|context| context.debug) {
        return;
    }
    let mut line = Line { bytes: [0; 200], length: 0 };
    // What does not fit is cut off.
    let _ =
        if why == 0 { write!(line, "sietch: {what}") } else { write!(line, "sietch: {what} (errno {why})") };
    line.bytes[line.length] = b'\n';
    let written = &line.bytes[..=line.length];
    // SAFETY: the kernel reads the line.
    let _ = unsafe {
        sys::raw_syscall(libc::SYS_write, [2, written.as_ptr().expose_provenance(), written.len(), 0, 0, 0])
    };
}

/// A line on the stack, with room for its end.
struct Line {
    bytes: [u8; 200],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let last = self.bytes.len() - 1;
        let room = last - self.length;
        let now = text.len().min(room);
        self.bytes[self.length..self.length + now].copy_from_slice(&text.as_bytes()[..now]);
        self.length += now;
        if now == text.len() { Ok(()) } else { Err(std::fmt::Error) }
    }
}
