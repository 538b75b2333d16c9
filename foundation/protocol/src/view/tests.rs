use super::*;
use crate::frame;
use crate::message::{Reply, ServerFrame};

fn question(path: &str) -> ViewRequest {
    ViewRequest { path: path.to_owned(), operation: ViewOperation::Stat }
}

#[test]
fn every_key_has_one_file_name_and_every_file_name_one_key() {
    let keys: [(&[u8], &str); 10] = [
        (b"greeting", "greeting"),
        (b"", "%"),
        (b".", "%2E"),
        (b"..", "%2E%2E"),
        (b"...", "..."),
        (b"a/b", "a%2Fb"),
        (b"100%", "100%25"),
        (b"\0\n", "%00%0A"),
        (b"\xff\xfe", "%FF%FE"),
        ("\u{e9}\u{85}".as_bytes(), "\u{e9}%C2%85"),
    ];
    for (key, name) in keys {
        assert_eq!(escape(key).as_deref(), Some(name));
        assert!(is_file_name(name), "{name}");
        assert_eq!(unescape(name).as_deref(), Some(key), "{name}");
    }
    // Another spelling of the same key is no file.
    for name in ["%2e", "%61", "%", "%4", "%zz", "a%", "%%"] {
        assert!(name == "%" || unescape(name).is_none(), "{name}");
    }
    assert_eq!(escape(&[b'a'; MAX_FILE_NAME]).map(|name| name.len()), Some(MAX_FILE_NAME));
    assert_eq!(escape(&[b'a'; MAX_FILE_NAME + 1]), None);
    assert_eq!(escape(&[0; 86]), None);
}

#[test]
fn a_path_stays_within_its_view() {
    assert_eq!(question("").components(), Some(vec![]));
    assert_eq!(question("keys/0/a b").components(), Some(vec!["keys", "0", "a b"]));
    let long = "a/".repeat(MAX_DEPTH) + "a";
    for hostile in ["/", "/keys", "keys/", "keys//0", "..", "keys/../..", ".", "a\0b", "a\nb", &long] {
        assert_eq!(question(hostile).components(), None, "{hostile:?}");
        assert!(question(hostile).check().is_err());
    }
    let most = ViewRequest {
        path: "a".to_owned(),
        operation: ViewOperation::Read { offset: 0, length: MAX_PIECE + 1 },
    };
    assert!(most.check().is_err());
}

#[test]
fn a_full_page_fits_a_frame_with_any_names() {
    for name in ["\u{7f}", "a", "\u{2028}\u{2028}", "\"\"\"\"", "\\\\\\\\\\\\\\\\"] {
        let mut page = ViewPage::default();
        let mut number = 0_u64;
        loop {
            number += 1;
            if number > 1000 || !page.push(&format!("{name}{number}"), FileAttributes::file(u64::MAX)) {
                break;
            }
        }
        page.next = Some(u64::MAX);
        let answer = ViewReply::Page(page);
        assert_eq!(answer.check(ViewOperation::List { cursor: 0 }), Ok(()));
        let frame = ServerFrame::Reply { id: u64::MAX, body: Reply::View(answer) };
        assert!(frame::encode(&frame).is_ok(), "{name:?}");
    }
}

#[test]
fn a_reply_that_does_not_fit_its_query_is_refused() {
    let entry = |name: &str| ViewEntry { name: name.to_owned(), attributes: FileAttributes::DIRECTORY };
    let page = |names: &[&str], next| {
        ViewReply::Page(ViewPage { entries: names.iter().map(|name| entry(name)).collect(), next })
    };
    let list = ViewOperation::List { cursor: 7 };
    assert_eq!(page(&["a"], Some(8)).check(list), Ok(()));
    assert_eq!(page(&[], None).check(list), Ok(()));
    for hostile in [
        page(&["a/b"], None),
        page(&[".."], None),
        page(&[""], None),
        page(&["a\0"], None),
        page(&[&"a".repeat(300)], None),
        page(&["a"], Some(7)),
        page(&["a"], Some(0)),
        page(&["a"; MAX_ENTRIES + 1], None),
        page(&["a".repeat(200).as_str(); 100], None),
        ViewReply::Piece,
        ViewReply::Stat(FileAttributes::DIRECTORY),
    ] {
        assert!(hostile.check(list).is_err(), "{hostile:?}");
    }
}
