//! `sietch ss`: the sockets of every application, as `ss -ti` shows the kernel's.
//!
//! 1. The daemon knows the holders of VNICs, and lists them for administrators. A single VNIC can
//!    be named instead.
//! 2. Each holder is queried through the daemon for its sockets. It answers within a second, or is
//!    reported as silent.
//! 3. Answers of applications are untrusted: their form is checked, and they are printed without
//!    control characters.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use sietch_protocol::{CallError, Connection, SocketReport, TcpReport, VnicStatus};

use crate::administration;
use crate::arguments::SsArguments;
use crate::error::Error;
use crate::output;
use crate::style::{Cell, Palette, Table, Tone, escaped};

/// The answer of a VNIC's holder.
#[derive(Debug, Serialize)]
struct Answer {
    vnic: String,
    /// The holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Sockets that did not fit the answer.
    omitted: u64,
    sockets: Vec<SocketReport>,
}

/// Queries the holders, and prints their sockets.
///
/// # Errors
/// [`Error::Control`]: no daemon, or it refuses. If some of several VNICs do not answer, the output
/// names them.
pub(crate) fn run(socket: &Path, arguments: &SsArguments) -> Result<(), Error> {
    let mut connection = administration::connect(socket)?;
    let answers = match &arguments.vnic {
        Some(vnic) => vec![query(&mut connection, vnic)?],
        None => {
            let held = |vnic: VnicStatus| vnic.holder.is_some().then_some(vnic.name);
            let names: Vec<String> = connection.status()?.vnics.into_iter().filter_map(held).collect();
            let answers = names.iter().map(|name| match query(&mut connection, name) {
                Err(Error::Control(CallError::Refused(refusal))) => Ok(silent(name, refusal.to_string())),
                Err(Error::Sockets(error)) => Ok(silent(name, error.to_string())),
                other => other,
            });
            answers.collect::<Result<_, Error>>()?
        }
    };
    let text = if arguments.json { output::json(&answers)? } else { render(&answers, Palette::of_stdout()) };
    output::print(&text)
}

fn query(connection: &mut Connection, vnic: &str) -> Result<Answer, Error> {
    let (answer, file) = connection.sockets(vnic)?;
    let sockets = sietch_protocol::sockets::read(&file)?;
    Ok(Answer {
        vnic: vnic.to_owned(),
        pid: Some(answer.pid),
        client: Some(answer.client),
        error: None,
        omitted: answer.omitted,
        sockets,
    })
}

fn silent(vnic: &str, error: String) -> Answer {
    Answer {
        vnic: vnic.to_owned(),
        pid: None,
        client: None,
        error: Some(error),
        omitted: 0,
        sockets: Vec::new(),
    }
}

fn render(answers: &[Answer], palette: Palette) -> String {
    let mut table = Table::new(0);
    table.headings(&["proto", "state", "recv-q", "send-q", "local", "peer", "vnic", "process"]);
    let mut details = Vec::new();
    for answer in answers {
        let process = format!(
            "{} pid {}",
            answer.client.as_deref().unwrap_or_default(),
            answer.pid.unwrap_or_default()
        );
        for socket in &answer.sockets {
            let peer = socket.peer.map_or_else(|| "*".to_owned(), |peer| peer.to_string());
            table.row(vec![
                Cell::text(socket.transport),
                Cell::text(socket.state),
                Cell::text(socket.receive_queue).right(),
                Cell::text(socket.send_queue).right(),
                Cell::text(socket.local),
                Cell::text(peer),
                Cell::text(&answer.vnic),
                Cell::text(&process),
            ]);
            details.push(socket.tcp.as_deref().map(detail));
        }
    }
    let rendered = table.render(palette);
    let mut lines = rendered.lines();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", lines.next().unwrap_or_default());
    for (line, detail) in lines.zip(details) {
        let _ = writeln!(text, "{line}");
        if let Some(detail) = detail {
            let _ = writeln!(text, "        {}", palette.paint(Tone::Faint, &detail));
        }
    }
    for answer in answers {
        let warning = match &answer.error {
            Some(error) => escaped(error),
            None if answer.omitted > 0 => {
                format!("VNIC {}: {} more sockets did not fit the answer", answer.vnic, answer.omitted)
            }
            None => continue,
        };
        let _ = writeln!(text, "{} {warning}", palette.paint(Tone::Warning, "warning:"));
    }
    text
}

/// The numbers of a connection under the names that `ss -ti` gives them. Windows and quantities are
/// bytes.
fn detail(tcp: &TcpReport) -> String {
    let mut words = vec![escaped(&tcp.algorithm)];
    let mut flag = |set: bool, word: &str| {
        if set {
            words.push(word.to_owned());
        }
    };
    flag(tcp.timestamps, "ts");
    flag(tcp.selective_acknowledgement, "sack");
    flag(tcp.orphaned, "orphan");
    let mut text = words.join(" ");
    let mut say = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = write!(text, " {name}:{value}");
    };
    say("wscale", format!("{},{}", tcp.window_scale.0, tcp.window_scale.1));
    say("rto", milliseconds(tcp.retransmission_timeout));
    if tcp.backoff > 0 {
        say("backoff", tcp.backoff.to_string());
    }
    say("rtt", format!("{}/{}", milliseconds(tcp.srtt), milliseconds(tcp.rttvar)));
    say("minrtt", milliseconds(tcp.min_rtt));
    say("mss", tcp.segment_size.to_string());
    say("cwnd", tcp.congestion_window.to_string());
    if let Some(threshold) = tcp.slow_start_threshold {
        say("ssthresh", threshold.to_string());
    }
    say("snd_wnd", tcp.peer_window.to_string());
    say("rcv_wnd", tcp.receive_window.to_string());
    say("bytes_acked", tcp.acknowledged_bytes.to_string());
    say("bytes_received", tcp.received_bytes.to_string());
    let quantities = [
        ("unacked", tcp.in_flight),
        ("sacked", tcp.selectively_acknowledged),
        ("lost", tcp.lost),
        ("retrans", tcp.retransmits),
        ("bytes_retrans", tcp.retransmitted_bytes),
        ("timeouts", tcp.timeouts),
        ("recoveries", tcp.recoveries),
        ("undone", tcp.undone),
        ("tail_probes", tcp.tail_probes),
        ("dsack_dups", tcp.duplicates),
        ("reord_seen", tcp.reordered),
        ("rcv_ooopack", tcp.out_of_order),
        ("pacing_rate", tcp.pacing_rate),
    ];
    for (name, value) in quantities {
        if value > 0 {
            say(name, value.to_string());
        }
    }
    if tcp.recovery != "open" {
        say("recovery", escaped(&tcp.recovery));
    }
    say("lastsnd", milliseconds(tcp.last_send));
    say("lastrcv", milliseconds(tcp.last_receive));
    text
}

/// Nanoseconds as milliseconds, to the microsecond where that says something.
fn milliseconds(nanoseconds: u64) -> String {
    let (whole, rest) = (nanoseconds / 1_000_000, nanoseconds / 1000 % 1000);
    if rest == 0 || whole >= 1000 { whole.to_string() } else { format!("{whole}.{rest:03}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sietch_protocol::{SocketState, Transport};

    #[test]
    fn sockets_are_shown_as_ss_shows_them_without_escapes_of_their_owner() {
        let tcp = TcpReport {
            algorithm: "cubic\x1b[2J".to_owned(),
            recovery: "open".to_owned(),
            timestamps: true,
            window_scale: (7, 8),
            srtt: 1_234_567,
            segment_size: 1448,
            congestion_window: 14_480,
            retransmits: 3,
            ..TcpReport::default()
        };
        let socket = SocketReport {
            transport: Transport::Tcp,
            state: SocketState::Established,
            local: "10.0.0.2:6379".parse().expect("an address"),
            peer: Some("[fd00::1]:40000".parse().expect("an address")),
            receive_queue: 12,
            send_queue: 34,
            tcp: Some(Box::new(tcp)),
        };
        let listening = SocketReport { state: SocketState::Listen, peer: None, tcp: None, ..socket.clone() };
        let answer = Answer {
            vnic: "kv".to_owned(),
            pid: Some(7),
            client: Some("store".to_owned()),
            error: None,
            omitted: 5,
            sockets: vec![listening, socket],
        };
        let text = render(&[answer, silent("far", "VNIC far: pid 8 is silent".to_owned())], Palette::plain());
        insta::assert_snapshot!(text, @r"
        proto  state   recv-q  send-q  local          peer             vnic  process
        tcp    LISTEN      12      34  10.0.0.2:6379  *                kv    store pid 7
        tcp    ESTAB       12      34  10.0.0.2:6379  [fd00::1]:40000  kv    store pid 7
                cubic\u{1b}[2J ts wscale:7,8 rto:0 rtt:1.234/0 minrtt:0 mss:1448 cwnd:14480 snd_wnd:0 rcv_wnd:0 bytes_acked:0 bytes_received:0 retrans:3 lastsnd:0 lastrcv:0
        warning: VNIC kv: 5 more sockets did not fit the answer
        warning: VNIC far: pid 8 is silent
        ");
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}
