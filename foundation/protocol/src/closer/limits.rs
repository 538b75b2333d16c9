//! Bounds of closing what untrusted processes sent. `docs/spec/budgets.md` has them in its tables.

/// Threads that close descriptors which applications sent. Any of them may hang: the application
/// may serve the file system of the file, and a TCP socket may linger. A thread takes a process id
/// and some 20 KiB. 160 users together can have all of them hang.
pub const CLOSERS: usize = 256;

/// Threads of one user while fewer than half of all are busy. There is more than one, so that a
/// fast close does not wait for one that hangs. While half or more are busy, a user has one.
pub const CLOSERS_PER_USER: usize = 4;

/// Descriptors of one user that wait for such a thread: twice those of a listener that ends with
/// the largest backlog.
pub const UNCLOSED: usize = 2 * 4096;

/// Descriptors of one user that may wait however few are free: enough for a few requests that are
/// being answered. They are part of a process's spare descriptors.
pub const UNCLOSED_ALWAYS: usize = 32;

/// Parked sockets of all users. From some 2000 on the kernel may search all of them for each
/// message with a socket in it (net/unix/garbage.c), answers to others included: a
/// millisecond for this many, measured on Linux 6.18.
pub const PARKED: usize = 6000;

/// Parked sockets of one user.
pub const PARKED_PER_USER: usize = 4000;

/// Returns how many descriptors of one user may wait to be closed while `free` are free. A user has
/// no more of them than it leaves to others.
pub const fn most_unclosed(free: usize) -> usize {
    if free < UNCLOSED_ALWAYS {
        UNCLOSED_ALWAYS
    } else if free < UNCLOSED {
        free
    } else {
        UNCLOSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_leaves_as_many_descriptors_as_it_has_waiting() {
        let mut left = 100_000;
        while left > UNCLOSED_ALWAYS {
            let mut own = 0;
            while own < most_unclosed(left) {
                own += 1;
                left -= 1;
            }
            assert!(own <= UNCLOSED && left + UNCLOSED_ALWAYS >= own, "{own}, {left}");
        }
        assert_eq!(most_unclosed(0), UNCLOSED_ALWAYS);
    }
}
