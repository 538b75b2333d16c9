//! The password that the store starts with, from a file.

use std::path::PathBuf;

use crate::server::Error;
use crate::shard::Shard;

/// The environment variable that names the password file. Its content, without the line end, is the
/// initial `requirepass` of the default user.
const PASSWORD_FILE: &str = "SIETCH_KV_PASSWORD_FILE";

/// Makes the content of the password file the password of the default user.
pub(super) fn require_password(shards: &mut [Box<Shard>]) -> Result<(), Error> {
    let Some(path) = std::env::var_os(PASSWORD_FILE) else { return Ok(()) };
    let path = PathBuf::from(path);
    let password = std::fs::read(&path).map_err(|cause| Error::Password { path: path.clone(), cause })?;
    let password = password.trim_ascii_end();
    if password.is_empty() {
        let cause = std::io::Error::other("it is empty");
        return Err(Error::Password { path, cause });
    }
    shards.iter_mut().for_each(|shard| shard.require_password(password));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::process::Command;

    use super::*;
    use crate::foundation::settings::Settings;
    use crate::shard::Now;

    /// The environment is a process's: this test runs itself again with the variable.
    #[test]
    fn the_password_file_sets_requirepass_at_the_start() {
        const AGAIN: &str = "SIETCH_KV_TEST_PASSWORD";
        if let Ok(expected) = std::env::var(AGAIN) {
            let mut shards = [Box::new(Shard::new(Settings::default(), 42))];
            let read = require_password(&mut shards);
            let [mut shard] = shards;
            assert_eq!(read.is_ok(), expected != "none", "{read:?}");
            assert_eq!(shard.is_protected(), !matches!(&*expected, "none" | "unset"));
            if shard.is_protected() {
                let address = SocketAddr::from(([127, 0, 0, 1], 9));
                let client = shard.connect(address, address, Now::default()).expect("the first client");
                let commands = format!("GET a\r\nAUTH wrong\r\nAUTH {expected}\r\nGET a\r\n");
                shard.feed(client, commands.as_bytes(), Now::default());
                shard.seal(0);
                let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
                let lines: Vec<&str> = reply.lines().collect();
                assert!(lines[0].starts_with("-NOAUTH") && lines[1].starts_with("-WRONGPASS"), "{reply}");
                assert_eq!(lines[2..], ["+OK", "$-1"]);
            }
            return;
        }
        let directory = std::env::temp_dir();
        let path = directory.join(format!("sietch-kv-password-{}", std::process::id()));
        let again = |content: Option<&str>, expected: &str| {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args([
                "--exact",
                "server::run::password::tests::the_password_file_sets_requirepass_at_the_start",
            ]);
            command.env(AGAIN, expected).env_remove(PASSWORD_FILE);
            if let Some(content) = content {
                std::fs::write(&path, content).expect("a temporary file");
                command.env(PASSWORD_FILE, &path);
            }
            let output = command.output().expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("1 passed"), "{expected}: {text}");
        };
        again(Some("secret\n"), "secret");
        again(Some("\n"), "none");
        again(None, "unset");
        std::fs::remove_file(&path).expect("it was written");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args([
            "--exact",
            "server::run::password::tests::the_password_file_sets_requirepass_at_the_start",
        ]);
        command.env(AGAIN, "none").env(PASSWORD_FILE, &path);
        assert!(command.output().expect("it starts").status.success(), "a file that is not there");
    }
}
