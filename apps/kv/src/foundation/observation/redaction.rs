//! Arguments that no record may show: passwords, and what Redis treats like them.

use crate::foundation::command::is;
use crate::foundation::text::number::parse_integer;

/// The text that replaces such an argument.
const REDACTED: &[u8] = b"(redacted)";

/// Parts of the names of settings whose values are passwords: `requirepass`, `masterauth`,
/// `tls-key-file-pass`, and what a client may write instead.
const SECRET_SETTINGS: [&[u8]; 2] = [b"pas", b"auth"];

/// Subcommands of ACL whose arguments are no rules.
const WITHOUT_RULES: [&str; 7] = ["cat", "deluser", "getuser", "help", "list", "users", "whoami"];

/// The arguments of a command as records may show them. A command that is refused for its arguments
/// is recorded, too: what is not known to be harmless may be a password at the wrong place.
pub(crate) fn redacted<'a>(command: &str, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut shown = arguments.to_vec();
    let subcommand = arguments.get(1).copied().unwrap_or_default();
    match command {
        "auth" => shown[1..].fill(REDACTED),
        "hello" => redact_hello(&mut shown[1..]),
        "acl" if WITHOUT_RULES.iter().any(|name| is(subcommand, name)) => {}
        "acl" if is(subcommand, "setuser") => shown[2..].fill(REDACTED),
        "acl" => shown[1..].fill(REDACTED),
        "config" if !is(subcommand, "get") => {
            for (name, value) in std::iter::zip(arguments, &mut shown[1..]) {
                if is_secret_setting(name) {
                    *value = REDACTED;
                }
            }
        }
        _ => {}
    }
    shown
}

fn is_secret_setting(name: &[u8]) -> bool {
    let lowered = name.to_ascii_lowercase();
    SECRET_SETTINGS.iter().any(|part| lowered.windows(part.len()).any(|window| window == *part))
}

/// The arguments of HELLO: a version, and the options AUTH with a user and a password, and SETNAME
/// with a name. A client may forget the version.
fn redact_hello(shown: &mut [&[u8]]) {
    let mut at = usize::from(shown.first().is_some_and(|version| parse_integer(version).is_some()));
    while at < shown.len() {
        if is(shown[at], "setname") {
            at += 2;
            continue;
        }
        let is_auth = is(shown[at], "auth");
        let end = if is_auth { shown.len().min(at + 3) } else { shown.len() };
        shown[at + usize::from(is_auth)..end].fill(REDACTED);
        at = end;
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
        assert_eq!(shown("CONFIG GET requirepass maxmemory"), "CONFIG GET requirepass maxmemory");
        assert_eq!(shown("HELLO 3 SETNAME me"), "HELLO 3 SETNAME me");
    }

    #[test]
    fn passwords_at_a_wrong_place_are_not_shown() {
        for line in [
            "AUTH user secret more",
            "HELLO AUTH user secret",
            "hello auth user secret setname me",
            "HELLO 3x AUTH user secret",
            "HELLO user secret",
            "HELLO 3 user secret",
            "HELLO 3 ATUH user secret",
            "HELLO 3 AUTH user mine secret",
            "HELLO 3 SETNAME AUTH user secret",
            "HELLO SETNAME me user secret",
            "ACL SETUSR bob >secret",
            "acl setuser >secret",
            "ACL secret",
            "CONFIG SET requirepass secret more",
            "CONFIG SET maxmemory RequirePass secret",
            "config ste requirepass secret",
            "CONFIG requirepass secret",
            "CONFIG SET MasterAuth secret",
            "CONFIG SET tls-key-file-pass secret",
            "CONFIG SET requirepas secret",
        ] {
            assert!(!shown(line).contains("secret"), "{line}: {}", shown(line));
        }
        assert_eq!(shown("HELLO AUTH user secret"), "HELLO AUTH (redacted) (redacted)");
        for short in
            ["AUTH", "HELLO", "HELLO AUTH", "HELLO 3 SETNAME", "ACL", "ACL SETUSER", "CONFIG", "CONFIG SET"]
        {
            assert_eq!(shown(short), short);
        }
    }
}
