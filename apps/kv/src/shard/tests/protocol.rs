//! Replies to requests that arrive in pieces.

use super::*;

#[test]
fn a_command_may_arrive_byte_by_byte() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for byte in b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" {
        bench.shard.feed(client, &[*byte], bench.now);
    }
    assert_eq!(bench.output(client), "+OK\r\n$5\r\nhello\r\n");
}
