use super::*;

fn events(text: &str) -> Vec<Event> {
    Script::parse(text).expect("the script is sound").events
}

#[test]
fn times_are_exact_in_all_their_forms() {
    let text = "0 close(3) = 0\n+.1 close(3) = 0\n0.2~0.25 > R 0:0(0)\n+0~+.000000001 > R 0:0(0)\n* > R 0:0(0)\n\
                +0...0.5 read(3, ..., 1) = 1";
    let all = events(text);
    let times: Vec<When> = all.iter().map(|event| event.when).collect();
    assert_eq!(
        times,
        [
            When::Absolute(0),
            When::Relative(100_000_000),
            When::AbsoluteRange(200_000_000, 250_000_000),
            When::RelativeRange(0, 1),
            When::Any,
            When::Relative(0),
        ]
    );
    let Action::Call(call) = &all[5].action else { panic!("a call") };
    assert_eq!(call.until, Some(500_000_000));
}

#[test]
fn a_segment_keeps_every_field() {
    let all =
        events("+0 < :5001 [ect0] SEW. 5:8(3) ack 9 win 10 <mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 7>");
    let Action::Inject(packet) = &all[0].action else { panic!("a packet") };
    assert_eq!((packet.peer, packet.ecn.as_slice()), (Some(5001), &[2][..]));
    let Content::Tcp(segment) = &packet.content else { panic!("a segment") };
    assert_eq!((segment.flags, segment.seq, segment.length), (0x02 | 0x40 | 0x80 | 0x10, 5, 3));
    assert_eq!((segment.ack, segment.window), (Some(9), Some(10)));
    assert_eq!(segment.options.as_ref().map(Vec::len), Some(5));
}

#[test]
fn calls_take_names_lists_and_errors() {
    let all = events("0 poll([{fd=3, events=POLLIN|POLLOUT, revents=0}], 1, 0) = -1 EAGAIN (Try again)");
    let Action::Call(call) = &all[0].action else { panic!("a call") };
    assert_eq!(call.result, Value::Integer(-1));
    assert_eq!(call.errno.as_deref(), Some("EAGAIN"));
    assert!(matches!(&call.arguments[0], Value::List(entries) if entries.len() == 1));
}

#[test]
fn a_script_with_a_mistake_is_refused_with_its_line() {
    let cases = [
        ("\n0 < S 0:5(0) win 1", "line 2: 0 bytes from 0 on do not end at 5"),
        ("0 < X 0:0(0)", "line 1: there is no flag `X`"),
        ("0 > . 0:0(0)", "line 1: a segment has an `ack` if it has the flag `.`, and only then"),
        ("0 socket(AF_NONE) = 3", "line 1: the name `AF_NONE` is not known"),
        ("--speed=1", "line 1: there is no option `--speed` with the value `1`"),
        ("0 %{ print(1) }%", "line 1: `print(1)` is not `assert name operator number`"),
        ("0 socket(", "line 1: the script ends in the middle"),
    ];
    for (text, message) in cases {
        assert_eq!(Script::parse(text).expect_err(text).to_string(), message);
    }
}
