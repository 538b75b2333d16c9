//! Requests in pieces, foreign bytes, limits; replies of both protocol versions.
//!
//! The parser of commands in pieces and the reader of whole pipelines must read the same commands
//! from the same bytes.

use proptest::prelude::*;

use super::*;
use crate::foundation::protocol::Fault;

const LIMITS: Limits = Limits { bulk: 1 << 20, authenticated: true };

fn multibulk(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Feeds `pieces` one after the other as the shard does, and returns the commands or the error.
fn parse(pieces: &[&[u8]]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let mut parser = Parser::default();
    let mut input = Vec::new();
    let mut commands = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut used = 0;
        loop {
            match parser.next(&input[used..], LIMITS)? {
                Progress::More => break,
                Progress::Nothing(length) => used += length,
                Progress::Command(length) => {
                    let arguments = parser.arguments(&input[used..]);
                    commands.push(arguments.iter().map(<[u8]>::to_vec).collect());
                    used += length;
                }
            }
        }
        input.drain(..used);
    }
    Ok(commands)
}

/// `bytes` cut at these places.
fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn batch_of(input: &[u8]) -> PipelineBatch<'_> {
    let mut batch = PipelineBatch::new();
    batch.read(input);
    batch
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..8),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| multibulk(command)).collect();
        prop_assert_eq!(parse(&cut(&bytes, &cuts)), Ok(commands));
    }

    #[test]
    fn hostile_bytes_in_pieces_read_like_the_whole(
        bytes in prop::collection::vec(
            prop::sample::select(b"*$\r\n0123456789-ab\"'\\x ".to_vec()), 0..200),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
    ) {
        let whole = parse(&[&bytes]);
        let pieces = parse(&cut(&bytes, &cuts));
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        let _ = parse(&[&bytes]);
    }
}

fn error(bytes: &[u8]) -> String {
    parse(&[bytes]).expect_err("it breaks the protocol").0
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    assert_eq!(error(b"*abc\r\n"), "ERR Protocol error: invalid multibulk length");
    assert_eq!(error(b"*99999999999\r\n"), "ERR Protocol error: invalid multibulk length");
    assert_eq!(error(b"*1\r\nfoo\r\n"), "ERR Protocol error: expected '$', got 'f'");
    assert_eq!(error(b"*1\r\n$-2\r\n"), "ERR Protocol error: invalid bulk length");
    assert_eq!(error(b"*1\r\n$99999999\r\n"), "ERR Protocol error: invalid bulk length");
    assert_eq!(error(b"get \"a\r\n"), "ERR Protocol error: unbalanced quotes in request");
    assert_eq!(error(b"get \"a\"b\r\n"), "ERR Protocol error: unbalanced quotes in request");
    assert_eq!(error(&[b'a'; 70_000]), "ERR Protocol error: too big inline request");
    let header: Vec<u8> = b"*".iter().copied().chain([b'1'; 70_000]).collect();
    assert_eq!(error(&header), "ERR Protocol error: too big mbulk count string");
    let header: Vec<u8> = b"*1\r\n$".iter().copied().chain([b'1'; 70_000]).collect();
    assert_eq!(error(&header), "ERR Protocol error: too big bulk count string");
}

#[test]
fn inline_commands_are_unquoted() {
    let commands = parse(&[b"  set  \"a b\\x41\\n\" 'it\\'s' \r\n\r\nPING\n"]).expect("legal");
    assert_eq!(
        commands,
        [vec![b"set".to_vec(), b"a bA\n".to_vec(), b"it's".to_vec()], vec![b"PING".to_vec()]]
    );
}

#[test]
fn empty_commands_are_passed_over() {
    assert_eq!(parse(&[b"*0\r\n*-1\r\n\r\n*1\r\n$4\r\nPING\r\n"]), Ok(vec![vec![b"PING".to_vec()]]));
}

#[test]
fn a_great_header_allocates_nothing() {
    let mut parser = Parser::default();
    assert_eq!(parser.next(b"*1048576\r\n", LIMITS), Ok(Progress::More));
    assert!(parser.memory() < 1024);
}

fn written(resp3: bool, write: impl FnOnce(&mut Reply)) -> String {
    let mut reply = Reply::new(Vec::new(), resp3);
    write(&mut reply);
    String::from_utf8(reply.bytes).expect("all of these are ASCII")
}

#[test]
fn replies_follow_the_protocol_version() {
    assert_eq!(written(false, Reply::nil), "$-1\r\n");
    assert_eq!(written(true, Reply::nil), "_\r\n");
    assert_eq!(written(false, |reply| reply.map(2)), "*4\r\n");
    assert_eq!(written(true, |reply| reply.map(2)), "%2\r\n");
    assert_eq!(written(false, |reply| reply.double(1.5)), "$3\r\n1.5\r\n");
    assert_eq!(written(true, |reply| reply.double(1.5)), ",1.5\r\n");
    assert_eq!(written(true, |reply| reply.verbatim(b"a")), "=5\r\ntxt:a\r\n");
    assert_eq!(written(false, |reply| reply.integer(i64::MIN)), ":-9223372036854775808\r\n");
    assert_eq!(written(false, |reply| reply.error(&Fault::of("ERR a\r\nb"))), "-ERR a  b\r\n");
}

#[test]
fn a_deferred_header_stands_before_its_elements() {
    let text = written(false, |reply| {
        reply.ok();
        let header = reply.defer();
        reply.integer(1);
        reply.integer(2);
        reply.fill(header, 2);
    });
    assert_eq!(text, "+OK\r\n*2\r\n:1\r\n:2\r\n");
}

proptest! {
    /// What is read ahead is what the parser reads, command by command; it may stop earlier.
    #[test]
    fn the_batch_reader_and_the_parser_read_the_same_commands(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1200), 1..12), 1..20),
        noise in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        damaged in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut input = Vec::new();
        for command in &commands {
            input.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for argument in command {
                input.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                input.extend_from_slice(argument);
                input.extend_from_slice(b"\r\n");
            }
        }
        if damaged {
            let at = noise.index(input.len());
            input[at] = byte;
        }
        input.truncate(cut.index(input.len() + 1));
        let ahead = batch_of(&input);
        let mut parser = Parser::default();
        let mut used = 0;
        for (arguments, end) in ahead.commands() {
            let progress = parser.next(&input[used..], Limits { bulk: 1 << 20, authenticated: true });
            prop_assert_eq!(progress, Ok(Progress::Command(end - used)));
            let read: Vec<&[u8]> = parser.arguments(&input[used..]).iter().collect();
            prop_assert_eq!(arguments, &read[..]);
            used = end;
        }
        prop_assert!(ahead.len() <= 16 && (ahead.len() == 0) == (used == 0));
    }
}

#[test]
fn an_ordinary_pipeline_is_read_at_once() {
    let input = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000001\r\n".repeat(16);
    assert_eq!(batch_of(&input).len(), 16);
    let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n".repeat(20);
    assert_eq!(batch_of(&input).len(), 16);
    // Cut off in the last one.
    assert_eq!(batch_of(&input[..input.len() / 20 * 3 - 1]).len(), 2);
}
