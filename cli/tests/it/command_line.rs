//! The `sietch` command in a shell, where no daemon is needed.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn sietch(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
    command.args(arguments).env_remove("SIETCH_SOCKET").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    sietch(arguments).output().expect("start sietch")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// An empty folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("make a folder");
        Self(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn doctor_reports_the_machine_in_text_and_json() {
    let folder = Folder::new("doctor");
    let data = folder.join("data");
    let output = run(&["doctor", "--json", "--data", &data]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(matches!(report["network"].as_str(), Some("af_xdp" | "linux")), "{report}");
    let checks = report["checks"].as_array().expect("a list");
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).expect(name);
    for name in ["kernel", "privileges", "AF_XDP", "io_uring", "O_DIRECT", "data directory", "redis-cli"] {
        let check = named(name);
        assert_eq!(check["fix"].is_null(), check["verdict"] == "ok", "{check}");
    }
    // `doctor` changes nothing.
    assert!(!folder.0.join("data").exists());
    assert_eq!(std::fs::read_dir(&folder.0).expect("read").count(), 0);

    let plain = text(&run(&["doctor", "--data", &data]).stdout);
    assert!(plain.contains("O_DIRECT"), "{plain}");
    assert!(!plain.contains('\x1b'), "colours although no terminal: {plain:?}");
}

#[test]
fn doctor_fails_where_not_even_the_fallback_can_run() {
    let output = run(&["doctor", "--data", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(printed.contains("broken") && printed.contains("--data DIR"), "{printed}");
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("durability"), "{shell}");
    }
    let folder = Folder::new("man");
    let pages = folder.join("man1");
    assert!(run(&["man", &pages]).status.success());
    for page in ["sietch.1", "sietch-up.1", "sietch-stat.1"] {
        let written = std::fs::read_to_string(folder.0.join("man1").join(page)).expect(page);
        assert!(written.contains(".TH"), "{page}");
    }
}

#[test]
fn without_a_daemon_every_command_explains_how_to_start_one() {
    let folder = Folder::new("clients");
    let socket = folder.join("none.sock");
    for words in [&["status"][..], &["stat"], &["revoke", "kv"], &["restore", "kv"], &["reload"], &["down"]] {
        let output = run(&[&["--socket", &socket], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let printed = text(&output.stderr);
        assert!(printed.contains("sietch up") && printed.contains("none."), "{words:?}: {printed}");
        assert!(!printed.contains("panicked"), "{printed}");
    }
}

#[test]
fn a_wrong_command_line_is_refused_with_status_2_before_anything_is_touched() {
    for words in [
        &["up", "--durability", "sometimes"][..],
        &["up", "--port", "0"],
        &["up", "--maxmemory", "much"],
        &["up", "--shards", "0"],
        &["kv", "--shards", "65"],
        &["up", "--listen", "somewhere"],
        &["up", "--detach", "--foreground"],
        &["kv", "--run-as", "0:0"],
        &["stat", "--watch", "0"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn a_closed_output_pipe_is_not_a_failure() {
    let mut child = sietch(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut first = String::new();
    // The reader closes the pipe early. The completions may or may not fit in a pipe: both are
    // fine.
    BufReader::with_capacity(16, child.stdout.take().expect("a pipe")).read_line(&mut first).expect("read");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn running_as_another_user_needs_root() {
    if rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED running_as_another_user_needs_root: needs an ordinary user");
        return;
    }
    let output = run(&["kv", "--run-as", "65534:65534"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("needs root"));
}

#[test]
fn a_service_does_not_outlive_a_supervisor_that_has_already_ended() {
    // Process 1 is not the supervisor here: the parent is this test.
    for service in ["kv", "daemon"] {
        let output = run(&[service, "--parent", "1"]);
        assert_eq!(output.status.code(), Some(1), "{service}");
        assert!(text(&output.stderr).contains("supervisor"), "{service}");
    }
}

#[test]
fn an_unreadable_configuration_is_named() {
    let folder = Folder::new("configuration");
    let file = folder.join("sietch.toml");
    std::fs::write(&file, "[[vnic]\nname = 1").expect("write");
    let (socket, data) = (folder.join("s.sock"), folder.join("data"));
    let output = run(&["--socket", &socket, "up", "--config", &file, "--data", &data]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr).replace(['\n', '\u{2502}', ' '], "");
    assert!(printed.contains("sietch.toml"), "{printed}");
    assert!(!folder.0.join("data").exists());
}

#[test]
fn a_path_that_is_mistyped_is_refused_and_nothing_is_made() {
    let folder = Folder::new("mistyped");
    let (socket, file) = (folder.join("run/s.sock"), folder.join("sietch.toml"));
    std::fs::write(&file, "").expect("write");
    let missing = [
        ["--config", &folder.join("none.toml"), "--data", &folder.join("data")],
        ["--config", &file, "--data", &folder.join("none/data")],
    ];
    for (words, fix) in missing.iter().zip(["leave the option out", "make the folder above it first"]) {
        for command in ["up", "daemon"] {
            let output = run(&[&["--socket", &socket, command], &words[..]].concat());
            assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
            let printed = text(&output.stdout) + &text(&output.stderr);
            assert!(printed.contains(&folder.join("none")) && printed.contains(fix), "{command}: {printed}");
            let made = std::fs::read_dir(&folder.0).expect("read").count();
            assert_eq!(made, 1, "{command} has made something beside sietch.toml");
        }
    }
}

/// A file that holds a store's area with a few records, closed cleanly.
fn area(path: &str) {
    use sietch::persist::{FormatOptions, Log, Options};
    const SIZE: u64 = 1 << 20;
    let path = std::path::Path::new(path);
    sietch::disk::area::create(path, SIZE, &mut |_| {}).expect("make an area");
    let file = sietch::disk::area::open(path, SIZE).expect("open it");
    let mut disk = sietch::disk::open_area(file, SIZE).expect("a queue");
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("just formatted");
    for number in 0..50u8 {
        let mut record = vec![sietch_kv::journal::EFFECTS];
        sietch_kv::journal::encode(&mut record, 0, &[b"SET", &[number], b"value"]);
        log.append(&record).expect("there is room");
    }
    log.close().expect("the disk works");
}

#[test]
fn an_area_is_checked_and_the_exit_status_reports_its_state() {
    let folder = Folder::new("kv-check");
    let file = folder.join("area");
    area(&file);
    let output = run(&["kv", "check", &file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("50 log records and 0 snapshot records, 50 effects"), "{output:?}");
    let before = std::fs::read(&file).expect("read");

    // The third record: 40 bytes of header, 12 of payload, 4 of padding each.
    let (place, mut bytes) = (16_384 + 2 * 56, before.clone());
    bytes[place + 45] ^= 4;
    std::fs::write(&file, &bytes).expect("write");
    let output = run(&["kv", "check", &file, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["verdict"], "damaged", "{report}");
    assert_eq!(report["finding"]["offset"], place, "{report}");
    assert_eq!(report["finding"]["sequence"], 3, "{report}");
    assert_eq!(report["finding"]["acknowledged_data_lost"], true, "{report}");
    let printed = text(&run(&["kv", "check", &file]).stdout);
    assert!(printed.contains(&format!("where: offset {place}, sequence 3")), "{printed}");
    assert_eq!(std::fs::read(&file).expect("read"), bytes, "a check writes nothing");

    // Held by a store; truncated; something else; missing.
    std::fs::write(&file, &before).expect("write");
    let held = sietch::disk::area::open(std::path::Path::new(&file), 1 << 20).expect("open it");
    let output = run(&["kv", "check", &file]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("another process is using it"), "{output:?}");
    drop(held);
    std::fs::write(&file, &before[..10_000]).expect("write");
    assert_ne!(run(&["kv", "check", &file]).status.code(), Some(0));
    std::fs::write(&file, vec![0; 1 << 20]).expect("write");
    let output = run(&["kv", "check", &file]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let (socket, missing) = (folder.join("s.sock"), folder.join("missing"));
    let output = run(&["--socket", &socket, "kv", "check", &missing]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("missing: there is no such file"), "{output:?}");
    std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n").expect("write");
    for (other, what) in [(file.as_str(), "a file of 32 bytes"), (&folder.join("."), "a folder")] {
        let output = run(&["--socket", &socket, "kv", "check", other]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(&format!("{what}, and no store's area")), "{output:?}");
    }
}
