//! The daemon's queries to a data loop: for its sockets (`sietch ss`), or for a copy of its frames
//! (`sietch capture`).
//!
//! 1. The lease's thread receives the query from the daemon, queues it, and rings the lease's
//!    doorbell.
//! 2. The loop checks a flag once an iteration. Between two iterations it answers with its engine's
//!    report at that moment: a copy of plain numbers. It formats nothing, and makes no system call
//!    but one to wake the thread.
//! 3. The thread turns the numbers into reports and sends them to the daemon. The daemon waits for
//!    at most a second, so a loop that is stuck is reported as such. A late answer costs the loop
//!    nothing.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use sietch_net::{Engine, SocketInfo, SocketKind, State};
use sietch_nic::capture::Tap;
use sietch_protocol::sockets::MAX_REPORTS;
use sietch_protocol::{SocketReport, SocketState, TcpReport, Transport};

use crate::device::{Doorbell, Grant};
use crate::view::ViewOutcome;

/// Questions that may wait: the daemon sends one for each `sietch ss` or `capture`, and waits for a
/// second at most.
const MAX_WAITING: usize = 64;

/// A query of the daemon to a loop.
#[derive(Debug)]
pub(super) enum Query {
    /// The sockets.
    Sockets,
    /// A copy of every frame, through this tap.
    Capture(Box<Tap>),
    /// No more copies of frames.
    EndCapture,
}

/// A question about one grant.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: u64,
    pub(super) grant: u64,
    pub(super) query: Query,
}

/// A loop's answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its sockets, and how many there were in all.
    Sockets(Vec<SocketInfo>, usize),
    /// The reply of a view.
    View(Box<ViewOutcome>),
    /// Done.
    Done,
    /// The loop cannot do it, and why.
    Refused(String),
}

/// Questions on their way to the loops, and answers on their way back.
#[derive(Debug)]
pub(super) struct Questions {
    nonempty: AtomicBool,
    questions: Mutex<VecDeque<Question>>,
    answers: Mutex<Vec<(u64, Answer)>>,
    answered: OwnedFd,
}

/// A loop that panicked while it held the lock left a consistent list.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Questions {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            nonempty: AtomicBool::new(false),
            questions: Mutex::default(),
            answers: Mutex::default(),
            answered: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The descriptor that is readable when a loop has answered.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.answered.as_fd()
    }

    /// Adds a query; the oldest is dropped if too many wait. The caller rings the loop's doorbell.
    pub(super) fn ask(&self, question: Question) {
        let mut questions = locked(&self.questions);
        if questions.len() == MAX_WAITING {
            questions.pop_front();
        }
        questions.push_back(question);
        self.nonempty.store(true, Ordering::Release);
    }

    /// Adds an answer and wakes the thread.
    pub(super) fn push_answer(&self, id: u64, answer: Answer) {
        locked(&self.answers).push((id, answer));
        self.wake_thread();
    }

    fn wake_thread(&self) {
        // It can only fail when the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.answered, &1_u64.to_ne_bytes());
    }

    /// Takes the answers that are ready.
    pub(super) fn take_answers(&self) -> Vec<(u64, Answer)> {
        // Nothing to read means that no loop has answered.
        let _ = rustix::io::read(&self.answered, &mut [0; 8]);
        std::mem::take(&mut locked(&self.answers))
    }

    /// Whether questions wait: one load in the usual case.
    #[inline]
    pub(super) fn has_questions(&self) -> bool {
        self.nonempty.load(Ordering::Acquire)
    }

    /// Answers the questions about `grants`.
    #[cold]
    pub(super) fn answer<Q: Doorbell>(&self, grants: &[Grant], engine: &Engine, queue: &mut Q) {
        let own: Vec<Question> = {
            let mut questions = locked(&self.questions);
            let is_own = |question: &Question| grants.iter().any(|grant| grant.id() == question.grant);
            let (own, others): (VecDeque<_>, VecDeque<_>) = questions.drain(..).partition(is_own);
            *questions = others;
            self.nonempty.store(!questions.is_empty(), Ordering::Release);
            own.into()
        };
        for Question { id, query, .. } in own {
            let answer = match query {
                Query::Sockets => sockets_of(engine),
                Query::Capture(tap) => match queue.tap() {
                    Some(slot) => {
                        *slot = Some(tap);
                        Answer::Done
                    }
                    None => Answer::Refused("its queue cannot be tapped".to_owned()),
                },
                Query::EndCapture => {
                    if let Some(slot) = queue.tap() {
                        *slot = None;
                    }
                    Answer::Done
                }
            };
            locked(&self.answers).push((id, answer));
        }
        self.wake_thread();
    }
}

fn sockets_of(engine: &Engine) -> Answer {
    let mut sockets: Vec<SocketInfo> = Vec::new();
    let mut count = 0;
    for socket in engine.sockets() {
        if count < MAX_REPORTS {
            sockets.push(socket);
        }
        count += 1;
    }
    Answer::Sockets(sockets, count)
}

/// The report of a socket, as the protocol has it.
pub(super) fn report(socket: &SocketInfo) -> SocketReport {
    let (transport, state, receive_queue, send_queue) = match socket.kind {
        SocketKind::Listener { waiting, backlog } => {
            (Transport::Tcp, SocketState::Listen, waiting.into(), backlog.into())
        }
        SocketKind::HalfOpen => (Transport::Tcp, SocketState::SynReceived, 0, 0),
        SocketKind::TimeWait => (Transport::Tcp, SocketState::TimeWait, 0, 0),
        SocketKind::Udp { waiting } => (Transport::Udp, SocketState::Unconnected, waiting as u64, 0),
        SocketKind::Flow(_) => match &socket.flow {
            Some(flow) => {
                (Transport::Tcp, state(flow.state), flow.unread as u64, flow.unsent_or_unacknowledged as u64)
            }
            None => (Transport::Tcp, SocketState::Closed, 0, 0),
        },
    };
    let tcp = socket.flow.as_ref().map(|flow| Box::new(tcp(flow)));
    SocketReport {
        transport,
        state,
        local: socket.local,
        peer: socket.remote,
        receive_queue,
        send_queue,
        tcp,
    }
}

fn state(state: State) -> SocketState {
    match state {
        State::Closed => SocketState::Closed,
        State::SynSent => SocketState::SynSent,
        State::SynReceived => SocketState::SynReceived,
        State::Established => SocketState::Established,
        State::FinWait1 => SocketState::FinWait1,
        State::FinWait2 => SocketState::FinWait2,
        State::CloseWait => SocketState::CloseWait,
        State::Closing => SocketState::Closing,
        State::LastAck => SocketState::LastAck,
        State::TimeWait => SocketState::TimeWait,
    }
}

fn tcp(flow: &sietch_net::FlowInfo) -> TcpReport {
    TcpReport {
        algorithm: format!("{:?}", flow.congestion).to_ascii_lowercase(),
        recovery: format!("{:?}", flow.recovery).to_ascii_lowercase(),
        orphaned: flow.orphaned,
        timestamps: flow.timestamps,
        selective_acknowledgement: flow.sack,
        window_scale: (flow.send_scale, flow.receive_scale),
        segment_size: flow.segment_size.into(),
        congestion_window: flow.congestion_window.into(),
        // An infinite threshold is slow start that nothing has ended yet.
        slow_start_threshold: (flow.slow_start_threshold < u32::MAX / 2)
            .then_some(flow.slow_start_threshold.into()),
        peer_window: flow.peer_window.into(),
        receive_window: flow.receive_window.into(),
        srtt: flow.srtt,
        rttvar: flow.rttvar,
        min_rtt: flow.min_rtt,
        retransmission_timeout: flow.retransmission_timeout,
        backoff: flow.backoff.into(),
        pacing_rate: flow.pacing_rate,
        in_flight: flow.in_flight.into(),
        selectively_acknowledged: flow.sacked.into(),
        lost: flow.lost.into(),
        retransmits: flow.retransmits,
        retransmitted_bytes: flow.retransmitted_bytes,
        timeouts: flow.timeouts,
        recoveries: flow.recoveries,
        undone: flow.reductions_undone,
        tail_probes: flow.tail_probes,
        duplicates: flow.dsacks_received,
        reordered: flow.reordered,
        acknowledged_bytes: flow.acknowledged_bytes,
        received_bytes: flow.received_bytes,
        out_of_order: flow.out_of_order as u64,
        last_send: flow.since_sent,
        last_receive: flow.since_received,
    }
}
