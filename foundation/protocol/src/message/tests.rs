//! The names of messages and fields on the wire.

use super::*;
use crate::sockets::TcpReport;
use crate::view::{FileAttributes, ViewEntry, ViewOperation, ViewPage, ViewReply, ViewRequest};

fn text<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("messages are plain values")
}

#[test]
fn messages_have_the_names_of_the_specification_on_the_wire() {
    let error = ErrorReply {
        kind: ErrorKind::Busy,
        what: "VNIC kv".to_owned(),
        cause: "pid 7 has it".to_owned(),
        fix: "end that process".to_owned(),
    };
    let wire = r#"{"kind":"busy","what":"VNIC kv","cause":"pid 7 has it","fix":"end that process"}"#;
    assert_eq!(text(&error), wire);
    let stat = ViewRequest { path: "keys".to_owned(), operation: ViewOperation::Stat };
    assert_eq!(text(&stat), r#"{"path":"keys","operation":"stat"}"#);
    let attributes = FileAttributes::file(5);
    assert_eq!(text(&ViewReply::Stat(attributes)), r#"{"stat":{"kind":"file","size":5}}"#);
    let page = ViewPage { entries: vec![ViewEntry { name: "a".to_owned(), attributes }], next: Some(1) };
    let wire = r#"{"page":{"entries":[{"name":"a","attributes":{"kind":"file","size":5}}],"next":1}}"#;
    assert_eq!(text(&ViewReply::Page(page)), wire);
    let report = text(&TcpReport { srtt: 3, rttvar: 2, min_rtt: 1, ..TcpReport::default() });
    assert!(report.contains(r#""srtt":3,"rttvar":2,"min_rtt":1"#), "{report}");
}
