//! A terminal in raw mode: views that replace one another on the alternate screen, and keys without
//! Enter.
//!
//! 1. The former settings and screen are restored however the program ends, SIGKILL excepted.
//! 2. A view is written in one piece over the previous one, so that nothing flickers. It is cut to
//!    the size of the terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// The alternate screen, without a cursor; and back.
const OPEN: &str = "\x1b[?1049h\x1b[?25l";
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";

/// See the module.
#[derive(Debug)]
pub(super) struct Screen {
    before: Termios,
    ended: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal, if standard input and output are one.
    ///
    /// # Errors
    /// The terminal has closed.
    pub(super) fn open() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let ended = Arc::new(AtomicBool::new(false));
        for signal in crate::signals::ENDING.into_iter().chain([signal_hook::consts::SIGHUP]) {
            signal_hook::flag::register(signal, Arc::clone(&ended))?;
        }
        crate::signals::handled();
        let before = tcgetattr(io::stdin())?;
        let mut own = before.clone();
        // Ctrl-C is a key here: it must not leave the terminal as it is.
        own.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        own.special_codes[SpecialCodeIndex::VMIN] = 0;
        own.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &own)?;
        let screen = Self { before, ended };
        write(OPEN)?;
        Ok(Some(screen))
    }

    /// Shows a view.
    ///
    /// # Errors
    /// The terminal has closed.
    pub(super) fn show(&self, view: &str) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout())?;
        // A terminal that does not say how large it is.
        let known = |reported: u16, usual| if reported == 0 { usual } else { usize::from(reported) };
        write(&fitted(view, known(size.ws_col, 80), known(size.ws_row, 24)))
    }

    /// The next key within `limit`, if one is pressed. A signal that ends the program counts as
    /// `q`.
    ///
    /// # Errors
    /// The terminal has closed.
    pub(super) fn key(&self, limit: Duration) -> io::Result<Option<u8>> {
        let until = Instant::now() + limit;
        loop {
            if self.ended.load(Ordering::Acquire) {
                return Ok(Some(b'q'));
            }
            let left = until.saturating_duration_since(Instant::now());
            let stdin = io::stdin();
            let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut watched, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A signal: the size has changed, or the program is to end. The caller checks both.
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut bytes = [0; 16];
            return match rustix::io::read(&stdin, &mut bytes)? {
                // Hung up.
                0 => Ok(Some(b'q')),
                // Keys of several bytes begin with the one of Escape; they mean nothing here.
                length if length > 1 && bytes[0] == 0x1b => Ok(Some(0)),
                _ => Ok(Some(bytes[0])),
            };
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A failure cannot be reported any more.
        let _ = write(CLOSE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A view as it is written: over the previous one, as wide and high as the terminal.
fn fitted(view: &str, columns: usize, rows: usize) -> String {
    let mut out = String::from("\x1b[H");
    for (row, line) in view.lines().take(rows).enumerate() {
        if row > 0 {
            out.push_str("\r\n");
        }
        cut(line, columns, &mut out);
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J");
    out
}

/// The first `columns` characters of a line, with all its colours.
fn cut(line: &str, columns: usize, out: &mut String) {
    let (mut left, mut colour) = (columns, false);
    for character in line.chars() {
        match (colour, character) {
            (false, '\x1b') => colour = true,
            (true, letter) if letter.is_ascii_alphabetic() => {
                out.push(letter);
                colour = false;
                continue;
            }
            (true, _) => {}
            (false, _) if left == 0 => continue,
            (false, _) => left -= 1,
        }
        out.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_fits_its_terminal_and_keeps_its_colours() {
        let view = "\x1b[1mheading\x1b[0m that is long\nsecond\nthird\n";
        let shown = fitted(view, 10, 2);
        assert_eq!(shown, "\x1b[H\x1b[1mheading\x1b[0m th\x1b[K\r\nsecond\x1b[K\x1b[J");
    }
}
