//! How requests and completions pass between a thread and the kernel.

/// How requests and completions pass between thread and kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel interrupts the thread to post completions: kernels before 5.19.
    Plain,
    /// The kernel posts completions when the thread enters it anyway, or is asked to. The queue may
    /// move between threads while nothing is in flight. The default: for a disk [`Mode::Deferred`]
    /// measured no better.
    Cooperative,
    /// The kernel posts completions only when it is asked to (Linux 6.1): for a thread that polls
    /// or waits. The queue belongs for good to the thread that notifies first. Another thread gets
    /// an error, and if it drops the queue with requests in flight, their buffers are leaked. A
    /// thread that sleeps in `poll(2)` on the descriptor is not woken.
    Deferred,
    /// A thread of the kernel takes requests without being called (`SQPOLL`). Only where it has a
    /// core of its own: beside other work on two cores each request waited for the scheduler, for
    /// milliseconds. Requests may start before they are notified.
    KernelThread,
}

impl Mode {
    /// The flags that it sets, for people.
    pub fn flags(self) -> &'static str {
        match self {
            Self::Plain => "no flags",
            Self::Cooperative => "COOP_TASKRUN",
            Self::Deferred => "SINGLE_ISSUER, DEFER_TASKRUN",
            Self::KernelThread => "SQPOLL",
        }
    }
}
