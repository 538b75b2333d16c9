use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

fn pair() -> (UnixStream, UnixStream) {
    let (left, right) = UnixStream::pair().unwrap();
    right.set_nonblocking(true).unwrap();
    (left, right)
}

/// What a reader must make of a byte stream that then ends: the texts, and whether it ends in an
/// error.
fn oracle(mut bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return (texts, true);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length == 0 || length > MAX_FRAME || rest.len() < length {
            return (texts, true);
        }
        texts.push(rest[..length].to_vec());
        bytes = &rest[length..];
    }
    (texts, false)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn any_stream_in_any_pieces_gives_its_frames_or_an_error(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        tail in prop::collection::vec(any::<u8>(), 0..12),
        pieces in prop::collection::vec(1usize..97, 1..20),
    ) {
        let mut stream = Vec::new();
        for text in &frames {
            stream.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
            stream.extend_from_slice(text);
        }
        stream.extend_from_slice(&tail);
        let (expected, fails) = oracle(&stream);
        let (mut sender, receiver) = pair();
        let mut reader = FrameReader::new();
        let (mut texts, mut failed, mut ended) = (Vec::new(), false, false);
        let (mut at, mut sizes, mut sender_open) = (0, pieces.iter().cycle(), true);
        while !failed && !ended {
            if at < stream.len() {
                let end = stream.len().min(at + sizes.next().unwrap());
                sender.write_all(&stream[at..end]).unwrap();
                at = end;
            } else if sender_open {
                sender.shutdown(std::net::Shutdown::Write).unwrap();
                sender_open = false;
            }
            match reader.read(&receiver) {
                Ok(Progress::Ready(frame)) => texts.push(frame.text),
                Ok(Progress::Blocked) => prop_assert!(sender_open),
                Ok(Progress::Closed) => ended = true,
                Err(_) => failed = true,
            }
        }
        prop_assert_eq!(texts, expected);
        prop_assert_eq!(failed, fails);
    }

    #[test]
    fn no_text_makes_the_decoder_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<crate::message::ClientFrame>(&text);
        let _ = decode::<crate::message::ServerFrame>(&text);
    }
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    let text = vec![b'['; MAX_FRAME];
    assert!(matches!(decode::<crate::message::ClientFrame>(&text), Err(FrameError::Text(_))));
}

/// What a decoder says of a text quotes it: a log line of it stays one line, and short.
#[test]
fn an_error_about_a_text_is_one_short_line_without_control_characters() {
    let name = format!("\n\u{1b}[2J\u{9b}FORGED{}", "X".repeat(60_000));
    for request in [serde_json::json!(name), serde_json::json!({ name: 1 })] {
        let text = serde_json::json!({ "id": 1, "request": request }).to_string();
        let error = decode::<crate::message::ClientFrame>(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("FORGED") && error.len() < 600, "{} bytes: {error:.600}", error.len());
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn descriptors_arrive_with_their_own_frame_among_any_others() {
    let (sender, receiver) = pair();
    let mut reader = FrameReader::new();
    for round in 0..3 {
        let (pipe_read, pipe_write) = rustix::pipe::pipe().unwrap();
        let descriptors = if round == 1 { vec![pipe_read, pipe_write] } else { vec![] };
        let mut writer = FrameWriter::new(encode(&round).unwrap(), descriptors).unwrap();
        assert!(matches!(writer.write(&sender).unwrap(), Progress::Ready(())));
    }
    for round in 0..3 {
        let Progress::Ready(frame) = reader.read(&receiver).unwrap() else { panic!("no frame") };
        assert_eq!(decode::<i32>(&frame.text).unwrap(), round);
        assert_eq!(frame.descriptors.len(), if round == 1 { 2 } else { 0 });
        for descriptor in &frame.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}

#[test]
fn a_frame_larger_than_the_socket_buffer_crosses_in_pieces_with_its_descriptors_once() {
    let (sender, receiver) = pair();
    sender.set_nonblocking(true).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 4096).unwrap();
    let text = "x".repeat(MAX_FRAME - 2);
    let (_, pipe_write) = rustix::pipe::pipe().unwrap();
    let mut writer = FrameWriter::new(encode(&text).unwrap(), vec![pipe_write]).unwrap();
    let (mut reader, mut blocked) = (FrameReader::new(), 0);
    let frame = loop {
        if matches!(writer.write(&sender).unwrap(), Progress::Blocked) {
            blocked += 1;
        }
        if let Progress::Ready(frame) = reader.read(&receiver).unwrap() {
            break frame;
        }
    };
    assert!(blocked > 0, "the buffer was to be too small");
    assert_eq!(decode::<String>(&frame.text).unwrap(), text);
    assert_eq!(frame.descriptors.len(), 1);
}

/// Sends `bytes` with `count` write ends of one pipe and returns its read end: it ends when all
/// copies are closed.
fn send_with_descriptors(socket: &UnixStream, bytes: &[u8], count: usize) -> File {
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    let descriptors = vec![write_end.as_fd(); count];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(count))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    File::from(read_end)
}

#[test]
fn too_many_or_stray_descriptors_end_the_connection_and_none_stays_open() {
    let frame = encode(&"hello").unwrap();
    for count in [MAX_DESCRIPTORS + 1, 19, 64, 253] {
        let (sender, receiver) = pair();
        let mut watch = send_with_descriptors(&sender, &frame, count);
        let mut reader = FrameReader::new();
        assert!(matches!(reader.read(&receiver), Err(FrameError::TooManyDescriptors)), "{count}");
        drop((reader, sender, receiver));
        assert_eq!(watch.read(&mut [0; 1]).unwrap(), 0, "a copy of the descriptor is still open");
    }
    let (mut sender, receiver) = pair();
    sender.write_all(&frame[..HEADER]).unwrap();
    let mut reader = FrameReader::new();
    assert!(matches!(reader.read(&receiver).unwrap(), Progress::Blocked));
    let mut watch = send_with_descriptors(&sender, &frame[HEADER..], 1);
    assert!(matches!(reader.read(&receiver), Err(FrameError::StrayDescriptors)));
    drop((reader, sender, receiver));
    assert_eq!(watch.read(&mut [0; 1]).unwrap(), 0, "a copy of the descriptor is still open");
}

#[test]
fn lengths_beyond_the_bound_are_refused_before_memory_is_taken() {
    assert!(matches!(body_length([0; 4]), Err(FrameError::Empty)));
    assert!(matches!(body_length([255; 4]), Err(FrameError::TooLong { .. })));
    assert_eq!(body_length(u32::try_from(MAX_FRAME).unwrap().to_le_bytes()).unwrap(), MAX_FRAME);
    assert!(matches!(encode(&"x".repeat(MAX_FRAME)), Err(FrameError::TooLong { .. })));
}
