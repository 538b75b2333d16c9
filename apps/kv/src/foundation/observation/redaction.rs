//! Arguments that no record may show: passwords, and what Redis treats like them.

use crate::foundation::command::is;

/// The text that replaces such an argument.
const REDACTED: &[u8] = b"(redacted)";

/// Settings whose values are passwords.
const SECRET_SETTINGS: [&str; 2] = ["requirepass", "masterauth"];

/// The arguments of a command as records may show them.
pub(crate) fn redacted<'a>(command: &str, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut shown = arguments.to_vec();
    match command {
        "auth" => shown[1..].fill(REDACTED),
        "hello" => redact_hello(&mut shown),
        "acl" if is(arguments[1], "setuser") => shown[2..].fill(REDACTED),
        "config" if is(arguments[1], "set") => {
            for pair in shown[2..].chunks_exact_mut(2) {
                if SECRET_SETTINGS.iter().any(|name| is(pair[0], name)) {
                    pair[1] = REDACTED;
                }
            }
        }
        _ => {}
    }
    shown
}

/// The options of HELLO: AUTH with a user and a password, SETNAME with a name.
fn redact_hello(shown: &mut [&[u8]]) {
    let mut at = 2;
    while at < shown.len() {
        if is(shown[at], "auth") {
            let end = shown.len().min(at + 3);
            shown[at + 1..end].fill(REDACTED);
            at += 3;
        } else {
            at += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let name = line.split(' ').next().unwrap_or_default().to_ascii_lowercase();
        String::from_utf8(redacted(&name, &arguments).join(&b' ')).expect("text")
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown("AUTH secret"), "AUTH (redacted)");
        assert_eq!(shown("auth user secret"), "auth (redacted) (redacted)");
        assert_eq!(
            shown("HELLO 3 SETNAME auth AUTH user secret"),
            "HELLO 3 SETNAME auth AUTH (redacted) (redacted)"
        );
        assert_eq!(shown("HELLO 3 AUTH user"), "HELLO 3 AUTH (redacted)");
        assert_eq!(shown("ACL SETUSER bob >secret on"), "ACL SETUSER (redacted) (redacted) (redacted)");
        assert_eq!(shown("ACL DELUSER bob"), "ACL DELUSER bob");
        assert_eq!(
            shown("CONFIG SET maxmemory 1 RequirePass secret"),
            "CONFIG SET maxmemory 1 RequirePass (redacted)"
        );
        assert_eq!(shown("SET auth secret"), "SET auth secret");
    }
}
