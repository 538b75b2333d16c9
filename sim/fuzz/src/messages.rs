//! Messages of clients: to the daemon and from it, and to the socket service and from it.

use sietch_protocol::frame::decode;
use sietch_protocol::message::{ClientFrame, ServerFrame};
use sietch_protocol::socket_service::{Arrival, BacklogChange, Build, Reply, Request};
use sietch_protocol::view;

/// The text of a frame. What is read can be written, and is read as the same.
pub(crate) fn control(data: &[u8]) {
    if let Ok(frame) = decode::<ClientFrame>(data) {
        let written = sietch_protocol::frame::encode(&frame).expect("no longer than what was read");
        let again = decode::<ClientFrame>(&written[4..]).expect("it was just written");
        assert_eq!(format!("{again:?}"), format!("{frame:?}"));
    }
    let _ = decode::<ServerFrame>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = view::unescape(text);
    }
    if let Some(name) = view::escape(data) {
        assert_eq!(view::unescape(&name).as_deref(), Some(data), "{name}");
    }
}

/// A message of the socket service's protocol, either way.
pub(crate) fn sockets(data: &[u8]) {
    if let Ok((request, _)) = Request::parse(data) {
        let (_, _) = (request.vnic(), request.user());
    }
    if let Ok(reply) = Reply::parse(data) {
        let (_, _) = (reply.kind(), reply.error());
    }
    if let Ok(arrival) = Arrival::parse(data) {
        let (_, _) = (arrival.kind(), arrival.descriptors());
    }
    let _ = BacklogChange::parse(data);
    if let Some(build) = Build::parse(data) {
        let _ = build.name();
    }
}
