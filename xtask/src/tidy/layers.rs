//! Imports between crates run downwards only (ARCHITECTURE.md, "Workspace and layers").

use crate::sources::SourceFile;

/// A crate of the workspace: its name, the path of its manifest, its layer (higher may use lower).
const CRATES: [(&str, &str, u32); 28] = [
    ("sietch-structures", "foundation/structures/Cargo.toml", 0),
    ("sietch-ring", "foundation/ring/Cargo.toml", 0),
    ("sietch-protocol", "foundation/protocol/Cargo.toml", 0),
    ("sietch-nic", "device/nic/Cargo.toml", 1),
    ("sietch-disk", "device/disk/Cargo.toml", 1),
    ("sietch-socket", "device/socket/Cargo.toml", 1),
    ("sietch-net", "dataplane/net/Cargo.toml", 2),
    ("sietch-persist", "dataplane/persist/Cargo.toml", 2),
    ("sietch-fs", "dataplane/fs/Cargo.toml", 2),
    ("sietch-fs-oracle", "dataplane/fs/oracle/Cargo.toml", 3),
    ("sietch-stream", "dataplane/stream/Cargo.toml", 2),
    ("sietch-volume", "control/volume/Cargo.toml", 2),
    ("sietch-service", "dataplane/service/Cargo.toml", 3),
    ("sietch-fuse", "api/fuse/Cargo.toml", 3),
    ("sietch", "api/sietch/Cargo.toml", 3),
    ("sietch-posix", "api/posix/Cargo.toml", 3),
    ("sietch-posix-preload", "api/posix/preload/Cargo.toml", 4),
    ("sietch-daemon", "control/daemon/Cargo.toml", 4),
    ("sietch-kv", "apps/kv/Cargo.toml", 4),
    ("sietch-kv-programs", "apps/kv/programs/Cargo.toml", 7),
    ("sietch-cli", "cli/Cargo.toml", 5),
    ("sietch-bench", "bench/Cargo.toml", 6),
    ("sietch-sim", "sim/Cargo.toml", 6),
    ("sietch-conformance", "sim/conformance/Cargo.toml", 6),
    ("sietch-packetdrill", "sim/packetdrill/Cargo.toml", 7),
    ("sietch-fuzz", "sim/fuzz/Cargo.toml", 7),
    ("sietch-posix-oracle", "api/posix/oracle/Cargo.toml", 6),
    ("xtask", "xtask/Cargo.toml", 6),
];

/// Crates that one may never link, whatever their layers: the daemon is never on a data path.
const FORBIDDEN: [(&str, &str); 3] =
    [("sietch-daemon", "sietch-net"), ("sietch-daemon", "sietch-persist"), ("sietch-daemon", "sietch")];

/// Reports every dependency that runs up, or sideways, and every crate that has no layer.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for source in sources.iter().filter(|source| source.path.ends_with("/Cargo.toml")) {
        let Some((name, _, layer)) = CRATES.iter().find(|(_, path, _)| *path == source.path) else {
            findings.push(format!(
                "{}:1: a crate without a layer; give it one in xtask/src/tidy/layers.rs",
                source.path
            ));
            continue;
        };
        for (line, dependency) in dependencies(&source.text) {
            let Some((_, _, below)) = CRATES.iter().find(|(other, _, _)| *other == dependency) else {
                continue;
            };
            let forbidden = FORBIDDEN.contains(&(*name, dependency));
            if below >= layer || forbidden {
                findings.push(format!(
                    "{}:{line}: {name} may not use {dependency}; imports run downwards only",
                    source.path
                ));
            }
        }
    }
}

/// `(line, crate)` of each entry of the `[dependencies]` tables. Development dependencies are free:
/// the simulator and the oracles are used by tests alone.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-");
        } else if inside {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') {
                found.push((index + 1, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&[SourceFile { path: path.into(), text: text.into() }], &mut findings);
        findings
    }

    #[test]
    fn imports_that_run_up_and_crates_without_a_layer_are_found() {
        let up = findings("device/nic/Cargo.toml", "[dependencies]\nsietch-net.workspace = true\n");
        // The layer of the daemon is above that of the engine, which it may not link nevertheless.
        let engine = findings("control/daemon/Cargo.toml", "[dependencies]\nsietch-net.workspace = true\n");
        let new = findings("device/new/Cargo.toml", "");
        insta::assert_snapshot!([up, engine, new].concat().join("\n"), @r"
        device/nic/Cargo.toml:2: sietch-nic may not use sietch-net; imports run downwards only
        control/daemon/Cargo.toml:2: sietch-daemon may not use sietch-net; imports run downwards only
        device/new/Cargo.toml:1: a crate without a layer; give it one in xtask/src/tidy/layers.rs
        ");
    }

    #[test]
    fn imports_that_run_down_and_those_of_tests_are_free() {
        let text =
            "[dependencies]\nsietch-ring.workspace = true\n[dev-dependencies]\nsietch-sim.workspace = true\n";
        assert!(findings("device/nic/Cargo.toml", text).is_empty());
    }
}
