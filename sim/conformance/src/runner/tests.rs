use super::*;

const OPEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 1000 <mss 1000>
+0 > S. 0:0(0) ack 1 <...>
";

fn failure(rest: &str) -> Failure {
    run(&format!("{OPEN}{rest}")).expect_err("the script is wrong on purpose")
}

#[test]
fn a_packet_that_does_not_come_is_reported_with_the_one_that_came_instead() {
    let failure = failure("+.1 > . 1:1(0) ack 1\n");
    assert_eq!(failure.line, 6);
    assert!(failure.message.contains("expected until 0.1:\n> . 1:1(0) ack 1"), "{failure}");
    assert!(failure.message.contains("but there came at 1.0\n> S. 0:0(0) ack 1"), "{failure}");
}

#[test]
fn a_difference_is_named_and_the_trace_shown() {
    let failure = failure("+1 > S. 0:0(0) ack 2 <...>\n");
    assert!(failure.message.ends_with("it acknowledges 1"), "{failure}");
    assert!(failure.trace.iter().any(|line| line.contains("< S 0:0(0) win 1000 <mss 1000>")), "{failure}");
}

#[test]
fn an_unexpected_packet_is_a_failure() {
    let early = failure("+2 close(3) = 0\n");
    assert!(early.message.contains("before it, at 1.0, this was sent and not expected"), "{early}");
    let late = run(OPEN.trim_end_matches("+0 > S. 0:0(0) ack 1 <...>\n")).expect_err("one packet is left");
    assert!(late.message.contains("the script is over"), "{late}");
}

#[test]
fn a_wrong_time_result_or_assertion_is_a_failure() {
    assert!(
        failure("+1~+2 > S. 0:0(0) ack 1 <...>\n+0 accept(3, ..., ...) = 4\n").message.contains("-1 EAGAIN")
    );
    assert!(failure("+.5~+.9 > S. 0:0(0) ack 1 <...>\n").message.contains("expected until 0.9"));
    let found = failure(
        "+0 < . 1:1(0) ack 1 win 1000\n+0 accept(3, ..., ...) = 4\n+0 %{ assert tcpi_state == 2 }%\n",
    );
    assert!(found.message.contains("tcpi_state is 1"), "{found}");
}

#[test]
fn a_call_that_waits_returns_when_it_can() {
    run(&format!(
        "{OPEN}+0...0.2 accept(3, ..., ...) = 4\n+.2 < . 1:1(0) ack 1 win 1000\n+0...0.3 read(4, ..., 9) = 5\n\
         +.3 < P. 1:6(5) ack 1 win 1000\n+.04 > . 6:6(0) ack 6\n"
    ))
    .expect_err("the last acknowledgement has the wrong number");
}
