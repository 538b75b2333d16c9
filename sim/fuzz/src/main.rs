//! Gives files to a target, without a fuzzer: `cargo run -p sietch-fuzz TARGET FILE...`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, files)) = arguments.split_first().filter(|(_, files)| !files.is_empty()) else {
        let names: Vec<&str> = sietch_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: sietch-fuzz TARGET FILE...; targets: {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    let Some(target) = sietch_fuzz::target(name) else {
        eprintln!("{name}: there is no such target");
        return ExitCode::FAILURE;
    };
    for file in files {
        match std::fs::read(file) {
            Ok(bytes) => target(&bytes),
            Err(cause) => {
                eprintln!("{file}: {cause}");
                return ExitCode::FAILURE;
            }
        }
        println!("{file}: no failure");
    }
    ExitCode::SUCCESS
}
