//! The lines of MONITOR: the time, the database, the client, and the quoted arguments of a command.

/// Microseconds since 1970: the clock reading of a batch has milliseconds, and the monotonic one
/// supplies the rest.
pub(crate) fn unix_microseconds(unix_ms: u64, monotonic_ns: u64) -> u64 {
    unix_ms.saturating_mul(1000) + monotonic_ns / 1000 % 1000
}

/// The line of a command.
pub(crate) fn line(
    microseconds: u64,
    database: usize,
    peer: impl std::fmt::Display,
    arguments: &[&[u8]],
) -> Vec<u8> {
    let (seconds, rest) = (microseconds / 1_000_000, microseconds % 1_000_000);
    let mut line = format!("+{seconds}.{rest:06} [{database} {peer}]").into_bytes();
    for argument in arguments {
        line.push(b' ');
        quote(&mut line, argument);
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends an argument in quotes, as redis-cli shows strings.
fn quote(line: &mut Vec<u8>, argument: &[u8]) {
    line.push(b'"');
    for &byte in argument {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            7 => line.extend_from_slice(b"\\a"),
            8 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(byte),
            _ => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_that_of_redis() {
        let line = line(
            1_795_615_093_000_764,
            3,
            "127.0.0.1:44522",
            &[b"SET", b"a\0\xff\n\r\t\x07\x08\"\\'", b"\xc3\xa4"],
        );
        let expected =
            r#"+1795615093.000764 [3 127.0.0.1:44522] "SET" "a\x00\xff\n\r\t\a\b\"\\'" "\xc3\xa4""#;
        assert_eq!(String::from_utf8(line).expect("quoted"), format!("{expected}\r\n"));
    }
}
