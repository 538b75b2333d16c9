use sietch_disk::MemoryQueue;
use sietch_persist::{FormatOptions, Log, Map, Options, Queue, QueueOptions};

use std::time::Instant;

use sietch_protocol::view::{ViewOperation, ViewReply, ViewRequest};

use super::*;

fn at<'a>(path: &'a [&'a str]) -> ViewTarget<'a> {
    ViewTarget { path, uid: 0 }
}

/// All names of a directory, page by page, as a client lists it.
fn names(view: &mut dyn View, path: &[&str]) -> Vec<String> {
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let page = view.list(&at(path), cursor).expect("a page");
        names.extend(page.entries.iter().map(|entry| entry.name.clone()));
        let answer = ViewReply::Page(page.clone());
        assert_eq!(answer.check(ViewOperation::List { cursor }), Ok(()), "the daemon would refuse it");
        match page.next {
            Some(next) => cursor = next,
            None => return names,
        }
    }
}

fn missing<T: std::fmt::Debug + PartialEq>(seen: Result<T, Unavailable>) {
    assert_eq!(seen, Err(Unavailable::Error(ViewError::Missing)));
}

fn map() -> Map<MemoryQueue> {
    let mut disk = MemoryQueue::new(8 << 20);
    Map::format(&mut disk, FormatOptions::new(7)).expect("format");
    Map::open(disk, Options::default()).expect("open").0
}

#[test]
fn a_map_is_a_file_for_each_key() {
    let mut map = map();
    for number in 0..1000_u32 {
        map.put(format!("key/{number:04}").as_bytes(), &vec![b'v'; number as usize]).expect("put");
    }
    map.put(&[b'k'; 300], b"too long for a name").expect("put");
    map.put(b"", b"nameless").expect("put");
    let mut view = MapView(&map);
    let mut found = names(&mut view, &[]);
    found.sort();
    assert_eq!(found.len(), 1001);
    assert_eq!((found[0].as_str(), found[1].as_str()), ("%", "key%2F0000"));
    assert_eq!(view.stat(&at(&["key%2F0999"])), Ok(FileAttributes::file(999)));
    assert_eq!(view.read(&at(&["key%2F0005"]), 1, 100), Ok(b"vvvv".to_vec()));
    assert_eq!(view.read(&at(&["key%2F0005"]), 9, 100), Ok(vec![]));
    assert_eq!(view.read(&at(&["%"]), 0, 4), Ok(b"name".to_vec()));
    missing(view.stat(&at(&["key%2F9999"])));
    missing(view.stat(&at(&["key%2f0005"])));
    missing(view.read(&at(&["key%2F0005", "x"]), 0, 1));
    assert_eq!(view.read(&at(&[]), 0, 1), Err(ViewError::IsDirectory.into()));
    assert_eq!(view.list(&at(&["key%2F0005"]), 0), Err(ViewError::NotDirectory.into()));
}

#[test]
fn a_queue_is_a_file_for_each_entry_in_their_order() {
    let mut disk = MemoryQueue::new(8 << 20);
    Queue::format(&mut disk, FormatOptions::new(7)).expect("format");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("open");
    for number in 0..600_u32 {
        queue.send(&number.to_be_bytes()).expect("send");
        queue.poll(0).expect("poll");
    }
    let mut view = QueueView(&queue);
    let found = names(&mut view, &[]);
    assert_eq!(found.len(), 600);
    assert!(found.is_sorted() && found.iter().all(|name| name.len() == 20), "{:?}", found[0]);
    assert_eq!(view.read(&at(&[&found[258]]), 0, 100), Ok(258_u32.to_be_bytes().to_vec()));
    missing(view.stat(&at(&["7"])));
    missing(view.stat(&at(&["x"])));
}

/// Reads all of a file as `cat` does, in pieces of `length`, driving the log meanwhile.
fn cat(view: &mut LogView, log: &mut Log<MemoryQueue>, from: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let offset = from + bytes.len() as u64;
        let read = view.over(log).read(&at(&["log"]), offset, length);
        match read {
            Ok(piece) if piece.is_empty() => return bytes,
            Ok(piece) => bytes.extend(piece),
            Err(Unavailable::Pending) => drop(log.poll().expect("poll")),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_log_is_whole_lines_from_any_place_of_reading() {
    let mut disk = MemoryQueue::new(8 << 20);
    Log::format(&mut disk, FormatOptions::new(7)).expect("format");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("open");
    let mut expected = String::new();
    for number in 0..1000 {
        let sequence = log.append(format!("record {number}").as_bytes()).expect("append");
        expected.push_str(&format!("{sequence} record {number}\n"));
    }
    let odd = log.append(b"tab\there \\ \xff \xc3\xa9\n\0").expect("append");
    expected.push_str(&format!("{odd} tab\\there \\\\ \\xff \u{e9}\\n\\u{{0}}\n"));
    log.submit().expect("submit");
    while log.poll().expect("poll") < odd {}
    let mut view = LogView::default();
    assert_eq!(names(&mut view.over(&mut log), &[]), ["log"]);
    for length in [1 << 20, 1000, 7] {
        let text = cat(&mut view, &mut log, 0, length);
        assert_eq!(String::from_utf8(text).expect("text"), expected, "in pieces of {length}");
    }
    // More readers than places, each somewhere else; then what is appended later.
    for from in [500, 10, 9000, 3, 12_000, 4000, 0] {
        assert_eq!(cat(&mut view, &mut log, from, 4096), expected.as_bytes()[from as usize..], "{from}");
    }
    let last = log.append(b"new").expect("append");
    log.submit().expect("submit");
    while log.poll().expect("poll") < last {}
    assert_eq!(cat(&mut view, &mut log, expected.len() as u64, 100), format!("{last} new\n").as_bytes());
    assert_eq!(cat(&mut view, &mut log, 1 << 40, 100), b"");
}

/// A view that is not ready at first.
struct Slow(u32);

impl View for Slow {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        self.0 += 1;
        if self.0 < 3 { Err(Unavailable::Pending) } else { Ok(FileAttributes::file(at.uid.into())) }
    }

    fn list(&mut self, _: &ViewTarget<'_>, _: u64) -> Result<ViewPage, Unavailable> {
        Err(ViewError::Failed("no".to_owned()).into())
    }

    fn read(&mut self, _: &ViewTarget<'_>, _: u64, _: usize) -> Result<Vec<u8>, Unavailable> {
        Ok(vec![7; 100])
    }
}

#[test]
fn a_loop_answers_one_request_an_iteration_and_retries_pending_ones() {
    let requests = RequestQueue::default();
    let request = |operation| ViewRequest { path: "a".to_owned(), operation };
    for (id, operation) in [(1, ViewOperation::Stat), (2, ViewOperation::Read { offset: 0, length: 10 })] {
        let request = request(operation);
        requests.push(PendingRequest { id, grant: 5, uid: 9, request, since: Instant::now() });
    }
    let mut slow = Slow(0);
    assert!(requests.answer(6, &mut slow).0.is_none(), "another grant's");
    assert!(requests.has_requests());
    assert_eq!(requests.answer(5, &mut slow), (None, true));
    // At most the requested bytes, whatever the view returns.
    let piece = Ok((ViewReply::Piece, vec![7; 10]));
    assert_eq!(requests.answer(5, &mut slow), (Some((2, piece)), true));
    assert_eq!(requests.answer(5, &mut slow), (None, true));
    let reply = Ok((ViewReply::Stat(FileAttributes::file(9)), Vec::new()));
    assert_eq!(requests.answer(5, &mut slow), (Some((1, reply)), false));
    assert!(!requests.has_requests());
}
