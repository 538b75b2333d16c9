//! What somebody asks of a data loop: its sockets (`sietch ss`), or a copy of its frames (`sietch
//! capture`).
//!
//! 1. The lease's thread takes the question from the daemon, writes it down here, sets `asked` and
//!    rings the lease's doorbell.
//! 2. The loop, which looks at `asked` once a turn, answers between two turns with what its engine
//!    says of itself at that moment: a copy of plain numbers. It formats nothing, and it makes no
//!    system call but one to wake the thread.
//! 3. The thread turns the numbers into reports and sends them to the daemon. Who asked waits for
//!    at most a second, so a loop that is stuck is reported as that; it costs the loop nothing to
//!    answer too late.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use sietch_net::{Engine, SocketInfo, SocketKind, State};
use sietch_nic::capture::Tap;
use sietch_protocol::sockets::MAX_REPORTS;
use sietch_protocol::{SocketReport, SocketState, TcpReport, Transport};

use crate::doorbell::Doorbell;
use crate::grant::Grant;
use crate::view::Seen;

/// Questions that may wait: the daemon asks once for each `sietch ss` or `capture`, and nobody
/// waits longer than a second.
const MOST_WAITING: usize = 64;

/// What is asked.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// The sockets.
    Sockets,
    /// A copy of every frame, through this tap.
    Capture(Box<Tap>),
    /// No more copies into the ring of that question.
    EndCapture,
}

/// A question about one grant.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: u64,
    pub(crate) grant: u64,
    pub(crate) wanted: Wanted,
}

/// What a loop said.
#[derive(Debug)]
pub(crate) enum Told {
    /// Its sockets, and how many there were in all.
    Sockets(Vec<SocketInfo>, usize),
    /// What there is to see of an area.
    Seen(Box<Seen>),
    /// It does as it was asked.
    Done,
    /// It cannot.
    Refused(String),
}

/// Questions on their way to the loops, and answers on their way back.
#[derive(Debug)]
pub(crate) struct Inquiries {
    asked: AtomicBool,
    questions: Mutex<VecDeque<Question>>,
    answers: Mutex<Vec<(u64, Told)>>,
    answered: OwnedFd,
}

/// A loop that panicked while it held the lock left nothing half-done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inquiries {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            asked: AtomicBool::new(false),
            questions: Mutex::default(),
            answers: Mutex::default(),
            answered: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// What becomes readable when a loop has answered.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.answered.as_fd()
    }

    /// Puts a question. The caller rings the loop's doorbell.
    pub(crate) fn ask(&self, question: Question) {
        let mut questions = locked(&self.questions);
        if questions.len() == MOST_WAITING {
            questions.pop_front();
        }
        questions.push_back(question);
        self.asked.store(true, Ordering::Release);
    }

    /// Answers a question that no loop has to be asked.
    pub(crate) fn refuse(&self, id: u64, why: String) {
        self.tell(id, Told::Refused(why));
    }

    /// Passes an answer on.
    pub(crate) fn tell(&self, id: u64, told: Told) {
        locked(&self.answers).push((id, told));
        self.ring();
    }

    fn ring(&self) {
        // It can only fail when the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.answered, &1_u64.to_ne_bytes());
    }

    /// The answers so far.
    pub(crate) fn take_answers(&self) -> Vec<(u64, Told)> {
        // Nothing to read means that nobody has answered.
        let _ = rustix::io::read(&self.answered, &mut [0; 8]);
        std::mem::take(&mut locked(&self.answers))
    }

    /// One load, in the usual case.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Answers what is asked about `grants`.
    #[cold]
    pub(crate) fn answer<Q: Doorbell>(&self, grants: &[Grant], engine: &Engine, queue: &mut Q) {
        let of_us: Vec<Question> = {
            let mut questions = locked(&self.questions);
            let ours = |question: &Question| grants.iter().any(|grant| grant.id() == question.grant);
            let (ours, others): (VecDeque<_>, VecDeque<_>) = questions.drain(..).partition(ours);
            *questions = others;
            self.asked.store(!questions.is_empty(), Ordering::Release);
            ours.into()
        };
        for Question { id, wanted, .. } in of_us {
            let told = match wanted {
                Wanted::Sockets => sockets_of(engine),
                Wanted::Capture(tap) => match queue.tap() {
                    Some(place) => {
                        *place = Some(tap);
                        Told::Done
                    }
                    None => Told::Refused("its queue cannot be tapped".to_owned()),
                },
                Wanted::EndCapture => {
                    if let Some(place) = queue.tap() {
                        *place = None;
                    }
                    Told::Done
                }
            };
            locked(&self.answers).push((id, told));
        }
        self.ring();
    }
}

fn sockets_of(engine: &Engine) -> Told {
    let mut sockets: Vec<SocketInfo> = Vec::new();
    let mut count = 0;
    for socket in engine.sockets() {
        if count < MAX_REPORTS {
            sockets.push(socket);
        }
        count += 1;
    }
    Told::Sockets(sockets, count)
}

/// A socket in the words of the protocol.
pub(crate) fn report(socket: &SocketInfo) -> SocketReport {
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
